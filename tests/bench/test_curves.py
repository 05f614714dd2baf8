"""The script that trains whole models beside eager."""

from __future__ import annotations

import pytest

from tools import curves


@pytest.mark.parametrize("name", curves.MODELS)
def test_a_training_goes_on_from_its_checkpoint(name: str) -> None:
    given = curves.batches(name, 4)
    run = curves.training(name, 4)
    curves.losses(run, given[:2])
    saved = run.save()
    assert curves.resumed(name, 4, saved, given[2:], compiled=False) == curves.losses(run, given[2:])
