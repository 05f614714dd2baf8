"""One function through capture: graphs, guards, transformed code."""

from __future__ import annotations

import time

import torch

SIGNS: dict[int, int] = {}


def toy_example(a, b):
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        SIGNS[len(SIGNS)] = -1
        b = b * -1
    return x * b


def test_toy_example_has_three_graphs(lab, golden):
    compiled = lab.compile(toy_example)
    a, b = torch.randn(10), torch.rand(10)
    for sign in (-1, 1):
        torch.testing.assert_close(compiled(a, sign * b), toy_example(a, sign * b))
    golden(lab.graphs())
    assert lab.breaks() == ["KILN1007"]


def test_guards_are_lazy(lab, golden):
    def f(x, n, unused, flag=None):
        y = torch.abs(x) + n
        if flag is None:
            y = y * 2
        return {"a": y.sum(-1), "b": [y, n]}

    lab.compile(f)(torch.ones(3, 4), 3, "whatever")
    golden(lab.guards().split("   #")[0] + "\n" + lab.graphs())


def test_closures_comprehensions_and_containers(same):
    def f(x, n):
        def g(z):
            return z.sum(-1) + n

        parts = [x * i for i in range(n) if i != 1]
        d = {f"k{i}": p for i, p in enumerate(parts)}
        return {"a": g(x), "b": [p + 1 for p in d.values()], "c": (len(parts), *d)}

    same(f, torch.randn(3, 4), 3)


def test_break_in_inlined_callee_keeps_the_callers_graph(same, lab):
    def inner(x):
        y = x + 1
        time.sleep(0)
        return y * 2

    def f(x):
        z = x.sin()
        return inner(z) + z

    same(f, torch.randn(3), breaks=["KILN1010"])
    assert len(lab.captures) == 2
    assert "sin" in lab.graphs().split("---")[0]


def test_exception_of_a_broken_instruction_reaches_its_handler(same):
    def f(x):
        y = x + 1
        try:
            time.sleep("long")
        except TypeError:
            y = y * 3
        return y

    same(f, torch.randn(3), breaks=["KILN1010"])


def test_side_effects_are_replayed(lab):
    class Counter:
        def __init__(self):
            self.count = 0
            self.seen = []

    def f(x, c):
        c.count += 1
        c.seen.append(x * 2)
        return x + c.count

    a, b, x = Counter(), Counter(), torch.randn(3)
    torch.testing.assert_close(lab.compile(f)(x, a), f(x, b))
    assert a.count == b.count == 1
    torch.testing.assert_close(a.seen, b.seen)
