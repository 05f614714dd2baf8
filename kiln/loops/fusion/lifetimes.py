"""Lifetimes of buffers: where memory is made, after which step it is dead, which may be written over.

    steps    k0: x -> a      k1: a -> b      k2: b -> c
    made     a before 0      b before 1      c before 2 (in the memory of a)
    dead     -               a after 1       b after 2

Memory of extern results is made by the call. Inputs, constants, results of the region and contents of writes are
never freed. A buffer with a `base` is a view: it keeps the memory of its base alive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import final

from kiln.graph.prims.meta import has_repeated_elements
from kiln.loops.fusion.dependencies import Dependencies
from kiln.loops.fusion.group import Group
from kiln.loops.kernel.launches.program import Allocation, KernelLaunch, NestedCall
from kiln.loops.program.analyses import buffer_args, outs, reads, written
from kiln.loops.program.nodes import Buffer, Extern, LoopProgram
from kiln.plan.overloads import find_overload
from kiln.support.records import dataclass
from kiln.tensor.spec import TensorSpec


@final
@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """A step, and the results that it writes over its arguments. `row`: the same launch as a row of a table, whose
    sizes the kernel need not know; None: it is no row."""

    step: KernelLaunch | Extern | NestedCall
    overwriting: tuple[str, ...] = ()
    row: KernelLaunch | None = None

    def touched(self) -> tuple[str, ...]:
        """Names of all buffers that the step reads or writes."""
        return (*self.named(), *self.overwriting)

    def named(self) -> tuple[str, ...]:
        """Those that it has among its arguments and results."""
        step = self.step
        if isinstance(step, KernelLaunch):
            return step.args
        call = step.call if isinstance(step, NestedCall) else step
        made = (out.name for out in outs(call))
        return tuple(dict.fromkeys((*made, *call.mutates, *(arg.name for arg in buffer_args(call)))))


def named_buffers(
    steps: Sequence[ScheduledStep], results: Iterable[str], buffers: Mapping[str, Buffer]
) -> frozenset[str]:
    """Buffers that a step, or one of the `results` of the region, has under their own names, and what they lie in.

    A result that is written over an argument is not among them where nothing else reads it, as the parameters of an
    optimizer: the step writes to the argument.
    """
    found = {*results, *(name for scheduled in steps for name in scheduled.named())}
    waiting = [*found]
    while waiting:
        buffer = buffers.get(waiting.pop())
        if buffer is not None and buffer.base is not None and buffer.base not in found:
            found.add(buffer.base)
            waiting.append(buffer.base)
    return frozenset(found)


def allocations(
    steps: Sequence[ScheduledStep], existing: frozenset[str], named: frozenset[str], buffers: Mapping[str, Buffer]
) -> tuple[Allocation, ...]:
    """Memory for every `named` buffer that a kernel writes first; inputs and constants are `existing`."""
    made, found = set(existing), []
    for position, scheduled in enumerate(steps):
        if not isinstance(scheduled.step, KernelLaunch):
            made.update(scheduled.touched())
            continue
        for name in scheduled.touched():
            if name not in made and name in named:
                found.append(Allocation(buffers[name], position))
                made.add(name)
    return tuple(found)


def frees(
    steps: Sequence[ScheduledStep], kept: frozenset[str], named: frozenset[str], buffers: Mapping[str, Buffer]
) -> tuple[tuple[str, ...], ...]:
    """For each step the `named` buffers that nothing uses after it; `kept` outlive the region."""
    last: dict[str, int] = {}
    for position, scheduled in enumerate(steps):
        for name in scheduled.touched():
            # A view that is written later needs the memory of its base.
            below: str | None = name
            while below is not None:
                last[below] = position
                below = buffers[below].base if below in buffers else None
    dead: list[list[str]] = [[] for _ in steps]
    for name, position in last.items():
        if name not in kept and name in buffers and name in named:
            dead[position].append(name)
    return tuple(map(tuple, dead))


@final
@dataclass(frozen=True, slots=True)
class Landing:
    """Results by the argument that they are written back to: one that the same kernel reads, or that none reads."""

    read: Mapping[str, str]
    unread: Mapping[str, str]


def landing_targets(program: LoopProgram, graph: Dependencies, buffers: Mapping[str, Buffer]) -> dict[str, str]:
    """Results that may be computed in the memory of the argument that they are written back to."""
    shared = Counter(graph.roots[name] for name in buffers)
    sources = Counter(source for _, source in program.writes)
    returned = {output.buffer for output in program.outputs}
    return {
        source: target
        for target, source in program.writes
        if target != source
        and shared[target] == shared[source] == sources[source] == 1
        and graph.has_own_memory(source)
        and not returned & {source, target}
        and source not in graph.before_check
        and not has_repeated_elements(buffers[target].spec)
        and _same_layout(buffers[target].spec, buffers[source].spec)
    }


def _same_layout(target: TensorSpec, source: TensorSpec) -> bool:
    return (target.dtype, target.sizes, target.strides) == (source.dtype, source.sizes, source.strides)


@final
class LastUses:
    """Buffers with memory of their own that the region made, and the group that uses each last."""

    def __init__(
        self, groups: Sequence[Group], graph: Dependencies, buffers: Mapping[str, Buffer], targets: Mapping[str, str],
        *, reuse: bool = True,
    ) -> None:  # fmt: skip
        """Without `reuse` nothing is written over what the region made."""
        self.graph, self._targets = graph, targets
        self._last = {name: group for group in groups for name in _read(group)}
        made = {name for group in groups for name in _made(group)} if reuse else set()
        self._own = {name for name in made if graph.has_own_memory(name) and buffers[name].spec.offset == 0}

    def dying(self, group: Group) -> tuple[str, ...]:
        """Arguments of `group` whose memory it may write over."""
        last = (name for name in dict.fromkeys(_read(group)) if name in self._own and self._last[name] is group)
        return tuple(name for name in last if not self.graph.uses[name].kept)

    def landing(self, group: Group) -> Landing:
        """Results of `group` that are written back to arguments which no later group reads."""
        read, unread = {}, {}
        for member in group.members if self._targets else ():
            target = self._targets.get(member.out)
            if target is None or member.partial is not None:
                continue
            last = self._last.get(target)
            if last is group:
                read[member.out] = target
            elif last is None or last.position < group.position:
                unread[member.out] = target
        return Landing(read, unread)


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
