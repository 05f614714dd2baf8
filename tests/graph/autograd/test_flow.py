"""The minimum cut against networkx."""

from __future__ import annotations

import random

import networkx

from kiln.graph.autograd.flow import INFINITE, FlowNetwork


def test_random_networks() -> None:
    rng = random.Random(0)
    for _ in range(60):
        count = rng.randint(3, 12)
        net, reference = FlowNetwork(count), networkx.DiGraph()
        reference.add_nodes_from(range(count))
        edges = {
            (rng.randrange(count), rng.randrange(count)): rng.choice((1, 2, 5, 9)) for _ in range(rng.randint(2, 40))
        }
        for (tail, head), capacity in edges.items():
            net.add_edge(tail, head, capacity)
            reference.add_edge(tail, head, capacity=capacity)
        side = net.sink_side(0, count - 1)
        assert 0 not in side
        value = sum(capacity for (tail, head), capacity in edges.items() if tail not in side and head in side)
        assert value == networkx.minimum_cut_value(reference, 0, count - 1)


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
