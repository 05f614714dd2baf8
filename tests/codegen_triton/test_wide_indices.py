"""When indices of a GPU kernel need 64 bits: any single bound that may leave 32 bits is enough."""

from __future__ import annotations

import pytest

from kiln.loops.codegen.triton.signature import is_wide
from kiln.symbolic import symbol
from kiln.symbolic.ranges import Range
from tests.loop_ir.parse import parse_kernel

EDGE = (1 << 31) - (1 << 16)


def kernel(size: int, index: str) -> str:
    return f"kernel k(x: f32[{size}] -> out: f32[64]) units (i0: 64)\nphase ():\n    out[i0] = load x[{index}]"


@pytest.mark.parametrize(
    ("size", "index", "expected"),
    [
        (64, "i0", False),
        (1 << 30, "i0", False),
        (EDGE, "i0", True),
        (64, f"{1 << 31}*i0", True),
        (64, f"{1 << 31} - i0", True),
        (64, f"i0 - {1 << 31}", True),
        (64, "64 - i0", False),
    ],
)
def test_a_bound_beyond_32_bits_is_enough(size: int, index: str, expected: bool) -> None:
    assert is_wide(parse_kernel(kernel(size, index)), {symbol("i0"): Range(0, 63)}) == expected
