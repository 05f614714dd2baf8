"""Keyword arguments of builtins and of torch's functions: what a handler does not look at is left to eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import kiln
from kiln.capture.interpreter.arity import drops_keywords
from tests.faults.outcome import assert_like_eager


def under_autocast(x: Tensor) -> tuple[Tensor, bool, torch.dtype]:
    with torch.autocast("cpu", torch.float16):
        enabled = torch.is_autocast_enabled(device_type="cpu")
        return x + 1, enabled, torch.get_autocast_dtype(device_type="cpu")


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "a query": under_autocast,
    "a query that takes none": lambda x: (x + 1, torch.is_grad_enabled(mode=3)),
    "a query of the machine": lambda x: (x + 1, torch.cuda.is_bf16_supported(including_emulation=False)),
    "a size": lambda x: (x + 1, torch.Size(iterable=[1])),
    "a number": lambda x: (x + 1, x.sum().item(a=0)),
    "a list": lambda x: (x + 1, x.tolist(a=0)),
    "an array": lambda x: (x + 1, str(x.__array__(np.float64).dtype)),
    "a hook": lambda x: (x + 1, x.clone().requires_grad_().retain_grad(a=1)),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore:.*runs eager")
def test_keyword_arguments(name: str) -> None:
    assert_like_eager(kiln.compile(PROGRAMS[name], backend="eager"), PROGRAMS[name], torch.ones(3))


def breaks(s: object, args: object, kwargs: object) -> object:
    raise NotImplementedError


def test_handlers_that_drop_keywords() -> None:
    assert drops_keywords(lambda s, args, kwargs: args[0])
    assert not drops_keywords(lambda s, args, kwargs: kwargs.get("a"))
    assert not drops_keywords(lambda s, args, kwargs: [name for name in args if name in kwargs])
    assert not drops_keywords(lambda s, args, kwargs: lambda: kwargs)
    assert not drops_keywords(breaks)
