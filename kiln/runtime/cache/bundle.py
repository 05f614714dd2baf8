"""Several named byte strings in one file.

    data = pack({"manifest": b"...", "library/ab12": b"..."})
    sections = unpack(data)            # {"manifest": memoryview, ...}

Layout: magic, length of the table, checksum of table and bodies, the table as JSON ([name, offset, length] rows,
offsets from the end of the table), the bodies, each aligned to 64 bytes. Equal contents are equal files.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping

from kiln.support.errors import KilnError

MAGIC = b"KILNPACK"
HEADER = struct.Struct("<8sQ16s")
ALIGNMENT = 64


class DamagedBundle(KilnError, ValueError):
    code = "KILN6001"
    what = "the bundle cannot be read"
    why = "{problem}"
    try_ = ("write it again with this version",)


def pack(sections: Mapping[str, bytes]) -> bytes:
    """The file's contents."""
    rows, body = [], bytearray()
    for name in sorted(sections):
        body += bytes(-len(body) % ALIGNMENT)
        rows.append([name, len(body), len(sections[name])])
        body += sections[name]
    table = json.dumps(rows, separators=(",", ":")).encode()
    table += b" " * (-(HEADER.size + len(table)) % ALIGNMENT)
    checksum = hashlib.blake2b(table + body, digest_size=16).digest()
    return HEADER.pack(MAGIC, len(table), checksum) + table + bytes(body)


def unpack(data: bytes) -> dict[str, memoryview]:
    """Raises DamagedBundle for anything that `pack` did not write."""
    if len(data) < HEADER.size:
        raise DamagedBundle(problem="it is too short")
    magic, length, checksum = HEADER.unpack_from(data)
    rest = memoryview(data)[HEADER.size :]
    if magic != MAGIC:
        raise DamagedBundle(problem="it does not begin like a bundle")
    if hashlib.blake2b(rest, digest_size=16).digest() != checksum or length > len(rest):
        raise DamagedBundle(problem="its checksum is wrong")
    body = rest[length:]
    return {name: body[start : start + size] for name, start, size in json.loads(bytes(rest[:length]))}
