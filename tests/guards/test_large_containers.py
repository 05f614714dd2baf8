"""Guards on large dicts, lists and sets cost an entry next to nothing, and are about what the program reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln
from kiln.api.compiler import session_of

COUNT = 300


def entry_tree(compiled: Any) -> Any:
    (dispatcher,) = session_of(compiled)._dispatchers
    return dispatcher.entries[-1].tree


@pytest.mark.parametrize(
    "read",
    [
        lambda d: sum(d.values()),
        lambda d: max(d.values()),
        lambda d: list(d)[3],
        lambda d: {**d, "more": 1.0}.get("k7", 3.0),
        lambda d: len([key for key in d if key.endswith("9")]),
    ],
)
def test_a_dict_that_did_not_change_is_not_walked(read: Callable[[dict[Any, Any]], float]) -> None:
    def program(x: Tensor, table: dict[Any, float]) -> Tensor:
        return x + (read(table) if isinstance(read(table), float | int) else 1)

    compiled = kiln.compile(program, backend="eager")
    table, x = {f"k{number}": float(number) for number in range(COUNT)}, torch.ones(2)
    compiled(x, table)
    compiled(x, table)
    tree = entry_tree(compiled)
    checks = tree.counts()["full"]
    assert torch.equal(compiled(x, table), program(x, table)) and tree.counts()["full"] == checks
    for change in (
        lambda: table.__setitem__("k5", 1000.0),
        lambda: table.pop("k7"),
        lambda: table.__setitem__("k7", 2000.0),
        lambda: table.clear() or table.update({f"k{number}9": 0.5 for number in range(COUNT)}, k7=3.0),
    ):
        change()
        assert torch.equal(compiled(x, table), program(x, table))
    other = {f"k{number}": float(-number) for number in range(COUNT)}
    for found in (other, dict(other), table):
        assert torch.equal(compiled(x, found), program(x, found))


def test_only_the_read_item_of_a_list_is_guarded() -> None:
    def program(x: Tensor, parts: list[Tensor]) -> Tensor:
        return x + parts[7] * parts[-1]

    compiled = kiln.compile(program, backend="eager")
    parts = [torch.randn(2) for _ in range(COUNT)]
    compiled(torch.ones(2), parts)
    parts[3] = torch.randn(5, dtype=torch.float64)
    parts[7] = torch.randn(2)
    assert torch.equal(compiled(torch.ones(2), parts), program(torch.ones(2), parts))
    assert kiln.report_of(compiled).compiles == 1
    parts[-1] = parts[-1].double()
    assert torch.equal(compiled(torch.ones(2), parts), program(torch.ones(2), parts))
    assert kiln.report_of(compiled).compiles == 2
    with pytest.raises(IndexError):
        compiled(torch.ones(2), parts[:4])


def test_items_read_alone_are_those_of_the_list() -> None:
    def program(x: Tensor, parts: list[Any]) -> list[Any]:
        first = parts[1]
        parts[0] = x
        parts.append(first)
        return [first is parts[1], parts[-1] is first, *parts[:3]]

    given = [torch.ones(2), 5, torch.zeros(2)]
    expected, found = list(given), list(given)
    compiled = kiln.compile(program, backend="eager")
    for left, right in zip(compiled(torch.ones(2), found), program(torch.ones(2), expected), strict=True):
        assert torch.equal(torch.as_tensor(left), torch.as_tensor(right))
    assert len(found) == len(expected) == 4 and found[3] is found[1]


def test_only_the_sought_item_of_a_set_is_guarded() -> None:
    def program(x: Tensor, names: set[Any], sought: str) -> Tensor:
        return x * 2 if sought in names and 0.5 not in names else x - len(names)

    compiled, x = kiln.compile(program, backend="eager"), torch.ones(2)
    names = {f"n{number}" for number in range(COUNT)}
    compiled(x, names, "n7")
    names.add("another")
    assert torch.equal(compiled(x, names, "n7"), x * 2)
    assert kiln.report_of(compiled).compiles == 1
    names.remove("n7")
    assert torch.equal(compiled(x, names, "n7"), program(x, names, "n7"))
    assert torch.equal(compiled(x, {"n7", 0.5}, "n7"), x - 2)
