"""Running the loop IR on real tensors: the reference of every later stage.

    run_program(program, [x, w, 4])      the outputs of a `LoopProgram`
    run_scheduled(program, [x, w, 4])    the same of a `ScheduledProgram`
    run_kernel(kernel, memory, sizes)    one `KernelIR`, writing into the tensors of `memory`

Nothing is looped over: a loop symbol is a tensor that holds its values along a dimension of its own, an index
expression is a tensor of indices, a load is advanced indexing. Speed is that of a few torch calls per op; memory is
that of the iteration space.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, final

import torch

from kiln.graph.prims.table import Prim
from kiln.loops.body.body import Index, LoopHandler
from kiln.loops.body.indexing import symbols_of
from kiln.loops.body.philox import random_numbers
from kiln.loops.body.reference import apply
from kiln.loops.kernel.kernel import Accumulate, KernelIR, Phase, Store
from kiln.loops.kernel.scheduled import Launch, ScheduledProgram
from kiln.loops.program.nodes import (
    Axis,
    Buffer,
    BufferArg,
    Extern,
    LoopOutput,
    LoopProgram,
    Pointwise,
    ReduceOp,
    Reduction,
    Scan,
    Scatter,
)
from kiln.plan.overloads import find_overload
from kiln.symbolic import Expr, FloorDiv, Int, Min, Relation, Symbol
from kiln.symbolic.expr import Extremum, Quotient
from kiln.tensor.dtypes import extremes
from kiln.tensor.spec import TensorSpec

Tensor = torch.Tensor
Value = int | Tensor
"""An index expression's value: a number, or one per point of the iteration space."""


def evaluate_int(value: Int, values: Mapping[Symbol, Value]) -> Value:
    """`value` under `values`, elementwise."""
    if not isinstance(value, Expr):
        return value
    if isinstance(value, Symbol):
        return values[value]
    if isinstance(value, Quotient):
        dividend, divisor = evaluate_int(value.dividend, values), evaluate_int(value.divisor, values)
        return dividend // divisor if isinstance(value, FloorDiv) else dividend % divisor
    if isinstance(value, Extremum):
        pick = torch.minimum if isinstance(value, Min) else torch.maximum
        parts = [torch.as_tensor(evaluate_int(arg, values)) for arg in value.args]
        whole = reduce(pick, parts)
        return int(whole) if whole.dim() == 0 else whole
    total: Value = 0
    for monomial, coefficient in value.terms:
        term: Value = coefficient
        for atom in monomial:
            term = term * evaluate_int(atom, values)
        total = total + term
    return total


def number(value: Int, values: Mapping[Symbol, Value]) -> int:
    return int(evaluate_int(value, values))


@final
@dataclass
class Status:
    """What kernels report: the first fault, or None."""

    fault: str | None = None

    def report(self, fault: str) -> None:
        self.fault = self.fault or fault


Read = Callable[[str], tuple[Tensor, Index]]
"""The tensor that a buffer name stands for, and indices to put before those of the access."""


@final
@dataclass
class TorchHandler(LoopHandler[Tensor]):
    """Value: a tensor with one dimension per axis (of size 1 where it does not depend on it)."""

    values: dict[Symbol, Value]
    read: Read
    status: Status

    def load(self, buffer: str, index: Index, dtype: torch.dtype, mask: Tensor | None = None) -> Tensor:
        tensor, before = self.read(buffer)
        at = self.places((*before, *index))
        if mask is None:
            return tensor[at] if at else tensor.clone()
        if tensor.numel() == 0:
            return torch.zeros((), dtype=tensor.dtype).expand(mask.shape)
        inside = [torch.where(mask, one, 0) for one in at]
        loaded = tensor[tuple(inside)] if inside else tensor
        return torch.where(mask, loaded, torch.zeros((), dtype=tensor.dtype))

    def places(self, index: Index) -> tuple[Tensor, ...]:
        return tuple(torch.as_tensor(evaluate_int(at, self.values)) for at in index)

    def constant(self, value: bool | int | float, dtype: torch.dtype) -> Tensor:
        return torch.tensor(value, dtype=dtype)

    def index(self, expr: Int, dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(evaluate_int(expr, self.values)).to(dtype)

    def test(self, relation: Relation) -> Tensor:
        left, right = (torch.as_tensor(evaluate_int(one, self.values)) for one in (relation.lhs, relation.rhs))
        compare: Callable[[Tensor, Tensor], Tensor] = getattr(torch, relation.op)
        return compare(left, right)

    def pointwise(self, op: Prim, dtype: torch.dtype, *operands: Tensor) -> Tensor:
        divides = op.name in ("floor_div", "trunc_div", "remainder", "fmod") and not dtype.is_floating_point
        if divides and bool((operands[1] == 0).any()):
            self.status.report("division by zero")
            operands = (operands[0], operands[1].where(operands[1] != 0, 1))
        return apply(op, dtype, operands)

    def indirect(self, symbol: Symbol, operand: Tensor, size: Int, check: bool = True) -> Tensor:
        limit = evaluate_int(size, self.values)
        at = operand.to(torch.int64)
        if check and bool(((at < -limit) | (at >= limit)).any()):
            self.status.report("index out of range")
            at = torch.zeros_like(at)
        at = torch.where(at < 0, at + limit, at)
        self.values[symbol] = at
        return at

    def random(self, distribution: str, seed: Tensor, counter: Int, dtype: torch.dtype) -> Tensor:
        counters = torch.as_tensor(evaluate_int(counter, self.values))
        return random_numbers(distribution, seed, counters, dtype)


def axis_values(axes: Sequence[Axis], sizes: Mapping[Symbol, Value]) -> tuple[dict[Symbol, Value], tuple[int, ...]]:
    """Each loop symbol as a tensor along its own dimension, and the extents of the iteration space."""
    extents = tuple(number(axis.size, sizes) for axis in axes)
    values: dict[Symbol, Value] = {}
    for place, axis in enumerate(axes):
        shape = [1] * len(axes)
        shape[place] = extents[place]
        values[axis.symbol] = torch.arange(extents[place]).view(shape)
    return values, extents


# --------------------------------------------------------------------------------------- reductions

_COMBINE: dict[ReduceOp, Callable[[Tensor, Tensor], Tensor]] = {
    ReduceOp.SUM: torch.add,
    ReduceOp.PROD: torch.mul,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.ANY: torch.logical_or,
    ReduceOp.ALL: torch.logical_and,
}
_SCAN: dict[ReduceOp, Callable[..., Any]] = {
    ReduceOp.SUM: torch.cumsum,
    ReduceOp.PROD: torch.cumprod,
    ReduceOp.MAX: lambda x, dim: torch.cummax(x, dim).values,
    ReduceOp.MIN: lambda x, dim: torch.cummin(x, dim).values,
}
SCATTER_REDUCE: Mapping[ReduceOp, str] = {
    ReduceOp.SUM: "sum",
    ReduceOp.PROD: "prod",
    ReduceOp.MAX: "amax",
    ReduceOp.MIN: "amin",
}


def reduce_start(op: ReduceOp, dtype: torch.dtype) -> bool | int | float:
    """What a reduction starts from."""
    if op in (ReduceOp.SUM, ReduceOp.ANY):
        return False if dtype == torch.bool else 0
    if op in (ReduceOp.PROD, ReduceOp.ALL):
        return True if dtype == torch.bool else 1
    least, greatest = extremes(dtype)
    return least if op in (ReduceOp.MAX, ReduceOp.ARGMAX) else greatest


def reduced(value: Tensor, op: ReduceOp, dims: Sequence[int], dtype: torch.dtype) -> Tensor:
    """`value` combined over `dims`, which stay with size 1. Floating sums are made in double precision."""
    if op in (ReduceOp.ARGMAX, ReduceOp.ARGMIN):
        return _arg_reduced(value, op, dims[0])
    if any(value.shape[dim] == 0 for dim in dims):
        shape = [1 if dim in dims else size for dim, size in enumerate(value.shape)]
        return torch.full(shape, reduce_start(op, dtype), dtype=dtype)
    if op is ReduceOp.SUM:
        wide = value.double() if dtype.is_floating_point else value.to(torch.int64)
        return wide.sum(tuple(dims), keepdim=True).to(dtype)
    for dim in dims:
        value = _reduced_along(value, op, dim)
    return value.to(dtype)


def _reduced_along(value: Tensor, op: ReduceOp, dim: int) -> Tensor:
    if op is ReduceOp.PROD:
        return value.prod(dim, keepdim=True)
    if op is ReduceOp.ANY:
        return value.any(dim, keepdim=True)
    if op is ReduceOp.ALL:
        return value.all(dim, keepdim=True)
    return value.amax(dim, keepdim=True) if op is ReduceOp.MAX else value.amin(dim, keepdim=True)


def _arg_reduced(value: Tensor, op: ReduceOp, dim: int) -> Tensor:
    """The first of equals; NaN wins (torch leaves open which of equals it returns)."""
    best = _reduced_along(value, ReduceOp.MAX if op is ReduceOp.ARGMAX else ReduceOp.MIN, dim)
    hit = (value == best) | (value.isnan() & best.isnan() if value.is_floating_point() else False)
    return hit.to(torch.int8).argmax(dim, keepdim=True)


def put(target: Tensor, at: tuple[Tensor, ...], value: Tensor, combine: ReduceOp | None) -> None:
    """target[at] = value, or combined into it."""
    if not value.numel():
        return
    value = value.to(target.dtype)
    if not at:
        target.copy_(value.reshape(()) if combine is None else _COMBINE[combine](target, value.reshape(())))
        return
    if combine is None:
        target[tuple(torch.broadcast_tensors(*at, value)[:-1])] = value
        return
    flat = torch.zeros((), dtype=torch.int64)
    for one, size in zip(at, target.shape, strict=True):
        flat = flat * size + one
    flat, value = torch.broadcast_tensors(flat, value)
    memory = target.reshape(-1).clone()
    memory.scatter_reduce_(0, flat.reshape(-1), value.reshape(-1), SCATTER_REDUCE[combine])
    target.copy_(memory.view(target.shape))


# --------------------------------------------------------------------------------------- memory


@final
@dataclass
class Memory:
    """Tensors by buffer name, sizes by symbol, and the status of the kernels that ran."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    sizes: dict[Symbol, Value] = field(default_factory=dict)
    status: Status = field(default_factory=Status)

    def under(self, tensor: Tensor, spec: TensorSpec) -> Tensor:
        """The storage of `tensor` read through `spec`."""
        sizes, strides = ([number(one, self.sizes) for one in part] for part in (spec.sizes, spec.strides))
        return tensor.as_strided(sizes, strides, number(spec.offset, self.sizes))

    def seen_as(self, tensor: Tensor, spec: TensorSpec) -> Tensor:
        """The memory of `tensor`, from its first element on, under the sizes and strides of `spec`."""
        sizes, strides = ([number(one, self.sizes) for one in part] for part in (spec.sizes, spec.strides))
        return tensor.as_strided(sizes, strides, tensor.storage_offset())

    def bind(self, given: Buffer | Symbol, value: Any) -> None:
        """Argument `given` is `value`; symbols that are sizes of a tensor are learnt from it."""
        if isinstance(given, Symbol):
            self.sizes[given] = int(value)
            return
        self.tensors[given.name] = value
        spec = given.spec
        actual = (*value.shape, *value.stride(), value.storage_offset())
        for expected, size in zip((*spec.sizes, *spec.strides, spec.offset), actual, strict=True):
            if isinstance(expected, Symbol):
                self.sizes.setdefault(expected, size)

    def allocate(self, buffer: Buffer) -> Tensor:
        """The tensor of `buffer`, made if it is not there."""
        if buffer.name in self.tensors:
            return self.tensors[buffer.name]
        spec = buffer.spec
        if buffer.base is not None:
            base = self.tensors[buffer.base]
            if base.dtype != spec.dtype:
                base = torch.empty(0, dtype=spec.dtype).set_(base.untyped_storage())  # type: ignore[call-overload]
            made = self.under(base, spec)
        else:
            made = self._fresh(spec)
        self.tensors[buffer.name] = made
        return made

    def _fresh(self, spec: TensorSpec) -> Tensor:
        sizes, strides = ([number(one, self.sizes) for one in part] for part in (spec.sizes, spec.strides))
        # Poison: a read of what nobody wrote shows.
        poison: Any = float("nan") if spec.dtype.is_floating_point else 1
        return torch.empty_strided(sizes, strides, dtype=spec.dtype).fill_(poison)

    def read(self, name: str) -> tuple[Tensor, Index]:
        return self.tensors[name], ()


# --------------------------------------------------------------------------------------- nodes


def _run_body(node: Pointwise | Reduction | Scan | Scatter, axes: Sequence[Axis], memory: Memory) -> _Points:
    values, extents = axis_values(axes, memory.sizes)
    handler = TorchHandler({**memory.sizes, **values}, memory.read, memory.status)
    (result,) = node.body.run(handler)
    return _Points(handler, result, extents)


@final
@dataclass
class _Points:
    """The value of a body at every point of its iteration space."""

    handler: TorchHandler
    value: Tensor
    extents: tuple[int, ...]

    def full(self) -> Tensor:
        return self.value.expand(self.extents)


def run_node(node: Pointwise | Reduction | Scan | Scatter | Extern, memory: Memory) -> None:
    """Run one node of a `LoopProgram`."""
    if isinstance(node, Extern):
        run_extern(node, memory)
        return
    out = memory.allocate(node.out)
    if isinstance(node, Pointwise):
        out.copy_(_run_body(node, node.axes, memory).full())
    elif isinstance(node, Reduction):
        points = _run_body(node, (*node.kept, *node.reduced), memory)
        dims = range(len(node.kept), len(points.extents))
        out.copy_(reduced(points.full(), node.op, list(dims), out.dtype).view(points.extents[: len(node.kept)]))
    elif isinstance(node, Scan):
        points = _run_body(node, node.axes, memory)
        out.copy_(_SCAN[node.op](points.full(), dim=node.along))
    else:
        _run_scatter(node, out, memory)


def _run_scatter(node: Scatter, out: Tensor, memory: Memory) -> None:
    if node.init in memory.tensors and memory.tensors[node.init] is not out and node.out.base is None:
        out.copy_(memory.tensors[node.init])
    points = _run_body(node, node.axes, memory)
    put(out, points.handler.places(node.index), points.full(), node.combine)


def run_extern(node: Extern, memory: Memory) -> None:
    """Call the overload; results are copied into the planned layout."""
    if node.target in OWN_STEPS:
        OWN_STEPS[node.target](node, memory)
        return
    args = _arguments(node.args, memory)
    kwargs = {name: _arguments(value, memory) for name, value in node.kwargs}
    results = find_overload(node.target)(*args, **kwargs)
    listed = results if isinstance(results, tuple | list) else (results,)
    for out, result in zip(node.outs, listed, strict=False):
        if out is not None:
            memory.allocate(out).copy_(result)


def _empty(node: Extern, memory: Memory) -> None:
    for out in node.outs:
        if out is not None:
            memory.allocate(out)


def _random_seed(node: Extern, memory: Memory) -> None:
    """A seed that torch's generator gives, at offset 0."""
    (out,) = node.outs
    assert out is not None
    memory.allocate(out).copy_(torch.stack([torch.randint(1 << 62, ()), torch.tensor(0)]))


def _assert(node: Extern, memory: Memory) -> None:
    condition, message = _arguments(node.args, memory)
    if not bool(condition):
        raise RuntimeError(message)


def _local_scalar(node: Extern, memory: Memory) -> None:
    value, _, name = node.args
    memory.sizes[name] = int(_arguments(value, memory))


OWN_STEPS: Mapping[str, Callable[[Extern, Memory], None]] = {
    "kiln.empty": _empty,
    "kiln.random_seed": _random_seed,
    "kiln.assert": _assert,
    "kiln.local_scalar": _local_scalar,
}
"""Targets of `Extern` that are no ATen overloads."""


def _arguments(value: Any, memory: Memory) -> Any:
    if isinstance(value, BufferArg):
        tensor = memory.tensors[value.name]
        return tensor if value.spec is None else memory.under(tensor, value.spec)
    if isinstance(value, Expr):
        return number(value, memory.sizes)
    if isinstance(value, tuple | list):
        return (
            [_arguments(one, memory) for one in value]
            if isinstance(value, list)
            else tuple(_arguments(one, memory) for one in value)
        )
    return value


# --------------------------------------------------------------------------------------- programs


def run_program(program: LoopProgram, args: Sequence[Any], constants: Mapping[str, Tensor] | None = None) -> list[Any]:
    """The outputs of `program` on `args`; inputs that it writes are changed. Raises `IndexError`,
    `ZeroDivisionError` as eager would."""
    memory = _bound(program, args, constants)
    for node in program.nodes:
        run_node(node, memory)
    return _finished(program, args, memory)


def run_scheduled(
    program: ScheduledProgram, args: Sequence[Any], constants: Mapping[str, Tensor] | None = None
) -> list[Any]:
    """The outputs of `program`; allocations and frees are obeyed, reuse shares no memory here."""
    memory = _bound(program, args, constants)
    for place, step in enumerate(program.steps):
        for made in program.allocations:
            if made.before == place:
                memory.allocate(made.buffer)
        if isinstance(step, Launch):
            run_launch(step, memory)
        else:
            run_extern(step, memory)
        for name in program.frees[place]:
            del memory.tensors[name]
    return _finished(program, args, memory)


def _bound(
    program: LoopProgram | ScheduledProgram, args: Sequence[Any], constants: Mapping[str, Tensor] | None
) -> Memory:
    memory = Memory()
    for given, value in zip(program.inputs, args, strict=True):
        memory.bind(given, value)
    for buffer, key in program.constants:
        memory.tensors[buffer.name] = (constants or {})[key]
    return memory


def _finished(program: LoopProgram | ScheduledProgram, args: Sequence[Any], memory: Memory) -> list[Any]:
    if memory.status.fault is not None:
        raise (ZeroDivisionError if "zero" in memory.status.fault else IndexError)(memory.status.fault)
    results: list[Any] = []
    for output in program.outputs:
        results.append(_output(output, args, results, memory))
    for target, source in program.writes:
        if target != source:
            memory.tensors[target].copy_(memory.tensors[source])
    return results


def _output(output: LoopOutput, args: Sequence[Any], earlier: list[Any], memory: Memory) -> Any:
    base = None
    if output.buffer is not None:
        base = memory.tensors[output.buffer]
    elif output.alias_input is not None:
        base = args[output.alias_input]
    elif output.alias_output is not None:
        base = earlier[output.alias_output]
    if base is None:
        return number(output.value, memory.sizes) if isinstance(output.value, Expr) else output.value
    return base if output.view is None else memory.under(base, output.view)


# --------------------------------------------------------------------------------------- kernels


def run_launch(launch: Launch, memory: Memory) -> None:
    """Run a kernel on the tensors and sizes that it is given."""
    inner = Memory(status=memory.status)
    for own, given in zip(launch.kernel.ints, launch.ints, strict=True):
        if not isinstance(own, Symbol):
            raise ValueError(f"the size argument {own} of {launch.kernel.name} is no symbol")
        inner.sizes[own] = number(given, memory.sizes)
    for param, name in zip(launch.kernel.params, launch.args, strict=True):
        inner.tensors[param.name] = inner.seen_as(memory.tensors[name], param.spec)
    run_kernel(launch.kernel, inner)


def run_kernel(kernel: KernelIR, memory: Memory) -> None:
    """Run `kernel` on the tensors of `memory`, all units at once but those on which sizes of phases depend."""
    sizes = symbols_of(*(axis.size for phase in kernel.phases for axis in phase.axes))
    for axis in kernel.units:
        if axis.symbol in sizes:
            rest = replace(kernel, units=tuple(one for one in kernel.units if one is not axis))
            for place in range(number(axis.size, memory.sizes)):
                run_kernel(rest, replace(memory, sizes={**memory.sizes, axis.symbol: place}))
            return
    _run_units(kernel, memory)


def _run_units(kernel: KernelIR, memory: Memory) -> None:
    _, extents = axis_values(kernel.units, memory.sizes)
    names = {local.name: local for local in kernel.locals}
    units = tuple(axis.symbol for axis in kernel.units)
    locals_: dict[str, Tensor] = {}
    for local in kernel.locals:
        shape = extents + tuple(number(axis.size, memory.sizes) for axis in local.axes)
        locals_[local.name] = torch.full(shape, float("nan") if local.dtype.is_floating_point else 1, dtype=local.dtype)
    started: set[str] = set()

    def find(name: str) -> tuple[Tensor, Index]:
        return (locals_[name], units) if name in names else memory.read(name)

    for phase in kernel.phases:
        _run_phase(kernel, phase, find, memory, started)


def _run_phase(kernel: KernelIR, phase: Phase, find: Read, memory: Memory, started: set[str]) -> None:
    axes = (*kernel.units, *phase.axes)
    values, extents = axis_values(axes, memory.sizes)
    handler = TorchHandler({**memory.sizes, **values}, find, memory.status)
    results = [result.expand(extents) for result in phase.body.run(handler)]
    for effect in phase.effects:
        value = results[effect.result]
        if isinstance(effect, Store):
            _store(effect, value, handler)
            continue
        if effect.running is not None:
            dim = axes.index(effect.over[0])
            _store(effect.running, _SCAN[effect.op](value, dim=dim), handler)
            continue
        dims = [axes.index(axis) for axis in effect.over]
        _accumulate(effect, value, dims, handler, started)
        if effect.exp_sum is not None:
            top, before = handler.read(effect.target)
            at = handler.places((*before, *effect.index))
            beside = replace(effect, target=effect.exp_sum, op=ReduceOp.SUM, exp_sum=None)
            _accumulate(beside, (value - (top[at] if at else top)).exp(), dims, handler, started)


def _store(effect: Store, value: Tensor, handler: TorchHandler) -> None:
    target, before = handler.read(effect.target)
    put(target, handler.places((*before, *effect.index)), value, effect.combine)


def _accumulate(effect: Accumulate, value: Tensor, dims: list[int], handler: TorchHandler, started: set[str]) -> None:
    target, before = handler.read(effect.target)
    part = reduced(value, effect.op, dims, target.dtype)
    at = handler.places((*before, *effect.index))
    if effect.target in started:
        old = target[at] if at else target
        part = _COMBINE[effect.op](old, part.expand(torch.broadcast_shapes(old.shape, part.shape)))
    started.add(effect.target)
    put(target, at, part, None)
