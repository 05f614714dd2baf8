"""Which arguments of a kernel are dead after it: their memory may be written over.

k1: a -> b      k2: a, b -> c        a and b die at k2, if the region made them and nothing else needs their memory
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import final

from kiln.loops.fusion.dependencies import Dependencies
from kiln.loops.fusion.group import Group
from kiln.loops.program.analyses import outs, reads, written
from kiln.loops.program.nodes import Buffer, Extern
from kiln.plan.overloads import find_overload


@final
class LastUses:
    """Buffers with memory of their own that the region made, and the group that uses each last."""

    def __init__(self, groups: Sequence[Group], graph: Dependencies, buffers: Mapping[str, Buffer]) -> None:
        self.graph = graph
        self._last = {name: group for group in groups for name in _read(group)}
        made = {name for group in groups for name in _made(group)}
        self._own = {name for name in made if graph.has_own_memory(name) and buffers[name].spec.offset == 0}

    def dying(self, group: Group) -> tuple[str, ...]:
        """Arguments of `group` whose memory it may write over."""
        return tuple(name for name in dict.fromkeys(_read(group)) if self._dies(name, group))

    def _dies(self, name: str, group: Group) -> bool:
        return name in self._own and self._last[name] is group and not self.graph.uses[name].kept


def _read(group: Group) -> Iterator[str]:
    if group.step is not None:
        yield from (access.buffer for access in reads(group.step))
    for member in group.members:
        yield from (access.buffer for access in member.reads)


def _made(group: Group) -> Iterator[str]:
    """Buffers with fresh memory."""
    if isinstance(group.step, Extern):
        if _gives_fresh_memory(group.step):
            yield from (out.name for out in outs(group.step))
    elif group.step is not None:
        yield from written(group.step)
    for member in group.members:
        yield member.out if member.partial is None else member.partial.buffer.name


def _gives_fresh_memory(step: Extern) -> bool:
    """Is no result a view of an argument? By the schema of the overload."""
    if step.target.startswith("kiln."):
        return step.target == "kiln.empty"
    return all(result.alias_info is None for result in find_overload(step.target)._schema.returns)
