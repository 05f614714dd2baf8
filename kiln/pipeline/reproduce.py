"""What a reproducer script calls: the inputs, and both comparisons with eager.

x = made(torch.float32, (2, 2), (2, 1), values=[...])        or random: seed=1
program_difference(program, kiln.compile(program), [x])      the torch program against its compiled form
graph_difference(GRAPH, [x], options)                        the compiled graph against its interpreter
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.interpret import Interpreter, RuntimeValue, interpret
from kiln.graph.ir.parse import parse_graph
from kiln.pipeline.compiled_plan import compile_plan
from kiln.pipeline.context import CompileContext
from kiln.pipeline.differences import differences
from kiln.pipeline.observation import Observation, Run, observe
from kiln.pipeline.stages import graph_to_plan
from kiln.pipeline.switched_off import target_for
from kiln.plan.plan import Plan
from kiln.runtime.cache.store import DiskStore, default_folder
from kiln.runtime.executor import Executable
from kiln.support.dump import Dump
from kiln.support.events import EventSink
from kiln.support.options import Options, options_from
from kiln.support.target import host_cpu

Constants = Mapping[str, torch.Tensor]


def made(
    dtype: torch.dtype, sizes: Sequence[int], strides: Sequence[int], device: str = "cpu", *,
    values: Sequence[object] = (), seed: int | None = None, low: int = 0, high: int = 2, requires_grad: bool = False,
) -> torch.Tensor:  # fmt: skip
    """A tensor with `values` in logical order, or random ones: normal, or integers from `low` to below `high`."""
    if seed is None:
        wanted = torch.tensor(values, dtype=dtype, device="cpu").reshape(sizes)
    else:
        generator = torch.Generator().manual_seed(seed)
        if dtype.is_floating_point or dtype.is_complex:
            wanted = torch.randn(sizes, generator=generator, dtype=torch.float64, device="cpu").to(dtype)
        else:
            wanted = torch.randint(low, high, sizes, generator=generator, device="cpu").to(dtype)
    result = torch.empty_strided(sizes, strides, dtype=dtype, device=device)
    if 0 in strides and wanted.numel():  # of expanded dimensions, the first element
        kept = tuple(slice(None) if stride else slice(0, 1) for stride in strides)
        result[kept].copy_(wanted[kept])
    else:
        result.copy_(wanted)
    return result.requires_grad_(requires_grad)


def program_difference(program: Run, compiled: Run, inputs: Sequence[object]) -> str:
    """How the compiled torch program differs from eager, "" if it does not."""
    torch.manual_seed(0)
    expected, found = observe(program, inputs), observe(compiled, inputs)
    return differences(found, expected, None)


def graph_difference(
    graph: Graph | str, inputs: Sequence[object], options: Mapping[str, object] | Options, constants: Constants
) -> str:
    """How the compiled graph differs from its interpreter. Inputs that are missing (tangents) are random."""
    graph = parse_graph(graph) if isinstance(graph, str) else graph
    given, reference = with_tangents(graph, inputs), graph_reference(graph, constants)

    def compiled(*values: object) -> Sequence[object]:
        return executable(graph, options, constants)(*values)

    torch.manual_seed(0)
    with torch.no_grad():
        expected, found = observe(reference, given), observe(compiled, given)
    return differences(without_sharing(found), without_sharing(expected), None)


def graph_reference(graph: Graph, constants: Constants) -> Run:
    """`graph` run by its interpreter."""

    def reference(*values: RuntimeValue) -> Sequence[object]:
        run = interpret(graph, values, constants=constants)
        for number, contents in run.written:
            cast(torch.Tensor, values[number]).copy_(contents)
        return run.outputs

    return reference


def with_tangents(graph: Graph, inputs: Sequence[object]) -> list[object]:
    """`inputs`, and random numbers for the other inputs of the graph."""
    sizes = Interpreter({}, {})
    for node, value in zip(graph.inputs, inputs, strict=False):
        sizes.bind(node.spec, cast(RuntimeValue, value))
    given = list(inputs)
    for node in graph.inputs[len(given) :]:
        spec = node.tensor
        numbers = sizes.numbers(spec.sizes), sizes.numbers(spec.strides)
        given.append(made(spec.dtype, *numbers, str(spec.device), seed=len(given)))
    return given


def without_sharing(run: Observation) -> Observation:
    """The interpreter copies more than a plan."""
    return replace(run, shared=())


def executable(graph: Graph, options: Mapping[str, object] | Options, constants: Constants) -> Executable:
    """`graph` compiled alone."""
    context = plain_context(options)
    return compile_plan(graph_to_plan(graph, context), constants, context).executor()


def graph_plan(graph: Graph, options: Mapping[str, object] | Options) -> Plan:
    return graph_to_plan(graph, plain_context(options))


def plain_context(options: Mapping[str, object] | Options) -> CompileContext:
    chosen = options if isinstance(options, Options) else options_from(options)
    host = target_for(chosen, host_cpu(torch.get_num_threads()))
    store = DiskStore(chosen.cache_dir or default_folder())
    return CompileContext(chosen, host, host, EventSink(), Dump(None), store)
