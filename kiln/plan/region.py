"""A differentiable region as data, for autograd; stored with its two plans.

forward (x, w) -> y, t;  backward (x, t, dy) -> dx, dw
RegionSpec(num_inputs=2, outputs=(y,), differentiable=(True,), saved=(Saved("input", 0), Saved("extra", 1)))
"""

from __future__ import annotations

from typing import Literal, final

from kiln.plan.plan import PlanOutput
from kiln.plan.signature import Watched
from kiln.support.errors import require
from kiln.support.records import dataclass

SAVED_KINDS = ("input", "output", "extra")
"""In the order of `SavedKind` of csrc/executor/region.h."""
NO_BASE, INPUT_BASE, OUTPUT_BASE = range(3)


@final
@dataclass(frozen=True, slots=True)
class Saved:
    """A value that backward gets: input `index`, result `index`, or value `index` of all that forward returns (an
    extra). An extra that is a view of an input or a result names it, so that it shares its version. `readers`: the
    tangents whose backward gets it, None for all; with others it may have changed, and it is kept.
    """

    kind: Literal["input", "output", "extra"]
    index: int
    view_of_input: int | None = None
    view_of_output: int | None = None
    readers: tuple[int, ...] | None = None

    def row(self) -> tuple[int, int, int, int, tuple[int, ...] | None]:
        """As the native `Region` takes it: kind, index, kind and index of the base, readers."""
        base, index = NO_BASE, 0
        if self.view_of_input is not None:
            base, index = INPUT_BASE, self.view_of_input
        elif self.view_of_output is not None:
            base, index = OUTPUT_BASE, self.view_of_output
        return SAVED_KINDS.index(self.kind), self.index, base, index, self.readers


@final
@dataclass(frozen=True, slots=True)
class RegionSpec:
    """What `make_region` needs.

    `outputs`: the user's results, as the forward plan has them. `differentiable`: which of them are fresh tensors
    with a gradient; backward gets a tangent for each of these, in order. `saved`: what backward gets before the
    tangents. `mutated`: inputs that the forward plan writes to (they need no gradient). `written`: (input, result)
    pairs of inputs that need a gradient and get the value of a result by an ordinary `copy_`. `optional_tangents`: a
    result that the loss does not use has no tangent and adds nothing to any gradient, as in eager (else: zeros).
    `enables_grad`: the region is called where gradients are off, and turns them on. `detached`: results that are views
    without a gradient of tensors with a gradient. `reached`: inputs on which results depend differentiably, in the
    order in which eager gives leaves their gradients; None: all.
    `creations`: (result, torch's `CreationMeta`) of the views that eager forbids to change in place.
    `draws`: (torch call, position in `saved`) of what a second derivative uses again: random numbers,
    and old contents of an input (`~number`). `redrawn`: the numbers in `draws` of random numbers saved as their seeds.
    `depends`: for each result those from which it is computed, without another in between; empty if there are none.
    `parts`: for each input the part of the backward in which its gradient is handed over; empty: all at its end.
    `ends`: for each tangent those for which no backward can follow, if the graph is freed; empty: all.
    `unread`: inputs whose contents a second derivative does not need.
    `watched`: what must not change although it is not saved.
    """

    num_inputs: int
    outputs: tuple[PlanOutput, ...]
    differentiable: tuple[bool, ...]
    saved: tuple[Saved, ...]
    mutated: tuple[int, ...] = ()
    written: tuple[tuple[int, int], ...] = ()
    name: str = "CompiledBackward"
    optional_tangents: bool = False
    enables_grad: bool = False
    detached: tuple[int, ...] = ()
    reached: tuple[int, ...] | None = None
    creations: tuple[tuple[int, int], ...] = ()
    draws: tuple[tuple[int, int], ...] = ()
    redrawn: tuple[int, ...] = ()
    ends: tuple[tuple[int, ...], ...] = ()
    depends: tuple[tuple[int, ...], ...] = ()
    parts: tuple[int, ...] = ()
    unread: tuple[int, ...] = ()
    watched: tuple[Watched, ...] = ()

    def __post_init__(self) -> None:
        require(len(self.outputs) == len(self.differentiable), "one flag per result")
        changed = {*self.mutated, *(input_ for input_, _ in self.written)}
        for saved in self.saved:
            require(
                saved.kind != "input" or saved.index not in changed,
                f"input {saved.index} is changed by forward: backward must save a copy of its old value",
            )
        for output, differentiable in zip(self.outputs, self.differentiable, strict=True):
            require(
                not differentiable or result_row(output, differentiable, self.num_inputs)[1] == NO_BASE,
                "a result that is an input or a view is rebuilt outside the node: it is not differentiable by itself",
            )

    def order(self) -> list[int]:
        """The results, each behind those from which it is computed, and behind the one of which it is a view."""
        made: dict[int, None] = {}
        waiting = [*reversed(range(len(self.outputs))), *[output for _, output in self.written]]
        while waiting:
            base = self.outputs[waiting[-1]].alias_output
            needed = (*(self.depends[waiting[-1]] if self.depends else ()), *(() if base is None else (base,)))
            missing = [number for number in needed if number not in made]
            if missing:
                waiting += missing
            else:
                made[waiting.pop()] = None
        return list(made)

    def result_rows(self) -> list[tuple[int, int, int, int, int]]:
        """For each result its `result_row`, and its `CreationMeta`."""
        creations = dict(self.creations)
        return [
            (*result_row(output, differentiable, self.num_inputs), creations.get(number, 0))
            if (view := self.view_of_result(number)) is None
            else (0, OUTPUT_BASE, view, 1, creations.get(number, 0))
            for number, (output, differentiable) in enumerate(zip(self.outputs, self.differentiable, strict=True))
        ]

    def view_of_result(self, number: int) -> int | None:
        """The result from which a view was made that is a view itself: gradients of the one go through the other."""
        output, depends = self.outputs[number], self.depends[number] if self.depends else ()
        if output.view is None or len(depends) != 1:
            return None
        other = self.outputs[depends[0]]
        same = (output.alias_input, output.alias_output) == (other.alias_input, other.alias_output)
        return depends[0] if same and other.view is not None else None


def result_row(output: PlanOutput, differentiable: bool, num_inputs: int) -> tuple[int, int, int, int]:
    """(is it differentiable, kind of the base, number of the base, is it a view of the base)."""
    if output.alias_input is not None:
        return 0, INPUT_BASE, output.alias_input, int(output.view is not None)
    if output.alias_output is not None:
        return 0, OUTPUT_BASE, output.alias_output, int(output.view is not None)
    if output.slot is not None and output.slot < num_inputs:
        return 0, INPUT_BASE, output.slot, 0
    return int(differentiable), NO_BASE, 0, 0
