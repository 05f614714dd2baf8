"""Checks of values in front of all writes to inputs: a region whose check fails has changed nothing.

    %3 = add(%0, 1)                          %4 = isfinite(%2)
    %4 = isfinite(%2)                        assert(%4)
    assert(%4)                        =>     %3 = add(%0, 1)
    write %0 <- %3                           write %0 <- %3

What a check is computed from comes first, in the same order, and with it all that draws random numbers or has an
effect in front of a check. Loops behind the last check are not fused with those in front of it
(`loops/fusion/dependencies.py`), and what is computed in front of it is not computed in the memory of an input.
"""

from __future__ import annotations

from collections.abc import Sequence

from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import is_assumption
from kiln.graph.prims.table import Kind
from kiln.plan.overloads import draws


def last_check(nodes: Sequence[Node]) -> int:
    """The position of the last check among `nodes`, -1 if there is none."""
    return max((number for number, node in enumerate(nodes) if _is_check(node)), default=-1)


def _is_check(node: Node) -> bool:
    return node.op.name == "assert" or (node.op.name == "local_scalar" and bool(node.attrs["checks"]))


def checks_first(nodes: list[Node], writes: bool) -> list[Node]:
    """The nodes in another legal order, if there are checks and the region `writes` to inputs.

    The second half of a step may write behind the checks of the first, by which the whole step is left.
    """
    last = last_check(nodes) if writes or any(map(is_assumption, nodes)) else -1
    if last < 0:
        return nodes
    needed = {node for node in nodes[: last + 1] if _keeps_its_place(node)}
    for node in reversed(nodes[: last + 1]):
        if node in needed:
            needed.update(node.inputs)
    return [*[node for node in nodes if node in needed], *[node for node in nodes if node not in needed]]


def _keeps_its_place(node: Node) -> bool:
    if node.op.kind is Kind.LIBRARY:
        return draws(str(node.attrs["target"]), node.attrs["args"], node.attrs["kwargs"])
    return node.op.kind in (Kind.EFFECT, Kind.RANDOM, Kind.NESTED)
