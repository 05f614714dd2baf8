"""The table of idioms: small programs, and the arguments of their calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Function = Callable[..., Any]
BREAKS = Path(__file__).with_name("breaks.txt")
"""The graph breaks that programs have, one line per program: its name and the codes."""


@dataclass(frozen=True)
class Program:
    """A function, and what makes the arguments of each call."""

    function: Function
    calls: Callable[[], list[tuple[Any, ...]]]

    @property
    def name(self) -> str:
        return self.function.__name__


class Table(list[Program]):
    """Programs of one kind."""

    def add(self, calls: Callable[[], list[tuple[Any, ...]]]) -> Callable[[Function], Function]:
        def register(function: Function) -> Function:
            self.append(Program(function, calls))
            return function

        return register


def known_breaks() -> dict[str, list[str]]:
    """The codes of each program that breaks."""
    lines = [line.split() for line in BREAKS.read_text().splitlines()]
    return {line[0]: line[1:] for line in lines}
