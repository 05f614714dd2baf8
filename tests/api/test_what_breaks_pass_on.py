"""What resume functions get: they guard what they read, and what changes from call to call is a symbol at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln
from tests.capture.idioms.outcome import same

torch.manual_seed(0)
LAYER = nn.Linear(4, 6)


@kiln.disable
def note(*values: object) -> None:
    pass


def shrinks(x: Tensor) -> tuple[Tensor, int]:
    turns = 0
    while x.numel() > 3:
        x = x[x > x.mean()] * 2
        turns += 1
    return x, turns


def shares(x: Tensor) -> Tensor:
    values, counts = torch.unique(x.round(), return_counts=True)
    if len(values) > 1:
        counts = counts / counts.sum()
    return values * counts


def halves(x: Tensor) -> Any:
    x = x * 2
    chosen = x[x > 0]
    note(1)
    return chosen + 1, chosen * 2


@pytest.mark.parametrize(("program", "compiles"), [(shrinks, 3), (shares, 2), (halves, 2)])
def test_sizes_that_data_decide_are_symbols_in_the_first_variant(program: Any, compiles: int) -> None:
    compiled = kiln.compile(program)
    for seed in range(6):
        x = torch.randn(24, generator=torch.Generator().manual_seed(seed))
        assert same(compiled(x), program(x))
    assert kiln.report_of(compiled).compiles == compiles


def test_numbers_in_a_list_that_a_break_gives_are_symbols_in_the_first_variant() -> None:
    def program(x: Tensor) -> Tensor:
        kept = x + 1
        first, second = (x * 3).long().tolist()
        return kept * first + second

    compiled = kiln.compile(program)
    for number in range(4):
        x = torch.tensor([1.0, 2.0]) * number
        assert same(compiled(x), program(x))
    assert kiln.report_of(compiled).compiles <= 2


def first_row(x: Tensor, rounds: int) -> tuple[Tensor, int]:
    for turn in range(rounds):
        x = x * 2
        if x.sum() > 100:
            return x, turn
        note(turn)
    return x, -1


def from_two_down(x: Tensor, rounds: int) -> list[Any]:
    found = []
    for turn in range(2, -rounds, -2):
        for again in range(1, x.shape[0]):
            note(again)
            found.append((turn, again))
            x = x + turn * again
    return [x, found]


def two_turns(x: Tensor, rounds: int) -> Tensor:
    for turn in range(rounds):
        x = x * 2
        if turn == 1:
            note(turn)
    return x


@pytest.mark.parametrize("program", [first_row, from_two_down, two_turns])
def test_a_loop_that_a_break_leaves_does_not_fix_how_many_turns_it_has(program: Any) -> None:
    compiled = kiln.compile(program)
    counts = []
    for rounds in (3, 4, 5, 6, 7, 8, 3, 0, 1, 2):
        x = torch.ones(rounds + 2, 2)
        assert same(compiled(x, rounds), program(x, rounds))
        counts.append(kiln.report_of(compiled).compiles)
    assert counts[6] == counts[2], "those of 3, 4 and 5 turns serve all that are longer"


def test_the_end_of_a_loop_fixes_how_many_turns_it_has() -> None:
    def program(x: Tensor, rounds: int) -> Tensor:
        for _ in range(rounds):
            x = x * 2
        note(rounds)
        return x

    compiled = kiln.compile(program)
    for rounds in (3, 4, 2, 5, 0, 7):
        assert same(compiled(torch.ones(2), rounds), program(torch.ones(2), rounds))


def test_a_variable_that_is_not_read_is_not_guarded() -> None:
    def program(x: Tensor, other: Any, by: float) -> Any:
        x = LAYER(x)
        note(1)
        x = x * 2
        note(2)
        return x, other, by

    compiled = kiln.compile(program)
    for number, other in enumerate([torch.ones(3), torch.ones(4), None, [1], 5, [torch.ones(2)], {"a": 1}]):
        x = torch.randn(5, 4)
        assert same(compiled(x, other, float(number)), program(x, other, float(number)))
    behind = [entry.function for entry in kiln.report_of(compiled).recompiles if "after line" in entry.function]
    last = max(behind, default="")
    assert all(name == last for name in behind), "only what returns the variables asks what they are"


def test_a_list_that_no_code_reads_any_more_is_not_passed_on() -> None:
    def program(x: Tensor, rounds: int) -> Tensor:
        for turn in range(rounds):
            numbers = [turn, turn + 1]
            x = x * sum(numbers)
            note(turn)
            x = x + 1
        return x

    compiled = kiln.compile(program)
    for rounds in (4, 5, 6):
        assert same(compiled(torch.ones(2), rounds), program(torch.ones(2), rounds))
    assert kiln.report_of(compiled).compiles <= 5


def doubled(x: Tensor, limit: float) -> Any:
    turns, total = 0, 0.0
    while turns < limit:
        x = x * 2
        note(turns)
        turns += 1
        total += 0.5
    return x, turns, total


def searched(x: Tensor, limit: float) -> Any:
    turns, rate = 0, 1.0
    while True:
        if (x * rate).norm() < limit:
            return x * rate, turns
        turns, rate = turns + 1, rate / 2
        if turns == 40:
            break
    return x, -1


@pytest.mark.parametrize(("program", "compiles"), [(doubled, 6), (searched, 5)])
def test_numbers_that_a_loop_counts_over_breaks_are_symbols_in_the_first_variant(program: Any, compiles: int) -> None:
    compiled = kiln.compile(program)
    for limit in (6.0, 4.0, 9.0, 12.0):
        assert same(compiled(torch.full((6,), 20.0), limit), program(torch.full((6,), 20.0), limit))
    assert kiln.report_of(compiled).compiles <= compiles


def test_a_variable_that_one_side_reads_is_right_behind_both() -> None:
    def program(x: Tensor, scale: Tensor, by: int) -> Tensor:
        note(1)
        if x.sum() > 0:
            x = x * scale + by
        note(2)
        return x + scale + by

    compiled = kiln.compile(program)
    for number in (1.0, -1.0, 2.0):
        x, scale = torch.full((3,), number), torch.arange(3.0)
        assert same(compiled(x, scale, int(number)), program(x, scale, int(number)))


def test_what_is_changed_by_another_name_is_seen_behind_the_next_break() -> None:
    def program(x: Tensor, part: Tensor, items: list[int], same_items: list[int]) -> Any:
        note(1)
        x.mul_(2)
        items.append(3)
        note(2)
        return part + 1, same_items, x.sum()

    def arguments() -> Any:
        x, items = torch.arange(4.0), [1]
        return x, x[1:], items, items

    assert same(kiln.compile(program)(*arguments()), program(*arguments()))


def test_deleted_and_overwritten_variables() -> None:
    def program(x: Tensor, first: Any, second: Any) -> Any:
        note(1)
        del first
        second = x * 3
        note(2)
        try:
            return first  # noqa: F821
        except UnboundLocalError as error:
            return str(error), second

    compiled = kiln.compile(program)
    for other in ([1], torch.ones(2)):
        assert same(compiled(torch.ones(3), other, other), program(torch.ones(3), other, other))


def passed_on_unread(x: Tensor, items: Any, flag: int) -> Tensor:
    note(x)
    if flag:
        return x * items[0]
    note(x)
    return x + 1


def test_a_container_that_is_its_own_item_is_passed_on() -> None:
    items: list[Any] = [3]
    items.append(items)
    compiled, x = kiln.compile(passed_on_unread), torch.ones(2)
    for flag in (0, 1, 0):
        torch.testing.assert_close(compiled(x, items, flag), passed_on_unread(x, items, flag))
    assert compiled.report().eager == 0
