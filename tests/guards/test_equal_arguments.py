"""Calls with arguments that are equal but of other types are other places."""

from __future__ import annotations

import functools
import warnings

import torch

import kiln


@functools.lru_cache(typed=True)
def name(value: object) -> str:
    return type(value).__name__


def test_one_and_true() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * len(name(1)) + len(name(True))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = kiln.compile(program, backend="eager")
        x = torch.ones(2)
        assert torch.equal(compiled(x), program(x))
    assert kiln.report_of(compiled).compiles == 1
