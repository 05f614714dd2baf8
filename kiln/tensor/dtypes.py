"""Element types: their names in every text form, torch's numbers for them, and their extremes.

    torch.float32        "f32" in texts and files,  6 in the native executor
    extremes(torch.int8)        (-128, 127)
    extremes(torch.float32)     (-inf, inf)

The numbers are those of `c10::ScalarType`, which torch keeps stable because saved models contain them.
"""

from __future__ import annotations

import torch

# fmt: off
_ROWS = (
    # dtype                name      c10::ScalarType
    (torch.uint8,          "u8",     0),
    (torch.int8,           "i8",     1),
    (torch.int16,          "i16",    2),
    (torch.int32,          "i32",    3),
    (torch.int64,          "i64",    4),
    (torch.float16,        "f16",    5),
    (torch.float32,        "f32",    6),
    (torch.float64,        "f64",    7),
    (torch.complex32,      "c32",    8),
    (torch.complex64,      "c64",    9),
    (torch.complex128,     "c128",   10),
    (torch.bool,           "b8",     11),
    (torch.bfloat16,       "bf16",   15),
    (torch.float8_e5m2,    "f8e5m2", 23),
    (torch.float8_e4m3fn,  "f8e4m3", 24),
    (torch.float8_e5m2fnuz, "f8e5m2fnuz", 25),
    (torch.float8_e4m3fnuz, "f8e4m3fnuz", 26),
    (torch.uint16,         "u16",    27),
    (torch.uint32,         "u32",    28),
    (torch.uint64,         "u64",    29),
    (torch.float8_e8m0fnu, "f8e8m0fnu", 44),
)
# fmt: on

DTYPE_NAMES = {dtype: name for dtype, name, _ in _ROWS}
DTYPES_BY_NAME = {name: dtype for dtype, name, _ in _ROWS}
SCALAR_TYPE_NUMBERS = {dtype: number for dtype, _, number in _ROWS}


def extremes(dtype: torch.dtype) -> tuple[bool | int | float, bool | int | float]:
    """The least and the greatest value, infinities included: where searches for a maximum and a minimum start."""
    if dtype.is_floating_point:
        return float("-inf"), float("inf")
    if dtype == torch.bool:
        return False, True
    limits = torch.iinfo(dtype)
    return limits.min, limits.max
