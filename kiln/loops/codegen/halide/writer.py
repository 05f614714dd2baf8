"""A kernel as a pipeline of Halide, and the C++ function that calls it for each unit.

    phase (i1: 1024):                    row = hl.Func("row")
        row[i1] = exp(load x[i0, i1])    row[i1] = exp(x[i1, i0])
        total = sum over (i1): ...       total[()] = total[()] + row[r0[0]]
    phase (i1: 1024):                    out = hl.Func("out")
        out[i0, i1] = ...                out[i1] = row[i1] / total[()]

Each effect of a phase is a function; results that several effects use are functions of their own. Units are numbers
that the caller sets, but for the last axis of a kernel with strips: it is a dimension of every function, along which
they are vectorised, and the caller sets its range. The schedule is fixed: functions are computed one after the other,
in vectors, sums in partial sums. Halide's own schedulers are for whole images: what they make of a range that is
shorter than their tiles computes past its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import final

import torch

from kiln.loops.body.body import Compute, Load
from kiln.loops.body.indexing import Axis, linear_index, stride_of, symbols_of
from kiln.loops.codegen.halide.body import NamedExpr, ReadMemory
from kiln.loops.codegen.halide.caller import WrittenTensor, caller
from kiln.loops.codegen.halide.dialect import HALIDE
from kiln.loops.codegen.halide.pipeline import Pipeline, plain_symbols
from kiln.loops.codegen.halide.reductions import accumulate
from kiln.loops.codegen.printed_kernel import PrintedKernel, kernel_params, kernel_symbol
from kiln.loops.kernel.kernel import KernelIR, Phase, Store
from kiln.loops.kernel.text import kernel_text
from kiln.plan.plan import Kernel
from kiln.support.target import Target
from kiln.symbolic import Int, Symbol, is_static, substituted
from kiln.tensor.spec import TensorSpec, contiguous_strides

LARGEST = 1 << 31


def write_halide(kernel: KernelIR, target: Target) -> PrintedKernel:
    """The source of `kernel`: C++ that calls a pipeline. Raises `UnsupportedInKernel`."""
    writer = _PipelineWriter(kernel, target.vector_bytes // 4)
    lines = writer.lines()
    head = "\n".join(f"// {line}" for line in kernel_text(kernel).split("\n"))
    symbol = kernel_symbol("halide", target.vector_bytes, head, *lines)
    exported = f'export("{symbol}_pipeline", [{", ".join(writer.arguments())}], [{", ".join(writer.outputs)}])'
    pipeline = "\n".join(["#if 0  // Halide", *lines, exported, "#endif"])
    calls = caller(symbol, kernel, list(writer.read), writer.sizes, list(writer.outputs.values()), writer.strips)
    source = f"{head}\n{pipeline}\n{calls}\n"
    made = Kernel(symbol, "cpp", source, kernel_params(kernel), len(kernel.ints))
    return PrintedKernel(made, kernel)


@final
class _PipelineWriter:
    def __init__(self, kernel: KernelIR, lanes: int) -> None:
        self.kernel, self.pipeline = kernel, Pipeline(kernel, lanes)
        self.run, self.read = self.pipeline.run, self.pipeline.read
        self.sizes = tuple([size for size in kernel.ints if isinstance(size, Symbol)])
        self.outputs: dict[str, WrittenTensor] = {}

    @property
    def strips(self) -> int:
        """How many strips a call may compute; 0: as many as there are."""
        return 1 if self.pipeline.holds else 0

    def arguments(self) -> list[str]:
        numbers = [axis.symbol.name for axis in self.kernel.units if axis is not self.run]
        return [*self.read, *numbers, *[size.name for size in self.sizes]]

    def lines(self) -> list[str]:
        self.check()
        for phase in self.kernel.phases:
            self.phase(phase)
        axes = {axis.symbol.name for phase in self.kernel.phases for axis in phase.axes} | set(self.pipeline.further)
        numbers = [name for name in self.arguments() if name not in self.read]
        return [
            *[self.declared(name, param.spec) for name, param in self.read.items()],
            *[f'{name} = hl.Param(hl.Int(32), "{name}")' for name in numbers],
            *[f'{name} = hl.Var("{name}")' for name in sorted(axes)],
            *self.pipeline.made,
        ]

    def check(self) -> None:
        """What a pipeline computes in another order than the kernel is refused."""
        kernel, written = self.kernel, set[str]()
        several = len({store.target for phase in kernel.phases for store in phase.effects}) > 1
        for phase in kernel.phases:
            loads = {op.buffer for op in phase.body.ops if isinstance(op, Load)}
            if loads & written:
                raise HALIDE.unsupported("a load of what an earlier phase stored in memory", "calls have no such order")
            written |= {effect.target for effect in phase.effects} & set(kernel.writes)
        if several and set(self.read) & kernel.writes:
            raise HALIDE.unsupported("a tensor that is read and written", "there are several results")
        for size in (size for param in kernel.params for size in param.spec.sizes if is_static(size)):
            if int(size) >= LARGEST:
                raise HALIDE.unsupported("a tensor of more than 2^31 elements", "its indices have 32 bits")

    def declared(self, name: str, spec: TensorSpec) -> str:
        kind = "hl.UInt(8)" if spec.dtype == torch.bool else HALIDE.dtype_name(spec.dtype)
        return f'{name} = buffer({kind}, "{name}", {spec.rank}, {dense_dimension(list(reversed(spec.strides)))})'

    # Phases.

    def phase(self, phase: Phase) -> None:
        shared = self.shared_results(phase)
        for effect in phase.effects:
            if isinstance(effect, Store):
                self.store(phase, shared, effect)
            else:
                accumulate(self.pipeline, phase, shared, effect)
        self.pipeline.memory |= self.pipeline.next

    def shared_results(self, phase: Phase) -> dict[int, str]:
        """Functions for the results that several effects use, over the axes of the phase."""
        used = Counter(effect.result for effect in phase.effects)
        shared: dict[int, str] = {}
        for result, times in used.items():
            if times == 1 or not any(isinstance(op, Compute) for op in phase.body.ops):
                continue
            name, value = self.pipeline.name("shared"), self.pipeline.value(phase, {}, result, {})
            variables = [axis.symbol for axis in reversed(phase.axes)]
            self.pipeline.function(name, value, variables, phase)
            self.pipeline.vectorised(name, variables, self.pipeline.lane_axis(phase, variables))
            sizes = tuple([axis.size for axis in phase.axes])
            self.pipeline.memory[name] = ReadMemory(
                TensorSpec(value.dtype, sizes, contiguous_strides(sizes)), name, self.pipeline.further
            )
            shared[result] = name
        return shared

    def store(self, phase: Phase, shared: Mapping[int, str], effect: Store) -> None:
        if effect.combine is not None:
            raise HALIDE.unsupported("a store that combines", "several points may meet")
        if effect.target in self.kernel.writes:
            self.output(phase, shared, effect)
            return
        variables = plain_symbols(effect.index)
        if effect.result in shared and variables == [axis.symbol for axis in phase.axes]:
            self.pipeline.add_local(
                effect.target, shared[effect.result], self.pipeline.memory[shared[effect.result]].spec.dtype
            )
            return
        value, name = self.pipeline.value(phase, shared, effect.result, {}), self.pipeline.name(effect.target + "_")
        self.pipeline.function(name, value, list(reversed(variables)), phase)
        self.pipeline.vectorised(name, variables, self.pipeline.lane_axis(phase, list(reversed(variables))))
        self.pipeline.add_local(effect.target, name, value.dtype)

    def output(self, phase: Phase, shared: Mapping[int, str], effect: Store) -> None:
        """A store to memory: a function of the axes of the phase, with the strides of its index."""
        (param,) = [param for param in self.kernel.params if param.name == effect.target]
        axes = [*reversed(phase.axes), *([] if self.run is None else [self.run])]
        offset = linear_index(param.spec, effect.index)
        steps = [stride_of(offset, axis.symbol) for axis in axes]
        if any([step is None or step == 0 for step in steps]) or not known(offset, axes, self.kernel.units, self.sizes):
            raise HALIDE.unsupported("a store", "its index is not a sum of multiples of the axes")
        strides = [step for step in steps if step is not None]
        name = self.pipeline.name("result")
        value = self.pipeline.value(phase, shared, effect.result, {})
        value = (
            value
            if value.dtype == param.spec.dtype
            else NamedExpr(f"hl.cast({HALIDE.dtype_name(param.spec.dtype)}, {value.text})", param.spec.dtype)
        )
        variables = [axis.symbol for axis in reversed(phase.axes)]
        self.pipeline.function(name, value, variables, phase, output=True)
        dense = dense_dimension(strides)
        along = self.pipeline.lane_axis(phase, [axes[dense].symbol, *variables] if dense >= 0 else variables)
        self.pipeline.vectorised(name, variables, along)
        self.pipeline.made.append(f"written({name}, [{dense}])")
        base = substituted(offset, {axis.symbol: 0 for axis in axes})
        self.outputs[name] = WrittenTensor(param, base, tuple(axes), tuple(strides), self.run)


def known(offset: Int, axes: Sequence[Axis], units: Sequence[Axis], sizes: Sequence[Symbol]) -> bool:
    """Does an offset depend on axes, units and sizes alone?"""
    return symbols_of(offset) <= {axis.symbol for axis in (*axes, *units)} | set(sizes)


def dense_dimension(strides: Sequence[Int]) -> int:
    """The first dimension whose neighbours are neighbours in memory, or -1."""
    return next((number for number, stride in enumerate(strides) if is_static(stride) and int(stride) == 1), -1)
