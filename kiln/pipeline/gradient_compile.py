"""Records the gradients of a region, from its eager replay, and compiles them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import torch

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node
from kiln.graph.passes.known_values import Definitions, read_known_values
from kiln.graph.trace import FakeTensor, Recorder
from kiln.pipeline.captured import eager_kernels
from kiln.pipeline.context import CompileContext
from kiln.pipeline.region import compile_region
from kiln.plan.region import RegionSpec
from kiln.runtime.autograd import GradientRun, Mask, Tensors
from kiln.runtime.eager_replay import EagerReplay, ambient
from kiln.runtime.guards.source import LocalSource
from kiln.support.gc_pause import GC_PAUSE
from kiln.symbolic import ShapeEnv
from kiln.symbolic.reference import prove

VALUE = "value_"


def compile_gradients(
    replay: EagerReplay,
    spec: RegionSpec,
    context: CompileContext,
    values: Sequence[object],
    mask: Mask,
    saved: Sequence[object] = (),
    define: Callable[[], Definitions] | None = None,
) -> GradientRun:
    """The gradients as a function of values like these: inputs, then tangents, then what the forward has `saved`, which
    `define` says. `mask`: whose are needed."""
    with ambient(replay.program["state"]), GC_PAUSE():
        kernels = eager_kernels(context.options)
        recorder = Recorder(env=ShapeEnv(prover=prove), events=context.events, kernels=kernels)
        fakes = list(values)
        leaves: list[torch.Tensor] = []  # inputs are known by identity
        for number, value in enumerate(values):
            if isinstance(value, torch.Tensor):
                leaves.append(value.detach().requires_grad_(value.requires_grad))
                fakes[number] = recorder.add_tensor(leaves[-1], f"{VALUE}{number}", LocalSource(VALUE))
        inputs, tangents = fakes[: len(mask)], cast(Tensors, fakes[len(mask) :])
        made = zip(replay(*inputs, log=recorder), spec.differentiable, strict=False)
        pairs = zip([result for result, is_fresh in made if is_fresh], tangents, strict=True)
        kept = [(root, tangent) for root, tangent in pairs if root.requires_grad and tangent is not None]
        wanted = [value for value, needed in zip(inputs, mask, strict=True) if needed]
        arguments = [root for root, _ in kept], wanted, [tangent for _, tangent in kept]
        found = cast(Tensors, recorder.call(torch.autograd.grad, (*arguments, True, True, True, True), {}))
        known = (
            None if define is None else add_saved(recorder, leaves, define(), values[: len(mask)], saved, len(values))
        )
        trace = recorder.finish([cast(FakeTensor, gradient) for gradient in found if gradient is not None])
        run = compile_region(recorder, trace, replace(context, graphs=None, known=known)).finish()
    first_saved = len(values)
    numbers = [int(used.name.removeprefix(VALUE)) for used in trace.used_inputs]
    exists = iter([gradient is not None for gradient in found])
    there = [needed and next(exists) for needed in mask]

    def gradients(*values: object) -> list[torch.Tensor | None]:
        taken = [values[number] if number < first_saved else detached(values[number]) for number in numbers]
        results = iter(cast(Sequence[torch.Tensor], run(*taken)))
        return [next(results) if is_there else None for is_there in there]

    return gradients


def detached(value: object) -> object:
    """A saved result has a history, which is not that of the gradients."""
    return value.detach() if isinstance(value, torch.Tensor) and value.requires_grad else value


def add_saved(
    recorder: Recorder,
    leaves: list[torch.Tensor],
    defined: Definitions,
    inputs: Sequence[object],
    saved: Sequence[object],
    first: int,
) -> Callable[[Graph], tuple[Graph, dict[Node, Node]]]:
    """Makes what the forward has saved, and `defined` says, inputs of the recording; what reads them in its graph."""
    for number in defined.saved:
        value = saved[number]
        if isinstance(value, torch.Tensor):
            leaves.append(value.detach())
            recorder.add_tensor(leaves[-1], f"{VALUE}{first + number}", LocalSource(VALUE))
    held = [*[number for number, _ in defined.given], *[first + number for number in defined.saved]]
    for record in recorder.table:
        record.kept = int(record.name.removeprefix(VALUE)) in held

    def read(graph: Graph) -> tuple[Graph, dict[Node, Node]]:
        names = {node: str(node.attrs["name"]) for node in graph.inputs}
        numbers = {node: int(name.removeprefix(VALUE)) for node, name in names.items() if name.startswith(VALUE)}
        positions = {node: number for node, number in numbers.items() if number < len(inputs)}
        held = {number - first: node for node, number in numbers.items() if number >= first}
        return read_known_values(graph, positions, held, defined, inputs)

    return read
