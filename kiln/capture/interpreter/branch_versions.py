"""How often the sides of an `if` on data change tensors from outside: the version rises as in eager.

    if gate < 0.1:         n, state' = cond(gate < 0.1, state, true=@0, false=@1)
        state.add_(1)          @0 = 1, (state + 1) * 2          @1 = 0, state
        state.mul_(2)      behind the region: raise_version(state, n)

What both sides count is in the graph: the region raises the version by it. What one side counts beyond the other is a
result of the `cond`, by which the version is raised behind the region.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import final

import torch

from kiln.capture.interpreter.core import CaptureState, Codegen, Value
from kiln.capture.interpreter.effects import SideEffect
from kiln.capture.interpreter.side_assumptions import called
from kiln.capture.interpreter.variables.tensor import RegionInputs, Tensor, record
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.finish import counted_versions
from kiln.graph.trace.inputs import InputRecord
from kiln.graph.trace.storage_view import root_of
from kiln.runtime.own_version import raise_version
from kiln.support.records import dataclass


@final
@dataclass(frozen=True, eq=False)
class SideVersions:
    """How often a side changes memory of inputs, by the `id` of its root."""

    sure: Counter[int]
    by_data: dict[int, Tensor]
    """How often beyond that: what branches in the side have found."""


@final
@dataclass
class VersionsByData:
    """What the branches of one capture have found, of the side that is interpreted."""

    found: dict[int, Tensor] = field(default_factory=dict)


@final
@dataclass(frozen=True)
class VersionEffect(SideEffect):
    """The version of a tensor from outside is raised by a number that the region has found."""

    tensor: Value
    by: Value

    @property
    def key(self) -> Hashable:
        return "version", id(self.tensor)

    def emit(self, g: Codegen) -> None:
        g.run(raise_version, self.tensor, self.by)


def versions_of_inputs(s: CaptureState) -> Counter[int]:
    return counted_versions(s.recorder.inputs, s.recorder.counted_twice)


@contextmanager
def versions_counted(s: CaptureState, done: list[SideVersions]) -> Iterator[None]:
    """Interpret a side, and add how often it changes inputs to `done`."""
    part, began, before = s.part(VersionsByData), versions_of_inputs(s), set(s.recorder.versioned)
    outer, part.found = part.found, {}
    try:
        yield
        sure = versions_of_inputs(s) - began
        inputs = {id(root_of(each.view.storage)) for each in plain_inputs(s)}
        sure.update({root: 1 for root in s.recorder.versioned - before if root in inputs and root not in sure})
        done.append(SideVersions(sure, part.found))
    finally:
        part.found = outer
        put_back(s, before)


def put_back(s: CaptureState, versioned: set[int]) -> None:
    s.recorder.versioned.clear()
    s.recorder.versioned.update(versioned)


@final
@dataclass(frozen=True, eq=False)
class Beyond:
    """How often each of the two sides changes the memory of `roots` beyond what both do: a number, and a tensor."""

    roots: list[int]
    sides: Sequence[tuple[int, Tensor | None]]

    def note(self, s: CaptureState, found: Tensor, outermost: bool) -> None:
        """Count what the side that is taken has found; behind the outermost branch, in the program."""
        by_data = s.part(VersionsByData).found
        for root in self.roots:
            before = by_data.get(root)
            by_data[root] = found if before is None else called(s, torch.add, before, found)
            if outermost:
                effect = VersionEffect(tensor_with(s, root), by_data[root])
                s.effects.note(effect)
                s.effects.replace(effect)


def differences(s: CaptureState, sides: Sequence[SideVersions]) -> list[Beyond]:
    """What is left to count where the region counts what both sides do."""
    if not counts_behind(s):
        return []
    alike = dict[tuple[tuple[int, Tensor | None], ...], list[int]]()
    for root in {**sides[0].sure, **sides[1].sure, **sides[0].by_data, **sides[1].by_data}:
        least = min([side.sure[root] for side in sides])
        beyond = tuple([(side.sure[root] - least, side.by_data.get(root)) for side in sides])
        alike.setdefault(beyond, []).append(root)
    return [Beyond(roots, beyond) for beyond, roots in alike.items() if beyond != ((0, None), (0, None))]


def counts_of(s: CaptureState, beyond: Sequence[Beyond], side: int, device: torch.device) -> list[Value]:
    """The counts of a side as tensors that it makes."""
    options = {"device": s.const(device)}
    counts = [each.sides[side] for each in beyond]
    return [
        record(s, torch.full, [s.const(()), s.const(n)], options) if more is None else called(s, torch.add, more, n)
        for n, more in counts
    ]


def count_once(s: CaptureState, began: Mapping[int, int], versioned: set[int], sides: Sequence[SideVersions]) -> None:
    """Fakes count the changes of all sides that were interpreted since `began`, where what both do is to count."""
    of_region = min if counts_behind(s) else max
    for root, now in versions_of_inputs(s).items():
        counted = of_region([side.sure[root] for side in sides])
        s.recorder.counted_twice[root] += now - began.get(root, 0) - counted
    put_back(s, versioned)


def counts_behind(s: CaptureState) -> bool:
    """Whether code runs behind the graph, and the graph does not change the tensors itself."""
    return s.policy.own_regions and not s.policy.whole


def tensor_with(s: CaptureState, root: int) -> Tensor:
    """The first input in a memory."""
    given = [each.fake for each in plain_inputs(s) if id(root_of(each.view.storage)) == root]
    return next(tensor for fake in given if (tensor := s.part(RegionInputs).by_fake.get(id(fake))) is not None)


def plain_inputs(s: CaptureState) -> list[InputRecord]:
    return [record for record in s.recorder.inputs if type(record.fake) is FakeTensor]
