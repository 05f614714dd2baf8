"""Contexts that change the state of torch, left and entered again by graph breaks inside of them.

`torch.device(...)` was left while tracing, since methods of constants are called there: "pop from empty mode stack".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from torch.utils._device import DeviceContext

import kiln
from kiln.runtime.autocast_nesting import nesting
from tests.states import deterministic, in_double

SEEN: list[object] = []


class Stop(Exception):
    pass


def state() -> tuple[object, ...]:
    modes = torch.overrides._get_current_function_mode_stack()
    devices = [mode.device for mode in modes if isinstance(mode, DeviceContext)]
    return (
        *(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype(), devices),
        *(torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), nesting(), torch.is_anomaly_enabled()),
        *(torch.are_deterministic_algorithms_enabled(), torch._C._get_flash_sdp_enabled(), numpy.geterr()["divide"]),
    )


@kiln.disable
def in_python(x: Tensor, stops: bool = False) -> Tensor:
    SEEN.append(state())
    if stops:
        raise Stop
    return x + torch.ones(2).to(x)


def attention() -> Any:
    return torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)


CONTEXTS: dict[str, Callable[[], Any]] = {
    "device": lambda: torch.device("cpu"),
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "double": in_double,
    "deterministic": deterministic,
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "attention": attention,
    "errstate": lambda: numpy.errstate(divide="ignore"),
}


def once(make: Callable[[], Any], x: Tensor, way: int) -> Any:
    with make():
        y = in_python(x * 2, way == 1) * torch.ones(2).to(x)
        if way == 2:
            raise Stop
        y = in_python(y) @ x
    return y + 1, torch.ones(2)


def in_a_loop(make: Callable[[], Any], x: Tensor, way: int) -> Any:
    results = []
    for turn in range(2):
        try:
            with make():
                results.append(in_python(x, way == 1 and turn == 1) @ x)
                if way == 2:
                    return results
                results.append(x * torch.ones(2))
        except Stop:
            results.append(x * 3)
    return results


def outcome(program: Any, make: Callable[[], Any], way: int) -> Any:
    SEEN.clear()
    try:
        found = program(make, torch.ones(2, 2, requires_grad=True), way)
    except Stop:
        found = ()
    return [(result.detach().clone(), result.requires_grad, result.is_inference()) for result in found]


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("program", [once, in_a_loop])
def test_state_within_and_behind(program: Any, context: str) -> None:
    compiled, before = kiln.compile(program), state()
    for way in (0, 0, 1, 2, 0):
        expected, seen = outcome(program, CONTEXTS[context], way), list(SEEN)
        torch.testing.assert_close(outcome(compiled, CONTEXTS[context], way), expected)
        assert seen == SEEN and state() == before
    assert bool(kiln.report_of(compiled).eager_reasons) == (context == "anomaly")  # which looks at nodes of autograd
