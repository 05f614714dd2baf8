"""Liveness: which local variables may still be read at an instruction.

    x = f(a)          # before: a
    if c: return x    # before: x, c, b
    return b

A backward fixed point over the instructions; any instruction in an exception region may jump to its handler.
"""

from __future__ import annotations

from kiln.capture.bytecode.decode import ENDS, JUMPS, DecodedCode

_READS = frozenset(
    ["LOAD_FAST", "DELETE_FAST", "LOAD_FAST_AND_CLEAR", "LOAD_CLOSURE", "LOAD_DEREF", "LOAD_CLASSDEREF", "DELETE_DEREF"]
)
_NAMES = frozenset(("LOAD_GLOBAL", "LOAD_GLOBAL_CALL", "LOAD_NAME"))
READS_FRAME = frozenset(("locals", "vars", "dir", "eval", "exec"))
"""Functions that read all variables of the frame that calls them."""
_WRITES = frozenset(("STORE_FAST", "DELETE_FAST"))


def live_locals(decoded: DecodedCode) -> list[frozenset[str]]:
    """For each instruction, the names that may be read before they are written. Computed once."""
    live = decoded.facts.live
    if not live:
        live.extend(_fixed_point(decoded))
    return live


def leads_to(decoded: DecodedCode, start: int, goal: int) -> bool:
    """Whether the code from the instruction `start` on may reach `goal`, but by an exception."""
    waiting, seen = [start], set[int]()
    while waiting:
        index = waiting.pop()
        if index == goal:
            return True
        if index in seen or index >= len(decoded):
            continue
        seen.add(index)
        inst = decoded.instruction(index)
        waiting += [inst.arg] * (inst.name in JUMPS) + [index + 1] * (inst.name not in ENDS)
    return False


def _fixed_point(decoded: DecodedCode) -> list[frozenset[str]]:
    count = len(decoded)
    live: list[frozenset[str]] = [frozenset()] * (count + 1)
    changed = True
    while changed:
        changed = False
        for index in range(count - 1, -1, -1):
            names = _before(decoded, index, live)
            if names != live[index]:
                live[index] = names
                changed = True
    return live[:count]


def _before(decoded: DecodedCode, index: int, live: list[frozenset[str]]) -> frozenset[str]:
    inst = decoded.instruction(index)
    after: frozenset[str] = frozenset() if inst.name in ENDS else live[index + 1]
    if inst.name in JUMPS:
        after |= live[inst.arg]
    if inst.name in _WRITES:
        after -= {inst.arg}
    if inst.name in _READS:
        after |= {inst.arg}
    if inst.name in _NAMES and inst.arg in READS_FRAME:
        after |= frozenset(decoded.code.co_varnames)
    handler = decoded.handlers[index]
    return after | live[handler.target] if handler else after
