"""A kernel that is called with a tensor shorter than its parameter; run by test_sanitize.py."""

from __future__ import annotations

from pathlib import Path

import torch

from kiln.build.cpp_compile import compile_kernels
from kiln.loops.codegen.print_kernel import print_kernel
from kiln.runtime.cache.store import DiskStore
from kiln.support.events import EventSink
from kiln.support.target import host_cpu
from tests.codegen.native import call
from tests.loop_ir.parse import parse_kernel

KERNEL = """
kernel k(x: f32[64] -> out: f32[64]) units (i0: 64)
phase ():
    out[i0] = exp(load x[i0])
"""


def run(length: int, folder: Path) -> None:
    kernel = parse_kernel(KERNEL)
    written = print_kernel(kernel, host_cpu())
    libraries = compile_kernels([written.kernel], DiskStore(folder), EventSink())
    call(kernel, written, libraries, {"x": torch.zeros(length), "out": torch.zeros(64)}, {})


def test_inside(tmp_path: Path) -> None:
    run(64, tmp_path)


def test_outside(tmp_path: Path) -> None:
    run(63, tmp_path)
