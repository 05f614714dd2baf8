"""Element types as a plan writes them: short names, C types, and torch's scalar-type numbers.

    torch.float32  is  "f32" in text and files,  `float` in C++ kernels,  6 in the native executor

The numbers are those of `c10::ScalarType`, which torch keeps stable because they stand in saved models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch


@final
@dataclass(frozen=True, slots=True)
class DtypeRow:
    """What the runtime knows of one dtype."""

    dtype: torch.dtype
    name: str
    number: int


# fmt: off
DTYPES = (
    #        dtype                 name      c10::ScalarType
    DtypeRow(torch.uint8,          "u8",     0),
    DtypeRow(torch.int8,           "i8",     1),
    DtypeRow(torch.int16,          "i16",    2),
    DtypeRow(torch.int32,          "i32",    3),
    DtypeRow(torch.int64,          "i64",    4),
    DtypeRow(torch.float16,        "f16",    5),
    DtypeRow(torch.float32,        "f32",    6),
    DtypeRow(torch.float64,        "f64",    7),
    DtypeRow(torch.complex32,      "c32",    8),
    DtypeRow(torch.complex64,      "c64",    9),
    DtypeRow(torch.complex128,     "c128",   10),
    DtypeRow(torch.bool,           "b8",     11),
    DtypeRow(torch.bfloat16,       "bf16",   15),
    DtypeRow(torch.float8_e5m2,    "f8e5m2", 23),
    DtypeRow(torch.float8_e4m3fn,  "f8e4m3", 24),
    DtypeRow(torch.uint16,         "u16",    27),
    DtypeRow(torch.uint32,         "u32",    28),
    DtypeRow(torch.uint64,         "u64",    29),
)
# fmt: on

NAME_OF = {row.dtype: row.name for row in DTYPES}
NUMBER_OF = {row.dtype: row.number for row in DTYPES}
DTYPE_OF_NAME = {row.name: row.dtype for row in DTYPES}
