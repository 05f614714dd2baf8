"""Passes over programs of any IR: what a pass is, the runner, the constraints on their order.

    program = run_passes(PASSES, program, context, events, size=..., verify=...)
    check_order(PASSES, before("simplify", "cse", because="..."))

A pass never prints and never changes a program in place: it returns a program and how many changes it made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Protocol, TypeVar, final

from kiln.support.dump import Dump
from kiln.support.events import EventSink
from kiln.support.records import dataclass

IR = TypeVar("IR")
Context = TypeVar("Context", contravariant=True)


class Named(Protocol):
    @property
    def name(self) -> str: ...


class Pass(Named, Protocol[IR, Context]):
    """A frozen dataclass whose fields are its options."""

    def run(self, program: IR, context: Context, /) -> tuple[IR, int]: ...


def run_passes(
    passes: Sequence[Pass[IR, Context]],
    program: IR,
    context: Context,
    events: EventSink,
    *,
    size: Callable[[IR], int],
    verify: Callable[[IR, str], None] | None = None,
    show: Callable[[IR], str] | None = None,
    dump: Dump | None = None,
    without: Collection[str] = (),
) -> IR:
    """Run `passes` in order, but those named in `without`; `verify` what a pass changed, and dump what `show` gives.

    Each pass is a stage of `events`, and reports an event `pass` with its changes and the number of nodes after it.
    """
    for step in passes:
        if step.name in without:
            continue
        with events.stage(step.name):
            program, changes = step.run(program, context)
            events.emit("pass", name=step.name, changes=changes, nodes=size(program))
        if changes and verify is not None:
            verify(program, step.name)
        if changes and show is not None and dump is not None:
            dump.write(step.name, partial(show, program))
    return program


@final
@dataclass(frozen=True, slots=True)
class Before:
    """Every pass called `first` stands before every pass called `second`."""

    first: str
    second: str
    because: str


def before(first: str, second: str, *, because: str) -> Before:
    return Before(first, second, because)


def check_order(passes: Sequence[Named], *constraints: Before) -> None:
    """Raise ValueError for the first constraint that `passes` breaks, or that names no pass."""
    names = [step.name for step in passes]
    for rule in constraints:
        for name in (rule.first, rule.second):
            if name not in names:
                raise ValueError(f"no pass is called {name!r}")
        last = max(position for position, name in enumerate(names) if name == rule.first)
        if last > names.index(rule.second):
            raise ValueError(f"{rule.first!r} must stand before {rule.second!r}: {rule.because}")
