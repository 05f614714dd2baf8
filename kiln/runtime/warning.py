"""Warnings of compiled functions, given behind the region as if the line of the program gave them."""

from __future__ import annotations

import warnings
from typing import cast, final

from kiln.support.records import dataclass


def warn_in(message: str, category: type[Warning], file: str, line: int, namespace: dict[str, object]) -> None:
    """`warnings.warn(message, category)` at a line of a module with the globals `namespace`."""
    registry = cast(dict[str | tuple[str, type[Warning], int], int], namespace.setdefault("__warningregistry__", {}))
    module = namespace.get("__name__") or "<string>"
    warnings.warn_explicit(message, category, file, line, str(module), registry, namespace)


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
        for action, message, category, module, line in warnings.filters:
            if (
                (message is None or self.text is None or message.match(self.text))
                and issubclass(self.category, category)
                and (module is None or module.match(self.module))
                and line in (0, self.line)
            ):
                if action == "error":
                    return False
                if message is None or self.text is not None:
                    return True
        return bool(warnings.defaultaction != "error")  # type: ignore[attr-defined]
