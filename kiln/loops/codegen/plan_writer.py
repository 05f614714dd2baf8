"""From a kernel program to the steps of a plan.

    allocate b0: f32[s0, 768]                      %2 = allocate f32[s0, 768]
    launch add_norm(a0, a1 -> b0) [n0 = s0]   =>   launch k_3f1c(%0, %1, %2; s0) over s0
    b1 = extern aten.mm.default(b0, a2)            %3 = aten.mm.default(%2, %1) -> f32[s0, 768]
    return b1                                      return %3

Every buffer gets a slot. A view that an extern call reads becomes one `View` step. A symbol is bound to the first input
where it stands alone. The function handed in prints each distinct kernel once.
Needs: allocations and frees; each size symbol alone in some input.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import accumulate
from operator import add
from typing import Any, final

from kiln.loops.body.indexing import symbols_of
from kiln.loops.codegen.printed_kernel import PrintedKernel
from kiln.loops.kernel.analyses import launch_grain, launch_units
from kiln.loops.kernel.kernel import KernelIR
from kiln.loops.kernel.launches.program import ALIGNMENT, Allocation, KernelLaunch, KernelProgram, NestedCall
from kiln.loops.program import nodes
from kiln.loops.program.nodes import Buffer, BufferArg, Extern, LoopOutput
from kiln.plan import steps
from kiln.plan.overloads import number_arguments
from kiln.plan.plan import Kernel, Plan, PlanInput, PlanOutput, Ref, Slot, Step, SymbolBinding
from kiln.support.errors import KilnError
from kiln.symbolic import Int, Relation, Symbol, is_static, product, substituted, sym_max
from kiln.symbolic.relation import relate
from kiln.tensor.spec import TensorSpec

KernelWriter = Callable[[KernelIR, tuple[bool, ...], int], PrintedKernel]
"""Prints a kernel for so many rows; the flags say which arguments always start at a multiple of `ALIGNMENT`
bytes, or are one."""


class UnboundSymbol(KilnError):
    code = "KILN3301"
    what = "no input of the region has a size that is just `{symbol}`"
    why = "the plan would not know its value at run time"
    try_ = ("this is a fault of Kiln: run with KILN_DUMP=folder and report the folder",)


def write_plan(program: KernelProgram, write_kernel: KernelWriter, *, inputs_aligned: bool = False) -> Plan:
    """The plan of `program`. `inputs_aligned`: the caller aligns tensors whose planned offset is a multiple of
    `ALIGNMENT` bytes."""
    return _PlanWriter(program, write_kernel, inputs_aligned).plan()


@final
class _PlanWriter:
    def __init__(self, program: KernelProgram, write_kernel: KernelWriter, inputs_aligned: bool) -> None:
        self.program, self.write_kernel, self.inputs_aligned = program, write_kernel, inputs_aligned
        self.slots: dict[str, Slot] = {}
        self.specs: dict[str, TensorSpec] = {}
        self.views: dict[tuple[str, TensorSpec], Slot] = {}
        self.kernels: dict[tuple[int, tuple[bool, ...]], PrintedKernel] = {}
        self.buffers: dict[str, Buffer] = {}
        self.given = {given.name for given in program.inputs if isinstance(given, Buffer)}
        self.steps: list[Step] = []
        self.num_slots = len(program.inputs)
        self.host_reads: list[SymbolBinding] = []
        self.constants: list[str] = []
        self.nested_kernels: dict[str, Kernel] = {}

    def plan(self) -> Plan:
        program = self.program
        inputs = tuple(self._input(slot, given) for slot, given in enumerate(program.inputs))
        for buffer, key in program.constants:
            self.steps.append(steps.ConstantStep(self.slot(buffer), len(self.constants)))
            self.constants.append(key)
        allocations = defaultdict(list)
        for allocation in program.allocations:
            allocations[allocation.before].append(allocation)
        for position, step in enumerate(program.steps):
            for allocation in allocations[position]:
                self._allocate(allocation)
            if isinstance(step, KernelLaunch):
                self._launch(step)
            elif isinstance(step, NestedCall):
                self._nested(step)
            else:
                self._extern(step)
            self._free(program.frees[position])
        for target, source in (pair for pair in program.writes if pair[0] != pair[1]):
            self.steps.append(steps.CopyStep(self.slots[target], self.slots[source]))
        mutated = tuple(sorted({self.slots[target] for target, _ in program.writes}))
        outputs = tuple(self._output(output) for output in program.outputs)
        bindings = (*self._bindings(), *self.host_reads)
        self._check_bound(bindings)
        kernels = {item.kernel.symbol: item.kernel for item in self.kernels.values()} | self.nested_kernels
        return Plan(
            program.name, inputs, bindings, tuple(self.steps), outputs, tuple(kernels.values()), self.num_slots,
            tuple(self.constants), mutated,
        )  # fmt: skip

    # Values.

    def _input(self, slot: Slot, given: Buffer | Symbol) -> PlanInput:
        if isinstance(given, Symbol):
            return PlanInput(given.name, None, "int")
        self.slots[given.name], self.specs[given.name], self.buffers[given.name] = slot, given.spec, given
        return PlanInput(given.name, given.spec)

    def slot(self, buffer: Buffer) -> Slot:
        """The slot of a buffer, made on first use."""
        found = self.slots.get(buffer.name)
        if found is None:
            found = self.slots[buffer.name] = self._new_slot()
            self.specs[buffer.name], self.buffers[buffer.name] = buffer.spec, buffer
        return found

    def _allocate(self, allocation: Allocation) -> None:
        """Memory of its own, or a view of the memory that the buffer is part of."""
        slot, spec = self.slot(allocation.buffer), allocation.buffer.spec
        if allocation.buffer.base is not None:
            self.steps.append(steps.ViewStep(slot, self.slots[allocation.buffer.base], spec))
        else:
            reuse = None if allocation.reuse is None else self.slots[allocation.reuse]
            self.steps.append(steps.AllocateStep(slot, spec, reuse))

    def _new_slot(self) -> Slot:
        self.num_slots += 1
        return self.num_slots - 1

    def view(self, name: str, spec: TensorSpec | None) -> Slot:
        """The slot of buffer `name` read as `spec`."""
        if spec is None or spec == self.specs[name]:
            return self.slots[name]
        found = self.views.get((name, spec))
        if found is None:
            found = self.views[name, spec] = self._new_slot()
            self.steps.append(steps.ViewStep(found, self.slots[name], spec))
        return found

    def _free(self, names: Sequence[str]) -> None:
        """Free buffers and the views made of them."""
        slots = [self.slots[name] for name in names if name in self.slots]
        for name, spec in [key for key in self.views if key[0] in names]:
            slots.append(self.views.pop((name, spec)))
        if slots:
            self.steps.append(steps.FreeStep(tuple(slots)))

    # Steps.

    def _launch(self, step: KernelLaunch) -> None:
        ir = step.kernel
        aligned = tuple(self._is_aligned(name) for name in step.args)
        if step.rows > 1:
            aligned += tuple([is_static(size) and size % ALIGNMENT == 0 for size in step.ints])
        printed = self.kernels.get((id(ir), aligned))
        if printed is None:
            printed = self.kernels[id(ir), aligned] = self.write_kernel(ir, aligned, step.rows)
        symbol, args = printed.kernel.symbol, tuple(self.slots[name] for name in step.args)
        sizes = [_values(ir, row.ints) for row in step.each_row()]
        own = [_values(printed.canonical, row.ints) for row in step.each_row()]
        scratch = reduce(sym_max, [substituted(printed.scratch, values) for values in own])
        if printed.grid:
            programs = [product([substituted(count, values) for count in printed.grid]) for values in own]
            *firsts, units = accumulate(programs)
            made = steps.LaunchStep(symbol, args, (*step.ints, *firsts), (), units, 1, scratch, (units,))
        else:
            each = [substituted(launch_units(ir), values) for values in sizes]
            grain, rows = substituted(launch_grain(ir), sizes[0]), tuple(each) if step.rows > 1 else ()
            made = steps.LaunchStep(symbol, args, step.ints, (), reduce(add, each), grain, scratch, rows=rows)
        self.steps.append(replace(made, origin=step.origin or ir.origin))

    def _is_aligned(self, name: str) -> bool:
        """Does the buffer always start at a multiple of `ALIGNMENT` bytes? Fresh memory does, a view by its offset."""
        buffer = self.buffers[name]
        offset = buffer.spec.offset
        if not is_static(offset) or offset * buffer.spec.dtype.itemsize % ALIGNMENT:
            return False
        if buffer.base is not None:
            return self._is_aligned(buffer.base)
        return self.inputs_aligned or name not in self.given

    def _extern(self, step: Extern) -> None:
        special = SPECIAL.get(step.target)
        if special is not None:
            special(self, step)
            return
        numbers = number_arguments(step.target)
        args = tuple(self._argument(value, place in numbers) for place, value in enumerate(step.args))
        kwargs = tuple((name, self._argument(value, name in numbers)) for name, value in step.kwargs)
        outs = tuple(None if out is None else self.slot(out) for out in step.outs)
        specs = tuple(None if out is None else out.spec for out in step.outs)
        self.steps.append(steps.AtenStep(step.target, args, kwargs, outs, specs, step.origin))

    def _nested(self, step: NestedCall) -> None:
        """A branch or a loop; its kernels are the plan's, too."""
        aligned = self.inputs_aligned and step.call.target != nodes.SCAN  # a row starts anywhere
        plans = [write_plan(made, self.write_kernel, inputs_aligned=aligned) for made in step.programs]
        self.nested_kernels.update({kernel.symbol: kernel for plan in plans for kernel in plan.kernels})
        self.steps.append(NESTED[step.call.target](self, step.call, plans))

    def arguments(self, buffers: Sequence[BufferArg]) -> tuple[Slot, ...]:
        return tuple([self.view(buffer.name, buffer.spec) for buffer in buffers])

    def results(self, call: Extern) -> tuple[tuple[Slot, ...], tuple[TensorSpec, ...]]:
        made = [out for out in call.outs if out is not None]
        return tuple([self.slot(out) for out in made]), tuple([out.spec for out in made])

    def _argument(self, value: Any, is_number: bool = False) -> Any:
        if isinstance(value, BufferArg):
            slot = self.view(value.name, value.spec)
            return self._host_number(slot) if is_number else Ref(slot)
        if isinstance(value, (tuple, list)):
            return tuple(self._argument(item) for item in value)
        return value

    def _host_number(self, source: Slot) -> Ref:
        """The number in a tensor, read on the host."""
        landing = self._new_slot()
        name = f"number_{landing}"
        self.host_reads.append(SymbolBinding(name, "unbacked", landing))
        self.steps.append(steps.HostReadStep(name, source, "float"))
        return Ref(landing)

    # Inputs and outputs.

    def _output(self, output: LoopOutput) -> PlanOutput:
        if output.alias_input is not None or output.alias_output is not None:
            return PlanOutput(alias_input=output.alias_input, alias_output=output.alias_output, view=output.view)
        if output.buffer is None:
            return PlanOutput(value=output.value)
        return PlanOutput(slot=self.view(output.buffer, output.view))

    def _bindings(self) -> list[SymbolBinding]:
        """Each symbol at the first input where it stands alone: a scalar, a size, a stride, the offset."""
        found: dict[str, SymbolBinding] = {}
        for binding in self._candidates():
            found.setdefault(binding.name, binding)
        return list(found.values())

    def _candidates(self) -> Iterator[SymbolBinding]:
        """Every place where a symbol stands alone, the cheapest to read first."""
        tensors: list[tuple[Slot, TensorSpec]] = []
        for slot, given in enumerate(self.program.inputs):
            if isinstance(given, Symbol):
                yield SymbolBinding(given.name, "scalar", slot)
            else:
                tensors.append((slot, given.spec))
        for slot, spec in tensors:
            yield from (SymbolBinding(size.name, "size", slot, dim) for dim, size in _bare(spec.sizes))
        for slot, spec in tensors:
            yield from (SymbolBinding(stride.name, "stride", slot, dim) for dim, stride in _bare(spec.strides))
        for slot, spec in tensors:
            yield from (SymbolBinding(offset.name, "offset", slot) for _, offset in _bare((spec.offset,)))

    def _check_bound(self, bindings: Sequence[SymbolBinding]) -> None:
        known = {binding.name for binding in bindings}
        for spec in self.specs.values():
            for symbol in symbols_of(*spec.sizes, *spec.strides, spec.offset):
                if symbol.name not in known:
                    raise UnboundSymbol(symbol=symbol)


def _bare(values: Sequence[Int]) -> Iterator[tuple[int, Symbol]]:
    """The values that are a symbol alone, with their positions."""
    return ((position, value) for position, value in enumerate(values) if isinstance(value, Symbol))


def _values(kernel: KernelIR, ints: Sequence[Int]) -> dict[Symbol, Int]:
    """The size symbols of a kernel at one launch."""
    return {size: value for size, value in zip(kernel.ints, ints, strict=True) if isinstance(size, Symbol)}


def _empty(writer: _PlanWriter, step: Extern) -> None:
    """Fresh memory, unless the schedule allocated it already."""
    out = step.outs[0]
    assert out is not None
    if out.name not in writer.slots:
        writer.steps.append(steps.AllocateStep(writer.slot(out), out.spec))


def _view(writer: _PlanWriter, step: Extern) -> None:
    out = step.outs[0]
    assert out is not None and out.base is not None
    base = writer.slots[out.base]
    writer.steps.append(steps.ViewStep(writer.slot(out), base, out.spec))


def _random_seed(writer: _PlanWriter, step: Extern) -> None:
    out = step.outs[0]
    assert out is not None
    device, increment = step.args
    writer.steps.append(steps.RandomSeedStep(writer.slot(out), device, increment))


def _assert(writer: _PlanWriter, step: Extern) -> None:
    condition, message = step.args
    writer.steps.append(steps.CheckStep(None, writer.view(condition.name, condition.spec), message))


def _wait(writer: _PlanWriter, step: Extern) -> None:
    source, held = step.args
    writer.steps.append(steps.WaitStep(writer.slots[source.name], writer.arguments(held)))


def _local_scalar(writer: _PlanWriter, step: Extern) -> None:
    source, kind, symbol, checks = step.args
    name = symbol.name if isinstance(symbol, Symbol) else str(symbol)
    writer.host_reads.append(SymbolBinding(name, "unbacked", -1))
    writer.steps.append(steps.HostReadStep(name, writer.view(source.name, source.spec), kind))
    for relation_kind, difference in checks:
        relation = relate(relation_kind, difference)
        if isinstance(relation, Relation):
            writer.steps.append(steps.CheckStep(relation, None, f"{relation} does not hold in {step.origin}"))


def _cond(writer: _PlanWriter, call: Extern, plans: Sequence[Plan]) -> Step:
    condition, buffers, sizes = call.args
    (asked,) = writer.arguments([condition])
    given = writer.arguments(buffers)
    return steps.BranchStep(asked, plans[0], plans[1], given, *writer.results(call), sizes, call.origin)


def _while_loop(writer: _PlanWriter, call: Extern, plans: Sequence[Plan]) -> Step:
    carried, buffers, sizes = call.args
    test, body = plans
    given = writer.arguments(carried), (), writer.arguments(buffers)
    return steps.LoopStep(test, body, 0, *given, *writer.results(call), sizes, call.origin)


def _scan(writer: _PlanWriter, call: Extern, plans: Sequence[Plan]) -> Step:
    carried, rows, buffers, sizes, count = call.args
    given = writer.arguments(carried), writer.arguments(rows), writer.arguments(buffers)
    return steps.LoopStep(None, plans[0], count, *given, *writer.results(call), sizes, call.origin)


NESTED: dict[str, Callable[[_PlanWriter, Extern, Sequence[Plan]], Step]] = {
    nodes.COND: _cond, nodes.WHILE_LOOP: _while_loop, nodes.SCAN: _scan,
}  # fmt: skip
"""Targets of extern steps that run other programs."""

SPECIAL: dict[str, Callable[[_PlanWriter, Extern], None]] = {
    "kiln.empty": _empty,
    "kiln.view": _view,
    "kiln.random_seed": _random_seed,
    nodes.CHECK: _assert,
    nodes.LOCAL_SCALAR: _local_scalar,
    nodes.WAIT: _wait,
}
"""Targets of extern steps that are not ATen overloads."""
