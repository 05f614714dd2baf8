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
only what these need. Without retain_graph each saved tensor is freed at its last use in the backward plan and its
memory may be reused. With create_graph=True, or for tangents that are wrappers (vmap
over a backward), the gradients come from `replay`, the same function run eagerly; without a replay, gradients raise
KILN4008 when differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, final

import torch

from kiln.native._executor import Region
from kiln.plan.plan import Plan, Slot
from kiln.plan.region import RegionSpec, Saved
from kiln.plan.steps import ViewStep
from kiln.runtime.subclasses import RegionWrappers
from kiln.support.errors import KilnError
from kiln.support.records import dataclass

Function = Callable[..., Sequence[object]]
Mask = tuple[bool, ...]


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


class HookOfInnerResult(KilnError, RuntimeError):
    code = "KILN4017"
    what = "a result of {name}, from which another result is computed, has a hook or retains its gradient"
    why = "the compiled backward has no gradient of the first that contains the part of the second"
    try_ = ("register the hook, or call `retain_grad`, in the compiled function",)


def make_region(
    forward: Function,
    backward: Callable[..., Function | None],
    spec: RegionSpec,
    *,
    replay: Function | None = None,
    no_replay: str = "there is no replay of it",
    wrappers: RegionWrappers | None = None,
) -> Region:
    """The differentiable callable. `backward` must not refer to the region; if it returns None, the gradients come
    from `replay`.

    `replay(*inputs)` computes the user's results with eager operators. `no_replay`: why there is no replay. `wrappers`:
    the tensors of wrapper subclasses at its border.
    """
    if wrappers is not None:
        forward, backward = wrappers.forward(forward), wrappers.backward(backward)
    differentiate = None if replay is None else SecondDerivative(spec, replay)
    return Region(
        spec.name,
        spec.num_inputs,
        forward,
        spec.result_rows(),
        [saved.row() for saved in spec.saved],
        [saved.readers for saved in spec.saved],
        spec.ends,
        spec.inner,
        spec.written,
        backward,
        differentiate,
        str(NoSecondDerivative(name=spec.name, reason=no_replay)),
        str(WrappedTangents(name=spec.name, reason=no_replay)),
        str(NoForwardDerivative(name=spec.name)),
        str(HookOfInnerResult(name=spec.name)),
        spec.optional_tangents,
        spec.detached,
        spec.unreached,
        [position for _, position in spec.draws],
        None if wrappers is None else wrappers.accepts,
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
    """Differentiable gradients, computed from the saved inputs by a replay."""

    spec: RegionSpec
    replay: Function

    def __call__(
        self,
        inputs: Sequence[object],
        drawn: Sequence[torch.Tensor],
        tangents: Sequence[torch.Tensor | None],
        mask: Mask,
    ) -> list[object]:
        """The gradients, with a history if gradients are on. `drawn`: the random numbers of the forward.

        The replay runs on views of the inputs: an input may itself have been computed from another input.
        """
        create_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            fresh = [
                value.view_as(value) if needed and isinstance(value, torch.Tensor) else value
                for value, needed in zip(inputs, mask, strict=True)
            ]
            with outside_vmap() if drawn else nullcontext():
                results = self._results(fresh, drawn)
        roots = [result for result, fresh in zip(results, self.spec.differentiable, strict=False) if fresh]
        wanted = [value for value, needed in zip(fresh, mask, strict=True) if needed]
        pairs = zip(roots, tangents, strict=True)
        kept = [(root, tangent) for root, tangent in pairs if root.requires_grad and tangent is not None]
        if not kept:
            return [None] * len(inputs)
        # torch.autograd.grad would import torch's symbolic shapes.
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

    def _results(self, inputs: Sequence[object], drawn: Sequence[torch.Tensor]) -> Sequence[Any]:
        """Raises NoSecondDerivative if the replay draws random numbers that were not saved: the forward drew others."""
        generators = generators_of(inputs)
        before = [generator.get_state() for generator in generators]
        draws: dict[int, list[torch.Tensor]] = {}
        for (call, _), numbers in zip(self.spec.draws, drawn, strict=True):
            draws.setdefault(call, []).append(numbers)
        results = self.replay(*inputs, draws=draws) if draws else self.replay(*inputs)
        if all(torch.equal(generator.get_state(), state) for generator, state in zip(generators, before, strict=True)):
            return results
        for state, generator in zip(before, generators, strict=True):
            generator.set_state(state)
        raise NoSecondDerivative(name=self.spec.name, reason="it draws random numbers, which would differ")


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
