"""What a function calls that runs in Python because it cannot be captured: its callees are compiled.

    train(model, batches)       runs eager: Python reads a traceback in it
        model.forward(batch)    a frame that the frame hook catches: it has variants of its own

A callee is compiled when it is called for the second time, if it gets tensors or is a method of a module. The hook is
not set for what compiled code calls, nor for what functions call that are marked to run in Python.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from types import CellType, CodeType, FunctionType
from typing import cast, final
from weakref import WeakKeyDictionary

import torch
from torch import nn

from kiln.capture.bytecode.resume import origin_of
from kiln.native import _frames
from kiln.pipeline.dispatchers import MakeDispatcher
from kiln.pipeline.original import taking_slots
from kiln.support.compiling import DISABLED

TRIALS = 4
"""If no callee was compiled in so many calls, the hook is not set any more: it slows down what calls many functions."""
MOST_ASKED = 16
"""A function that has got no tensor in so many calls is left alone: the question would cost more than it."""
MOST_CLOSURES = 8
"""Of functions that share their code, as closures do, so many are compiled."""
LIBRARIES = frozenset((*sys.stdlib_module_names, "torch", "kiln", "numpy"))
"""Packages whose functions compute little beside the operators that they call."""


@final
class CalleeCompiler:
    """Compiles what one function in Python calls."""

    def __init__(self, function: FunctionType, make: MakeDispatcher) -> None:
        self.function = function
        self.make = make
        self.called = WeakKeyDictionary[FunctionType, Callable[..., object] | None]()
        """What replaces a function; None: it was called once."""
        self.closures: dict[CodeType, int] = {}
        self.asked: dict[CodeType, int] = {}
        """Calls without tensors."""

    def trial(
        self, run: Callable[..., object], settle: Callable[[Callable[..., object]], None]
    ) -> Callable[..., object]:
        """`run`, in which callees are compiled; `settle` gets what is called after the trials."""
        caught = partial(_frames.hook_call, self.instead, run)
        trials = count(1)

        def call(*slots: object) -> object:
            try:
                return caught(*slots)
            finally:
                if next(trials) == TRIALS:
                    settle(caught if any(self.called.values()) else run)

        return call

    def instead(
        self,
        code: CodeType,
        arguments: dict[str, object],
        globals: dict[str, object],
        closure: tuple[CellType, ...] | None,
        function: FunctionType,
    ) -> object:
        """The question of the frame hook: what runs instead of a frame."""
        if (replaced := self.called.get(function)) is not None:
            return replaced
        if hasattr(function, DISABLED):
            return taking_slots(function)
        if function.__module__ not in sys.modules or function.__module__.partition(".")[0] in LIBRARIES:
            return _frames.SKIP_ALWAYS  # no code of the program: the first are constructors of named tuples
        if function is self.function or origin_of(function) is not None:
            return None
        if not any(map(holds_tensors, arguments.values())):
            self.asked[code] = self.asked.get(code, 0) + 1
            return None if self.asked[code] < MOST_ASKED else _frames.SKIP_ALWAYS
        if function in self.called:
            replaced = self.called[function] = taking_slots(function, self.make(function))
            return replaced
        self.closures[code] = self.closures.get(code, 0) + 1
        if self.closures[code] <= MOST_CLOSURES:
            self.called[function] = None
        return None


def holds_tensors(value: object) -> bool:
    """Whether it is a tensor or a module, or a container with tensors. Runs no code of the program."""
    items: Iterable[object] = (value,)
    if type(value) in (tuple, list, dict):
        items = value.values() if isinstance(value, dict) else cast(Iterable[object], value)
    return any(issubclass(type(item), torch.Tensor | nn.Module) for item in items)
