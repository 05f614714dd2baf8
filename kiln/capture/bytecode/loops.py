"""Loops of a code object, and the code of one turn as a function.

    while x.norm() > limit:            def turn(x, n):
        x, n = x / 2, n + 1       =>       x, n = x / 2, n + 1
    return x, n                            if x.norm() > limit: return turn_ends(False, x, n)
                                           return turn_ends(True, x, n)

A turn ends at the head of its loop, or where all ways out of the loop meet. The code of a turn is that of the whole
function with two returns in it; a resume function enters it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType
from typing import final

from kiln.capture.bytecode.assemble import SUSPENDS, Assembler, CellVar, Instr, arguments_of, parsed
from kiln.capture.bytecode.decode import CONDITIONAL, JUMPS, DecodedCode, LoopBody
from kiln.capture.bytecode.liveness import live_locals
from kiln.capture.bytecode.postdominators import RETURNS, meeting_points, predecessors, successors
from kiln.capture.bytecode.resume import CLASS_CELL, set_depths
from kiln.support.records import dataclass

CHANGES_OF_LENGTH = frozenset(("append", "extend", "insert", "pop", "remove", "clear"))
NOT_IN_TURNS = frozenset(("DELETE_FAST", "DELETE_DEREF", "SEND", "YIELD_VALUE"))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A loop: the instruction at its `head` (its FOR_ITER, or the first of the body of a `while`), where a turn begins,
    where all ways out of it meet, and its instructions."""

    code: CodeType
    head: int
    begin: int
    after: int
    body: frozenset[int]
    changed: tuple[str, ...]
    """The variables that a turn sets and that later turns, or the code behind the loop, may read."""
    read_inside: frozenset[str]
    """Those among others that a turn may read before it sets them."""
    read_behind: frozenset[str]
    reads_number: bool
    """Whether the item of a FOR_ITER is read."""
    exhausted: int | None = None
    """Where a `for` goes on behind its last turn, if that is not `after`: to its `else`, or to another return."""

    @property
    def is_for(self) -> bool:
        return self.begin != self.head


def loops_at(decoded: DecodedCode, at: int) -> list[Loop]:
    """The loops that can be left from the instruction `at`, innermost first; a `while` from its first test, too."""
    if decoded.code.co_flags & SUSPENDS or CLASS_CELL in decoded.code.co_freevars:
        return []
    found = list[Loop]()
    for head, jumps, body in loop_bodies(decoded):
        branches = [index for index in body if decoded.instruction(index).name in CONDITIONAL]
        tests = [jump for jump in branches if jump in jumps or decoded.instruction(jump).arg not in body]
        is_first_test = at < head and any(decoded.line(jump) == decoded.line(at) for jump in tests)
        if at in body or is_first_test:
            found.extend(_loop(decoded, head, body))
    return sorted(found, key=lambda loop: len(loop.body))


def ends_loop(decoded: DecodedCode, at: int) -> bool:
    """Whether a loop is left, or goes on, as the conditional jump `at` decides."""
    ways = decoded.instruction(at).arg, at + 1
    return any([at in body and (ways[0] in body) is not (ways[1] in body) for _, _, body in loop_bodies(decoded)])


def around(decoded: DecodedCode, at: int) -> frozenset[int]:
    """The instructions of all loops that the instruction is in."""
    return frozenset().union(*[body for _, _, body in loop_bodies(decoded) if at in body])


def set_by_turns(decoded: DecodedCode, at: int, target: int) -> set[str]:
    """The variables that turns of the loops around `at` set, if the code goes on at `target` in one of them."""
    inside = around(decoded, at)
    stores = [decoded.instruction(index) for index in inside] if target in inside else []
    return {inst.arg for inst in stores if inst.name == "STORE_FAST"}


def lengthened_by_turns(decoded: DecodedCode, at: int) -> set[str]:
    """The variables whose methods that change the length of a list are called in the loops around `at`."""
    inside = [index for index in around(decoded, at) if decoded.instruction(index).name in ("LOAD_METHOD", "LOAD_ATTR")]
    calls = [index for index in inside if decoded.instruction(index).arg in CHANGES_OF_LENGTH and index > 0]
    owners = [decoded.instruction(index - 1) for index in calls]
    return {inst.arg for inst in owners if inst.name == "LOAD_FAST"}


def loop_bodies(decoded: DecodedCode) -> list[LoopBody]:
    """The loops: head, jumps back to it, and all instructions. Computed once."""
    known = decoded.facts.loops
    if known is None:
        ends: dict[int, list[int]] = {}
        for index in range(len(decoded)):
            inst = decoded.instruction(index)
            if inst.name in JUMPS and inst.arg <= index:
                ends.setdefault(inst.arg, []).append(index)
        before = predecessors(successors(decoded)) if ends else []
        known = decoded.facts.loops = [(head, jumps, _body(head, jumps, before)) for head, jumps in ends.items()]
    return known


def _body(head: int, jumps: list[int], before: list[list[int]]) -> frozenset[int]:
    """The instructions that lead to one of the jumps back without passing the head."""
    found, waiting = {head}, list(jumps)
    while waiting:
        index = waiting.pop()
        if index not in found:
            found.add(index)
            waiting.extend(before[index])
    return frozenset(found)


def _loop(decoded: DecodedCode, head: int, body: frozenset[int]) -> Iterator[Loop]:
    """The loop, if a turn of it can be a function."""
    is_for = decoded.instruction(head).name == "FOR_ITER"
    begin, after, exhausted = head + is_for, _behind(decoded, head, body), None
    meets = 0 <= after < len(decoded)
    if is_for and not (meets and _past_jumps(decoded, decoded.instruction(head).arg, after) == after):
        after, exhausted = _only_exit(decoded, head, body), decoded.instruction(head).arg
    if not 0 <= after < len(decoded) or decoded.handlers[after] != decoded.handlers[head]:
        return
    if any(decoded.handlers[index] != decoded.handlers[head] for index in body):
        return
    turn = [decoded.instruction(index) for index in _turn(decoded, begin, {head, after})]
    written = {inst.arg for inst in turn if inst.name in ("STORE_FAST", "STORE_DEREF")}
    if any(inst.name in NOT_IN_TURNS for inst in turn) or not written.isdisjoint(decoded.code.co_freevars):
        return
    live = live_locals(decoded)
    behind = live[after] if exhausted is None else live[after] | live[exhausted]
    read = live[begin] | behind
    names = dict.fromkeys((*decoded.code.co_varnames, *decoded.code.co_cellvars))
    changed = tuple([name for name in names if name in written and name in read])
    first = decoded.instruction(begin)
    reads_number = is_for and not (first.name == "STORE_FAST" and first.arg not in live[begin + 1])
    yield Loop(decoded.code, head, begin, after, body, changed, live[begin], behind, reads_number, exhausted)


def _behind(decoded: DecodedCode, head: int, body: frozenset[int]) -> int:
    """The nearest instruction outside of the body that all ways from the head lead through; behind the last: none."""
    meeting_points(decoded, head, 1)
    at = decoded.facts.meetings[head][0]
    while at in body:
        at = decoded.facts.meetings[at][0]
    return at


def _only_exit(decoded: DecodedCode, head: int, body: frozenset[int]) -> int:
    """Where a turn leaves the loop, if that is one place; else -1."""
    following = successors(decoded)
    found = {place for index in body if index != head for place in following[index] if place not in body}
    return found.pop() if len(found) == 1 else -1


def _past_jumps(decoded: DecodedCode, at: int, end: int) -> int:
    seen = set[int]()
    while at != end and at not in seen and decoded.instruction(at).name in ("JUMP", "NOP"):
        seen.add(at)
        at = decoded.instruction(at).arg if decoded.instruction(at).name == "JUMP" else at + 1
    return at


def _turn(decoded: DecodedCode, begin: int, ends: set[int]) -> list[int]:
    """The instructions between the beginning of a turn and its ends."""
    following, found, waiting = successors(decoded), set[int](), [begin]
    while waiting:
        index = waiting.pop()
        if index not in found and index < len(decoded) and (index == begin or index not in ends):
            found.add(index)
            waiting.extend(following[index])
    return sorted(found)


def turn_code(decoded: DecodedCode, loop: Loop, ends: Callable[..., object]) -> tuple[CodeType, Callable[[int], int]]:
    """The code of the function with calls of `ends` in it, with whether the loop is left and the changed variables; and
    where the instructions of the function are in it."""
    code = decoded.code
    items = parsed(code)
    set_depths(items, decoded)
    made, count, lengths = list[object](), 0, dict[int, int]()
    left = {loop.after, *_copies_of(decoded, loop.after)}
    for item in items:
        if isinstance(item, Instr):
            if count == loop.head or count in left:
                ending = _ending(decoded, loop, ends, is_left=count != loop.head)
                lengths[count] = len(ending)
                made.extend(ending)
            count += 1
        made.append(item)
    body = Assembler(code.co_firstlineno)
    body.items = made
    depth = code.co_stacksize + len(loop.changed) + 8
    found = body.finish(code, arguments_of(code), code.co_cellvars, code.co_freevars, depth)

    def moved(index: int) -> int:
        return index + sum(length for place, length in lengths.items() if place <= index)

    return found, moved


def _copies_of(decoded: DecodedCode, index: int) -> Iterator[int]:
    """Where CPython has copied an instruction of a short return (`join_copied_returns`)."""
    for first, last in decoded.facts.copies.items():
        end = next(at for at in range(last, len(decoded)) if decoded.instruction(at).name in RETURNS)
        if last <= index <= end:
            yield first + index - last


def _ending(decoded: DecodedCode, loop: Loop, ends: Callable[..., object], *, is_left: bool) -> list[object]:
    cells = {*decoded.code.co_cellvars}
    ending = Assembler(decoded.line(loop.after if is_left else loop.head))
    ending.const(ends).const(is_left)
    for name in loop.changed:
        if name in cells:
            ending.op("LOAD_DEREF", CellVar(name))
        else:
            ending.op("LOAD_FAST", name)
    ending.call(len(loop.changed) + 1).op("RETURN_VALUE")
    return ending.items
