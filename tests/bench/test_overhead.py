"""The changes of the overhead benchmark: guards notice all of them, and without guards nearly all go unnoticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import kiln.pipeline.variant_compile as variant_compile
from kiln.runtime.guards.guard import Guard
from kiln_bench.overhead import CHANGES, missed_changes, small_bert

pytest.importorskip("transformers")

READ_IN_EACH_CALL = {"a parameter replaced", "a buffer replaced", "a sub-module replaced"}
"""Right without a guard: the inputs of the graph are read again, and for a sub-module that is gone this fails."""


def missed() -> list[str]:
    return missed_changes(small_bert(layers=2), torch.randint(0, 100, (2, 16)))


def test_every_change_is_noticed() -> None:
    assert missed() == []


def test_the_check_notices_that_guards_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: Callable[..., object] = variant_compile.tree_rows

    def without_guards(guards: list[Guard], **rest: object) -> object:
        return rows([], **rest)

    monkeypatch.setattr(variant_compile, "tree_rows", without_guards)
    assert {change.name for change in CHANGES} - set(missed()) == READ_IN_EACH_CALL
