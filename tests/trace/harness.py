"""Trace a function of tensors and compare what its graph computes with eager: values, dtypes, sizes, strides."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.node import Node
from kiln.graph.ir.verify import verify
from kiln.graph.prims.rows import PRIMS
from kiln.graph.trace import InputRecord, Recorder, Trace
from kiln.runtime.guards.source import LocalSource
from kiln.support.events import EventSink
from kiln.symbolic import ShapeEnv

Function = Callable[..., Any]

DEVICE = os.environ.get("KILN_TEST_DEVICE", "cpu")
if DEVICE != "cpu":
    torch.set_default_device(DEVICE)


def new_recorder() -> Recorder:
    return Recorder(env=ShapeEnv(), events=EventSink())


@dataclass
class Traced:
    recorder: Recorder
    trace: Trace
    inputs: list[torch.Tensor]  # real, in the order of the graph
    fakes: list[Any]  # flat outputs

    @property
    def ops(self) -> list[str]:
        return [node.op.name for node in self.trace.graph.nodes]


def trace(function: Function, args: Sequence[Any], *, backward: bool = False, dims: Any = None) -> Traced:
    """One call of `function`; with `backward`, the gradients of what requires grad follow the results."""
    recorder = new_recorder()
    flat, structure = pytree.tree_flatten(list(args))
    fakes = [
        recorder.add_tensor(leaf, f"x{i}", LocalSource(f"x{i}"), dims and dims.get(i))
        if isinstance(leaf, torch.Tensor)
        else leaf
        for i, leaf in enumerate(flat)
    ]
    leaves = list(fakes)
    result = recorder.call(function, pytree.tree_unflatten(fakes, structure), {})
    outputs = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    if backward:
        outputs += _gradients(recorder, outputs, leaves)
    traced = recorder.finish(outputs)
    verify(traced.graph, after="trace", env=recorder.env)
    real = [record.real for record in traced.used_inputs]
    return Traced(recorder, traced, real, outputs)


def tangent_of(output: Any) -> torch.Tensor:
    return torch.linspace(0.5, 1.5, output.numel(), dtype=output.dtype, device=output.device).reshape(output.shape)


def _gradients(recorder: Recorder, outputs: list[Any], leaves: list[Any]) -> list[Any]:
    differentiable = [output for output in outputs if output.requires_grad]
    tangents = [_tangent(recorder, output, f"t{i}") for i, output in enumerate(differentiable)]
    inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    return [gradient for gradient in recorder.run_backward(differentiable, tangents, inputs) if gradient is not None]


def _tangent(recorder: Recorder, output: Any, name: str) -> torch.Tensor:
    """A further input, contiguous, of the sizes of `output`."""
    spec = recorder.node_of(output).tensor
    spec = spec.with_sizes(spec.sizes)
    node = Node(PRIMS["input"], (), {"index": len(recorder.inputs), "name": name}, spec)
    fake = recorder.fake_of(node)
    sizes = [recorder.env.hint(size) for size in spec.sizes]
    real = tangent_of(torch.empty(sizes, dtype=spec.dtype, device=spec.device))
    recorder.inputs.append(InputRecord(name, LocalSource(name), fake, real, node, spec, fake.storage_view, _leaf=fake))
    return fake


def eager(function: Function, args: Sequence[Any], *, backward: bool = False) -> list[torch.Tensor]:
    flat = pytree.tree_leaves(list(args))
    result = function(*args)
    outputs = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    if backward:
        differentiable = [output for output in outputs if output.requires_grad]
        inputs = [leaf for leaf in flat if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        grads = torch.autograd.grad(
            differentiable, inputs, [tangent_of(output) for output in differentiable], allow_unused=True
        )
        outputs += [grad for grad in grads if grad is not None]
    return outputs


def copies(args: Sequence[Any]) -> list[Any]:
    """Fresh tensors with the same values and strides, sharing memory as the given ones do."""

    bases: dict[Any, torch.Tensor] = {}

    def copied(one: Any) -> Any:
        if not isinstance(one, torch.Tensor):
            return one
        base = torch.empty(one.untyped_storage().nbytes() // one.element_size(), dtype=one.dtype, device=one.device)
        base.copy_(one.detach().as_strided(base.shape, (1,), 0)) if base.numel() else None
        base = bases.setdefault((one.untyped_storage()._cdata, one.dtype), base)
        made = base.as_strided(one.shape, one.stride(), one.storage_offset())
        return made.requires_grad_(one.requires_grad)

    return pytree.tree_map(copied, list(args))


def check(
    function: Function,
    args: Sequence[Any],
    *,
    backward: bool = False,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    strides: bool = True,
    seed: int = 7,
) -> Traced:
    """The graph of `function` on `args` computes what eager does, writes to inputs included."""
    for_eager, for_graph = copies(args), copies(args)
    traced = trace(function, copies(args), backward=backward)
    # The graph runs on unmodified tensors.
    by_real = {id(a): b for a, b in zip(_tensors(traced), _tensors_of(for_graph), strict=False)}
    inputs = [by_real.get(id(given), given) for given in traced.inputs]
    torch.manual_seed(seed)
    expected = eager(function, for_eager, backward=backward)
    torch.manual_seed(seed)
    run = interpret(traced.trace.graph, [given.detach() for given in inputs], constants=traced.trace.constants)
    assert len(run.outputs) == len(expected)
    for i, (got, fake, want) in enumerate(zip(run.outputs, traced.fakes, expected, strict=True)):
        where = f"output {i} of {function}"
        assert got.dtype == fake.dtype == want.dtype, (
            f"{where}: dtype {got.dtype}, fake {fake.dtype}, eager {want.dtype}"
        )
        assert got.shape == fake.shape == want.shape, f"{where}: {got.shape}, fake {fake.shape}, eager {want.shape}"
        if strides and want.numel():
            assert same_strides(fake, want), (
                f"{where}: fake strides {fake.stride()}, eager {want.stride()} of {want.shape}"
            )
        torch.testing.assert_close(got, want.detach(), rtol=rtol, atol=atol, equal_nan=True, check_stride=False)
    for i, value in run.written:
        inputs[i].detach().copy_(value)
    for got, after in zip(inputs, _real_order(traced, for_eager), strict=True):
        if after is not None:
            torch.testing.assert_close(got.detach(), after.detach(), rtol=rtol, atol=atol, equal_nan=True)
    return traced


def same_strides(left: torch.Tensor, right: torch.Tensor) -> bool:
    return all(a == b or size <= 1 for a, b, size in zip(left.stride(), right.stride(), right.shape, strict=True))


def _tensors(traced: Traced) -> list[torch.Tensor]:
    return [record.real for record in traced.trace.inputs]


def _tensors_of(args: Sequence[Any]) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(list(args)) if isinstance(leaf, torch.Tensor)]


def _real_order(traced: Traced, args: Sequence[Any]) -> list[torch.Tensor | None]:
    """The eager counterparts of the graph's inputs; None for tangents."""
    by_name = {f"x{i}": leaf for i, leaf in enumerate(pytree.tree_leaves(list(args)))}
    return [by_name.get(record.name) for record in traced.trace.used_inputs]
