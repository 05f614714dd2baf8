"""Pointwise kernels over long rows of odd length: which kernels qualify, memory accesses, values."""

from __future__ import annotations

import re

import pytest
import torch

from kiln.loops.codegen.print_kernel import print_kernel
from kiln.loops.kernel.passes import choose_tiles, loop_rows
from kiln.loops.kernel.passes.loop_rows import with_looped_rows
from kiln.loops.kernel.text import kernel_text
from kiln.loops.kernel.verify import verify_kernel
from tests.codegen_triton.check import GPU, Runner, check_kernel
from tests.codegen_triton.test_compile import ptx_of
from tests.loop_ir.parse import parse_kernel

CENTRED = """
    kernel centred(x: bf16[64, 50257 | 50264, 1], top: f32[64] -> out: bf16[64, 50257 | 50264, 1]) units (i0: 64, i1: 50257)
        phase ():
            out[i0, i1] = convert(sub(convert(load x[i0, i1], f32), load top[i0]), bf16)
"""  # noqa: E501


def test_text() -> None:
    made = with_looped_rows(parse_kernel(CENTRED), GPU)
    verify_kernel(made)
    found = kernel_text(made).split("units ")[1]
    assert found.splitlines()[:2] == ["(i0: 64)", "    phase (i1: 50257):"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("50257", "50264"),  # vectors are full
        ("50257", "4097"),  # a block is a row
        ("64", "4"),  # too few rows
        ("load x[i0, i1]", "load x[i1, i0]"),  # columns
    ],
)
def test_left_alone(old: str, new: str) -> None:
    text = CENTRED.replace(old, new)
    if "x[i1, i0]" in new:
        text = text.replace("x: bf16[64, 50257 | 50264, 1]", "x: bf16[50257, 64]").replace(
            "out: bf16[64, 50257 | 50264, 1]", "out: bf16[64, 50257 | 1, 64]"
        )
    kernel = parse_kernel(text)
    assert with_looped_rows(kernel, GPU) is kernel


@pytest.mark.parametrize(("size", "alone"), [("4096", False), ("1024", False), ("768", True), ("1536", True)])
def test_even_rows_with_numbers_of_their_own(size: str, alone: bool) -> None:
    """Long rows, unless their block would be half empty."""
    text = CENTRED.replace("50257 | 50264, 1", size).replace("50257", size)
    kernel, without = parse_kernel(text), parse_kernel(text.replace("load top[i0]", "f32(2.0)"))
    assert (with_looped_rows(kernel, GPU) is kernel) is alone
    assert with_looped_rows(without, GPU) is without


def test_they_are_read_and_written_16_bytes_at_a_time() -> None:
    ptx = ptx_of(print_kernel(parse_kernel(CENTRED), GPU, (True, True, True)))
    assert re.search(r"cp\.async\.c[ag]\.shared\.global .*, 0x10|ld\.global\.v4", ptx)
    assert "st.global.v4" in ptx


def test_values(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (choose_tiles, loop_rows):
        monkeypatch.setattr(module, "WHOLE_BLOCK", 256)
    text = CENTRED.replace("50257 | 50264, 1", "777").replace("50257", "777").replace("64", "9")
    x, top, out = torch.randn(9, 777).bfloat16(), torch.randn(9), torch.zeros(9, 777).bfloat16()
    check_kernel(runner, text, {"x": x, "top": top, "out": out}, {}, 2**-7)
    assert "tl.range(0, 768, RBLOCK" in runner.used[-1].kernel.source
