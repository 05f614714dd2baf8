"""From a kernel to its source: canonical form, passes for the target, printer.

print_kernel(kernel, target, aligned, events)      PrintedKernel("k_3f1c..", ...)
"""

from __future__ import annotations

from kiln.loops.codegen.cpp.writer import write_cpp
from kiln.loops.codegen.halide.writer import write_halide
from kiln.loops.codegen.printed_kernel import PrintedKernel
from kiln.loops.codegen.triton.writer import write_triton
from kiln.loops.kernel.canonical import canonical
from kiln.loops.kernel.errors import UnsupportedInKernel
from kiln.loops.kernel.kernel import KernelIR
from kiln.loops.kernel.mapped import MappedKernel
from kiln.loops.kernel.passes.pipeline import run_kernel_passes
from kiln.support.dump import Dump
from kiln.support.events import EventSink
from kiln.support.target import Target

MOST_PRINTED = 4096
_PRINTED: dict[tuple[KernelIR, Target, tuple[bool, ...], int], PrintedKernel] = {}
"""Kernels that this process has printed, by canonical form, target, alignment and rows; emptied when full."""


def print_kernel(
    kernel: KernelIR,
    target: Target,
    aligned: tuple[bool, ...] = (),
    events: EventSink | None = None,
    dump: Dump | None = None,
    rows: int = 1,
) -> PrintedKernel:
    """The source of `kernel` in the language of `target`: Triton for a GPU, else C++. Raises `UnsupportedInKernel`.

    `aligned[i]`: argument i always starts at a multiple of 16 bytes. `rows`: of the table that it is launched over; in
    C++ a call handles one of them. With a `dump`, each pass is verified and written.
    """
    form, _ = canonical(kernel)
    key = (form, target, aligned, rows) if target.is_gpu else (form, target, (), 1)
    found = _PRINTED.get(key)
    if found is not None and (dump is None or dump.root is None):
        return found
    mapped = run_kernel_passes(form, target, events or EventSink(), dump)
    made = written(form, mapped, target, aligned, rows)
    if len(_PRINTED) >= MOST_PRINTED:
        _PRINTED.clear()
    _PRINTED[key] = made
    return made


def written(
    form: KernelIR, mapped: MappedKernel, target: Target, aligned: tuple[bool, ...], rows: int
) -> PrintedKernel:
    """In the language of the target; C++ for what Halide does not take."""
    if target.is_gpu:
        return write_triton(form, mapped, target, aligned, rows)
    if target.language is not None:
        try:
            return write_halide(form, target)
        except UnsupportedInKernel:
            pass
    return write_cpp(form, mapped, target)
