"""What one attempt to capture a function finds that another one has to know from the beginning."""

from __future__ import annotations

import types
from dataclasses import field
from typing import TypeAlias, final

import torch

from kiln.capture.interpreter.breaks import DataDependentValue, GraphBreak
from kiln.capture.interpreter.builtins.numpy_sizes import ConstantSizes, SizedArrays
from kiln.capture.interpreter.changed_numbers import NumberChanges
from kiln.capture.interpreter.core import CaptureState
from kiln.capture.interpreter.data_loops import DataLoops, LoopInGraph
from kiln.capture.interpreter.data_values import (
    CHOOSING,
    GUARDED,
    LATER,
    LENGTH,
    LENGTH_CHANGED,
    LENGTH_READ,
    DataSizes,
    Instruction,
    Place,
    SizesMatch,
    ValueNeeded,
)
from kiln.capture.interpreter.host_draws import Outline, call_outlined
from kiln.capture.interpreter.late_finalizers import BreakBehind
from kiln.capture.interpreter.variables.counted_range import Loops, LoopsLeft, loop_of
from kiln.capture.interpreter.variables.early_inputs import EarlyInputs, ReadEarlier
from kiln.capture.interpreter.variables.function import Outlined
from kiln.capture.interpreter.variables.weak_references import WatchLifetimes, watch_lifetimes
from kiln.runtime.guards.source import Source
from kiln.support.records import dataclass
from kiln.symbolic.relation import Relation

Finding: TypeAlias = (
    Outline
    | NumberChanges
    | LoopsLeft
    | LoopInGraph
    | WatchLifetimes
    | BreakBehind
    | ConstantSizes
    | SizesMatch
    | ReadEarlier
    | ValueNeeded
)
FINDINGS = (
    *(Outline, NumberChanges, LoopsLeft, LoopInGraph, WatchLifetimes, BreakBehind, ConstantSizes, SizesMatch),
    *(ReadEarlier, ValueNeeded),
)
"""They end an attempt; the next one begins with them."""
WITHOUT_VALUES = (Outline, NumberChanges, LoopsLeft, WatchLifetimes, BreakBehind, ConstantSizes)
"""Those that have nothing to do with values of tensors."""


@final
@dataclass
class Findings:
    """What the attempts of a capture have found so far. `stops`: where the graph breaks."""

    stops: dict[tuple[int, int], GraphBreak] = field(default_factory=dict)
    needed: dict[Instruction, str] = field(default_factory=dict)
    sizes: dict[Instruction, dict[Place, tuple[int, ...]]] = field(default_factory=dict)
    """What data decide of the results of those."""
    outlined: frozenset[types.CodeType] = frozenset()
    matching: frozenset[Relation] = frozenset()
    counted: frozenset[Instruction] = frozenset()
    loops: dict[Instruction, LoopInGraph] = field(default_factory=dict)
    """The loops to have in the graph, by their heads."""
    early: list[tuple[torch.Tensor, Source]] = field(default_factory=list)
    """The tensors to read at the beginning."""
    watching: bool = False
    sized_arrays: bool = True
    """Whether arrays of changing sizes are tensors of the region."""
    asked_is_compiling: bool = False

    def given_to(self, s: CaptureState) -> CaptureState:
        s.recorder.env.matching = self.matching
        s.part(Outlined).codes, s.part(Outlined).call = self.outlined, call_outlined
        s.part(Loops).counted = self.counted
        s.part(EarlyInputs).found = self.early
        for found in self.loops.values():
            s.part(DataLoops).add(s, found.loop, found.skipped)
        s.part(DataSizes).known = self.sizes
        s.part(SizedArrays).traced = self.sized_arrays
        s.asked_is_compiling = self.asked_is_compiling
        if self.watching:
            watch_lifetimes(s)
        return s

    def add(self, found: Finding, s: CaptureState) -> None:
        if isinstance(found, ValueNeeded):
            self.keep_value(found)
            self.sizes.update({at: sizes for at, sizes in s.part(DataSizes).made.items() if at == found.made_at})
        elif isinstance(found, SizesMatch):
            self.matching |= {found.relation}
        elif isinstance(found, ReadEarlier):
            self.early.append((found.real, found.source))
        elif isinstance(found, WatchLifetimes):
            self.watching = True
        elif isinstance(found, ConstantSizes):
            self.sized_arrays = False
        elif isinstance(found, BreakBehind):
            self.stops[found.step.number, found.step.step] = found.stop
        elif isinstance(found, LoopsLeft):
            self.counted |= found.made_at
        elif isinstance(found, LoopInGraph):
            self.loops[found.loop.code, found.loop.head] = found
            self.stops.clear()  # the one that is in the loop
            self.needed = {at: reason for at, reason in self.needed.items() if found.is_apart(at)}
        else:
            self.outlined |= found.codes

    def keep_value(self, need: ValueNeeded) -> None:
        """Let the next attempt read the number that Python needs, or break in front of what makes it."""
        self.counted = frozenset([made_at for made_at in self.counted if loop_of(made_at) != need.made_at])
        before = self.needed.get(need.made_at)
        if before == LENGTH_CHANGED:
            self.needed[need.made_at] = LENGTH_READ
        elif before == LENGTH_READ:
            self.needed[need.made_at] = f"{LENGTH_CHANGED} that is read"
        elif before in LATER:
            self.needed[need.made_at] = (
                f"{need.reason}, also where they return" if need.reason == before else need.reason
            )
        elif before in (LENGTH, GUARDED, *CHOOSING) and before != need.reason:
            self.needed[need.made_at] = need.reason
        elif before is not None:
            stop = DataDependentValue(operation="a number that depends on data")
            self.stops[need.step.number, need.step.step] = stop.before(need.step)
        self.needed.setdefault(need.made_at, need.reason)
