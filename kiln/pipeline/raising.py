"""A variant whose call ends in an exception of the program: eager runs it, so that lines and order are eager's.

def f(x, n):
    if n < 0:                     f(x, -1)    guards of the way to `raise`, then `f` as it is
        raise ValueError(n)       f(x, 2)     another variant, compiled
    return x * n
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from kiln.support.errors import KilnError


@final
@dataclass(frozen=True, slots=True, eq=False)
class ExpectedToRaise:
    """Runs the original; where it returns after all, the interpreter was mistaken and `tell` says so."""

    original: Callable[..., Any]
    tell: Callable[[KilnError], None]
    problem: KilnError

    def __call__(self, *slots: Any) -> Any:
        result = self.original(*slots)
        self.tell(self.problem)
        return result
