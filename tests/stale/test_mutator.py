"""The search for stale code: a sample of it, and whether it finds what it is for."""

from __future__ import annotations

import contextlib
import itertools
import random
import warnings
from collections import Counter

import pytest
import torch

from tests.stale.mutations import changes
from tests.stale.mutator import IMPOSSIBLE, StaleSweep, compare, made
from tests.stale.programs import PROGRAMS


def quiet(subject: str, program: str) -> None:
    """Takes a note of the sweep."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_many_changes_are_seen_by_eager(name: str) -> None:
    module = made(name)
    x = torch.linspace(-2.0, 2.0, 5)
    first, seen = module.program(x), 0
    for change in random.Random(0).sample(changes(module), 35):
        with contextlib.suppress(*IMPOSSIBLE):
            undo = change.apply()
            seen += compare(module.program, lambda _: first, x) is not None
            undo()
    assert seen >= 2


def test_a_compiler_without_guards_is_caught() -> None:
    module = made("globals")
    x = torch.linspace(-2.0, 2.0, 5)
    kept = module.program(x)
    module.SCALE = 5.0
    assert compare(module.program, lambda _: kept, x) is not None


def test_a_sample() -> None:
    warnings.simplefilter("ignore")
    found = [finding for number in range(30) for finding in StaleSweep().run(number, quiet)]
    assert [finding.detail for finding in found if finding.kind == "stale"] == []


@pytest.mark.slow
def test_a_larger_sample() -> None:
    warnings.simplefilter("ignore")
    numbers = itertools.islice(itertools.count(1000), 400)
    found = [finding for number in numbers for finding in StaleSweep().run(number, quiet)]
    assert Counter(finding.kind for finding in found)["stale"] == 0, found
