"""Lists that grow: a variant for each of the first lengths, then for a length that stays.

    calls with lists of    0  1  2  3  4  ...  99  100  100  100  100  ...
                           compiled |   eager  ...             | compiled

L-BFGS keeps its last 100 steps, so each of its first steps meets another length. What a resume function gets as an
argument is left open instead, once its variants have fixed it in vain. So is a history of floats, which a program keeps
to print or to compare with, and behind a break one of numbers or texts: where it is read, the graph breaks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sized
from types import FunctionType
from typing import final

from kiln.capture.bytecode.decode import decode
from kiln.capture.bytecode.loops import lengthened_by_turns
from kiln.capture.bytecode.resume import is_result, origin_of
from kiln.capture.guards.explanation import FIXED, explain_failure
from kiln.native._frames import Dispatcher
from kiln.pipeline.dispatchers import Arguments, original_of
from kiln.pipeline.plain_code import is_plain
from kiln.runtime.guards.guard import Guard, GuardKind, ShapeRelation
from kiln.runtime.guards.source import LocalSource, Source, argument_of
from kiln.runtime.guards.tree import build_tree
from kiln.support.errors import KilnError

GROWING, VARYING = "growing", "varying"
"""The keys in the `__dict__` of a dispatcher."""
HISTORY = 1
"""How many variants for other lengths a list of floats gets; none in a resume function, be they numbers or texts."""
MOST_OF_DATA = 4
"""So many variants a resume function gets for what it asks of plain data, then one that leaves open what they ask."""
LENGTHS, CALLS = 3, 3
"""How many lengths besides the first have a variant at once, and in which of its calls a later one gets a variant."""


class GrowingList(KilnError):
    code = "KILN1089"
    what = "`{function}` was called with many lengths of {subject}"
    why = "each would be compiled; the next one is when calls with it recur, and until then they run eager"
    try_ = ("keep the number of items, or stack them into one tensor",)
    is_news: bool
    """Whether it is the first such call."""


@final
class SeenLengths:
    """The lengths, as texts, of one list that calls without a variant had."""

    def __init__(self) -> None:
        self.compiled = 0
        self.is_reported = False
        self.calls: Counter[str] = Counter()


def varying_arguments(dispatcher: Dispatcher, arguments: Arguments) -> frozenset[str]:
    """What the next variant leaves open, since data decide it, by the texts of their sources: the arguments of a resume
    function that its variants have fixed, two to other values or one to another length, what many have asked of plain
    data, histories, and lists of numbers or texts that the loop around its beginning makes longer."""
    found: set[str] = dispatcher.__dict__.setdefault(VARYING, set())
    function, fixed = original_of(dispatcher), Counter[str]()
    is_last = len(dispatcher.entries) >= MOST_OF_DATA
    for entry in dispatcher.entries if origin_of(function) is not None else ():
        scope = [*arguments.values()], function.__globals__, function.__closure__
        if entry.tree is not None and (failed := entry.tree.explain(*scope)) is not None:
            guard: Guard = entry.info.guards[failed[0]]
            found.update([name for name in arguments_asked(guard) if is_last and is_plain(arguments.get(name, found))])
            name = fixed_argument(guard)
            if guard.kind is GuardKind.DICT_KEYS and not is_plain_dict(arguments.get(name)):
                continue
            fixed[name] += 1 if guard.kind is not GuardKind.LENGTH else 0 if grows(guard, name, arguments) else 2
    found.update(name for name, count in fixed.items() if name and count > 1)
    if not dispatcher.entries and (origin := origin_of(function)) is not None:
        names = lengthened_by_turns(decode(origin.code), origin.entry.target)
        found.update(name for name in names if type(arguments.get(name)) is list and is_plain(arguments[name]))
    return frozenset(found)


def arguments_asked(guard: Guard) -> list[str]:
    """The arguments of which a guard asks something."""
    relation = guard.expected
    sources = [source for _, source in relation.names] if isinstance(relation, ShapeRelation) else [guard.source]
    return [argument_of(source) for source in sources]


def is_plain_dict(value: object) -> bool:
    """Whether it is a dict of plain data, whatever it makes of absent keys."""
    return isinstance(value, dict) and is_plain(list(value.items()))


def grows(guard: Guard, name: str, arguments: Arguments) -> bool:
    """Whether a list is a history, as far as is known: longer than the guard expects, and no result of a break."""
    value = arguments.get(name)
    of_list = isinstance(value, list) and isinstance(guard.expected, int) and type(guard.source) is LocalSource
    return of_list and not is_result(name) and len(value) > guard.expected  # type: ignore[arg-type,operator]


def value_at(source: Source, function: FunctionType, values: list[object]) -> object:
    """What a call has at a place; None where that is not found."""
    reader = build_tree((), collect=(source,), function=function)
    found = reader.check(values, function.__globals__, function.__closure__)
    return reader.bindings[0] if found and reader.bindings else None


def is_history(guard: Guard, function: FunctionType, found: object) -> bool:
    """Whether the list that has another length is longer than the guard expects, and of floats; behind a break, where
    a loop may have filled it, also of other numbers or texts."""
    expected = guard.expected
    assert isinstance(expected, int), "it is a length"
    kinds = (float,) if origin_of(function) is None else (float, int, str)
    return type(found) is list and len(found) > expected and all(type(item) in kinds for item in found)


def fixed_argument(guard: Guard) -> str:
    """The argument whose value, length or item the guard fixes, "" if it does not."""
    source = guard.source
    if isinstance(relation := guard.expected, ShapeRelation):
        if not FIXED.fullmatch(relation.relation):
            return ""
        source = relation.names[0][1]
    elif guard.kind not in (GuardKind.EQUALS, GuardKind.LENGTH, GuardKind.SET_ITEMS, GuardKind.DICT_KEYS):
        return ""
    return argument_of(source)


def has_variant(dispatcher: Dispatcher, source: Source, length: int) -> bool:
    """Whether a variant expects this length, and is left for another reason."""
    guards = [guard for entry in dispatcher.entries if entry.tree is not None for guard in entry.info.guards]
    return any(
        guard.kind is GuardKind.LENGTH and guard.source == source and guard.expected == length for guard in guards
    )


def wait_for_length(dispatcher: Dispatcher, arguments: Arguments) -> GrowingList | None:
    """Why this call is not compiled; None if it is to be."""
    if not dispatcher.entries:
        return None
    entry, function = dispatcher.entries[-1], original_of(dispatcher)
    values = list(arguments.values())
    failed = entry.tree.explain(values, function.__globals__, function.__closure__) if entry.tree else None
    if failed is None:
        return None
    guard: Guard = entry.info.guards[failed[0]]
    if guard.kind is not GuardKind.LENGTH or fixed_argument(guard) in varying_arguments(dispatcher, arguments):
        return None
    found = value_at(guard.source, function, values)
    if isinstance(found, Sized) and has_variant(dispatcher, guard.source, len(found)):
        return None
    seen: SeenLengths = dispatcher.__dict__.setdefault(GROWING, {}).setdefault(guard.source.text(), SeenLengths())
    seen.calls[failed[1]] += 1
    if (seen.compiled >= HISTORY or origin_of(function) is not None) and is_history(guard, function, found):
        dispatcher.__dict__[VARYING].add(guard.source.text())
        return None
    if seen.compiled < LENGTHS or seen.calls[failed[1]] >= CALLS:
        seen.compiled += 1
        return None
    growing = GrowingList(function=function.__qualname__, subject=explain_failure(guard, failed[1]).subject)
    growing.is_news, seen.is_reported = not seen.is_reported, True
    return growing
