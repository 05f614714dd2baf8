"""Searches that keep what they found in containers of plain data, and ask a model or a matrix in each turn.

The number of variants does not grow with what the containers hold.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln
from tests.capture.idioms.outcome import same

torch.manual_seed(0)
HEAD = nn.Linear(4, 6)
TABLE = torch.randn(6, 4)


def shortest_path(costs: Tensor) -> float | None:
    queue, found, seen = [(0.0, 0)], {0: 0.0}, set[int]()
    while queue:
        _, node = heapq.heappop(queue)
        if node == len(costs) - 1:
            return found[node]
        if node in seen:
            continue
        seen.add(node)
        for other in range(len(costs)):
            cost = found[node] + float(costs[node, other])
            if cost < found.get(other, math.inf):
                found[other] = cost
                heapq.heappush(queue, (cost + costs[other].min().item(), other))
    return None


def without_pairs(costs: Tensor) -> list[int]:
    """Tokens of a model, none behind the same one twice."""
    tokens, seen = [0], defaultdict[int, set[int]](set)
    for _ in range(len(costs)):
        scores = HEAD(TABLE[tokens[-1]]).clone()
        for banned in seen[tokens[-1]]:
            scores[banned] = -1e9
        chosen = scores.argmax().item()
        seen[tokens[-1]].add(chosen)
        tokens.append(chosen)
    return tokens


def most_common(costs: Tensor) -> list[Any]:
    found: Counter[int] = Counter()
    for row in costs:
        found[round(TABLE[: len(row)].sum().item() + row.sum().item())] += 1
    return found.most_common(2)


def in_breadth(costs: Tensor) -> tuple[list[int], Tensor]:
    queue, seen, order, x = deque([0]), {0}, list[int](), torch.zeros(3)
    while queue:
        node = queue.popleft()
        order.append(node)
        x = torch.tanh(x + costs[node].sum())
        for other in (costs[node] > 0.5).nonzero().flatten().tolist():
            if other not in seen:
                seen.add(other)
                queue.append(other)
    return order, x


def prefixes(costs: Tensor) -> tuple[int, ...]:
    beams: dict[tuple[int, ...], tuple[float, float]] = {(): (1.0, 0.0)}
    for row in range(len(costs)):
        found = defaultdict[tuple[int, ...], tuple[float, float]](lambda: (0.0, 0.0))
        for prefix, (blank, other) in beams.items():
            for token in range(3):
                p = costs[row, token].item()
                if token == 0:
                    a, b = found[prefix]
                    found[prefix] = a + p * (blank + other), b
                elif prefix and prefix[-1] == token:
                    a, b = found[prefix]
                    found[prefix] = a, b + p * other
                else:
                    a, b = found[(*prefix, token)]
                    found[(*prefix, token)] = a, b + p * (blank + other)
        beams = dict(sorted(found.items(), key=lambda item: -sum(item[1]))[:2])
    return next(iter(beams))


def neighbours(costs: Tensor) -> list[int]:
    near = [set((row < 0.5).nonzero().flatten().tolist()) for row in costs]
    return [len(found) for found in near]


MOST = {shortest_path: 24, without_pairs: 16, most_common: 10, in_breadth: 6, prefixes: 24, neighbours: 12}
"""Of `neighbours` with those behind the selection, which often finds one element: the first variants expect another."""


@pytest.mark.parametrize("program", MOST)
def test_variants_do_not_grow_with_what_was_found(program: Callable[[Tensor], Any]) -> None:
    compiled = kiln.compile(program, options={"cache": False})
    generator = torch.Generator().manual_seed(1)
    for count in (4, 4, 5, 6, 7, 7, 6, 5, 4, 6):
        costs = torch.rand(count, count, generator=generator) + 0.1
        assert same(compiled(costs), program(costs))
    report = kiln.report_of(compiled)
    assert not report.eager and report.compiles <= MOST[program], str(report)
