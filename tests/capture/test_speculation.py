"""Tests of integer inputs that choose a branch: assumed, checked in front of the region, left through a side exit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import kiln
from kiln.graph.ir import graph_text, interpret
from kiln.graph.trace.condition import condition_graph
from kiln.graph.trace.recorder import Recorder
from kiln.native._frames import Dispatcher, Entry
from kiln.support.events import EventSink
from kiln.symbolic import ShapeEnv
from kiln.symbolic.policy import DimChoice, DimKind

from .conftest import Lab


class SpeculatingLab(Lab):
    """A lab with side exits: at most `limit` follow one another."""

    limit = 4
    symbolic = False

    def at_depth(self, function: Any, depth: int) -> Dispatcher:
        def miss(dispatcher: Dispatcher, locals: dict[str, Any]) -> Entry | None:
            make_exit = (lambda target: self.at_depth(target, depth + 1)) if depth < self.limit else None
            return self.add_entry(
                dispatcher, self.capture(function, locals, dims=self.dims, make_exit=make_exit), locals
            )

        return Dispatcher(function, miss)

    def compile_region(self, recorder: Any, trace: Any) -> Callable[..., Any]:
        """Interprets the graph of primitives; values that only a speculation needs are no inputs."""

        def run(*args: Any) -> tuple[Any, ...]:
            done = interpret(trace.graph, args, constants=trace.constants)
            for index, value in done.written:
                args[index].copy_(value)
            return done.outputs

        return run

    def dims(self, real: torch.Tensor, source: Any) -> Any:
        return tuple(DimChoice(DimKind.SYMBOL, "test") for _ in real.shape) if self.symbolic else None

    def speculated(self) -> list[list[bool]]:
        return [[speculation.expected for speculation in got.speculations] for got in self.captures]


@pytest.fixture
def lab() -> SpeculatingLab:
    return SpeculatingLab()


Check = Callable[..., None]


@pytest.fixture
def agrees(lab: SpeculatingLab) -> Check:
    """`agrees(f, args, args, ...)`: one compiled function gives eager's result for each of the calls."""

    def check(function: Any, *calls: tuple[Any, ...]) -> None:
        compiled = lab.at_depth(function, 1)
        for args in calls:
            torch.testing.assert_close(compiled(*args), function(*args))

    return check


X = torch.arange(12.0).reshape(3, 4)
ONES, HOLES = torch.ones(4, dtype=torch.int64), torch.tensor([1, 1, 0, 0])


def masked(x, mask):
    if mask.all():
        return x.exp()
    return x.masked_fill(mask == 0, 0.0).exp()


def test_both_branches_are_one_graph_each_whatever_order_masks_come_in(lab, agrees):
    agrees(masked, *[(X, mask) for mask in (ONES, ONES, HOLES, ONES, HOLES, HOLES, 1 - HOLES, ONES)])
    assert lab.speculated() == [[True], [False]]
    assert lab.breaks() == []


def test_the_region_is_the_branch_alone(lab, agrees):
    agrees(masked, (X, ONES))
    region = lab.captures[0].regions[0].trace
    assert [node.op.name for node in region.graph.nodes] == ["exp"]


def test_paths_are_bounded_then_both_sides_are_in_the_graph(lab, agrees):
    def f(x, flags):
        for index in range(3):
            if flags[index]:
                x = x * (index + 2)
        return x

    paths = [torch.tensor([bool(n & 1), bool(n & 2), bool(n & 4)]) for n in range(8)]
    agrees(f, *[(X, flags) for flags in [*paths, *reversed(paths)]])
    assert len([item for item in lab.speculated() if item]) == lab.limit - 1
    assert lab.breaks() == []


def test_values_of_floating_point_inputs_are_no_ground_to_speculate(lab, agrees):
    def f(x, y):
        return x + 1 if y.sum() > 0 else x - 1

    agrees(f, (X, X + 1), (X, -X))
    assert lab.speculated() == [[]] and lab.breaks() == []


def test_a_value_that_follows_from_constants_needs_no_check(lab, agrees):
    def f(x):
        steps = torch.arange(4).diff()
        return x + 1 if (steps == 1).all() else x - 1

    agrees(f, (X,))
    assert lab.speculated() == [[]] and lab.breaks() == []


def test_a_value_that_follows_from_sizes_needs_no_check(lab, agrees):
    """Positions made by `arange` depend on sizes only."""

    def packed(x):
        positions = torch.arange(x.shape[1]).expand(x.shape[0], -1)
        steps = torch.diff(positions, prepend=positions[:, :1] - 1)
        if ((steps != 1).cumsum(-1)[:, -1] == 0).all():
            return x + 1
        return x * 2

    agrees(packed, (X,))
    assert lab.speculated() == [[]] and lab.breaks() == []


def test_no_side_effect_happens_before_the_side_exit(agrees):
    def f(x, mask, seen):
        seen.append("called")
        if mask.any():
            seen.append("any")
            return x + len(seen)
        return x - len(seen)

    lists: list[list[str]] = [[] for _ in range(4)]
    masks = [ONES, ONES * 0, ONES * 0, HOLES]
    agrees(lambda x, mask: f(x, mask, []), *[(X, mask) for mask in masks])
    compiled = SpeculatingLab().at_depth(f, 1)
    for mask, seen in zip(masks, lists, strict=True):
        compiled(X, mask, seen)
    assert lists == [["called", "any"], ["called"], ["called"], ["called", "any"]]


def test_a_later_test_that_is_invalid_on_the_other_path_fails_the_check(lab, agrees):
    def f(x, index, table):
        if (index < 4).all() and (table[index] > 0).all():
            return x * 2
        return x * 3

    table = torch.tensor([1, 1, 1, 1])
    agrees(f, (X, torch.tensor([0, 3]), table), (X, torch.tensor([0, 9]), table), (X, torch.tensor([1]), table))
    assert lab.breaks() == []


def test_all_kinds_of_arguments_reach_the_side_exit(lab, agrees):
    def f(x, /, mask, *rest, scale, **more):
        total = x * scale + sum(rest) + more["bias"]
        return total if mask.all() else -total

    compiled = lab.at_depth(f, 1)
    for mask in (ONES, HOLES, ONES, HOLES):
        args, kwargs = (X, mask, X, X + 1), {"scale": 2.0, "bias": X}
        torch.testing.assert_close(compiled(*args, **kwargs), f(*args, **kwargs))
    assert lab.speculated() == [[True], [False]]


def test_inputs_that_are_found_by_a_path(lab, agrees):
    class Holder:
        mask = None
        weight = torch.ones(4)

    def f(x, holder):
        return x * holder.weight if holder.mask.all() else x + holder.weight

    a, b = Holder(), Holder()
    a.mask, b.mask = ONES, HOLES
    agrees(f, (X, a), (X, b), (X, a))
    assert lab.speculated() == [[True], [False]]


def test_the_value_at_the_entry_counts_not_that_after_a_change(lab, agrees):
    def f(x, mask):
        changed = mask.clone()
        changed[0] = 0
        return x + 1 if changed.all() else x - 1

    agrees(f, (X, ONES), (X, HOLES))
    assert lab.speculated() == [[False]]


def test_a_change_of_the_input_before_the_test(lab, agrees):
    def f(x, mask):
        mask.mul_(2)
        return x + 1 if (mask == 2).all() else x - 1

    compiled = lab.at_depth(f, 1)
    for start in (ONES, HOLES, ONES):
        mine, theirs = start.clone(), start.clone()
        torch.testing.assert_close(compiled(X, mine), f(X, theirs))
        torch.testing.assert_close(mine, theirs)


def test_sizes_that_are_symbols(lab, agrees):
    lab.symbolic = True

    def f(x, mask):
        ends = mask.sum() == x.shape[0]
        return x + 1 if ends else x - 1

    calls = [(torch.ones(n), torch.tensor([1] * k + [0] * (9 - k))) for n, k in ((3, 3), (4, 3), (5, 5), (6, 2))]
    agrees(f, *calls)
    assert lab.speculated() == [[True], [False]]


def test_item_of_a_truth_value(lab, agrees):
    def f(x, mask):
        return x + 1 if mask.all().item() else x - 1

    agrees(f, (X, ONES), (X, HOLES))
    assert lab.speculated() == [[True], [False]]


def test_condition_graph(golden):
    recorder = Recorder(env=ShapeEnv(), events=EventSink())
    mask = recorder.add_tensor(HOLES, "mask", None)
    other = recorder.add_tensor(X, "x", None)
    recorder.call(torch.exp, (other,), {})
    truth = recorder.call("all", (mask,), {})
    graph, records = condition_graph(recorder, [recorder.node_of(truth)])
    assert [record.name for record in records] == ["mask"]
    golden(graph_text(graph))


@pytest.mark.parametrize("random", ["own", "eager"])
def test_random_numbers_beyond_their_range(random):
    """`layerdrop = 0.0`: no draw is below it."""

    def f(x):
        for drop in (0.0, -1, 1, 1.5):
            x = x + 1 if torch.rand([]) < drop else x * 2
            x = x - 3 if drop <= torch.rand(1) else x * 5
            if drop:
                x = x + 7 if torch.rand_like(x[:1]) > drop else x * 11
        return x

    compiled = kiln.compile(f, backend="eager", options={"cache": False, "random": random})
    torch.testing.assert_close(compiled(X[0]), f(X[0]))
    report = kiln.report_of(compiled)
    assert not report.breaks and report.regions == 1


FACTORS = [1, 2, 3, 4, 5]


def test_numbers_computed_from_a_size_that_is_speculated_on() -> None:
    """The number of selected rows is known; the divisor of `std` is asked in front of the region, which counts them."""

    def program(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows = torch.nonzero(mask)[:, 0]
        return x.index_select(0, rows).std(0) * FACTORS[rows.shape[0]]

    compiled = kiln.compile(program, options={"cache": False})
    for chosen in (2, 3):
        x, mask = torch.randn(4, 3, requires_grad=True), torch.arange(4) < chosen
        torch.testing.assert_close(compiled(x, mask), program(x, mask))
    assert not compiled.report().eager
