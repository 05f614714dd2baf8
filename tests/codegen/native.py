"""Compiles kernels that tests write as text and calls them as the executor does."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kiln.build.cpp_compile import compile_kernels
from kiln.loops.codegen.print_kernel import print_kernel
from kiln.loops.codegen.printed_kernel import PrintedKernel
from kiln.loops.kernel.analyses import launch_units
from kiln.loops.kernel.interpret import run_kernel
from kiln.loops.kernel.kernel import KernelIR
from kiln.loops.kernel.verify import verify_kernel
from kiln.loops.program.interpret import Memory
from kiln.runtime.cache.store import DiskStore
from kiln.runtime.kernels import Libraries
from kiln.support.events import EventSink
from kiln.support.target import Target, host_cpu
from kiln.symbolic import Symbol, evaluate
from tests.loop_ir.parse import parse_kernel


@dataclass
class Case:
    """A kernel and the arguments of a call: `tensors` and `sizes` by name."""

    kernel: KernelIR
    tensors: Mapping[str, torch.Tensor]
    sizes: Mapping[str, int]
    pieces: int = 1

    @staticmethod
    def of(text: str, tensors: Mapping[str, torch.Tensor], pieces: int = 1, **sizes: int) -> Case:
        kernel = parse_kernel(text)
        verify_kernel(kernel)
        return Case(kernel, tensors, sizes, pieces)

    def expected(self) -> tuple[dict[str, torch.Tensor], str | None]:
        """The interpreter's result, and the fault that it reports."""
        memory = Memory({name: tensor.clone() for name, tensor in self.tensors.items()}, self.symbols())
        run_kernel(self.kernel, memory)
        return {name: memory.tensors[name] for name in self.kernel.writes}, memory.faults.fault

    def symbols(self) -> dict[Symbol, int]:
        return {size: self.sizes[size.name] for size in self.kernel.ints if isinstance(size, Symbol)}

    def run(self, written: PrintedKernel, libraries: Libraries) -> tuple[dict[str, torch.Tensor], int]:
        """The written tensors and the status after the call, split into `pieces` ranges of units."""
        tensors = {name: _cloned(tensor) for name, tensor in self.tensors.items()}
        status = call(self.kernel, written, libraries, tensors, self.sizes, self.pieces)
        return {name: tensors[name] for name in self.kernel.writes}, status


def _cloned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.preserve_format)


def call(
    kernel: KernelIR, written: PrintedKernel, libraries: Libraries, tensors: Mapping[str, torch.Tensor],
    sizes: Mapping[str, int], pieces: int = 1,
) -> int:  # fmt: skip
    """Run a compiled kernel; its status."""
    values = [evaluate(size, sizes) for size in kernel.ints]
    names = {f"n{place}": value for place, value in enumerate(values)}
    pointers = (ctypes.c_void_p * len(kernel.params))(*(tensors[param.name].data_ptr() for param in kernel.params))
    ints = (ctypes.c_int64 * max(len(values), 1))(*values)
    scratch = torch.empty(evaluate(written.scratch, names) + 64, dtype=torch.uint8)
    status = (ctypes.c_int64 * 1)(0)
    units = evaluate(launch_units(kernel), sizes)
    bounds = [units * piece // pieces for piece in range(pieces + 1)]
    aligned = (scratch.data_ptr() + 63) // 64 * 64
    function = libraries.function(written.kernel.symbol)
    for begin, end in itertools.pairwise(bounds):
        function(pointers, ints, None, begin, end, aligned, status)
    return status[0]


def compiled(
    kernels: Sequence[KernelIR], folder: Path, target: Target | None = None
) -> tuple[list[PrintedKernel], Libraries]:
    """All kernels in as few g++ calls as there are cores."""
    written = [print_kernel(kernel, target or host_cpu()) for kernel in kernels]
    return written, compile_kernels([printed.kernel for printed in written], DiskStore(folder), EventSink())


def check(
    cases: Sequence[Case], folder: Path, target: Target | None = None, *, rtol: float = 2e-6, atol: float = 1e-6
) -> None:
    """Every case gives in C++ what the interpreter gives."""
    written, libraries = compiled([case.kernel for case in cases], folder, target)
    for case, printed in zip(cases, written, strict=True):
        expected, fault = case.expected()
        actual, status = case.run(printed, libraries)
        assert (status != 0) == (fault is not None), f"{case.kernel.name}: status {status}, {fault}"
        if fault is not None:
            continue
        for name, value in expected.items():
            torch.testing.assert_close(
                actual[name],
                value,
                rtol=rtol,
                atol=atol,
                equal_nan=True,
                msg=lambda text, printed=printed: f"{text}\n{printed.kernel.source[-3000:]}",
            )
