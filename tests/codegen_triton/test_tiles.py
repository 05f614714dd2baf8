"""How blocks, warps and loads ahead are chosen."""

from __future__ import annotations

import re

from kiln.loops.codegen.triton import write_triton
from kiln.loops.ir.parse import parse_kernel
from tests.codegen_triton.check import GPU


def stages(source: str) -> list[int]:
    return [int(found) for found in re.findall(r"num_stages=(\d)", source)]


def long_sum(dtype: str) -> str:
    """Rows that are gone through in blocks of 8192, and a number per row."""
    kernel = parse_kernel(f"""
        kernel sums(x: {dtype}[64, 65536], r: {dtype}[64] -> out: {dtype}[64]) units (i0: 64)
            local total: {dtype}
            phase (i1: 65536):
                total[] = sum over (i1): mul(load x[i0, i1], load r[i0])
            phase ():
                out[i0] = load total[]
    """)
    return write_triton(kernel, GPU).kernel.source


def test_three_turns_are_loaded_ahead_or_none() -> None:
    """Three blocks of 32 KiB are a program's share of shared memory; what a turn does not load does not count."""
    assert stages(long_sum("f32")) == [3]
    assert stages(long_sum("f64")) == []


def test_fewer_warps_read_more_each() -> None:
    """Where a row is read once, and nothing written, a thread has 128 bytes on their way; else 64."""

    def warps(dtype: str) -> int:
        kernel = parse_kernel(f"""
            kernel top(x: {dtype}[512, 4096] -> out: {dtype}[512]) units (i0: 512)
                local top: {dtype}
                phase (i1: 4096):
                    top[] = amax over (i1): load x[i0, i1]
                phase ():
                    out[i0] = load top[]
        """)
        return dict(write_triton(kernel, GPU).kernel.meta)["num_warps"]

    assert warps("bf16") == 2 and warps("f32") == 4
