"""Where the sides of a jump meet: instructions on every path from it to a return.

    0  if c:            meeting_points(0) = [3]
    1      y = f(x)
    2  else: y = x
    3  return y

Postdominators by the algorithm of Cooper, Harvey and Kennedy. Paths that raise are no paths.
"""

from __future__ import annotations

from collections.abc import Sequence

from kiln.capture.bytecode.decode import ENDS, JUMPS, DecodedCode
from kiln.capture.bytecode.table import RawInstruction

RETURNS = frozenset(("RETURN_VALUE", "RETURN_CONST"))


def meeting_points(decoded: DecodedCode, jump: int, most: int) -> list[int]:
    """The first instructions at which paths from `jump` meet, nearest first, up to the head of the innermost loop."""
    meetings = decoded.facts.meetings
    if not meetings:
        join_copied_returns(decoded)
        following = successors(decoded)
        before = predecessors(following)
        several = [len(nodes) > 1 for nodes in before]
        meetings.extend(zip(postdominators(before, following), several, strict=True))
    found: list[int] = []
    node = meetings[jump][0]
    while 0 <= node < len(decoded) and len(found) < most:
        if meetings[node][1] or not found:
            found.append(node)
        if node <= jump or decoded.instruction(node).name == "FOR_ITER":
            break
        node = meetings[node][0]
    return found


def join_copied_returns(decoded: DecodedCode) -> None:
    """CPython 3.12 copies a short `return` into each path that leads to it: the copies become jumps to the last.

    A copy has the positions in the source of what it copies, so it is the same return with the same depth of the stack.
    Where all ways to it set a variable, it reads that without a check.
    """
    positions = list(decoded.code.co_positions())
    last: dict[object, int] = {}
    for end in reversed(range(len(decoded))):
        if decoded.raw(end).opname not in RETURNS:
            continue
        known = last.setdefault(positions[decoded.facts.units[end]], end)
        head = None
        for back in range(min(end + 1, known - end)):
            here, there = end - back, known - back
            if decoded.handlers[here] is not None or decoded.handlers[there] is not None:
                break
            if not is_copy(decoded.raw(here), decoded.raw(there)):
                break
            paired = in_pair(decoded.facts.units, here) or in_pair(decoded.facts.units, there)
            if not paired and positions[decoded.facts.units[here]] != positions[decoded.facts.units[there]]:
                break
            if back and decoded.instruction(here).name in JUMPS | ENDS:
                break
            head = back
        if head is not None:
            decoded.facts.copies[end - head] = known - head
            decoded.facts.instructions[end - head] = None


def is_copy(one: RawInstruction, other: RawInstruction) -> bool:
    name, known = one.opname.removesuffix("_BORROW"), other.opname.removesuffix("_BORROW")
    return one[1] == other[1] and (name == known or (name, known) == ("LOAD_FAST", "LOAD_FAST_CHECK"))


def in_pair(units: Sequence[int], index: int) -> bool:
    """Whether an instruction of the table is one of two that CPython 3.13 has as one: the pair has one position."""
    return any(units[index] == units[at] for at in (index - 1, index + 1) if 0 <= at < len(units))


def successors(decoded: DecodedCode) -> list[list[int]]:
    """By instruction; the one behind the last stands for the return."""
    count = len(decoded)
    found: list[list[int]] = []
    for index in range(count):
        instruction = decoded.instruction(index)
        targets = [] if instruction.name in ENDS else [index + 1]
        if instruction.name in JUMPS:
            targets.append(instruction.arg)
        if instruction.name in RETURNS:
            targets.append(count)
        found.append(targets)
    return [*found, []]


def predecessors(following: Sequence[Sequence[int]]) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in following]
    for index, targets in enumerate(following):
        for target in targets:
            found[target].append(index)
    return found


def postdominators(before: Sequence[Sequence[int]], following: Sequence[Sequence[int]]) -> list[int]:
    """The nearest postdominator of each instruction; -1 for those from which no path returns."""
    end = len(before) - 1
    order = postorder(before, end)
    place = {node: number for number, node in enumerate(order)}
    nearest = [-1] * len(before)
    nearest[end] = end
    changed = True
    while changed:
        changed = False
        for node in reversed(order[:-1]):
            known = [target for target in following[node] if nearest[target] >= 0]
            found = known[0]
            for other in known[1:]:
                found = common(found, other, nearest, place)
            if nearest[node] != found:
                nearest[node], changed = found, True
    return nearest


def common(left: int, right: int, nearest: Sequence[int], place: dict[int, int]) -> int:
    while left != right:
        if place[left] < place[right]:
            left = nearest[left]
        else:
            right = nearest[right]
    return left


def postorder(before: Sequence[Sequence[int]], end: int) -> list[int]:
    """The instructions from which `end` is reached, each behind those that are found through it."""
    order: list[int] = []
    seen = {end}
    waiting = [(end, iter(before[end]))]
    while waiting:
        node, rest = waiting[-1]
        child = next((other for other in rest if other not in seen), None)
        if child is None:
            order.append(node)
            waiting.pop()
        else:
            seen.add(child)
            waiting.append((child, iter(before[child])))
    return order
