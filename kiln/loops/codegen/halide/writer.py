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

from kiln.loops.body.analyses import bound_symbols, without_dead
from kiln.loops.body.body import Compute, Index, Load, LoopBody
from kiln.loops.body.indexing import Axis, add_ranges, linear_index, points, stride_of, symbols_of
from kiln.loops.codegen.effects import INDEX_OPS, combined
from kiln.loops.codegen.halide.body import HalideBody, Memory, Named, element, literal
from kiln.loops.codegen.halide.caller import Output, caller
from kiln.loops.codegen.halide.dialect import HALIDE
from kiln.loops.codegen.printed_kernel import PrintedKernel, kernel_params, kernel_symbol
from kiln.loops.kernel.analyses import kernel_reads
from kiln.loops.kernel.kernel import Accumulate, KernelIR, Phase, Store
from kiln.loops.kernel.text import kernel_text
from kiln.loops.program.nodes import ReduceOp
from kiln.loops.program.reductions import reduce_start
from kiln.plan.plan import Kernel
from kiln.support.target import Target
from kiln.symbolic import BoundAnalysis, Int, Range, Symbol, is_static, substituted
from kiln.tensor.spec import TensorSpec, contiguous_strides

MOST_IN_SINGLE = 64
"""Additions per partial sum that are done in float32; longer sums are done in float64."""
PARTIAL_VECTORS = 4
"""Vectors of partial sums, so that an addition does not wait for the one before."""
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
        self.kernel, self.lanes = kernel, lanes
        self.run = kernel.units[-1] if kernel.strip else None
        self.further = () if self.run is None else (self.run.symbol.name,)
        ranges = {size: Range(0) for size in symbols_of(*kernel.ints)}
        add_ranges(ranges, kernel.units)
        for phase in kernel.phases:
            add_ranges(ranges, phase.axes)
        self.bounds = BoundAnalysis(ranges)
        reads = kernel_reads(kernel)
        self.read = {param.name: param for param in kernel.params if param.name in reads}
        self.memory: dict[str, Memory] = {name: Memory(param.spec) for name, param in self.read.items()}
        self.sizes = tuple(size for size in kernel.ints if isinstance(size, Symbol))
        self.outputs: dict[str, Output] = {}
        self.made: list[str] = []
        self.next: dict[str, Memory] = {}
        """Locals that the current phase writes."""
        self.count = 0
        self.holds = False
        """Whether functions are kept in memory between others."""

    @property
    def strips(self) -> int:
        """How many strips a call may compute; 0: as many as there are."""
        return 1 if self.holds else 0

    def arguments(self) -> list[str]:
        numbers = [axis.symbol.name for axis in self.kernel.units if axis is not self.run]
        return [*self.read, *numbers, *[size.name for size in self.sizes]]

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def lines(self) -> list[str]:
        self.check()
        for phase in self.kernel.phases:
            self.phase(phase)
        axes = {axis.symbol.name for phase in self.kernel.phases for axis in phase.axes} | set(self.further)
        numbers = [name for name in self.arguments() if name not in self.read]
        return [
            *[self.declared(name, param.spec) for name, param in self.read.items()],
            *[f'{name} = hl.Param(hl.Int(32), "{name}")' for name in numbers],
            *[f'{name} = hl.Var("{name}")' for name in sorted(axes)],
            *self.made,
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
                self.accumulate(phase, shared, effect)
        self.memory |= self.next

    def shared_results(self, phase: Phase) -> dict[int, str]:
        """Functions for the results that several effects use, over the axes of the phase."""
        used = Counter(effect.result for effect in phase.effects)
        shared: dict[int, str] = {}
        for result, times in used.items():
            if times == 1 or not any(isinstance(op, Compute) for op in phase.body.ops):
                continue
            name, value = self.name("shared"), self.value(phase, {}, result, {})
            variables = [axis.symbol for axis in reversed(phase.axes)]
            self.function(name, value, variables, phase)
            self.vectorised(name, variables, self.lane_axis(phase, variables))
            sizes = tuple([axis.size for axis in phase.axes])
            self.memory[name] = Memory(TensorSpec(value.dtype, sizes, contiguous_strides(sizes)), name, self.further)
            shared[result] = name
        return shared

    def value(self, phase: Phase, shared: Mapping[int, str], result: int, names: Mapping[Symbol, str]) -> Named:
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
        self, name: str, value: Named, variables: Sequence[Symbol], phase: Phase, output: bool = False
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

    def store(self, phase: Phase, shared: Mapping[int, str], effect: Store) -> None:
        if effect.combine is not None:
            raise HALIDE.unsupported("a store that combines", "several points may meet")
        if effect.target in self.kernel.writes:
            self.output(phase, shared, effect)
            return
        variables = plain_symbols(effect.index)
        if effect.result in shared and variables == [axis.symbol for axis in phase.axes]:
            self.add_local(effect.target, shared[effect.result], self.memory[shared[effect.result]].spec.dtype)
            return
        value, name = self.value(phase, shared, effect.result, {}), self.name(effect.target + "_")
        self.function(name, value, list(reversed(variables)), phase)
        self.vectorised(name, variables, self.lane_axis(phase, list(reversed(variables))))
        self.add_local(effect.target, name, value.dtype)

    def add_local(self, name: str, function: str, dtype: torch.dtype) -> None:
        """The function that holds a local from the next phase on."""
        (local,) = [local for local in self.kernel.locals if local.name == name]
        sizes = tuple([axis.size for axis in local.axes])
        self.next[name] = Memory(TensorSpec(dtype, sizes, contiguous_strides(sizes)), function, self.further)

    def output(self, phase: Phase, shared: Mapping[int, str], effect: Store) -> None:
        """A store to memory: a function of the axes of the phase, with the strides of its index."""
        (param,) = [param for param in self.kernel.params if param.name == effect.target]
        axes = [*reversed(phase.axes), *([] if self.run is None else [self.run])]
        offset = linear_index(param.spec, effect.index)
        steps = [stride_of(offset, axis.symbol) for axis in axes]
        if any([step is None or step == 0 for step in steps]) or not known(offset, axes, self.kernel.units, self.sizes):
            raise HALIDE.unsupported("a store", "its index is not a sum of multiples of the axes")
        strides = [step for step in steps if step is not None]
        name = self.name("result")
        value = self.value(phase, shared, effect.result, {})
        value = (
            value
            if value.dtype == param.spec.dtype
            else Named(f"hl.cast({HALIDE.dtype_name(param.spec.dtype)}, {value.text})", param.spec.dtype)
        )
        variables = [axis.symbol for axis in reversed(phase.axes)]
        self.function(name, value, variables, phase, output=True)
        dense = dense_dimension(strides)
        along = self.lane_axis(phase, [axes[dense].symbol, *variables] if dense >= 0 else variables)
        self.vectorised(name, variables, along)
        self.made.append(f"written({name}, [{dense}])")
        base = substituted(offset, {axis.symbol: 0 for axis in axes})
        self.outputs[name] = Output(param, base, tuple(axes), tuple(strides), self.run)

    # Reductions.

    def accumulate(self, phase: Phase, shared: Mapping[int, str], effect: Accumulate) -> None:
        if effect.running is not None or effect.exp_sum is not None or effect.op in INDEX_OPS:
            raise HALIDE.unsupported("a scan or the index of an extreme value", "it is written in C++")
        kept = list(reversed(plain_symbols(effect.index)))
        along = phase.axes[phase.vector] if phase.vector is not None and self.run is None else None
        if along is not None and along in effect.over and not (is_static(along.size) and int(along.size) < self.lanes):
            self.in_partial_results(phase, shared, effect, kept, along)
        else:
            self.in_place(phase, shared, effect, kept)

    def in_place(self, phase: Phase, shared: Mapping[int, str], effect: Accumulate, kept: list[Symbol]) -> None:
        """One accumulator for each point of the kept axes, in vectors along them."""
        name = self.name(effect.target + "_")
        domain, names = self.domain(effect.over)
        value = self.value(phase, shared, effect.result, names)
        dtype = accumulated(effect, value.dtype, 1)
        self.start(name, effect.op, dtype, kept)
        self.add(name, effect.op, dtype, kept, value)
        along = self.lane_axis(phase, kept)
        if along is not None:
            self.vectorised(name, kept, along)
            loops = [along.name, *[f"{domain}[{number}]" for number in range(len(effect.over))]]
            loops += [other for other in [*[symbol.name for symbol in kept], *self.further] if other != along.name]
            self.made.append(f"{name}.update(0).reorder({', '.join(loops)})")
            self.made.append(f"{name}.update(0).vectorize({along.name}, {self.lanes}, hl.TailStrategy.GuardWithIf)")
        self.add_local(effect.target, name, dtype)

    def in_partial_results(
        self, phase: Phase, shared: Mapping[int, str], effect: Accumulate, kept: list[Symbol], along: Axis
    ) -> None:
        """One for each lane of some vectors; then these are combined, and what is left of the axis."""
        width = self.lanes * PARTIAL_VECTORS
        if is_static(along.size) and int(along.size) < width:
            width = self.lanes
        others = [axis for axis in effect.over if axis != along]
        whole, ints = along.size // width, HalideBody(self.memory, self.bounds, {}, "").ints()
        partial, lane = self.name("partial"), self.name("lane")
        self.made.append(f'{lane} = hl.Var("{lane}")')
        domain, names = self.domain([Axis(along.symbol, whole), *others])
        names[along.symbol] = f"({domain}[0] * {width} + {lane})"
        value = self.value(phase, shared, effect.result, names)
        dtype = accumulated(effect, value.dtype, width)
        lanes = [lane, *[symbol.name for symbol in kept]]
        self.define_start(partial, effect.op, dtype, lanes)
        self.define_add(partial, effect.op, dtype, lanes, value)
        loops = [lane, *[f"{domain}[{number}]" for number in range(1 + len(others))], *lanes[1:]]
        self.made += [
            f"{partial}.compute_root().bound({lane}, 0, {width}).vectorize({lane}, {width})",
            f"{partial}.update(0).reorder({', '.join(loops)}).vectorize({lane}, {width})",
        ]
        self.holds = True
        wide = accumulated(effect, value.dtype, 0)
        name = self.name(effect.target + "_")
        self.start(name, effect.op, wide, kept)
        lanes_domain = self.name("r")
        self.made.append(f'{lanes_domain} = hl.RDom([(0, {width})], "{lanes_domain}")')
        part = Named(element(partial, [f"{lanes_domain}[0]", *[symbol.name for symbol in kept]]), dtype)
        self.add(name, effect.op, wide, kept, part)
        left = along.size - whole * width
        if not (is_static(left) and int(left) == 0):
            domain, names = self.domain([Axis(along.symbol, left), *others])
            names[along.symbol] = f"({ints.operand(whole * width)} + {domain}[0])"
            self.add(name, effect.op, wide, kept, self.value(phase, shared, effect.result, names))
        self.add_local(effect.target, name, wide)

    def domain(self, over: Sequence[Axis]) -> tuple[str, dict[Symbol, str]]:
        """A domain over these axes, and the texts of their symbols."""
        name, ints = self.name("r"), HalideBody(self.memory, self.bounds, {}, "").ints()
        extents = ", ".join([f"(0, {ints.text(axis.size)})" for axis in over])
        self.made.append(f'{name} = hl.RDom([{extents}], "{name}")')
        return name, {axis.symbol: f"{name}[{number}]" for number, axis in enumerate(over)}

    def start(self, name: str, op: ReduceOp, dtype: torch.dtype, kept: Sequence[Symbol]) -> None:
        self.define_start(name, op, dtype, [*[symbol.name for symbol in kept], *self.further])
        self.made.append(f"{name}.compute_root()")
        self.holds = True

    def add(self, name: str, op: ReduceOp, dtype: torch.dtype, kept: Sequence[Symbol], value: Named) -> None:
        self.define_add(name, op, dtype, [*[symbol.name for symbol in kept], *self.further], value)

    def define_start(self, name: str, op: ReduceOp, dtype: torch.dtype, at: list[str]) -> None:
        first = literal(reduce_start(op, dtype), dtype)
        text = f"hl.cast(hl.UInt(8), {first})" if dtype == torch.bool else first
        self.made += [f'{name} = hl.Func("{name}")', f"{element(name, at)} = {text}"]

    def define_add(self, name: str, op: ReduceOp, dtype: torch.dtype, at: list[str], value: Named) -> None:
        here = element(name, at)
        if dtype == torch.bool:
            text = f"hl.cast(hl.UInt(8), {combined(op, f'({here} != 0)', value.text, dtype)})"
        else:
            text = combined(op, here, f"hl.cast({HALIDE.dtype_name(dtype)}, {value.text})", dtype)
        self.made.append(f"{here} = {text}")


def accumulated(effect: Accumulate, dtype: torch.dtype, parts: int) -> torch.dtype:
    """In what `parts` accumulators of each result are kept; 0: the result itself."""
    if effect.op in (ReduceOp.ANY, ReduceOp.ALL):
        return torch.bool
    if dtype != torch.float32 or effect.op not in (ReduceOp.SUM, ReduceOp.PROD):
        return dtype
    size = points(effect.over)
    short = parts > 0 and is_static(size) and int(size) <= MOST_IN_SINGLE * parts
    return torch.float32 if short else torch.float64


def plain_symbols(index: Index) -> list[Symbol]:
    """The axes of a local's index, outermost first. Raises `UnsupportedInKernel` where it is not plain."""
    found = [place for place in index if isinstance(place, Symbol)]
    if len(found) != len(index) or len(set(found)) != len(found):
        raise HALIDE.unsupported("a store into a row", "its index is computed")
    return found


def known(offset: Int, axes: Sequence[Axis], units: Sequence[Axis], sizes: Sequence[Symbol]) -> bool:
    """Does an offset depend on axes, units and sizes alone?"""
    return symbols_of(offset) <= {axis.symbol for axis in (*axes, *units)} | set(sizes)


def dense_dimension(strides: Sequence[Int]) -> int:
    """The first dimension whose neighbours are neighbours in memory, or -1."""
    return next((number for number, stride in enumerate(strides) if is_static(stride) and int(stride) == 1), -1)
