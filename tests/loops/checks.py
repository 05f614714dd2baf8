"""Compares the results of a graph with those of its later stages."""

from __future__ import annotations

from typing import Any

import torch

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.interpret import interpret
from kiln.loops.lowering import lower
from kiln.loops.program.interpret import run_program
from kiln.loops.program.nodes import LoopProgram
from kiln.support.events import EventSink
from kiln.support.target import Target

TARGET = Target()


def lowered(graph: Graph) -> LoopProgram:
    return lower(graph, TARGET, EventSink())


def copies(inputs: list[Any]) -> list[Any]:
    return [
        given.clone(memory_format=torch.preserve_format) if given._is_view() is False else given for given in inputs
    ]


def expected(graph: Graph, inputs: list[Any]) -> list[Any]:
    """Outputs, then written inputs."""
    run = interpret(graph, inputs)
    return [*run.outputs, *[value for _, value in run.written]]


def results_of_program(program: LoopProgram, graph: Graph, inputs: list[Any]) -> list[Any]:
    given = copies(inputs)
    outputs = run_program(program, given)
    return [*outputs, *[given[graph.inputs.index(write.target)] for write in graph.writes]]


def strides(tensor: torch.Tensor) -> list[int]:
    """Of the dimensions whose stride counts."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]


def assert_same(actual: list[Any], wanted: list[Any]) -> None:
    assert len(actual) == len(wanted)
    for result, other in zip(actual, wanted, strict=True):
        assert result.dtype == other.dtype and result.shape == other.shape
        assert strides(result) == strides(other) or result.numel() == 0
        torch.testing.assert_close(result, other, rtol=2e-5, atol=2e-6, equal_nan=True)
