"""Calls of resume functions: one that ends in a call of the next returns it as data, and its first caller makes it.

    loop body breaks        resume_1(...)  ->  TailCall(resume_2, ...)  ->  TailCall(resume_1, ...)  ->  result
                            all called by one `Driven`, so Python's stack does not grow with the breaks

A resume function is called through `Driven` from code that is not one itself, and from a resume function that needs the
result. In place of the last call of a resume function stands `return TailCall(...)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final


@final
class TailCall:
    """The call that ends a resume function."""

    __slots__ = ("arguments", "function")

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.function = function
        self.arguments = arguments


@final
class Driven:
    """Calls a resume function and those that follow it."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function

    def __call__(self, *arguments: object) -> object:
        result = self.function(*arguments)
        del arguments  # what the resume functions drop may be freed
        while type(result) is TailCall:
            function, following = result.function, result.arguments
            del result
            result = function(*following)
            del following
        return result

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Driven) and self.function is other.function

    def __hash__(self) -> int:
        return hash((Driven, id(self.function)))
