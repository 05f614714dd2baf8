"""Tensors in the format of safetensors: a header of JSON, then the elements.

    8 bytes        length of the header, little-endian
    header         {"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
    data           elements in row-major order

Every field of a header is checked; data must be covered without gaps or overlaps. Complex numbers are pairs of floats.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import torch

from kiln.programs.errors import DamagedProgram, NotSavable
from kiln.programs.fields import Fields, Json, read_json
from kiln.tensor.content import elements

# fmt: off
NAMES: dict[torch.dtype, str] = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.uint16: "U16",
    torch.int32: "I32", torch.uint32: "U32", torch.int64: "I64", torch.uint64: "U64", torch.float16: "F16",
    torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
# fmt: on
DTYPES = {name: dtype for dtype, name in NAMES.items()}
LARGEST = 1 << 48


def write_tensors(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """The file of these tensors."""
    header: dict[str, Json] = {}
    parts: list[bytes] = []
    start = 0
    for name, tensor in tensors.items():
        plain = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
        if plain.dtype not in NAMES:
            raise NotSavable(place=f"tensor `{name}`", type=str(tensor.dtype))
        data = elements(plain)
        end = start + len(data)
        header[name] = {"dtype": NAMES[plain.dtype], "shape": list(plain.shape), "data_offsets": [start, end]}
        parts.append(data)
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def read_tensors(data: bytes) -> dict[str, torch.Tensor]:
    """Inverse of `write_tensors`; complex tensors come as pairs of floats. Raises DamagedProgram."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise DamagedProgram(problem="the header of the tensors is longer than the file")
    header = read_json(data[8 : 8 + length], "the header of the tensors")
    if not isinstance(header, dict):
        raise DamagedProgram(problem="the header of the tensors is not an object")
    body = bytearray(data[8 + length :])
    found: dict[str, torch.Tensor] = {}
    covered = 0
    for name, entry in header.items():
        found[name], covered = read_tensor(str(name), entry, body, covered)
    if covered != len(body):
        raise DamagedProgram(problem="the file has elements of no tensor")
    return found


def read_tensor(name: str, entry: Json, body: bytearray, start: int) -> tuple[torch.Tensor, int]:
    """The tensor of a header's entry, whose elements begin at `start`, and where they end."""
    fields = Fields(entry, f"tensor {name[:40]!r}")
    dtype = DTYPES[fields.choice("dtype", list(DTYPES))]
    shape = [size for size in fields.items("shape") if isinstance(size, int)]
    offsets = list(fields.items("data_offsets"))
    fields.finish()
    count = math.prod(shape)
    if any(type(size) is not int or not 0 <= size < LARGEST for size in shape) or count >= LARGEST or len(shape) > 64:
        raise DamagedProgram(problem=f"tensor {name[:40]!r} has the shape {str(shape)[:80]}")
    end = start + count * dtype.itemsize
    if offsets != [start, end] or end > len(body):
        raise DamagedProgram(
            problem=f"tensor {name[:40]!r} has elements at {str(offsets)[:40]}, expected {[start, end]}"
        )
    if not count:
        return torch.empty(shape, dtype=dtype, device="cpu"), end
    flat = torch.frombuffer(body, dtype=torch.uint8, count=end - start, offset=start)
    return flat.clone().view(dtype).reshape(shape), end
