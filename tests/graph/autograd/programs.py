"""Records a program with its backward, interprets both parts, and compares with eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from kiln.graph.autograd import JointGraph, Partition, make_joint, partition
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.verify import verify
from kiln.graph.passes import GRAPH_PASSES, JOINT_PASSES, run_passes
from kiln.graph.passes.manager import GraphPass
from kiln.graph.trace import Recorder
from kiln.plan.signature import SavedTensor
from kiln.runtime.guards.source import LocalSource
from kiln.support.events import EventSink
from kiln.symbolic import ShapeEnv, symbol

Program = Callable[..., Any]


class Recording:
    """Calls of a program become calls of the recorder: `c(torch.add, x, y)`."""

    def __init__(self) -> None:
        self.recorder = Recorder(env=ShapeEnv(), events=EventSink())

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> Any:
        return self.recorder.call(target, args, kwargs)


def run_eagerly(target: Any, *args: Any, **kwargs: Any) -> Any:
    return getattr(args[0], target)(*args[1:], **kwargs) if isinstance(target, str) else target(*args, **kwargs)


def as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def joint_of(program: Program, inputs: Sequence[torch.Tensor]) -> JointGraph:
    """The joint graph of `program(call, *inputs)`; every input must be used."""
    recording = Recording()
    fakes = [recording.recorder.add_tensor(real, f"x{i}", LocalSource(f"x{i}")) for i, real in enumerate(inputs)]
    trace = recording.recorder.finish(as_tuple(program(recording, *fakes)))
    assert len(trace.graph.inputs) == len(inputs)
    joint = make_joint(recording.recorder, trace)
    verify(joint.graph, "joint")
    return joint


def simplified(graph: Graph, passes: tuple[GraphPass, ...]) -> Graph:
    return run_passes(graph, EventSink(), passes=passes, checks="full")


def run_partition(
    parts: Partition, inputs: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor]
) -> tuple[tuple[Any, ...], list[Any], list[Any]]:
    """Results of the user, new contents of written inputs in order, gradients by input."""
    run = interpret(parts.forward, inputs)
    saved = []
    for entry in parts.signature.saved:
        if isinstance(entry, SavedTensor):
            saved.append(inputs[entry.index] if entry.of == "input" else run.outputs[entry.index])
        else:
            saved.append(run.symbols[symbol(entry.name)])
    fitted = [
        torch.empty_strided(spec.sizes, spec.strides, dtype=spec.dtype).copy_(tangent)
        if all(isinstance(size, int) for size in spec.sizes)
        else tangent
        for tangent, spec in zip(tangents, parts.tangent_specs, strict=True)
    ]
    back = interpret(parts.backward, [*saved, *fitted]).outputs
    gradients = [None if index is None else back[index] for index in parts.grads]
    return run.outputs[: parts.num_user_outputs], [value for _, value in run.written], gradients


def check(program: Program, inputs: Sequence[torch.Tensor], recompute: bool = True, passes: bool = False) -> Partition:
    """Outputs, new contents and gradients are eager's."""
    joint = joint_of(program, inputs)
    if passes:
        joint = replace(joint, graph=simplified(joint.graph, JOINT_PASSES))
    parts = partition(joint, recompute=recompute)
    if passes:
        parts = replace(
            parts,
            forward=simplified(parts.forward, GRAPH_PASSES),
            backward=simplified(parts.backward, GRAPH_PASSES),
        )
    verify(parts.forward, "partition")
    verify(parts.backward, "partition")

    before = [x.detach().clone() for x in inputs]
    leaves = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    values = [x if real.is_leaf else x.clone() for x, real in zip(leaves, inputs, strict=True)]
    results = [*as_tuple(program(run_eagerly, *values)), *[values[index] for index in parts.carried]]
    torch.manual_seed(1)
    tangents = [torch.randn_like(results[index]) for index in parts.tangent_of]
    found = iter(
        torch.autograd.grad([results[index] for index in parts.tangent_of], wanted, tangents, allow_unused=True)
    )
    expected = [next(found) if x.requires_grad else None for x in inputs]

    outputs, written, gradients = run_partition(parts, before, tangents)
    for actual, result in zip(outputs, results, strict=True):
        torch.testing.assert_close(actual, result.detach(), rtol=1e-5, atol=1e-6)
    changed = [value for value, old in zip(values, before, strict=True) if not torch.equal(value.detach(), old)]
    assert len(written) + len(parts.carried) >= len(changed)
    for actual, gradient in zip(gradients, expected, strict=True):
        assert (actual is None) == (gradient is None)
        if gradient is not None:
            torch.testing.assert_close(actual, gradient, rtol=1e-5, atol=1e-5)
    return parts
