"""Replays compare a word per dict: its version. CPython 3.14 lets Kiln keep it, one for all trees that read the dict.

The watcher lets a dict go at its first change, and each tree that sees the change watches it again.
"""

from __future__ import annotations

import gc
from typing import Any

import pytest

from kiln.runtime.guards.guard import Guard, GuardKind
from kiln.runtime.guards.source import AttrSource, DictAttrSource, LocalSource
from kiln.runtime.guards.tree import build_tree

SELF = LocalSource("self")


class Settings:
    def __init__(self) -> None:
        self.heads = 4
        self.calls = 0


class Model:
    def __init__(self) -> None:
        self.settings = Settings()

    def forward(self) -> None:
        pass


class Checked:
    """A tree that wants four heads, after enough calls to be on the fast path."""

    def __init__(self, model: Model) -> None:
        heads = AttrSource(DictAttrSource(SELF, "settings"), "heads")
        self.model = model
        self.tree = build_tree([Guard(heads, GuardKind.EQUALS, 4)], function=Model.forward)
        for _ in range(3):
            assert self.holds()
        assert self.tree.counts()["replayed"] >= 2

    def holds(self) -> bool:
        return bool(self.tree.check((self.model,), globals()))


CHANGES: dict[str, Any] = {
    "attribute": lambda settings, value: setattr(settings, "heads", value),
    "item": lambda settings, value: vars(settings).__setitem__("heads", value),
    "update": lambda settings, value: vars(settings).update(heads=value),
    "cleared and set": lambda settings, value: (vars(settings).clear(), vars(settings).update(heads=value)),
    "popped and set": lambda settings, value: (vars(settings).pop("heads"), setattr(settings, "heads", value)),
    "another dict": lambda settings, value: setattr(settings, "__dict__", {"heads": value}),
    "many changes": lambda settings, value: [setattr(settings, "heads", number) for number in (9, 4, 8, value)],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_tree_sees_every_change(change: Any) -> None:
    model = Model()
    trees = [Checked(model) for _ in range(3)]
    for _ in range(3):
        change(model.settings, 5)
        assert not any(tree.holds() for tree in trees)
        change(model.settings, 4)
        assert trees[0].holds()  # it watches the dict again, which must not hide the change from the others
        change(model.settings, 6)
        assert not any(tree.holds() for tree in trees)
        change(model.settings, 4)
        assert all(tree.holds() for tree in trees)


def test_changes_that_do_not_matter_leave_the_replay() -> None:
    checked = Checked(Model())
    full = checked.tree.counts()["full"]
    for _ in range(20):
        checked.model.settings.calls += 1
        assert checked.holds()
    counts = checked.tree.counts()
    assert counts["full"] == full and counts["revalidated"] >= 20


def test_a_dict_at_the_address_of_one_that_died_is_another_one() -> None:
    """Freed dicts are taken again at once, so the new one has the address that the replay knows."""
    model = Model()
    checked = Checked(model)
    for value in (5, 4, 6, 4):
        model.settings.__dict__ = {}
        gc.collect()
        model.settings.__dict__ = {"heads": value}
        assert checked.holds() is (value == 4)
