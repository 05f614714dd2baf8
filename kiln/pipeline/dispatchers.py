"""What a dispatcher knows of its origin: how many side exits and which graph breaks lead to it.

    f            compiled function
    f -> exit    side exit: a speculation of `f` failed                 side_exits(exit) == 1
    f -> resume  resume function: behind the break at model.py:41       breaks_before(resume) == (("model.py:41",),)

It is kept in the `__dict__` of the dispatcher and bounds how many variants can follow one another. Variants of a
function share what follows them: those that break at one place have one resume function, and all have one side exit. So
the number of variants grows with the sum of what changes in each part of a function, not with the product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from types import FunctionType
from typing import final

from kiln.capture.bytecode.resume import origin_of
from kiln.native._frames import Dispatcher
from kiln.runtime.guards.guard import Guard
from kiln.runtime.variant import Fact
from kiln.support.records import dataclass

SIDE_EXITS, BREAKS, RESUMES, SIDE_EXIT = "side_exits", "breaks", "resumes", "side_exit"
CALLED, CAREFUL = "called", "careful"
"""Keys in the `__dict__` of a dispatcher: of one that was called under the stance `eager_then_compile`, and of one
variants of which assume nothing of values any more."""

Arguments = Mapping[str, object]
"""Those of a call, by name."""
BreakLines = tuple[str, ...]
"""The line of a graph break, followed by those of the calls that led to it."""
MakeDispatcher = Callable[[FunctionType], Dispatcher]
IsKnown = Callable[[FunctionType], bool]


@final
@dataclass(frozen=True)
class RunsInPython:
    """What an entry says of itself whose function computes nothing up to the next resume function.

    `guards`: that the arguments are plain data, as they were when that was forecast; none if captures have shown it.
    """

    guards: tuple[Guard, ...] = ()


def calling(function: Callable[..., object]) -> FunctionType:
    """A plain function that calls `function`, whose own frames are not to be captured."""

    @wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        return function(*args, **kwargs)

    assert isinstance(call, FunctionType)
    return call


def original_of(dispatcher: Dispatcher) -> FunctionType:
    """The function that a dispatcher stands for (a type checker takes the attribute for a method)."""
    found: object = dispatcher.function
    assert isinstance(found, FunctionType)
    return found


def side_exits(dispatcher: Dispatcher) -> int:
    """How many side exits lead to it."""
    count: int = dispatcher.__dict__.get(SIDE_EXITS, 0)
    return count


def assumes_likely(dispatcher: Dispatcher) -> bool:
    """Whether variants may assume what is likely of values that their regions find."""
    return CAREFUL not in dispatcher.__dict__


def standing(dispatcher: Dispatcher) -> tuple[int, bool]:
    """What decides, beside guards, how variants are compiled: how many side exits lead to it, what they may assume."""
    return side_exits(dispatcher), assumes_likely(dispatcher)


def breaks_before(dispatcher: Dispatcher) -> tuple[BreakLines, ...]:
    """The graph breaks that lead to it, in order."""
    found: tuple[BreakLines, ...] = dispatcher.__dict__.get(BREAKS, ())
    return found


def side_exit_maker(origin: Dispatcher, make: MakeDispatcher, limit: int) -> MakeDispatcher | None:
    """Makes the side exits of a variant of `origin`; None once `limit` exits follow one another."""
    depth = side_exits(origin) + 1
    if depth >= limit:
        return None

    def make_exit(function: FunctionType) -> Dispatcher:
        made: Dispatcher | None = origin.__dict__.get(SIDE_EXIT)
        if made is None:
            made = origin.__dict__[SIDE_EXIT] = make(function)
            made.__dict__[SIDE_EXITS] = depth
            made.__dict__[RESUMES] = origin.__dict__.setdefault(RESUMES, {})
        return made

    return make_exit


def shared_resumes(origin: Dispatcher, make: MakeDispatcher) -> MakeDispatcher:
    """`make` for the resume functions of `origin`: equal functions get one dispatcher."""
    known: dict[object, Dispatcher] = origin.__dict__.setdefault(RESUMES, {})

    def find_or_make(function: FunctionType) -> Dispatcher:
        key = key_of(function)
        found = known.get(key)
        if found is None:
            found = known[key] = make(function)
            found.__dict__[RESUMES] = known  # a loop leads back to them
        return found

    return find_or_make


def key_of(function: FunctionType) -> object:
    """Equal for equal resume functions."""
    return origin_of(function), id(function.__globals__), tuple(map(id, function.__closure__ or ()))


def has_resume(origin: Dispatcher, function: FunctionType) -> bool:
    """Whether a variant of `origin`, or of what follows it, leads to this resume function."""
    return key_of(function) in origin.__dict__.get(RESUMES, ())


def forget_calls(dispatcher: Dispatcher) -> None:
    """Drop what earlier calls left: its resume functions, its side exit, that it was called, and what failed."""
    for key in (RESUMES, SIDE_EXIT, CALLED, CAREFUL):
        dispatcher.__dict__.pop(key, None)


def collecting(make: MakeDispatcher, made: list[Dispatcher]) -> MakeDispatcher:
    """`make`, with every result appended to `made`."""

    def make_and_keep(function: FunctionType) -> Dispatcher:
        made.append(make(function))
        return made[-1]

    return make_and_keep


def remember_break(origin: Dispatcher, resumes: Iterable[Dispatcher], facts: Iterable[Fact]) -> None:
    """Tell the resume functions of a variant of `origin` the last graph break among its `facts`."""
    breaks = [data for kind, data in facts if kind == "graph_break"]
    if not breaks:
        return
    locations = (breaks[-1].get("at", ""), *breaks[-1].get("called", ()))
    lines = tuple([str(location).partition(", in ")[0] for location in locations])
    for resume in resumes:
        resume.__dict__.setdefault(BREAKS, (*breaks_before(origin), lines))
