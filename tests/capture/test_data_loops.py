"""Loops that the values of tensors end are one `while_loop` in the graph; what is seen is eager's."""
# ruff: noqa: B007

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

import kiln
from kiln.api import report_of
from kiln.capture.bytecode.decode import decode
from kiln.capture.bytecode.loops import loops_at

Program = Callable[[Tensor, float], Any]
LAYER = nn.Linear(3, 3)
CELL = nn.LSTMCell(3, 3)


def newton(x: Tensor, limit: float) -> Any:
    root = torch.ones_like(x)
    for turn in range(50):
        step = (root * root - x.abs() - 1) / (2 * root)
        root = root - step
        if step.abs().max() < limit / 100:
            break
    return root, turn


def bound_by_an_argument(x: Tensor, limit: float, count: int = 12) -> Any:
    for turn in range(count):
        x = x.cos()
        if (x.cos() - x).abs().max().item() < limit:
            break
    return x, turn


def while_on_a_tensor(x: Tensor, limit: float) -> Any:
    count = 0
    while x.norm() > limit and count < 12:
        x = x * 0.5
        count += 1
    return x, count


def while_true(x: Tensor, limit: float) -> Any:
    count = 0
    while True:
        y = x.cos()
        if (y - x).abs().max().item() < limit:
            return y, count
        x = y
        count += 1


def best_is_none_at_first(x: Tensor, limit: float) -> Any:
    best = None
    for turn in range(20):
        x = x - 0.1 * (x - x.mean(0))
        loss = x.pow(2).mean().item()
        if best is not None and best - loss < limit / 100:
            break
        best = loss
    return x, best, turn


def patience(x: Tensor, limit: float) -> Any:
    best, bad, y = float("inf"), 0, torch.zeros_like(x)
    for epoch in range(60):
        y = y + 0.3 * (x - y) + 0.05 * torch.cos(epoch * x)
        loss = (y - x).pow(2).sum().item()
        if loss < best - limit / 100:
            best, bad = loss, 0
        else:
            bad += 1
            if bad >= 3:
                break
    return y, best, epoch


def sets_a_flag(x: Tensor, limit: float) -> Any:
    converged = False
    for turn in range(20, 0, -2):
        x = x * 0.7
        if x.sum() > 50:
            continue
        if x.norm() < limit:
            converged = True
            break
    return x, converged, turn


def in_a_loop(x: Tensor, limit: float) -> Any:
    for outer in range(12):
        y = x
        for inner in range(20):
            y = y * 0.8
            if y.norm() < 0.5:
                break
        x = x - 0.2 * y
        if x.norm() < 10 * limit:
            break
    return x, outer, inner


def state_is_a_tuple(x: Tensor, limit: float) -> Any:
    with torch.no_grad():
        state = (torch.zeros_like(x), torch.zeros_like(x))
        for turn in range(20):
            state = CELL(x, state)
            if state[0].mean() > limit:
                break
        return state, turn


def variables_of_a_comprehension(x: Tensor, limit: float) -> Any:
    centres = x[:2].clone()
    for _ in range(10):
        nearest = (x[:, None] - centres[None]).pow(2).sum(-1).argmin(1)
        new = torch.stack([x[nearest == k].mean(0) if (nearest == k).any() else centres[k] for k in range(2)])
        shift = (new - centres).norm()
        centres = new
        if shift < limit / 100:
            break
    return centres, nearest


def bisection(x: Tensor, limit: float) -> Any:
    low, high = 0.0, 10.0
    while high - low > limit:
        middle = (low + high) / 2
        if (x - middle).clamp(min=0).sum() > 1:
            low = middle
        else:
            high = middle
    return (x - low).clamp(min=0)


def no_turn_at_all(x: Tensor, limit: float) -> Any:
    while x.norm() < -1:
        x = x + 1
    return x * 2


def two_in_a_row(x: Tensor, limit: float) -> Any:
    for turn in range(20):
        x = x * 0.8
        if x.norm() < limit:
            break
    y = x + 1
    while y.norm() > 1:
        y = y * 0.9
    return x, y, turn


def a_module_of_the_program(x: Tensor, limit: float) -> Any:
    with torch.no_grad():
        for depth in range(20):
            before, x = x, LAYER(x).tanh()
            if (x - before).norm() < limit:
                break
        return x, depth


def searches(x: Tensor, limit: float) -> Any:
    levels, low, high = x.flatten().sort()[0], 0, x.numel()
    while low < high:
        middle = (low + high) // 2
        if levels[middle] > limit:
            high = middle
        else:
            low = middle + 1
    return low


def divides_by_zero(x: Tensor, limit: float) -> Any:
    ratio = 0.0
    for _ in range(20):
        x = (x * 0.5).relu() - 0.01
        ratio = x.norm().item() / x.relu().sum().item()
        if x.norm() < limit:
            break
    return x, ratio


def otherwise(x: Tensor, limit: float) -> Any:
    for turn in range(12):
        x = x * 0.7
        if x.norm() < limit:
            break
    else:
        x = x * 100
    return x, turn


def returns_or_goes_on(x: Tensor, limit: float) -> Any:
    for turn in range(12):
        x = x * 0.7
        if x.norm() < limit:
            return x, turn, True
    return x * 2, -1, False


def is_returned_inside(x: Tensor, limit: float) -> Any:
    def settled(x: Tensor) -> Tensor:
        for _ in range(12):
            x = x * 0.7
            if x.norm() < limit:
                return x
        return x + 5

    return settled(x * 2) * 3


WHOLE = [
    *(newton, bound_by_an_argument, while_on_a_tensor, while_true, best_is_none_at_first, patience, sets_a_flag),
    *(in_a_loop, state_is_a_tuple, variables_of_a_comprehension, bisection, no_turn_at_all, two_in_a_row),
    *(a_module_of_the_program, searches, divides_by_zero, otherwise, returns_or_goes_on, is_returned_inside),
]


def fills_a_list(x: Tensor, limit: float) -> Any:
    losses = []
    for _ in range(20):
        x = x * 0.7
        losses.append(x.norm().item())
        if losses[-1] < limit:
            break
    return x, losses


def integers_grow_beyond_64_bits(x: Tensor, limit: float) -> Any:
    a, b = 1, 1
    for turn in range(200):
        a, b = b, a + b
        x = x * 0.99
        if x.norm() < limit:
            break
    return x, a, b, turn


def doubled_on_one_side(x: Tensor, limit: float) -> Any:
    step = 1
    for _ in range(200):
        step = step * 2 if x.sum() > 0 else step
        x = x * 0.99
        if x.norm() < limit:
            break
    return x, step


def adds_large_numbers(x: Tensor, limit: float) -> Any:
    total = 0
    for _ in range(20):
        total = total + 2**60
        x = x * 0.7
        if x.norm() < limit:
            break
    return x, total


def begins_with_a_large_number(x: Tensor, limit: float) -> Any:
    total = 2**62 + int((x > 0).sum())
    for _ in range(20):
        total = total + 2**30
        x = x * 0.7
        if x.norm() < limit:
            break
    return x, total


def goes_through_large_numbers(x: Tensor, limit: float) -> Any:
    total = 0
    for number in range(0, 2**63 - 1, 2**59):
        total = number * 2
        x = x * 0.7
        if x.norm() < limit:
            break
    return x, total


def grows_by_half(x: Tensor, limit: float) -> Any:
    total = 3
    for _ in range(200):
        total = total * 3 // 2
        x = x * 0.8
        if x.norm() < limit:
            break
    return x, total


def leaves_an_argument(x: Tensor, limit: float) -> Any:
    before = x
    for _ in range(20):
        before, x = x, x * 0.7
        if x.norm() < limit:
            break
    return before, x


def leaves_columns(x: Tensor, limit: float) -> Any:
    y = x
    for _ in range(20):
        y = x.t() * 0.5
        if y.norm() < limit:
            break
        x = x * 0.7
    return y


def closure_over_what_changes(x: Tensor, limit: float) -> Any:
    y = torch.zeros_like(x)
    for turn in range(20):

        def error() -> Tensor:
            return (y - x).norm()  # noqa: B023

        y = y + 0.3 * (x - y)
        if error() < limit:
            break
    return y, error(), turn


def returns_in_two_places(x: Tensor, limit: float) -> Any:
    for turn in range(12):
        x = x * 0.7
        if x.norm() < limit:
            return x, turn
        if x.sum() < -3:
            return x * 2, -turn
    return x, 0


BROKEN = [
    *(fills_a_list, integers_grow_beyond_64_bits, doubled_on_one_side, leaves_an_argument, leaves_columns),
    *(adds_large_numbers, begins_with_a_large_number, goes_through_large_numbers, grows_by_half),
    *(closure_over_what_changes, returns_in_two_places),
]


def outcome(program: Program, x: Tensor, limit: float) -> list[Any]:
    try:
        return tree_flatten(program(x, limit))[0]
    except ZeroDivisionError as error:
        return [str(error)]


def check(program: Program, compiled: Program) -> None:
    for rows, scale, limit in ((2, 1, 0.1), (3, 1, 0.1), (4, 3, 0.5), (5, 1, 1e-4), (3, 0, 0.1), (4, 40, 0.2)):
        x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(rows)) * scale
        for found, wanted in zip(outcome(compiled, x, limit), outcome(program, x, limit), strict=True):
            assert type(found) is type(wanted)
            if isinstance(wanted, Tensor):
                torch.testing.assert_close(found, wanted)
                assert found.stride() == wanted.stride()
            else:
                assert found == pytest.approx(wanted)


NOT_SINCE_312 = state_is_a_tuple, variables_of_a_comprehension, a_module_of_the_program
"""Since CPython 3.12 a comprehension is a loop of the code, with a handler, and a `return` in a `with` is copied."""


@pytest.mark.parametrize("program", WHOLE)
def test_a_loop_is_in_the_graph(program: Program) -> None:
    compiled = kiln.compile(program)
    check(program, compiled)
    if program in NOT_SINCE_312 and sys.version_info >= (3, 12):
        return
    if program is while_on_a_tensor and sys.version_info >= (3, 14):
        return  # its test stands once in the code, at the head
    assert not report_of(compiled).breaks and report_of(compiled).compiles <= 4, report_of(compiled).text()
    assert not report_of(compiled).eager


@pytest.mark.parametrize("program", BROKEN)
def test_what_no_turn_can_be_a_function_of_breaks_the_graph(program: Program) -> None:
    compiled = kiln.compile(program)
    check(program, compiled)
    assert report_of(compiled).breaks and not report_of(compiled).eager


def check_gradients(program: Callable[..., Tensor], compiled: Callable[..., Tensor], cases: list[Any]) -> None:
    """Those of weights, for inputs of some (rows, scale)."""
    for rows, scale in cases:
        x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(rows)) * scale
        grads = []
        for function in (program, compiled):
            w = torch.ones(3, requires_grad=True)
            function(x, w).backward()
            grads.append(w.grad)
        torch.testing.assert_close(*grads)


@pytest.mark.parametrize("reads_turn", [False, True])
def test_gradients_go_through_all_turns(reads_turn: bool) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        for turn in range(30):
            x = x + 0.1 * torch.tanh(w * x) * (turn if reads_turn else 1)
            if x.norm().item() > 4:
                break
        return x.sum()

    compiled = kiln.compile(program)
    check_gradients(program, compiled, [(2, 1.0), (3, 1.0), (4, 1.0)])
    assert not report_of(compiled).breaks and not report_of(compiled).eager


def test_each_turn_draws_other_numbers() -> None:
    def program(count: int, limit: float) -> tuple[Tensor, int]:
        total, turns = torch.zeros(count), 0
        for _ in range(50):
            total = total + torch.rand(count)
            turns += 1
            if total.mean() > limit:
                break
        return total, turns

    compiled = kiln.compile(program, options={"random": "eager"})
    for count in (5, 6, 7):
        torch.manual_seed(count)
        wanted = program(count, 3.0)
        torch.manual_seed(count)
        found = compiled(count, 3.0)
        torch.testing.assert_close(found[0], wanted[0])
        assert found[1] == wanted[1]
    assert not report_of(compiled).breaks


def test_python_may_need_a_number_that_the_loop_leaves() -> None:
    def program(x: Tensor) -> tuple[Tensor, str]:
        for turn in range(20):
            x = x * 0.7
            if x.norm() < 0.1:
                break
        return x, "x" * turn

    compiled = kiln.compile(program)
    for rows in (2, 3, 4, 5):
        x = torch.ones(rows, 3) * rows
        assert compiled(x)[1] == program(x)[1]
    assert report_of(compiled).compiles <= 6 and not report_of(compiled).eager


def test_option_python_takes_the_turns_in_python() -> None:
    compiled = kiln.compile(newton, options={"control_flow": "python"})
    check(newton, compiled)
    assert report_of(compiled).breaks


@pytest.mark.parametrize(
    ("program", "changed"),
    [
        (newton, ("root", "turn")),
        (while_on_a_tensor, ("x", "count")),
        (variables_of_a_comprehension, ("nearest", "centres")),
        (otherwise, ("x", "turn")),
        (returns_in_two_places, None),
    ],
)
def test_what_turns_change_is_read_in_the_bytecode(program: Program, changed: tuple[str, ...] | None) -> None:
    if program in NOT_SINCE_312 and sys.version_info >= (3, 12):
        pytest.skip("its comprehension is a loop in its code")
    decoded = decode(program.__code__)
    jumps = [at for at in range(len(decoded)) if decoded.instruction(at).name.startswith("POP_JUMP")]
    found = [loop for at in jumps for loop in loops_at(decoded, at)]
    assert [set(loop.changed) for loop in found[:1]] == ([] if changed is None else [set(changed)])


def sums_what_is_detached(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = x * w
    total = torch.zeros_like(x)
    for _ in range(30):
        y = y * w
        total = total + y.detach()
        if y.norm() < 0.3:
            break
    return y, total


def needs_a_gradient_behind_the_first_turn(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    for turn in range(30):
        if x.norm() < 2:
            break
        x = x * w
    return (x,)


def needs_none_behind_the_first_turn(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = x * w
    for turn in range(30):
        if y.norm() < 2:
            break
        y = y.detach() * 0.5
    return y, x * w


@pytest.mark.parametrize(
    "program",
    [
        sums_what_is_detached,
        needs_a_gradient_behind_the_first_turn,
        needs_none_behind_the_first_turn,
    ],
)
def test_what_needs_a_gradient_behind_a_loop_is_what_does_in_eager(program: Callable[..., tuple[Tensor, ...]]) -> None:
    compiled = kiln.compile(program)
    for rows in (2, 3, 1, 4):
        x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(rows))
        grads, flags = [], []
        for function in (program, compiled):
            w = torch.full((3,), 0.6, requires_grad=True)
            results = function(x, w)
            flags.append([result.requires_grad for result in results])
            sum([result.square().sum() for result in results if result.requires_grad], w.sum()).backward()
            grads.append(w.grad)
        assert flags[0] == flags[1]
        torch.testing.assert_close(*grads)


def divides_by_what_turns_leave(x: Tensor, limit: float) -> Any:
    total = x.sum()
    for turn in range(20):
        share = 1 / total.item()
        total = total - share - 0.25
        if total.abs().item() < limit:
            break
    return total, turn


def raises_in_a_turn(x: Tensor, limit: float) -> Any:
    x = x * 2
    while x.norm() > limit:
        if not x.isfinite().all():
            raise ValueError("diverged")
        x = x.square() * 0.5
    return x


@pytest.mark.parametrize("needs_gradient", [False, True])
@pytest.mark.parametrize(
    ("program", "fitting", "failing"),
    [
        (divides_by_what_turns_leave, (torch.ones(3), torch.ones(4)), torch.tensor([1.25, -1.25])),
        (raises_in_a_turn, (torch.full((3,), 0.4), torch.full((4,), 0.3)), torch.ones(3) * 9),
    ],
)
def test_what_turns_assume_is_checked_behind_the_loop(
    program: Program, fitting: tuple[Tensor, ...], failing: Tensor, needs_gradient: bool
) -> None:
    compiled = kiln.compile(program)
    for given in fitting:
        found = [function(given.clone().requires_grad_(needs_gradient), 0.1) for function in (program, compiled)]
        torch.testing.assert_close(*found)
    errors = []
    for function in (program, compiled):
        with pytest.raises((ZeroDivisionError, ValueError)) as raised:
            function(failing.clone().requires_grad_(needs_gradient), 0.1)
        errors.append((raised.type, str(raised.value)))
    assert errors[0] == errors[1]
    assert not report_of(compiled).breaks and report_of(compiled).compiles <= 2, report_of(compiled).text()


def test_gradients_go_through_a_while_loop() -> None:
    """Its first test is an `if`, so that the loop is in a side of a branch."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        x = x * w
        while x.norm() > 0.5:
            x = x * torch.sigmoid(w)
        return x.sum()

    compiled = kiln.compile(program)
    check_gradients(program, compiled, [(2, 1.0), (3, 1.0), (4, 1.0), (4, 0.01)])
    assert not report_of(compiled).breaks and report_of(compiled).compiles == 2


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_an_argument_that_no_turn_changes_is_returned_itself(needs_gradient: bool) -> None:
    def program(x: Tensor, limit: float) -> Tensor:
        for _ in range(30):
            if (x * 0.5).norm() > limit:
                x = x * 0.5
            if x.sum() > 4:
                break
        return x

    compiled = kiln.compile(program)
    for limit in (100.0, 0.1, 100.0):
        x = torch.ones(3, requires_grad=needs_gradient)
        assert (compiled(x, limit) is x) is (program(x, limit) is x)


def steps_of_a_solver(x: Tensor, end: float) -> Tensor:
    time, step = 0.0, 0.1
    while time < end:
        step = min(step, end - time)
        x, time = x + step * torch.tanh(x), time + step
        step *= 2.0 if x.norm().item() < 3 else 0.5
        if step < 0.01:
            step = 0.01
    return x


def test_other_back_ends_get_what_a_turn_computes_of_its_own_numbers_and_those_outside() -> None:
    compiled = kiln.compile(steps_of_a_solver, backend="eager")
    for end in (1.0, 2.0, 0.05):
        x = torch.randn(3, generator=torch.Generator().manual_seed(3))
        torch.testing.assert_close(compiled(x, end), steps_of_a_solver(x, end))
    assert not report_of(compiled).eager and not report_of(compiled).breaks
