"""Dependencies between groups: readers and writers of the memory behind each buffer.

Buffers with a base share its memory. A reader can be fused with the writer of a buffer that exactly one node writes.
Where memory is written several times (scatters in place, calls that mutate), only the order is kept, by barriers.
What uses a number that the host reads comes after all reads in front of it. Calls that draw random numbers or have
effects keep their order. What follows the last check of values, and
only that, may write to an argument: until then nothing has changed that eager could not compute from again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from typing import final

from kiln.loops.fusion.group import Group
from kiln.loops.program.analyses import kept_buffers, memory_of, reads, symbols_read, symbols_used, written
from kiln.loops.program.nodes import CHECK, LOCAL_SCALAR, Buffer, Extern, LoopNode, LoopProgram
from kiln.plan.errors import ASSUMED
from kiln.support.records import dataclass
from kiln.symbolic import Symbol


@final
@dataclass(frozen=True, slots=True)
class HostNumbers:
    """Whether a node reads a number for the host, and whether it uses one."""

    reads: bool
    uses: bool


def host_numbers(program: LoopProgram) -> frozenset[Symbol]:
    """The numbers that the host reads while the region runs."""
    return frozenset(symbol for node in program.nodes for symbol in symbols_read(node))


def numbers_of(node: LoopNode, buffers: dict[str, Buffer], host: frozenset[Symbol]) -> HostNumbers:
    """Whether `node` and the buffers that it accesses depend on the numbers `host`."""
    specs = [buffers[name].spec for name in (*written(node), *(access.buffer for access in reads(node)))]
    return HostNumbers(bool(symbols_read(node)), not host.isdisjoint(symbols_used((node, *specs))))


def last_check(program: LoopProgram) -> int:
    """The number of the last check of values in a program that writes to its arguments, else -1.

    The second half of a step may write behind the checks of the first, by which the whole step is left.
    """
    checks = [number for number, node in enumerate(program.nodes) if is_check(node)]
    return checks[-1] if checks and (program.writes or any(map(is_assumption, program.nodes))) else -1


def is_assumption(node: object) -> bool:
    return isinstance(node, Extern) and node.target == CHECK and str(node.args[-1]).startswith(ASSUMED)


def is_check(node: object) -> bool:
    """Whether it stops the region for some values; the last argument of one that reads a number is what must hold."""
    return isinstance(node, Extern) and (node.target == CHECK or (node.target == LOCAL_SCALAR and bool(node.args[-1])))


@final
@dataclass(slots=True)
class BufferUses:
    """Numbers of the nodes that read a buffer; `kept`: it is a result of the region, or memory of another buffer."""

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
        # Arguments and constants have contents before.
        given = {buffer.name for buffer in program.inputs if isinstance(buffer, Buffer)}
        self._times_written.update(given | {buffer.name for buffer, _ in program.constants})
        self._last_writer: dict[str, Group] = {}
        self._readers: dict[str, list[Group]] = {}
        kept = kept_buffers(program)
        host = host_numbers(program)
        self._host_numbers = [numbers_of(node, buffers, host) for node in program.nodes] if host else None
        self._ordered = [isinstance(node, Extern) and node.ordered for node in program.nodes]
        self._last_ordered: Group | None = None
        self._last_read: Group | None = None
        self.last_check = last_check(program)
        self._check: Group | None = None
        self._checks: list[Group] = []
        self.before_check = frozenset(name for names in self._writes[: self.last_check + 1] for name in names)
        """What is computed in front of the last check."""
        self.uses = {name: BufferUses(kept=name in kept) for name in buffers}
        for number, names in enumerate(self._reads):
            for name in names:
                self.uses[name].readers.append(number)

    def has_own_memory(self, name: str) -> bool:
        """Is it memory of its own, written once (an argument: not at all)?"""
        root = self.roots[name]
        return root == name and self._times_written[root] == 1

    def add(self, group: Group, number: int) -> None:
        """Enter the edges of `group`, which holds just node `number`."""
        if self._host_numbers is not None:
            self._order_by_numbers(group, self._host_numbers[number])
        if self._ordered[number]:
            if self._last_ordered is not None:
                group.after.add(self._last_ordered)
                group.barriers.add(self._last_ordered)
            self._last_ordered = group
        if self._check is not None:
            group.after.add(self._check)
            group.barriers.add(self._check)
        elif number == self.last_check:
            self._check = group
            group.after.update(self._checks)
        elif number < self.last_check and group.step is not None and is_check(group.step):
            self._checks.append(group)
        for name in self._reads[number]:
            root = self.roots[name]
            writer = self._last_writer.get(root)
            if writer is not None:
                group.after.add(writer)
                if group.step is not None or not self.has_own_memory(name):
                    group.barriers.add(writer)
            self._readers.setdefault(root, []).append(group)
        for name in self._writes[number]:
            self._write(group, name)

    def _order_by_numbers(self, group: Group, numbers: HostNumbers) -> None:
        if (numbers.reads or numbers.uses) and self._last_read is not None:
            group.after.add(self._last_read)
            group.barriers.add(self._last_read)
        if numbers.reads:
            self._last_read = group

    def _write(self, group: Group, name: str) -> None:
        """`group` writes `name` now: it comes after all that read or wrote the memory before."""
        root = self.roots.setdefault(name, name)
        earlier = [reader for reader in self._readers.pop(root, ()) if reader is not group]
        if root in self._last_writer:
            earlier.append(self._last_writer[root])
        group.after.update(earlier)
        group.barriers.update(earlier)
        self._last_writer[root] = group

    def add_combine(self, group: Group, parts_of: Group, part: str, out: str) -> None:
        """`group` combines `part`, which `parts_of` writes, into `out`, which `parts_of` was to write."""
        group.after.add(parts_of)
        group.barriers.add(parts_of)
        self.uses[part] = BufferUses(kept=True)
        self.roots[part] = part
        self._last_writer[part] = parts_of
        self._last_writer[self.roots[out]] = group

    def writer(self, name: str) -> Group | None:
        return self._last_writer.get(self.roots[name])

    def readers(self, name: str) -> list[Group]:
        """Groups that have read the memory since it was last written."""
        return self._readers.get(self.roots[name], [])
