"""The zip file of a package: written part by part, its weights mapped.

    with PackageWriter(file) as writer:
        writer.add("weights.safetensors", parts, length)      Part(length, digest)

    archive = open_archive(path, is_trusted=False)
    archive.read("program.bin")                               bytes
    archive.map("weights.safetensors")                        a memoryview: writing to it changes no file

Members are stored without compression and begin at multiples of 64 bytes.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import field
from typing import IO, NamedTuple, final

from kiln.packages.errors import DamagedPackage, UntrustedPackage
from kiln.packages.manifest import ALIGNMENT, DIGEST_BYTES, Part
from kiln.support.records import dataclass

DATE = (1980, 1, 1, 0, 0, 0)  # of each member: equal contents are equal files
LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Signature, lengths of the name and of the extra field."""
EXTRA = struct.Struct("<HH")
ALIGNING, LARGE_EXTRA = 0xD935, 20
"""The tag of an extra field that only takes space; bytes that zipfile itself adds for large members."""
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@final
@dataclass
class PackageWriter:
    """Adds members to a new zip file; `parts` are those added."""

    archive: zipfile.ZipFile
    parts: dict[str, Part] = field(default_factory=dict)

    def add(self, name: str, contents: Iterable[bytes | memoryview], length: int) -> None:
        info = zipfile.ZipInfo(name, DATE)
        info.file_size = length
        is_large = length > zipfile.ZIP64_LIMIT // 2
        file = self.archive.fp
        assert file is not None
        start = file.tell() + LOCAL_HEADER.size + len(name.encode()) + EXTRA.size + LARGE_EXTRA * is_large
        gap = -start % ALIGNMENT
        info.extra = EXTRA.pack(ALIGNING, gap) + bytes(gap)
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        with self.archive.open(info, "w", force_zip64=is_large) as member:
            for piece in contents:
                digest.update(piece)
                member.write(piece)
        self.parts[name] = Part(length, digest.hexdigest())

    def add_bytes(self, name: str, data: bytes) -> None:
        self.add(name, [data], len(data))


class StoredMember(NamedTuple):
    """Where a member is. `checksum`: the zip file's CRC-32, which a mapped member is not compared with."""

    start: int
    length: int
    checksum: int


@final
class PackageArchive:
    """The members of an open file: machine code is read, weights are mapped."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._places = member_places(file, size)

    def __enter__(self) -> PackageArchive:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def names(self) -> set[str]:
        return set(self._places)

    def read(self, name: str) -> bytes:
        """The bytes of a member, whose checksum is right. Raises DamagedPackage."""
        start, length, checksum = self._place(name)
        data = os.pread(self._file.fileno(), length, start)
        if len(data) != length or zlib.crc32(data) != checksum:
            raise DamagedPackage(problem=f"its member {name[:80]!r} was cut off or changed")
        return data

    def map(self, name: str) -> memoryview:
        """A member in a private mapping of the file: writing to it changes no file. Raises DamagedPackage."""
        start, length, _ = self._place(name)
        page = start - start % mmap.ALLOCATIONGRANULARITY
        if not length:
            return memoryview(bytearray())
        access = mmap.PROT_READ | mmap.PROT_WRITE
        mapped = mmap.mmap(self._file.fileno(), start - page + length, mmap.MAP_PRIVATE, access, offset=page)
        return memoryview(mapped)[start - page :]

    def _place(self, name: str) -> StoredMember:
        if name not in self._places:
            raise DamagedPackage(problem=f"it lacks the member {name[:80]!r}")
        return self._places[name]


def open_archive(path: str | os.PathLike[str], *, is_trusted: bool) -> PackageArchive:
    """Raises DamagedPackage, UntrustedPackage (if the file is not `is_trusted` for another reason), OSError."""
    file = open(path, "rb", buffering=0)  # noqa: SIM115
    try:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise DamagedPackage(problem="it is not a regular file")
        if not is_trusted:
            check_owner(facts)
        return PackageArchive(file, facts.st_size)
    except BaseException:
        file.close()
        raise


def check_owner(facts: os.stat_result) -> None:
    """Raise UntrustedPackage for a file that other users own or may write."""
    if facts.st_uid not in (os.geteuid(), 0):
        raise UntrustedPackage(problem=f"it belongs to user {facts.st_uid}")
    if facts.st_mode & OTHERS_WRITE:
        raise UntrustedPackage(problem=f"others may write it (mode {stat.S_IMODE(facts.st_mode):04o})")


def member_places(file: IO[bytes], size: int) -> dict[str, StoredMember]:
    """Of each member. Raises DamagedPackage."""
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, ValueError, struct.error) as problem:
        raise DamagedPackage(problem=f"it is not a zip file, or a part of one ({problem})") from problem
    found: dict[str, StoredMember] = {}
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 or entry.filename in found:
            raise DamagedPackage(problem=f"its member {entry.filename[:80]!r} is compressed, encrypted or there twice")
        header = b""
        if 0 <= entry.header_offset < size:
            header = os.pread(file.fileno(), LOCAL_HEADER.size, entry.header_offset)
        if len(header) < LOCAL_HEADER.size or not header.startswith(b"PK\3\4"):
            raise DamagedPackage(problem=f"its member {entry.filename[:80]!r} is not where the directory says")
        _, name, extra = LOCAL_HEADER.unpack(header)
        start = entry.header_offset + LOCAL_HEADER.size + name + extra
        if entry.file_size != entry.compress_size or start + entry.file_size > size:
            raise DamagedPackage(problem=f"its member {entry.filename[:80]!r} is longer than the file")
        found[entry.filename] = StoredMember(start, entry.file_size, entry.CRC)
    return found
