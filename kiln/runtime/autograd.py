"""Forward and backward plan as one differentiable callable.

    region = make_region(forward, backward, spec)
    (y,) = region(x, weight)        # y.grad_fn is one node, "CompiledBackward"
    y.sum().backward()              # backward(mask) is compiled now, then run

`forward(*inputs)` returns the user's results, then the "extras": what backward needs besides inputs and results.
`backward(mask)` makes the callable for the inputs whose entry in `mask` is true; it takes the saved values and then
a tangent per differentiable result, and returns a gradient per input (None where the mask is false, or where eager
has none). With `optional_tangents` it is `backward(mask, given)`, and the callable takes only the tangents whose entry
in `given` is true. Both may be native executors (no Python is run) or Python functions.

As for eager operators, saved tensors go through SavedVariable (saved-tensor hooks, version checks, freed by backward),
and results that are views are rebuilt outside the node. A missing tangent is zeros; a tangent of another layout is
copied into the planned one (`encode_program(adapt=...)`). A backward for some of the results takes, checks and frees
only what these need. Each of several results has a node of its own in front of that of the region. Where a hook, or
`torch.autograd.grad`, asks for the gradient of a result from which another one is computed, gradients pass from node to
node, made by `replay`. Without retain_graph each saved tensor is freed at its last use in the backward plan and its
memory may be reused. With create_graph=True, or for tangents that are wrappers (vmap over a backward), the gradients
come from `replay`, the same function run eagerly, or from what was compiled of it (`find_gradients`); without a replay,
gradients raise KILN4008 when differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, cast, final

import torch

from kiln.native._executor import Region
from kiln.plan.plan import Plan, Slot
from kiln.plan.region import SAVED_KINDS, RegionSpec, Saved
from kiln.plan.steps import ViewStep
from kiln.runtime.arrivals import SUMMED, new_way
from kiln.runtime.eager_replay import EagerReplay
from kiln.runtime.subclasses import RegionWrappers
from kiln.support.errors import KilnError
from kiln.support.records import dataclass

Function = Callable[..., Sequence[object]]
Mask = tuple[bool, ...]
Gradients = tuple[torch.Tensor | None, ...]
Tensors = Sequence[torch.Tensor | None]
GradientRun = Callable[..., list[torch.Tensor | None]]
FindGradients = Callable[[Sequence[object], Sequence[object], Tensors, Mask], GradientRun | None]


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


class GradientOfInnerResult(KilnError, RuntimeError):
    code = "KILN4017"
    what = "something asks for the gradient of a result of {name} from which another result is computed"
    why = "the compiled backward does not make it, and the region cannot be run again by eager for it: {reason}"
    try_ = ("register the hook, or call `torch.autograd.grad`, in the compiled function",)


def make_region(
    forward: Function,
    backward: Callable[..., Function | None],
    spec: RegionSpec,
    *,
    replay: Function | None = None,
    find_gradients: FindGradients = lambda *_: None,
    no_replay: str = "there is no replay of it",
    redraw: Function | None = None,
    wrappers: RegionWrappers | None = None,
) -> Region:
    """The differentiable callable. `backward` must not refer to the region; if it returns None, the gradients come
    from `replay`.

    `replay(*inputs)` computes the user's results with eager operators. `no_replay`: why there is no replay.
    `redraw(*inputs, *seeds)`: the random numbers of the forward that are saved as seeds.
    `find_gradients`: what was compiled of it for given inputs, saved values, tangents and mask. `wrappers`: the tensors
    of wrapper subclasses at its border.
    """
    if wrappers is not None:
        forward, backward = wrappers.forward(forward), wrappers.backward(backward)
    return Region(
        name=spec.name,
        num_inputs=spec.num_inputs,
        forward=forward,
        make_backward=backward,
        differentiate=None if replay is None else SecondDerivative(spec, replay, find_gradients, redraw),
        accepts=None if wrappers is None else wrappers.accepts,
        results=spec.result_rows(),
        saved=[saved.row() for saved in spec.saved],
        written=spec.written,
        ends=spec.ends,
        depends=spec.depends,
        order=spec.order(),
        parts=spec.parts if wrappers is None else (),
        detached=spec.detached,
        reached=range(spec.num_inputs) if spec.reached is None else spec.reached,
        drawn=[position for _, position in spec.draws],
        unread=spec.unread,
        watched=[(SAVED_KINDS.index(value.of), value.index, value.readers, value.gradients) for value in spec.watched],
        optional_tangents=spec.optional_tangents,
        no_second_derivative=str(NoSecondDerivative(name=spec.name, reason=no_replay)),
        no_wrapped_tangents=str(WrappedTangents(name=spec.name, reason=no_replay)),
        no_forward_mode=str(NoForwardDerivative(name=spec.name)),
        no_inner_gradient=str(GradientOfInnerResult(name=spec.name, reason=no_replay)),
        no_second_hooks=str(
            GradientOfInnerResult(name=spec.name, reason="a second backward would not go through its hooks")
        ),
    )


def saved_extra(plan: Plan, position: int) -> Saved:
    """The entry for output `position` of the forward plan; names the input or earlier output of which it is a view."""
    base_of = {step.out: step.base for step in plan.steps if isinstance(step, ViewStep)}

    def owner(slot: Slot | None) -> Slot | None:
        while slot in base_of:
            slot = base_of[slot]
        return slot

    memory = owner(plan.outputs[position].slot)
    if memory is None:
        return Saved("extra", position)
    if memory < len(plan.inputs):
        return Saved("extra", position, view_of_input=memory)
    for number, output in enumerate(plan.outputs[:position]):
        if owner(output.slot) == memory:
            return Saved("extra", position, view_of_output=number)
    return Saved("extra", position)


@final
@dataclass(frozen=True, slots=True)
class SecondDerivative:
    """Gradients, computed from the saved inputs by a replay: differentiable ones, and those between results."""

    spec: RegionSpec
    replay: Function
    find_gradients: FindGradients
    redraw: Function | None = None

    def __call__(
        self,
        inputs: Sequence[object],
        saved: Sequence[torch.Tensor],
        tangents: Sequence[torch.Tensor | None],
        mask: Mask,
    ) -> list[torch.Tensor | None]:
        """The gradients, with a history if gradients are on. `saved`: what the backward reads, else None."""
        if torch.is_grad_enabled() and not self.spec.draws:
            run = self.find_gradients(inputs, saved, tangents, mask)
            if run is not None:
                return run(*inputs, *tangents, *saved)
        return self.start(inputs, saved, mask).differentiate(tangents)

    def start(
        self,
        inputs: Sequence[object],
        saved: Sequence[torch.Tensor],
        mask: Mask,
        ends: Sequence[torch.Tensor | None] | None = None,
    ) -> Replayed:
        """The replay runs on views of the inputs: an input may itself have been computed from another input.

        With `ends`, results that are computed from others are computed from copies of these: gradients do not go
        through them. A tensor in `ends` has the history of that result in the program, which the copy gets.
        """
        create_graph = torch.is_grad_enabled()
        drawn = [saved[position] for _, position in self.spec.draws]
        named: dict[str, object] = {}
        if create_graph and isinstance(self.replay, EagerReplay) and self.replay.program["nonlinear"]:
            refusal = NoSecondDerivative(name=self.spec.name, reason=SUMMED)
            if ends is not None:
                raise refusal
            named["arrives"] = new_way(refusal)
        copies: dict[int, torch.Tensor] = {}

        def copy(number: int, result: torch.Tensor) -> torch.Tensor:
            end = ends[number] if ends else None
            made: torch.Tensor = result.detach()
            made = made.requires_grad_() if end is None else WithHistory.apply(made, end)  # type: ignore[no-untyped-call]
            copies[number] = made
            return made

        inner = {number for row in self.spec.depends for number in row} if ends is not None else ()
        replaced = {number: partial(copy, number) for number in sorted(inner)}
        with torch.enable_grad():
            fresh = [
                value.view_as(value) if needed and isinstance(value, torch.Tensor) else value
                for value, needed in zip(inputs, mask, strict=True)
            ]
            with outside_vmap() if drawn else nullcontext():
                results = self._results(fresh, drawn, {**named, **({"replaced": replaced} if replaced else {})})
        return Replayed(self.spec, fresh, results, copies, mask, create_graph)

    def _results(
        self,
        inputs: Sequence[object],
        drawn: Sequence[torch.Tensor],
        named: dict[str, object],
    ) -> Sequence[Any]:
        """Raises NoSecondDerivative if the replay draws random numbers that were not saved: the forward drew others."""
        generators = generators_of(inputs)
        before = [generator.get_state() for generator in generators]
        draws: dict[int, list[torch.Tensor]] = {}
        for (call, _), numbers in zip(self.spec.draws, self._numbers(inputs, drawn), strict=True):
            draws.setdefault(call, []).append(numbers)
        results = self.replay(*inputs, **named, **({"draws": draws} if draws else {}))
        if all(torch.equal(generator.get_state(), state) for generator, state in zip(generators, before, strict=True)):
            return results
        for state, generator in zip(before, generators, strict=True):
            generator.set_state(state)
        raise NoSecondDerivative(name=self.spec.name, reason="it draws random numbers, which would differ")

    def _numbers(self, inputs: Sequence[object], drawn: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        if self.redraw is None or not self.spec.redrawn:
            return drawn
        with torch.no_grad():
            made = self.redraw(*inputs, *[drawn[number] for number in self.spec.redrawn])
        found = list(drawn)
        for number, numbers in zip(self.spec.redrawn, made, strict=True):
            found[number] = cast(torch.Tensor, numbers)
        return found


@final
class WithHistory(torch.autograd.Function):
    """The value of one tensor with the history of another."""

    @staticmethod
    def forward(ctx: object, value: torch.Tensor, end: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return value.view_as(value)

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:  # type: ignore[override]
        return None, gradient


@final
@dataclass(frozen=True, slots=True)
class Replayed:
    """A region run again by eager operators: `results` of `inputs`, with a history. `copies`: see `start`."""

    spec: RegionSpec
    inputs: Sequence[object]
    results: Sequence[torch.Tensor]
    copies: Mapping[int, torch.Tensor]
    mask: Mask
    create_graph: bool

    def differentiate(self, tangents: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """The gradient of each input that is needed; with copies, tangents of inner results have the part of others."""
        fresh = [result for result, fresh in zip(self.results, self.spec.differentiable, strict=False) if fresh]
        wanted = [value for value, needed in zip(self.inputs, self.mask, strict=True) if needed]
        found = iter(self._run(list(zip(fresh, tangents, strict=True)), wanted))
        return [next(found) if needed else None for needed in self.mask]

    def through(self, number: int, tangents: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """The gradients of the results from which result `number` is computed: its own part of them."""
        wanted = [self.copies[other] for other in self.spec.depends[number]]
        return self._run([(self.results[number], tangents[0])], wanted)

    def _run(
        self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor | None]], wanted: Sequence[object]
    ) -> list[torch.Tensor | None]:
        kept = [(root, tangent) for root, tangent in pairs if root.requires_grad and tangent is not None]
        if not kept:
            return [None] * len(wanted)
        # torch.autograd.grad would import torch's symbolic shapes.
        return list(
            torch.autograd.Variable._execution_engine.run_backward(
                tuple(root for root, _ in kept),
                tuple(tangent for _, tangent in kept),
                True,
                self.create_graph,
                tuple(wanted),
                allow_unreachable=True,
                accumulate_grad=False,
            )
        )


@contextmanager
def outside_vmap() -> Iterator[None]:
    """Inside, tensors that are not batched are computed as usual: vmap refuses operators that draw."""
    batched = torch._C._parse_dispatch_key("VmapMode")
    assert batched is not None
    with torch._C._DisableFuncTorch(), torch._C._SetExcludeDispatchKeyGuard(batched, True):
        yield


def generators_of(values: Sequence[object]) -> list[torch.Generator]:
    """torch's default generators: the CPU's, and those of the GPUs on which tensors among `values` are."""
    devices = {value.device for value in values if isinstance(value, torch.Tensor) and value.is_cuda}
    return [torch.default_generator, *(torch.cuda.default_generators[device.index] for device in devices)]
