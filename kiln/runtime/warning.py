"""Warnings of compiled functions, given behind the region as if the line of the program gave them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from re import Pattern
from typing import cast, final

from kiln.support.records import dataclass

Filter = tuple[str, Pattern[str] | None, type[Warning] | tuple[type[Warning], ...], Pattern[str] | None, int]
"""The action; what the text, the category and the module must match; the line, or 0."""


def warn_in(message: str, category: type[Warning], file: str, line: int, namespace: dict[str, object]) -> None:
    """`warnings.warn(message, category)` at a line of a module with the globals `namespace`."""
    registry = cast(dict[str | tuple[str, type[Warning], int], int], namespace.setdefault("__warningregistry__", {}))
    module = namespace.get("__name__") or "<string>"
    warnings.warn_explicit(message, category, file, line, str(module), registry, namespace)


def fits(entry: Filter, text: str | None, category: type[Warning], module: str, line: int) -> bool:
    """Whether a filter is for a warning; `text` is None where it is not known, and may be the filter's."""
    _, message, kind, of_module, number = entry
    return (
        (message is None or text is None or message.match(text) is not None)
        and issubclass(category, kind)
        and (of_module is None or of_module.match(module) is not None)
        and number in (0, line)
    )


@final
@dataclass(frozen=True, slots=True)
class WarningPasses:
    """Whether the filters do not turn a warning into an error, which a program sees at its place.

    `text` is None where it is not known yet. Called in the form of a check of two numbers.
    """

    text: str | None
    category: type[Warning]
    module: str
    line: int

    def __call__(self, left: float = 0, right: float = 0) -> bool:
        filters: Sequence[Filter] = warnings.filters
        for entry in filters:
            if fits(entry, self.text, self.category, self.module, self.line):
                if entry[0] == "error":
                    return False
                if entry[1] is None or self.text is not None:
                    return True
        return bool(warnings.defaultaction != "error")  # type: ignore[attr-defined]
