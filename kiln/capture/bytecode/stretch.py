"""Stretches of plain Python: a resume function that runs in Python until the program computes with tensors again.

    seqs, done = [], []
    for beam in cand:                    runs in Python
        seqs.append(beam)                runs in Python
    for tokens, score in seqs:           runs in Python
        h = cell(embed(tokens), h)       left here: a resume function that is compiled takes over

It can be left in front of a statement, where the stack has only what loops and `with` keep on it and what the resume
function was given. Which variables have a value there, and what lies on the stack, is found by a forward fixed point.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Set
from types import CodeType
from typing import final

from kiln.capture.bytecode.assemble import SUSPENDS, Assembler, CellVar, Instr, parsed
from kiln.capture.bytecode.decode import ENDS, JUMPS, DecodedCode
from kiln.capture.bytecode.liveness import leads_to, live_locals
from kiln.capture.bytecode.resume import (
    CLASS_CELL,
    NULL,
    Entry,
    ResumeOrigin,
    parameter,
    resume_code,
    unused_number,
)
from kiln.native._frames import TailCall
from kiln.support.records import dataclass

KEPT, NOTHING, OTHER, CLEARED = "kept", "nothing", "other", "cleared"
"""What lies on the stack: a value that a resume function can be given; a NULL that it was entered with, as `with` keeps
it in CPython 3.14; an operand, what a handler keeps; what a comprehension in the function's own frame (CPython 3.12)
puts away of a variable, which may have had no value."""


INTO_CONTAINERS = {
    **dict.fromkeys(("LIST_APPEND", "LIST_EXTEND", "SET_ADD", "SET_UPDATE", "DICT_UPDATE", "DICT_MERGE"), 1),
    "MAP_ADD": 2,
}
"""What puts so many values into a container that lies below them."""


@final
@dataclass(frozen=True, slots=True)
class Reached:
    """What holds whenever an instruction is reached: the stack, and the variables that have a value."""

    stack: tuple[str, ...]
    names: frozenset[str]

    def joined(self, other: Reached) -> Reached:
        stack = tuple([joined_kind(*kinds) for kinds in zip(self.stack, other.stack, strict=False)])
        return Reached(stack, self.names & other.names)

    @property
    def leaves(self) -> bool:
        """Whether a resume function can be given the stack."""
        return all(kind in (KEPT, NOTHING) for kind in self.stack)


def kind_of(slot: str | None, handled: bool) -> str:
    """Of a place on the stack that a resume function is entered with. POP_TOP takes no NULL before CPython 3.14."""
    if slot is NULL:
        return NOTHING if sys.version_info >= (3, 14) and not handled else OTHER
    return OTHER if handled else KEPT


def joined_kind(first: str, second: str) -> str:
    if first == second:
        return first
    return CLEARED if CLEARED in (first, second) else OTHER


def exits(
    decoded: DecodedCode,
    origin: ResumeOrigin,
    computes: Callable[[int], bool],
    is_known: Callable[[Entry], bool],
) -> tuple[Entry, ...] | None:
    """Where the code of `origin` is left so that no instruction runs in it that `computes`; None: it cannot be. Where
    it lies in the same loop, or a graph break leads to the turn (`is_known`), it is left in front of the turn."""
    places = leaving_places(decoded, origin, computes, is_known)
    return None if places is None else in_order(places)


def in_order(places: Mapping[int, Entry | None]) -> tuple[Entry, ...]:
    """Each place once."""
    return tuple({place.target: place for place in places.values() if place is not None}.values())


def leaving_places(
    decoded: DecodedCode,
    origin: ResumeOrigin,
    computes: Callable[[int], bool],
    is_known: Callable[[Entry], bool],
) -> dict[int, Entry | None] | None:
    """Where the code is left in front of each instruction that `computes`: nowhere in the statement in which it begins.
    None: it cannot be left."""
    entry = origin.entry
    code = decoded.code
    cells = {*code.co_cellvars, *code.co_freevars} - {CLASS_CELL}
    if code.co_flags & SUSPENDS or cells - set(entry.cells):
        return None
    reached = _fixed_point(decoded, origin)
    targets = {decoded.instruction(index).arg for index in reached if decoded.instruction(index).name in JUMPS}
    found: dict[int, Entry | None] = {}
    for index in reached:
        if not computes(index):
            continue
        at = _statement(decoded, index, reached, entry.target)
        if at == entry.target:
            found[index] = None
            continue
        if at < 0 or (leaving := _left(decoded, origin, at, reached[at])) is None:
            return None
        begin = _turn(decoded, at, reached, targets | {entry.target})
        turn = _left(decoded, origin, begin, reached[begin], items=1) if begin >= 0 else None
        if turn is not None and (begin == at - 1 or leads_to(decoded, begin, entry.target) or is_known(turn)):
            leaving = turn
        found[index] = leaving
    return found


def turn_of(decoded: DecodedCode, origin: ResumeOrigin, head: int) -> Entry | None:
    """The place where a turn begins of the loop whose FOR_ITER is `head`; None if the code cannot be left there."""
    state = _fixed_point(decoded, origin).get(head + 1)
    return None if state is None else _left(decoded, origin, head + 1, state, items=1)


def _left(decoded: DecodedCode, origin: ResumeOrigin, at: int, state: Reached, items: int = 0) -> Entry | None:
    """The place `at`, where so many `items` of loops lie on the stack; None where a variable may have no value."""
    entry, code = origin.entry, decoded.code
    live, cells = live_locals(decoded)[at], {*code.co_cellvars, *code.co_freevars} - {CLASS_CELL}
    if not Reached(state.stack[: len(state.stack) - items], state.names).leaves:
        return None
    names = [name for name in code.co_varnames if (name in live or name == entry.first) and name not in cells]
    if not state.names.issuperset(names):
        return None
    number, kept = unused_number(code), len(state.stack) - items
    kinds = enumerate(state.stack[:kept])
    slots = tuple([parameter("stack", number, position) if kind == KEPT else NULL for position, kind in kinds])
    slots += tuple([parameter("result", number, position) for position in range(items)])
    return Entry(at, tuple(names), entry.cells, slots, (), entry.first)


def _statement(decoded: DecodedCode, index: int, reached: Mapping[int, Reached], first: int) -> int:
    """The nearest instruction in front of `index`, or itself, that is the `first` or has nothing but kept values on the
    stack; -1: there is none, as in a handler."""
    while index != first and (index not in reached or not reached[index].leaves):
        index -= 1
        if index < 0 or decoded.instruction(index).name in ENDS:
            return -1
    return index


def _turn(decoded: DecodedCode, at: int, reached: Mapping[int, Reached], entered: Set[int]) -> int:
    """The instruction that gets the item of the turn of a loop, if all runs straight from there up to `at`; or -1.

    `entered`: where other code leads.
    """
    while at in reached and at not in entered:
        at -= 1
        name = decoded.instruction(at).name
        if name == "FOR_ITER":
            return at + 1
        if name in JUMPS or name in ENDS:
            return -1
    return -1


def stretch_code(decoded: DecodedCode, origin: ResumeOrigin, exits: Mapping[Entry, Callable[..., object]]) -> CodeType:
    """The code of the resume function `origin` that ends with a call of one of the functions in `exits`."""
    leaving = {}
    for entry, function in exits.items():
        code = leaving[entry.target] = Assembler(decoded.line(entry.target))
        for slot in reversed(entry.stack):
            code.op("POP_TOP") if slot is NULL else code.op("STORE_FAST", slot)
        code.const(TailCall).const(function)
        for name in entry.parameters():
            code.op("LOAD_CLOSURE", CellVar(name)) if name in entry.cells else code.op("LOAD_FAST", name)
        code.call(len(entry.parameters()) + 1).op("RETURN_VALUE")
    return resume_code(decoded, origin.entry, origin.inner, leaving)


def _fixed_point(decoded: DecodedCode, origin: ResumeOrigin) -> dict[int, Reached]:
    entry, inner = origin.entry, origin.inner
    items: list[Instr] = [item for item in parsed(decoded.code) if isinstance(item, Instr)]
    stack = tuple([kind_of(slot, position in entry.handled) for position, slot in enumerate(entry.stack)])
    if inner is not None and (inner.keep or inner.instead is not None):  # the call pushes its result first
        stack = (*stack, OTHER)
    reached = {entry.target: Reached(stack, frozenset((*entry.locals, *entry.cells)))}
    waiting = [entry.target]
    while waiting:
        index = waiting.pop()
        for successor, state in _successors(decoded, items[index], index, reached[index]):
            known = reached.get(successor)
            joined = state if known is None else known.joined(state)
            if joined != known:
                reached[successor] = joined
                waiting.append(successor)
    return reached


def _successors(decoded: DecodedCode, item: Instr, index: int, before: Reached) -> list[tuple[int, Reached]]:
    inst, found = decoded.instruction(index), list[tuple[int, Reached]]()
    if (handler := decoded.handlers[index]) is not None:
        kept = before.stack[: handler.depth]
        found.append((handler.target, Reached((*kept, *[OTHER] * (handler.lasti + 1)), before.names)))
    names = before.names
    if inst.name == "STORE_FAST":
        names = names - {inst.arg} if before.stack[-1] == CLEARED else names | {inst.arg}
    elif inst.name in ("DELETE_FAST", "LOAD_FAST_AND_CLEAR"):
        names -= {inst.arg}
    if inst.name not in ENDS:
        found.append((index + 1, Reached(_after(inst.name, inst.arg, item, before.stack, jumps=False), names)))
    if inst.name in JUMPS:
        found.append((inst.arg, Reached(_after(inst.name, inst.arg, item, before.stack, jumps=True), names)))
    return found


def _after(name: str, arg: int, item: Instr, stack: tuple[str, ...], *, jumps: bool) -> tuple[str, ...]:
    if name == "JUMP":  # also where the item is the first of some that are read elsewhere, as in copies of a `finally`
        return stack
    if name == "FOR_ITER":
        return stack[:-1] if jumps else (*stack, OTHER)
    if name in INTO_CONTAINERS:
        return stack[: -INTO_CONTAINERS[name]]
    if name == "GET_ITER":
        return (*stack[:-1], KEPT)
    if name == "LOAD_FAST_AND_CLEAR":
        return (*stack, CLEARED)
    if name == "BEFORE_WITH":
        return (*stack[:-1], KEPT, OTHER)
    if name == "COPY":
        return (*stack, stack[-arg])
    if name == "SWAP":
        swapped = list(stack)
        swapped[-1], swapped[-arg] = swapped[-arg], swapped[-1]
        return tuple(swapped)
    for change in item.pre_and_post_stack_effect(jumps):
        stack = stack[:change] if change < 0 else (*stack, *[OTHER] * change)
    return stack
