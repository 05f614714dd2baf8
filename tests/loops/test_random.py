"""Random graphs and every primitive op, through lowering and through the schedule."""

from __future__ import annotations

from typing import Any

import pytest

from kiln.graph.ir.graph import Graph
from kiln.loops.fusion.schedule import schedule
from kiln.loops.kernel.launches.interpret import run_kernel_program
from kiln.support.events import EventSink
from tests.graph.ir.samples import SAMPLES, sample_graph
from tests.loops.checks import TARGET, assert_same, copies, expected, lowered, results_of_program
from tests.loops.random_programs import random_program

Made = tuple[Graph, list[Any]]


def check(made: Made) -> None:
    """Loops equal the graph."""
    graph, inputs = made
    assert_same(results_of_program(lowered(graph), graph, inputs), expected(graph, inputs))


def check_kernels(made: Made) -> None:
    """Kernels equal the graph."""
    graph, inputs = made
    kernels = schedule(lowered(graph), TARGET, EventSink())
    assert_same(run_kernel_program(kernels, copies(inputs)), expected(graph, inputs))


@pytest.mark.parametrize("seed", range(60))
def test_random_program(seed: int) -> None:
    check(random_program(seed))


@pytest.mark.parametrize("seed", range(40))
def test_random_symbolic_program(seed: int) -> None:
    check(random_program(seed, symbolic=True))


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_every_op(name: str) -> None:
    graph, inputs = sample_graph(name)
    check((graph, list(inputs)))


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_every_op_in_a_kernel(name: str) -> None:
    graph, inputs = sample_graph(name)
    check_kernels((graph, list(inputs)))


@pytest.mark.parametrize("seed", range(60))
def test_kernels_of_random_program(seed: int) -> None:
    check_kernels(random_program(seed))


@pytest.mark.parametrize("seed", range(40))
def test_kernels_of_random_symbolic_program(seed: int) -> None:
    check_kernels(random_program(seed, symbolic=True))


@pytest.mark.parametrize("seed", range(100, 1000))
def test_more_random_programs(seed: int) -> None:
    made = random_program(seed, 14, symbolic=seed % 2 == 0)
    check(made)
    check_kernels(made)
