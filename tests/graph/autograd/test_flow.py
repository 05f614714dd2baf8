"""The minimum cut against all cuts of small networks."""

from __future__ import annotations

import random
from itertools import combinations

from kiln.graph.autograd.flow import INFINITE, FlowNetwork

Edges = dict[tuple[int, int], int]


def cut_value(edges: Edges, sink_side: set[int]) -> int:
    return sum(capacity for (tail, head), capacity in edges.items() if tail not in sink_side and head in sink_side)


def least_cut(edges: Edges, count: int) -> int:
    inner = range(1, count - 1)
    sides = [{count - 1, *chosen} for size in range(count - 1) for chosen in combinations(inner, size)]
    return min(cut_value(edges, side) for side in sides)


def test_random_networks() -> None:
    rng = random.Random(0)
    for _ in range(60):
        count = rng.randint(3, 9)
        net = FlowNetwork(count)
        edges = {
            (rng.randrange(count), rng.randrange(count)): rng.choice((1, 2, 5, 9)) for _ in range(rng.randint(2, 40))
        }
        for (tail, head), capacity in edges.items():
            net.add_edge(tail, head, capacity)
        side = net.sink_side(0, count - 1)
        assert 0 not in side
        assert cut_value(edges, side) == least_cut(edges, count)


def test_of_equal_cuts_the_one_nearest_to_the_sink() -> None:
    net = FlowNetwork(4)
    for tail in range(3):
        net.add_edge(tail, tail + 1, 7)
    assert net.sink_side(0, 3) == {3}


def test_infinite_edges_are_never_cut() -> None:
    net = FlowNetwork(4)
    net.add_edge(0, 1, 3)
    net.add_edge(1, 2, INFINITE)
    net.add_edge(2, 3, INFINITE)
    assert net.sink_side(0, 3) == {1, 2, 3}
