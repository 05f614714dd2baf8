"""Launches of one kernel that do not need each other become one launch over a table.

    launch k0(s0 -> a0)                    launch k0(s0 -> a0), (s1 -> a1)
    launch k1(g0, a0 -> p0; 768)      =>   launch k1(g0, a0 -> p0; 768), (g1, a1 -> p1; 3072)
    launch k0(s1 -> a1)
    launch k1(g1, a1 -> p1; 3072)

Such are the steps of an optimizer, `torch._foreach_` operators, clipped gradients, averages of parameters and the
running statistics of norms: the same program over tensors of different sizes. A launch moves up to the table of its
kernel, or the table down to it, unless a step between them uses what one writes or writes what one uses. Temporaries
that live longer for it take at most `MOST_HELD` bytes per table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import final

from kiln.loops.fusion.dependencies import is_check
from kiln.loops.fusion.lifetimes import ScheduledStep
from kiln.loops.fusion.overlap import changes
from kiln.loops.kernel.launches.program import ALIGNMENT, LONGEST_ROW, KernelLaunch
from kiln.loops.program.analyses import memory_of, symbols_used
from kiln.loops.program.nodes import Buffer
from kiln.support.records import dataclass
from kiln.support.target import Target
from kiln.symbolic import Symbol, is_static
from kiln.tensor.size_hint import size_hint

MOST_HELD = 1 << 22
"""Bytes of temporaries that are made earlier or freed later for one table."""
MOST_PARAMETERS = 480
"""Of a launch on a GPU: its parameters have 4,096 bytes."""


@final
@dataclass(eq=False)
class _Entry:
    """Steps at one place in the new order: one step, or the rows of a table."""

    place: int
    steps: list[ScheduledStep]
    reads: set[str]
    writes: set[str]
    raised: int = 0
    waiting: int = 0
    """Bytes of temporaries that rows write earlier than they would, and of those that rows read."""
    fixed: bool = False
    """Does a later step need it in front?"""
    rows: list[KernelLaunch] = field(default_factory=list)


def launch_tables(
    steps: Sequence[ScheduledStep], buffers: Mapping[str, Buffer], kept: frozenset[str], host: frozenset[Symbol],
    target: Target,
) -> list[ScheduledStep]:  # fmt: skip
    """`kept`: memory that the region does not free; `host`: numbers that the host reads while the region runs."""
    if sum(step.row is not None for step in steps) < 2:
        return list(steps)
    return _Tables(buffers, kept, host, target).run(steps)


@final
class _Tables:
    def __init__(
        self, buffers: Mapping[str, Buffer], kept: frozenset[str], host: frozenset[Symbol], target: Target
    ) -> None:
        self.buffers, self.kept, self.host, self.target = buffers, kept, host, target
        self.entries: list[_Entry] = []
        self.open: dict[object, _Entry] = {}
        self.writer: dict[str, _Entry] = {}
        self.readers: dict[str, list[_Entry]] = {}  # since the last write

    def run(self, steps: Sequence[ScheduledStep]) -> list[ScheduledStep]:
        last_check = max((number for number, step in enumerate(steps) if is_check(step.step)), default=-1)
        for number, step in enumerate(steps):
            if number == last_check:
                self.open.clear()  # what follows may write to arguments
            self.add(step)
        return [made for entry in sorted(self.entries, key=lambda entry: entry.place) for made in _steps_of(entry)]

    def add(self, step: ScheduledStep) -> None:
        writes = {memory_of(name, self.buffers) for name in changes(step)}
        reads = {memory_of(name, self.buffers) for name in step.touched()} - writes
        row, key = step.row, self._key(step)
        entry = None if row is None or key is None else self.open.get(key)
        if entry is None or not self._joins(entry, step, reads, writes):
            entry = _Entry(len(self.entries), [], set(), set())
            self.entries.append(entry)
            if key is not None:
                self.open[key] = entry
        entry.steps.append(step)
        if row is not None:
            entry.rows.append(row)
            entry.waiting += self._temporary_bytes(reads)
        self._note(entry, reads, writes)

    def _key(self, step: ScheduledStep) -> object:
        """What the launches of a table share; None where the step can be no row."""
        row = step.row
        if row is None or not self.host.isdisjoint(symbols_used(row.ints)):
            return None
        kernel = row.kernel
        if not is_static(kernel.grain):
            return None
        if not self._on_gpu(row):
            return id(kernel)
        if not all([is_static(size) and size <= LONGEST_ROW for size in row.ints]):
            return None
        return id(kernel), tuple([is_static(size) and size % ALIGNMENT == 0 for size in row.ints])

    def _on_gpu(self, launch: KernelLaunch) -> bool:
        return self.target.is_gpu and any([param.spec.device.type != "cpu" for param in launch.kernel.params])

    def _joins(self, entry: _Entry, step: ScheduledStep, reads: set[str], writes: set[str]) -> bool:
        """Whether the step may be a row of the table; moves one of them."""
        first = entry.rows[0]
        if self._on_gpu(first) and (len(entry.rows) + 1) * (len(first.args) + len(first.ints) + 1) > MOST_PARAMETERS:
            return False
        if not (writes.isdisjoint(entry.writes) and writes.isdisjoint(entry.reads) and reads.isdisjoint(entry.writes)):
            return False
        if self._can_rise(entry, reads, writes):
            entry.raised += self._temporary_bytes(writes)
            return entry.raised <= MOST_HELD
        if entry.fixed or entry.raised + entry.waiting > MOST_HELD:
            return False
        entry.place = len(self.entries)
        self.entries.append(_Entry(entry.place, [], set(), set()))
        return True

    def _can_rise(self, entry: _Entry, reads: set[str], writes: set[str]) -> bool:
        """Is everything that the step needs in front of the table?"""
        needed = [self.writer[name] for name in reads | writes if name in self.writer]
        needed += [reader for name in writes for reader in self.readers.get(name, ())]
        return all([other.place < entry.place for other in needed])

    def _note(self, entry: _Entry, reads: set[str], writes: set[str]) -> None:
        for name in reads | writes:
            writer = self.writer.get(name)
            if writer is not None and writer is not entry:
                writer.fixed = True
        for name in writes:
            for reader in self.readers.pop(name, ()):
                reader.fixed = reader.fixed or reader is not entry
            self.writer[name] = entry
        for name in reads:
            found = self.readers.setdefault(name, [])
            if not found or found[-1] is not entry:
                found.append(entry)
        entry.reads |= reads
        entry.writes |= writes

    def _temporary_bytes(self, names: Iterable[str]) -> int:
        specs = [self.buffers[name].spec for name in names if name not in self.kept and name in self.buffers]
        return sum([size_hint(spec.numel()) * spec.dtype.itemsize for spec in specs])


def _steps_of(entry: _Entry) -> list[ScheduledStep]:
    if len(entry.steps) < 2:
        return entry.steps
    rows, first = entry.rows, entry.steps[0].step
    assert isinstance(first, KernelLaunch)
    launches = [step.step for step in entry.steps if isinstance(step.step, KernelLaunch)]
    if all([launch.kernel is first.kernel for launch in launches]):
        rows = launches  # of equal sizes, which the kernel may know
    args = tuple([name for row in rows for name in row.args])
    ints = tuple([size for row in rows for size in row.ints])
    table = replace(rows[0], args=args, ints=ints, rows=len(rows))
    return [ScheduledStep(table, tuple([name for step in entry.steps for name in step.overwriting]))]
