"""What depends on what: readers and writers of the memory behind each buffer.

Buffers with a base share its memory. A read of a buffer that exactly one node writes can be fused with that node; where
memory is written several times (scatters in place, calls that mutate), order is all that is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from kiln.loops.fusion.group import Group
from kiln.loops.program.analyses import reads, written
from kiln.loops.program.nodes import Buffer, LoopProgram, Scatter


@final
@dataclass(slots=True)
class BufferUses:
    """Numbering of the nodes that read a buffer; `kept`: it outlives the region or is memory of another."""

    readers: list[int] = field(default_factory=list)
    kept: bool = False


@final
class Dependencies:
    """Edges between groups, found while nodes are added in program order."""

    def __init__(self, program: LoopProgram, buffers: dict[str, Buffer]) -> None:
        self.roots = {name: memory_of(name, buffers) for name in buffers}
        self._reads = [tuple(dict.fromkeys(access.buffer for access in reads(node))) for node in program.nodes]
        self._writes = [written(node) for node in program.nodes]
        self._times_written = Counter(self.roots[name] for names in self._writes for name in names)
        self._last_writer: dict[str, Group] = {}
        self._readers: dict[str, list[Group]] = {}
        self.uses = self._find_uses(program, buffers)

    def _find_uses(self, program: LoopProgram, buffers: dict[str, Buffer]) -> dict[str, BufferUses]:
        uses = {name: BufferUses() for name in buffers}
        for number, names in enumerate(self._reads):
            for name in names:
                uses[name].readers.append(number)
        kept = {one.buffer for one in program.outputs if one.buffer is not None}
        kept |= {name for pair in program.writes for name in pair}
        kept |= {buffer.base for buffer in buffers.values() if buffer.base is not None}
        kept |= {node.init for node in program.nodes if isinstance(node, Scatter)}
        for name in kept:
            uses[name].kept = True
        return uses

    def is_plain(self, name: str) -> bool:
        """Is it memory of its own, written once?"""
        root = self.roots[name]
        return root == name and self._times_written[root] == 1

    def add(self, group: Group, number: int) -> None:
        """Enter the edges of node `number`, which is the one that `group` was made for."""
        fusable = group.step is None
        for name in self._reads[number]:
            root = self.roots[name]
            writer = self._last_writer.get(root)
            if writer is not None:
                group.after.add(writer)
                if not fusable or not self.is_plain(name):
                    group.barriers.add(writer)
            self._readers.setdefault(root, []).append(group)
        for name in self._writes[number]:
            self.write(group, name)

    def write(self, group: Group, name: str) -> None:
        """`group` writes `name` now: it comes after all that read or wrote the memory before."""
        root = self.roots.setdefault(name, name)
        earlier = [one for one in self._readers.pop(root, ()) if one is not group]
        if root in self._last_writer:
            earlier.append(self._last_writer[root])
        group.after.update(earlier)
        group.barriers.update(earlier)
        self._last_writer[root] = group

    def add_combine(self, group: Group, parts: Group, part: str, out: str) -> None:
        """`group` combines `part`, which `parts` writes, into `out`, which `parts` was to write."""
        group.after.add(parts)
        group.barriers.add(parts)
        self.uses[part] = BufferUses(kept=True)
        self.roots[part] = part
        self._last_writer[part] = parts
        self._last_writer[self.roots[out]] = group

    def writer(self, name: str) -> Group | None:
        return self._last_writer.get(self.roots[name])

    def readers(self, name: str) -> list[Group]:
        """Groups that have read the memory since it was last written."""
        return self._readers.get(self.roots[name], [])


def memory_of(name: str, buffers: Mapping[str, Buffer]) -> str:
    """The buffer whose memory the one called `name` lies in."""
    buffer = buffers[name]
    while buffer.base is not None:
        buffer = buffers[buffer.base]
    return buffer.name
