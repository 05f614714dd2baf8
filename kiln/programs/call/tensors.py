"""Tensors in the format of safetensors: a header of JSON, then the elements.

    8 bytes        length of the header, little-endian
    header         {"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
    data           elements in row-major order

Every field of a header is checked; data must be covered without gaps or overlaps: a file that aligns its tensors names
the bytes between them. Complex numbers are pairs of floats.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import cast, final

import torch

from kiln.programs.call.errors import DamagedProgram, NotSavable
from kiln.programs.call.fields import LARGEST, LARGEST_RANK, Fields, Json, read_json
from kiln.support.records import dataclass
from kiln.tensor.content import element_view
from kiln.tensor.spec import TensorSpec

# fmt: off
NAMES: dict[torch.dtype, str] = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.uint16: "U16",
    torch.int32: "I32", torch.uint32: "U32", torch.int64: "I64", torch.uint64: "U64", torch.float16: "F16",
    torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
# fmt: on
DTYPES = {name: dtype for dtype, name in NAMES.items()}


PADDING = "(padding {})"
"""Names of the bytes between tensors in a file that aligns them."""


@final
@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a file has a tensor: bytes `start` to `end` behind the header."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


def write_tensors(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """The file of these tensors. Raises NotSavable."""
    return b"".join(tensor_file(tensors))


def tensor_file(tensors: Mapping[str, torch.Tensor], alignment: int = 1) -> Iterator[bytes | memoryview]:
    """The file, part by part; each tensor begins at a multiple of `alignment`. Raises NotSavable."""
    plain = {name: torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
             for name, tensor in tensors.items()}  # fmt: skip
    places: list[TensorPlace] = []
    end = 0
    for name, tensor in plain.items():
        if tensor.dtype not in NAMES:
            raise NotSavable(place=f"tensor `{name}`", type=str(tensor.dtype))
        if gap := -end % alignment:
            places.append(TensorPlace(PADDING.format(len(places)), torch.uint8, (gap,), end, end + gap))
        start = end + gap
        end = start + tensor.numel() * tensor.dtype.itemsize
        places.append(TensorPlace(name, tensor.dtype, tuple(tensor.shape), start, end))
    text = json.dumps({place.name: place_to_json(place) for place in places}).encode()
    text += b" " * (-(8 + len(text)) % max(8, alignment))
    yield len(text).to_bytes(8, "little") + text
    for place in places:
        yield element_view(plain[place.name]) if place.name in plain else bytes(place.end - place.start)


def place_to_json(place: TensorPlace) -> Json:
    return {"dtype": NAMES[place.dtype], "shape": list(place.shape), "data_offsets": [place.start, place.end]}


def is_within_memory(spec: TensorSpec) -> bool:
    """Whether a file may ask for this layout: one that takes memory in proportion to its elements."""
    numbers = [number for number in (*spec.sizes, *spec.strides, spec.offset) if isinstance(number, int)]
    reach, count = spec.storage_elements(), spec.numel()
    if (
        len(numbers) != 2 * spec.rank + 1
        or min(numbers) < 0
        or not isinstance(reach, int)
        or not isinstance(count, int)
    ):
        return False
    offset = numbers[-1]
    return offset <= 64 * count + (1 << 20) and reach - offset <= 4 * count + 4096


def in_memory_of(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """A copy in the layout of `spec`, in memory of its own. Raises RuntimeError where elements share memory, but
    for repetitions."""
    sizes, strides = cast(tuple[int, ...], spec.sizes), cast(tuple[int, ...], spec.strides)
    flat = torch.zeros(cast(int, spec.storage_elements()), dtype=tensor.dtype, device=spec.device)
    made = flat.as_strided(sizes, strides, cast(int, spec.offset))
    once = made
    for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        if stride == 0 and size:
            once, tensor = once.narrow(axis, 0, 1), tensor.narrow(axis, 0, 1)
    once.copy_(tensor)
    return made


def read_tensors(data: bytes) -> dict[str, torch.Tensor]:
    """Inverse of `write_tensors`; complex tensors come as pairs of floats. Raises DamagedProgram."""
    places, start = tensor_places(memoryview(data))
    body = bytearray(data[start:])
    return {place.name: stored_tensor(place, body).clone() for place in places}


def stored_tensor(place: TensorPlace, body: bytearray | memoryview) -> torch.Tensor:
    """The tensor over the memory of `body`, which must be writable."""
    count = place.end - place.start
    if not count:
        return torch.empty(place.shape, dtype=place.dtype, device="cpu")
    flat = torch.frombuffer(body, dtype=torch.uint8, count=count, offset=place.start)
    return flat.view(place.dtype).reshape(place.shape)


def tensor_places(data: memoryview) -> tuple[list[TensorPlace], int]:
    """The tensors of a file, and where its elements begin. Raises DamagedProgram."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise DamagedProgram(problem="the header of the tensors is longer than the file")
    header = read_json(bytes(data[8 : 8 + length]), "the header of the tensors")
    if not isinstance(header, dict):
        raise DamagedProgram(problem="the header of the tensors is not an object")
    size, end = len(data) - 8 - length, 0
    found: list[TensorPlace] = []
    for name, entry in header.items():
        found.append(_tensor_place(str(name), entry, end, size))
        end = found[-1].end
    if end != size:
        raise DamagedProgram(problem="the file has elements of no tensor")
    return found, 8 + length


def _tensor_place(name: str, entry: Json, start: int, size: int) -> TensorPlace:
    """The tensor of a header's entry, whose elements begin at `start` of `size` bytes."""
    fields = Fields(entry, f"tensor {name[:40]!r}")
    dtype = DTYPES[fields.choice("dtype", list(DTYPES))]
    sizes = list(fields.items("shape"))
    shape = tuple([dim for dim in sizes if isinstance(dim, int)])
    offsets = list(fields.items("data_offsets"))
    fields.finish()
    count = math.prod(shape)
    is_size = [type(dim) is int and 0 <= dim < LARGEST for dim in sizes]
    if not all(is_size) or count >= LARGEST or len(shape) > LARGEST_RANK:
        raise DamagedProgram(problem=f"tensor {name[:40]!r} has the shape {str(sizes)[:80]}")
    end = start + count * dtype.itemsize
    if offsets != [start, end] or end > size:
        raise DamagedProgram(
            problem=f"tensor {name[:40]!r} has elements at {str(offsets)[:40]}, expected {[start, end]}"
        )
    return TensorPlace(name, dtype, shape, start, end)
