"""The functions of a pipeline while it is written: what holds each local, and how functions are scheduled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import torch

from kiln.loops.body.analyses import bound_symbols, without_dead
from kiln.loops.body.body import Index, Load, LoopBody
from kiln.loops.body.indexing import add_ranges, symbols_of
from kiln.loops.codegen.halide.body import HalideBody, NamedExpr, ReadMemory, element
from kiln.loops.codegen.halide.dialect import HALIDE
from kiln.loops.kernel.analyses import kernel_reads, size_arguments
from kiln.loops.kernel.kernel import KernelIR, Phase
from kiln.symbolic import BoundAnalysis, Range, Symbol, is_static
from kiln.tensor.spec import TensorSpec, contiguous_strides


@final
class Pipeline:
    """`made` has its lines so far. `run`: the last unit axis of a kernel with strips, and last of every function."""

    def __init__(self, kernel: KernelIR, lanes: int) -> None:
        self.kernel, self.lanes = kernel, lanes
        self.run = kernel.units[-1] if kernel.strip else None
        self.further = () if self.run is None else (self.run.symbol.name,)
        ranges = dict.fromkeys(size_arguments(kernel), Range(0))
        add_ranges(ranges, kernel.units)
        for phase in kernel.phases:
            add_ranges(ranges, phase.axes)
        self.bounds = BoundAnalysis(ranges)
        reads = kernel_reads(kernel)
        self.read = {param.name: param for param in kernel.params if param.name in reads}
        self.memory: dict[str, ReadMemory] = {name: ReadMemory(param.spec) for name, param in self.read.items()}
        self.made: list[str] = []
        self.next: dict[str, ReadMemory] = {}
        """Locals that the current phase writes."""
        self.count = 0
        self.holds = False
        """Whether functions are kept in memory between others."""

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def value(self, phase: Phase, shared: Mapping[int, str], result: int, names: Mapping[Symbol, str]) -> NamedExpr:
        """The statements of a result of the body, where symbols have other texts."""
        prefix = self.name("v") + "_"
        handler = HalideBody(self.memory, self.bounds, names, prefix)
        if result in shared:
            found = handler.load(
                shared[result], tuple([axis.symbol for axis in phase.axes]), self.memory[shared[result]].spec.dtype
            )
        else:
            body = without_dead(LoopBody(phase.body.ops, (phase.body.results[result],)))
            self.check_locals(body)
            (found,) = body.run(handler)
        self.made += handler.lines
        return found

    def check_locals(self, body: LoopBody) -> None:
        found = bound_symbols(body)
        for op in body.ops:
            if isinstance(op, Load) and self.memory[op.buffer].function and symbols_of(*op.index) & found:
                raise HALIDE.unsupported("an index from data into a row", "its bounds are not known")

    def function(
        self, name: str, value: NamedExpr, variables: Sequence[Symbol], phase: Phase, output: bool = False
    ) -> None:
        """A function of `variables`, innermost first, and of the run."""
        text = f"hl.cast(hl.UInt(8), {value.text})" if value.dtype == torch.bool else value.text
        at = [*[variable.name for variable in variables], *self.further]
        self.made += [f'{name} = hl.Func("{name}")', f"{element(name, at)} = {text}"]
        if not output:
            self.holds = True
            self.made.append(f"{name}.compute_root()")

    def vectorised(self, name: str, variables: Sequence[Symbol], along: Symbol | None) -> None:
        """In vectors along `along`, the innermost loop."""
        if along is None:
            return
        others = [variable.name for variable in variables if variable is not along]
        others += [name for name in self.further if name != along.name]
        if others:
            self.made.append(f"{name}.reorder({', '.join([along.name, *others])})")
        self.made.append(f"{name}.vectorize({along.name}, {self.lanes}, hl.TailStrategy.GuardWithIf)")

    def lane_axis(self, phase: Phase, candidates: Sequence[Symbol]) -> Symbol | None:
        """Along which a function is vectorised: the run, the axis that the phase names, or the innermost one."""
        if self.run is not None:
            return self.run.symbol
        named = phase.axes[phase.vector].symbol if phase.vector is not None else None
        chosen = named if named in candidates else candidates[0] if candidates else None
        size = next((axis.size for axis in phase.axes if axis.symbol is chosen), 0)
        return None if is_static(size) and int(size) < self.lanes else chosen

    def add_local(self, name: str, function: str, dtype: torch.dtype) -> None:
        """The function that holds a local from the next phase on."""
        (local,) = [local for local in self.kernel.locals if local.name == name]
        sizes = tuple([axis.size for axis in local.axes])
        self.next[name] = ReadMemory(TensorSpec(dtype, sizes, contiguous_strides(sizes)), function, self.further)


def plain_symbols(index: Index) -> list[Symbol]:
    """The axes of a local's index, outermost first. Raises `UnsupportedInKernel` where it is not plain."""
    found = [place for place in index if isinstance(place, Symbol)]
    if len(found) != len(index) or len(set(found)) != len(found):
        raise HALIDE.unsupported("a store into a row", "its index is computed")
    return found
