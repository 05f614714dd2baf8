"""What a graph break costs whenever it is reached, measured on this machine.

    break_seconds()     8.3e-06: what one break adds to a call

It is the time of entering the code behind the break: its guards, and a call of its region. What the break runs in
Python costs as much in eager, and what is no longer fused across it depends on the program; neither is in it.
"""

from __future__ import annotations

import time
from functools import lru_cache
from types import FunctionType

import torch
from torch import Tensor

from kiln.native._frames import Dispatcher
from kiln.pipeline.session import CompileSession, SessionSettings
from kiln.support.events import EventSink
from kiln.support.options import Options
from kiln.support.target import Target

ROUNDS, CALLS = 7, 100


def beside_the_graph() -> None:
    """What the program runs at the break."""


beside_the_graph._torchdynamo_disable = True  # type: ignore[attr-defined]


def whole(x: Tensor) -> Tensor:
    return x.t().t()


def broken(x: Tensor) -> Tensor:
    x = x.t()
    beside_the_graph()
    return x.t()


@lru_cache(maxsize=1)
def break_seconds() -> float:
    """The shortest of some rounds, of a function with a break less one without. Views need no C++ compiler."""
    settings = SessionSettings(Options(cache=False), None, fullgraph=False, target=Target(), dump_folder=None)
    session = CompileSession("the cost of a break", settings, EventSink())
    x = torch.zeros(2, 3, device="cpu")
    without, with_break = (
        shortest(session.dispatcher(function), x) for function in (whole, broken) if isinstance(function, FunctionType)
    )
    return max(with_break - without, 0.0)


def shortest(compiled: Dispatcher, x: Tensor) -> float:
    """Seconds of a call."""
    found = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(CALLS):
            compiled(x)
        found = min(found, (time.perf_counter() - start) / CALLS)
    return found
