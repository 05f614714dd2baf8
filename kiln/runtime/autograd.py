"""Forward and backward plan as one differentiable callable.

    region = make_region(forward, backward, spec)
    (y,) = region(x, weight)        # y.grad_fn is one node, "CompiledBackward"
    y.sum().backward()              # backward(mask) is compiled now, then run

`forward(*inputs)` returns the user's results and then what backward needs besides inputs and results ("extras").
`backward(mask)` makes the callable for the inputs whose entry in `mask` is true; it takes the saved values and then
one tangent per differentiable result, and returns one gradient per input (None where the mask is false, or where
eager has none). With `optional_tangents` it is `backward(mask, given)`, and the callable takes only the tangents whose
entry in `given` is true. Both may be native executors (no Python is run) or Python functions.

What holds, as for eager operators: saved tensors go through SavedVariable (saved-tensor hooks, version checks, freed
by backward); results that are views are rebuilt outside the node; a tangent that is missing is zeros, one of another
layout is copied into the planned one (`encode_program(adapt=...)`); without retain_graph each saved tensor is freed at
its last use in the backward plan and its memory may be reused. With create_graph=True the gradients come from
`replay`, the same function run eagerly; without a replay they raise KILN4008 when differentiated.
Tangents that are wrappers (vmap over a backward) take the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import torch

from kiln.native._executor import Region
from kiln.runtime.plan import Plan, PlanOutput, Slot, View
from kiln.support.errors import KilnError, require

Function = Callable[..., Sequence[Any]]
Mask = tuple[bool, ...]
INPUT, OUTPUT, EXTRA = range(3)
NO_BASE, INPUT_BASE, OUTPUT_BASE = range(3)


class NoSecondDerivative(KilnError, RuntimeError):
    code = "KILN4008"
    what = "the gradient of {name} cannot be differentiated"
    why = "its backward was compiled for first derivatives, and the region cannot be run again by eager: {reason}"
    try_ = ("call the function that needs create_graph=True outside kiln.compile",)


class NoForwardDerivative(KilnError, NotImplementedError):
    code = "KILN4009"
    what = "{name} has no forward-mode derivative"
    why = "a compiled region knows how to run backward, not how to push tangents forward"
    try_ = ("call the function under forward-mode differentiation outside kiln.compile",)


class WrappedTangents(KilnError, NotImplementedError):
    code = "KILN4015"
    what = "{name} got tangents of a transform (vmap) or of a tensor subclass"
    why = "its backward was compiled for plain tensors, and the region cannot be run again by eager: {reason}"
    try_ = ("call the function that is transformed outside kiln.compile",)


@final
@dataclass(frozen=True, slots=True)
class Saved:
    """A value that backward gets: input number `index`, result number `index`, or number `index` of all that forward
    returns. An extra that is a view of an input or a result names it, so that it shares its version.
    """

    kind: Literal["input", "output", "extra"]
    index: int
    view_of_input: int | None = None
    view_of_output: int | None = None

    def row(self) -> tuple[int, int, int, int]:
        kind = {"input": INPUT, "output": OUTPUT, "extra": EXTRA}[self.kind]
        if self.view_of_input is not None:
            return kind, self.index, INPUT_BASE, self.view_of_input
        if self.view_of_output is not None:
            return kind, self.index, OUTPUT_BASE, self.view_of_output
        return kind, self.index, NO_BASE, 0


@final
@dataclass(frozen=True, slots=True)
class RegionSpec:
    """What `make_region` has to know.

    `outputs`: the user's results, as the forward plan has them. `differentiable`: which of them are fresh tensors
    with a gradient; backward gets a tangent for each of these, in order. `saved`: what backward gets before the
    tangents. `mutated`: inputs that the forward plan writes to (they need no gradient). `written`: (input, result)
    pairs of inputs that need a gradient and get the value of a result by an ordinary `copy_`. `optional_tangents`: a
    result that the loss does not use has no tangent and adds nothing to any gradient, as in eager (else: zeros).
    `enables_grad`: the region is called where gradients are off, and turns them on.
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

    def __post_init__(self) -> None:
        require(len(self.outputs) == len(self.differentiable), "one flag per result")
        changed = {*self.mutated, *(one for one, _ in self.written)}
        for one in self.saved:
            require(
                one.kind != "input" or one.index not in changed,
                f"input {one.index} is changed by forward: backward must save a copy of its old value",
            )
        for output, differentiable in zip(self.outputs, self.differentiable, strict=True):
            require(
                not differentiable or result_row(output, differentiable, self.num_inputs)[1] == NO_BASE,
                "a result that is an input or a view is rebuilt outside the node: it is not differentiable by itself",
            )


def make_region(
    forward: Function,
    backward: Callable[..., Function | None],
    spec: RegionSpec,
    *,
    replay: Function | None = None,
    no_replay: str = "there is no replay of it",
) -> Region:
    """The differentiable callable. `backward` must not refer to the region; where it gives None, and there is a
    replay, the gradients come from that.

    `replay(*inputs)` computes the user's results with eager operators; it is needed for create_graph=True only.
    `no_replay`: why there is none.
    """
    differentiate = None if replay is None else SecondDerivative(spec, replay)
    return Region(
        spec.name,
        spec.num_inputs,
        forward,
        [result_row(*pair, spec.num_inputs) for pair in zip(spec.outputs, spec.differentiable, strict=True)],
        [one.row() for one in spec.saved],
        spec.written,
        backward,
        differentiate,
        str(NoSecondDerivative(name=spec.name, reason=no_replay)),
        str(WrappedTangents(name=spec.name, reason=no_replay)),
        str(NoForwardDerivative(name=spec.name)),
        spec.optional_tangents,
    )


def result_row(output: PlanOutput, differentiable: bool, num_inputs: int) -> tuple[int, int, int, int]:
    """Differentiable, kind and number of the base, is it a view of the base."""
    if output.alias_input is not None:
        return 0, INPUT_BASE, output.alias_input, int(output.view is not None)
    if output.alias_output is not None:
        return 0, OUTPUT_BASE, output.alias_output, int(output.view is not None)
    if output.slot is not None and output.slot < num_inputs:
        return 0, INPUT_BASE, output.slot, 0
    return int(differentiable), NO_BASE, 0, 0


def saved_extra(plan: Plan, place: int) -> Saved:
    """The entry for output number `place` of the forward plan: names the input or earlier output it is a view of."""
    base_of = {step.out: step.base for step in plan.steps if isinstance(step, View)}

    def owner(slot: Slot | None) -> Slot | None:
        while slot in base_of:
            slot = base_of[slot]
        return slot

    memory = owner(plan.outputs[place].slot)
    if memory is None:
        return Saved("extra", place)
    if memory < len(plan.inputs):
        return Saved("extra", place, view_of_input=memory)
    for number, output in enumerate(plan.outputs[:place]):
        if owner(output.slot) == memory:
            return Saved("extra", place, view_of_output=number)
    return Saved("extra", place)


@final
@dataclass(frozen=True, slots=True)
class SecondDerivative:
    """Gradients that can be differentiated again, from the saved inputs."""

    spec: RegionSpec
    replay: Function

    def __call__(self, inputs: Sequence[Any], tangents: Sequence[torch.Tensor | None], mask: Mask) -> list[Any]:
        """Views of the inputs keep the paths apart: an input may have been computed from another one.

        The gradients have a history where gradients are on.
        """
        create_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            fresh = [
                value.view_as(value) if needed and isinstance(value, torch.Tensor) else value
                for value, needed in zip(inputs, mask, strict=True)
            ]
            results = self._results(fresh)
        pairs = zip(results, self.spec.differentiable, strict=False)
        roots = [result for result, differentiable in pairs if differentiable]
        wanted = [value for value, needed in zip(fresh, mask, strict=True) if needed]
        kept = [pair for pair in zip(roots, tangents, strict=True) if pair[0].requires_grad and pair[1] is not None]
        if not kept:
            return [None] * len(inputs)
        # torch.autograd.grad would import the symbolic shapes that Kiln replaces.
        found = iter(
            torch.autograd.Variable._execution_engine.run_backward(
                tuple(root for root, _ in kept),
                tuple(tangent for _, tangent in kept),
                True,
                create_graph,
                tuple(wanted),
                allow_unreachable=True,
                accumulate_grad=False,
            )
        )
        return [next(found) if needed else None for needed in mask]

    def _results(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Raises NoSecondDerivative where the replay draws random numbers: they are not those of the forward."""
        generators = generators_of(inputs)
        before = [one.get_state() for one in generators]
        results = self.replay(*inputs)
        if all(torch.equal(state, one.get_state()) for state, one in zip(before, generators, strict=True)):
            return results
        for state, one in zip(before, generators, strict=True):
            one.set_state(state)
        raise NoSecondDerivative(name=self.spec.name, reason="it draws random numbers, which would be others")


def generators_of(values: Sequence[Any]) -> list[torch.Generator]:
    """torch's default generators: the CPU's, and those of the GPUs on which tensors among `values` are."""
    devices = {value.device for value in values if isinstance(value, torch.Tensor) and value.is_cuda}
    return [torch.default_generator, *(torch.cuda.default_generators[one.index] for one in devices)]
