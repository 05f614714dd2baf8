"""Running loop programs on real tensors: the reference of every later stage.

run_program(program, [x, w, 4])      the outputs
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, final

import torch

from kiln.loops.body.body import Index, LoopBody
from kiln.loops.body.indexing import Axis
from kiln.loops.body.interpret import Faults, IntValue, TorchHandler, axis_values, number
from kiln.loops.program import nodes
from kiln.loops.program.analyses import node_axes
from kiln.loops.program.reductions import SCAN, put, reduced
from kiln.plan.overloads import WAIT_TENSOR, find_overload, is_awaited, with_numbers
from kiln.support.records import dataclass
from kiln.symbolic import Expr, Symbol
from kiln.tensor.spec import TensorSpec
from kiln.tensor.strided_view import strided_view

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
        return strided_view(tensor, spec.dtype, *self._layout(spec), number(spec.offset, self.sizes))

    def seen_as(self, tensor: Tensor, spec: TensorSpec) -> Tensor:
        """The memory of `tensor`, from its first element on, under the sizes and strides of `spec`."""
        return tensor.as_strided(*self._layout(spec), tensor.storage_offset())

    def _layout(self, spec: TensorSpec) -> tuple[list[int], list[int]]:
        return [number(size, self.sizes) for size in spec.sizes], [number(step, self.sizes) for step in spec.strides]

    def bind(self, given: nodes.Buffer | Symbol, value: Any) -> None:
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

    def allocate(self, buffer: nodes.Buffer) -> Tensor:
        """The tensor of `buffer`, made if it is missing."""
        if buffer.name in self.tensors:
            return self.tensors[buffer.name]
        spec = buffer.spec
        if buffer.base is not None:
            base = self.tensors[buffer.base]
            if base.dtype != spec.dtype:
                base = torch.empty(0, dtype=spec.dtype, device="cpu").set_(base.untyped_storage())  # type: ignore[call-overload]
            made = self.under(base, spec)
        else:
            # Poison: a read of what nobody wrote shows.
            poison = float("nan") if spec.dtype.is_floating_point else 1
            made = torch.empty_strided(*self._layout(spec), dtype=spec.dtype, device="cpu").fill_(poison)
        self.tensors[buffer.name] = made
        return made

    def read(self, name: str) -> tuple[Tensor, Index]:
        return self.tensors[name], ()


def _run_body(body: LoopBody, axes: Sequence[Axis], memory: Memory) -> tuple[Tensor, TorchHandler]:
    """The value at each point of `axes`, and the handler, which knows the values of indices."""
    values, extents = axis_values(axes, memory.sizes)
    handler = TorchHandler({**memory.sizes, **values}, memory.read, memory.faults)
    (result,) = body.run(handler)
    return result.expand(extents), handler


def run_node(node: nodes.LoopNode, memory: Memory) -> None:
    if isinstance(node, nodes.Extern):
        run_extern(node, memory)
        return
    out = memory.allocate(node.out)
    if isinstance(node, nodes.Scatter):
        _run_scatter(node, out, memory)
        return
    value, _ = _run_body(node.body, node_axes(node), memory)
    if isinstance(node, nodes.Reduction):
        kept = len(node.kept)
        value = reduced(value, node.op, range(kept, value.dim()), out.dtype).view(value.shape[:kept])
    elif isinstance(node, nodes.Scan):
        value = SCAN[node.op](value, dim=node.along)
    out.copy_(value)


def _run_scatter(node: nodes.Scatter, out: Tensor, memory: Memory) -> None:
    if node.init in memory.tensors and memory.tensors[node.init] is not out and node.out.base is None:
        out.copy_(memory.tensors[node.init])
    value, handler = _run_body(node.body, node.axes, memory)
    put(out, handler.coordinates(node.index), value, node.combine)


def run_extern(node: nodes.Extern, memory: Memory) -> None:
    """Call the overload; results are copied into the planned layout."""
    if node.target in OWN_STEPS:
        OWN_STEPS[node.target](node, memory)
        return
    named = {name: _arguments(value, memory) for name, value in node.kwargs}
    args, kwargs = with_numbers(node.target, _arguments(node.args, memory), named)
    results = find_overload(node.target)(*args, **kwargs)
    listed = results if isinstance(results, tuple | list) else (results,)
    if is_awaited(node.target):
        listed = [find_overload(WAIT_TENSOR)(result) for result in listed]
    for out, result in zip(node.outs, listed, strict=False):
        if out is not None:
            memory.allocate(out).copy_(result)


def _empty(node: nodes.Extern, memory: Memory) -> None:
    for out in node.outs:
        if out is not None:
            memory.allocate(out)


def _random_seed(node: nodes.Extern, memory: Memory) -> None:
    (out,) = node.outs
    assert out is not None
    memory.allocate(out).copy_(torch.stack([torch.randint(1 << 62, (), device="cpu"), torch.tensor(0, device="cpu")]))


def _assert(node: nodes.Extern, memory: Memory) -> None:
    condition, message = _arguments(node.args, memory)
    if not bool(condition):
        raise RuntimeError(message)


def _local_scalar(node: nodes.Extern, memory: Memory) -> None:
    value, _, name, _ = node.args
    memory.sizes[name] = int(_arguments(value, memory))


def _cond(node: nodes.Extern, memory: Memory) -> None:
    condition, given, sizes = _arguments(node.args, memory)
    _keep(node, memory, run_program(node.nested[0 if bool(condition) else 1], [*given, *sizes]))


def _while_loop(node: nodes.Extern, memory: Memory) -> None:
    carried, given, sizes = _arguments(node.args, memory)
    test, body = node.nested
    while bool(run_program(test, [*carried, *given, *sizes])[0]):
        carried = run_program(body, [*carried, *given, *sizes])
    _keep(node, memory, carried)


def _scan(node: nodes.Extern, memory: Memory) -> None:
    carried, rows, given, sizes, count = _arguments(node.args, memory)
    stacked = [memory.allocate(out) for out in node.outs[len(carried) :] if out is not None]
    for turn in range(count):
        results = run_program(node.nested[0], [*carried, *[row[turn] for row in rows], *given, *sizes])
        carried = results[: len(carried)]
        for whole, row in zip(stacked, results[len(carried) :], strict=True):
            whole[turn].copy_(row)
    _keep(node, memory, carried)


def _keep(node: nodes.Extern, memory: Memory, results: Sequence[Tensor]) -> None:
    for out, result in zip(node.outs, results, strict=False):
        if out is not None:
            memory.allocate(out).copy_(result)


OWN_STEPS: Mapping[str, Callable[[nodes.Extern, Memory], None]] = {
    "kiln.empty": _empty,
    "kiln.view": _empty,
    "kiln.random_seed": _random_seed,
    nodes.CHECK: _assert,
    nodes.LOCAL_SCALAR: _local_scalar,
    nodes.WAIT: lambda node, memory: None,  # results are waited for before they are copied
    nodes.COND: _cond,
    nodes.WHILE_LOOP: _while_loop,
    nodes.SCAN: _scan,
}
"""Targets of `Extern` that are not ATen overloads."""


def _arguments(value: Any, memory: Memory) -> Any:
    if isinstance(value, nodes.BufferArg):
        tensor = memory.tensors[value.name]
        return tensor if value.spec is None else memory.under(tensor, value.spec)
    if isinstance(value, Expr):
        return number(value, memory.sizes)
    if isinstance(value, list):
        return [_arguments(item, memory) for item in value]
    return tuple(_arguments(item, memory) for item in value) if isinstance(value, tuple) else value


def run_program(
    program: nodes.LoopProgram, args: Sequence[Any], constants: Mapping[str, Tensor] | None = None
) -> list[Any]:
    """The outputs of `program` on `args`, whose contents it may change. Raises `IndexError`, `ZeroDivisionError`."""
    memory = bind_arguments(program.inputs, program.constants, args, constants)
    for node in program.nodes:
        run_node(node, memory)
    return collect_outputs(program.outputs, program.writes, args, memory)


def bind_arguments(
    inputs: Sequence[nodes.Buffer | Symbol],
    constants: Sequence[tuple[nodes.Buffer, str]],
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
    outputs: Sequence[nodes.LoopOutput], writes: Sequence[tuple[str, str]], args: Sequence[Any], memory: Memory
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


def _output(output: nodes.LoopOutput, args: Sequence[Any], earlier: list[Any], memory: Memory) -> Any:
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
