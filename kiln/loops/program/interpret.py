"""Running loop programs on real tensors: the reference of every later stage.

run_program(program, [x, w, 4])      the outputs
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch

from kiln.loops.body.body import Index
from kiln.loops.body.indexing import Axis
from kiln.loops.body.interpret import Faults, IntValue, TorchHandler, axis_values, number
from kiln.loops.program.nodes import (
    Buffer,
    BufferArg,
    Extern,
    LoopOutput,
    LoopProgram,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
)
from kiln.loops.program.reductions import SCAN, put, reduced
from kiln.plan.overloads import find_overload
from kiln.symbolic import Expr, Symbol
from kiln.tensor.spec import TensorSpec

Tensor = torch.Tensor


@final
@dataclass
class Memory:
    """Tensors by buffer name, sizes by symbol, and the faults of the kernels that ran."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    sizes: dict[Symbol, IntValue] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)

    def under(self, tensor: Tensor, spec: TensorSpec) -> Tensor:
        """The storage of `tensor` read through `spec`."""
        sizes, strides = ([number(size, self.sizes) for size in part] for part in (spec.sizes, spec.strides))
        return tensor.as_strided(sizes, strides, number(spec.offset, self.sizes))

    def seen_as(self, tensor: Tensor, spec: TensorSpec) -> Tensor:
        """The memory of `tensor`, from its first element on, under the sizes and strides of `spec`."""
        sizes, strides = ([number(size, self.sizes) for size in part] for part in (spec.sizes, spec.strides))
        return tensor.as_strided(sizes, strides, tensor.storage_offset())

    def bind(self, given: Buffer | Symbol, value: Any) -> None:
        """Argument `given` is `value`; symbols that are sizes of a tensor get their values from it."""
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
        """The tensor of `buffer`, made if it is missing."""
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
        sizes, strides = ([number(size, self.sizes) for size in part] for part in (spec.sizes, spec.strides))
        # Poison: a read of what nobody wrote shows.
        poison: Any = float("nan") if spec.dtype.is_floating_point else 1
        return torch.empty_strided(sizes, strides, dtype=spec.dtype).fill_(poison)

    def read(self, name: str) -> tuple[Tensor, Index]:
        return self.tensors[name], ()


def _run_body(node: Pointwise | Reduction | Scan | Scatter, axes: Sequence[Axis], memory: Memory) -> _Points:
    values, extents = axis_values(axes, memory.sizes)
    handler = TorchHandler({**memory.sizes, **values}, memory.read, memory.faults)
    (result,) = node.body.run(handler)
    return _Points(handler, result, extents)


@final
@dataclass
class _Points:
    handler: TorchHandler
    value: Tensor
    extents: tuple[int, ...]

    def full(self) -> Tensor:
        return self.value.expand(self.extents)


def run_node(node: Pointwise | Reduction | Scan | Scatter | Extern, memory: Memory) -> None:
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
        out.copy_(SCAN[node.op](points.full(), dim=node.along))
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
    (out,) = node.outs
    assert out is not None
    memory.allocate(out).copy_(torch.stack([torch.randint(1 << 62, ()), torch.tensor(0)]))


def _assert(node: Extern, memory: Memory) -> None:
    condition, message = _arguments(node.args, memory)
    if not bool(condition):
        raise RuntimeError(message)


def _local_scalar(node: Extern, memory: Memory) -> None:
    value, _, name, _ = node.args
    memory.sizes[name] = int(_arguments(value, memory))


OWN_STEPS: Mapping[str, Callable[[Extern, Memory], None]] = {
    "kiln.empty": _empty,
    "kiln.random_seed": _random_seed,
    "kiln.assert": _assert,
    "kiln.local_scalar": _local_scalar,
}
"""Targets of `Extern` that are not ATen overloads."""


def _arguments(value: Any, memory: Memory) -> Any:
    if isinstance(value, BufferArg):
        tensor = memory.tensors[value.name]
        return tensor if value.spec is None else memory.under(tensor, value.spec)
    if isinstance(value, Expr):
        return number(value, memory.sizes)
    if isinstance(value, tuple | list):
        return (
            [_arguments(item, memory) for item in value]
            if isinstance(value, list)
            else tuple(_arguments(item, memory) for item in value)
        )
    return value


def run_program(program: LoopProgram, args: Sequence[Any], constants: Mapping[str, Tensor] | None = None) -> list[Any]:
    """The outputs of `program` on `args`, inputs that it writes changed. Raises `IndexError`, `ZeroDivisionError` as
    eager."""
    memory = bind_arguments(program.inputs, program.constants, args, constants)
    for node in program.nodes:
        run_node(node, memory)
    return collect_outputs(program.outputs, program.writes, args, memory)


def bind_arguments(
    inputs: Sequence[Buffer | Symbol],
    constants: Sequence[tuple[Buffer, str]],
    args: Sequence[Any],
    values: Mapping[str, Tensor] | None,
) -> Memory:
    """Memory that holds the arguments, and the constants by key from `values`."""
    memory = Memory()
    for given, value in zip(inputs, args, strict=True):
        memory.bind(given, value)
    for buffer, key in constants:
        memory.tensors[buffer.name] = (values or {})[key]
    return memory


def collect_outputs(
    outputs: Sequence[LoopOutput], writes: Sequence[tuple[str, str]], args: Sequence[Any], memory: Memory
) -> list[Any]:
    """The results of a region that has run, after its writes to arguments. Raises what a kernel reported."""
    if memory.faults.fault is not None:
        raise (ZeroDivisionError if "zero" in memory.faults.fault else IndexError)(memory.faults.fault)
    results: list[Any] = []
    for output in outputs:
        results.append(_output(output, args, results, memory))
    for target, source in writes:
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
