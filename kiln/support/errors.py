"""Errors with stable codes that say what, why and what to try; the base class adds where.

    class DataDependentBranch(GraphBreak):
        code = "KILN1007"
        what = "`{statement}` asks for the value of a tensor"

`raise DataDependentBranch(at=location, statement="if")` prints as

    KILN1007  model.py:41, in Net.forward
         41 |     if x.sum() > 0:
      `if` asks for the value of a tensor: while tracing, a tensor has a shape and a dtype but no values.
      Try:  keep both sides in the graph with `torch.where`

Codes: KILN1xxx capture (graph breaks, skipped frames), 2xxx graph and shapes, 3xxx loops and
code generation, 4xxx run time, 5xxx arguments and options, 6xxx files and caches, 9xxx faults of Kiln.
"""

from __future__ import annotations

from typing import ClassVar

from kiln.support.location import Location

ERRORS: dict[str, type[KilnError]] = {}
"""Every error class by code; docs/errors.md is generated from it."""


class KilnError(Exception):
    """Base of all errors shown to users.

    `what`, `why` and `try_` are templates over the keyword arguments of the constructor.
    """

    code: ClassVar[str] = ""
    what: ClassVar[str] = ""
    why: ClassVar[str] = ""
    try_: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "code" not in cls.__dict__:
            return
        other = ERRORS.setdefault(cls.code, cls)
        if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"error code {cls.code} already belongs to {other.__qualname__}")

    forbidden = False
    """The program says that it is to be raised where it would only be reported."""

    def __init__(self, *, at: Location | None = None, **details: object) -> None:
        self.at = at
        self.details = details
        super().__init__(self.render())

    @property
    def reason(self) -> str:
        """`what: why` on one line, without location and advice."""
        what = self.what.format(**self.details)
        why = self.why.format(**self.details)
        return f"{what}: {why}" if why else what

    @property
    def hint(self) -> str:
        """The first advice."""
        return self.try_[0].format(**self.details) if self.try_ else ""

    def render(self) -> str:
        """The full message, beginning with the user's line."""
        lines = [f"{self.code}  {self.at.text()}" if self.at else self.code]
        if self.at and (source := self.at.source_line()):
            lines.append(f"{self.at.line:>7} | {source.rstrip()}")
        lines.append(f"  {self.reason.removesuffix('.')}.")
        for n, hint in enumerate(self.try_):
            lines.append(("  Try:  " if n == 0 else "        ") + hint.format(**self.details))
        return "\n".join(lines)


class InternalFault(KilnError):
    """A bug in the compiler; the user's region runs eager."""

    code = "KILN9000"
    what = "the compiler failed in stage `{stage}`"
    why = "{problem}"
    try_ = ("run with KILN_DUMP=folder and report the folder",)


def drop_tracebacks(error: BaseException | None) -> None:
    """Forget the frames through which `error` and its causes came: they keep all objects of the capture alive."""
    while error is not None and error.__traceback__ is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def require(condition: object, problem: str) -> None:
    """Raise `ValueError(problem)` unless `condition` holds; for invariants of IR data, checked on construction."""
    if not condition:
        raise ValueError(problem)
