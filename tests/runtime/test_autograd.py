"""Differentiable regions against eager autograd."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from kiln.native._executor import Region
from kiln.plan.plan import Plan, PlanInput, PlanOutput, Ref
from kiln.plan.region import RegionSpec, Saved
from kiln.plan.steps import AllocateStep, AtenStep, FreeStep, LaunchStep, ViewStep
from kiln.runtime.autograd import Mask, make_region, saved_extra
from kiln.runtime.executor import make_executor
from kiln.runtime.kernels import Libraries
from tests.runtime.samples import SCALE, spec


def forward_plan() -> Plan:
    """(tanh(x @ w), its negative as integers); the tanh is saved as a result, x and w as inputs."""
    return Plan(
        "forward",
        (PlanInput("x", spec(3, 4)), PlanInput("w", spec(4, 2))),
        (),
        (
            AtenStep("aten.mm.default", (Ref(0), Ref(1)), (), (2,), (spec(3, 2),)),
            AtenStep("aten.tanh.default", (Ref(2),), (), (3,), (spec(3, 2),)),
            FreeStep((2,)),
            AtenStep("aten.to.dtype", (Ref(3), torch.int64), (), (4,), (spec(3, 2, dtype=torch.int64),)),
        ),
        (PlanOutput(slot=3), PlanOutput(slot=4)),
        (),
        num_slots=5,
    )


def backward_plan(mask: Mask) -> Plan:
    """Inputs: x, w, tanh, tangent."""
    steps: list[Any] = [
        AtenStep("aten.tanh_backward.default", (Ref(3), Ref(2)), (), (4,), (spec(3, 2),)),
        FreeStep((2, 3)),
    ]
    if mask[0]:
        transposed = spec(2, 4, strides=(1, 2))
        steps += [ViewStep(5, 1, transposed), AtenStep("aten.mm.default", (Ref(4), Ref(5)), (), (6,), (spec(3, 4),))]
    if mask[1]:
        transposed = spec(4, 3, strides=(1, 4))
        steps += [ViewStep(7, 0, transposed), AtenStep("aten.mm.default", (Ref(7), Ref(4)), (), (8,), (spec(4, 2),))]
    return Plan(
        "backward",
        (
            PlanInput("x", spec(3, 4)), PlanInput("w", spec(4, 2)),
            PlanInput("tanh", spec(3, 2)), PlanInput("tangent", spec(3, 2)),
        ),
        (),
        tuple(steps),
        (PlanOutput(slot=6 if mask[0] else None), PlanOutput(slot=8 if mask[1] else None)),
        (),
        num_slots=9,
    )  # fmt: skip


SPEC = RegionSpec(
    num_inputs=2,
    outputs=(PlanOutput(slot=3), PlanOutput(slot=4)),
    differentiable=(True, False),
    saved=(Saved("input", 0), Saved("input", 1), Saved("output", 0)),
)
Inputs = tuple[torch.Tensor, torch.Tensor]


def eager(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.tanh(x @ w)
    return y, y.detach().long()


def make(libraries: Libraries, masks: list[Mask] | None = None, replay: Any = None) -> Region:
    def backward(mask: Mask) -> Any:
        if masks is not None:
            masks.append(mask)
        return make_executor(backward_plan(mask), libraries, adapt=(3,))

    return make_region(make_executor(forward_plan(), libraries), backward, SPEC, replay=replay)


@pytest.fixture
def inputs() -> Inputs:
    return torch.randn(3, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)


def gradients(function: Callable[..., Any], inputs: Inputs, tangent: torch.Tensor | None = None) -> list[Any]:
    for given in inputs:
        given.grad = None
    y = function(*inputs)[0]
    y.backward(torch.ones_like(y) if tangent is None else tangent)
    return [given.grad for given in inputs]


def test_gradients_are_eagers(libraries: Libraries, inputs: Inputs) -> None:
    region = make(libraries)
    y, numbers = region(*inputs)
    assert torch.equal(y, eager(*inputs)[0]) and y.requires_grad and y.grad_fn.name() == "CompiledBackward"
    assert numbers.dtype == torch.int64 and not numbers.requires_grad
    for ours, theirs in zip(gradients(region, inputs), gradients(eager, inputs), strict=True):
        assert torch.equal(ours, theirs)


def test_backward_is_compiled_when_needed_and_once_per_mask(libraries: Libraries, inputs: Inputs) -> None:
    masks: list[Mask] = []
    region = make(libraries, masks)
    region(*inputs)
    assert masks == []
    gradients(region, inputs)
    gradients(region, inputs)
    x, w = inputs
    region(x.detach(), w)[0].sum().backward()
    assert masks == [(True, True), (False, True)]
    with torch.no_grad():
        assert not region(*inputs)[0].requires_grad
    assert not region(x.detach(), w.detach())[0].requires_grad


def test_tangents_of_any_layout(libraries: Libraries, inputs: Inputs) -> None:
    region = make(libraries)
    for tangent in (torch.randn(2, 3).t(), torch.randn(1).expand(3, 2), torch.randn(6, 4)[::2, ::2]):
        for ours, theirs in zip(gradients(region, inputs, tangent), gradients(eager, inputs, tangent), strict=True):
            assert torch.equal(ours, theirs)


def test_versions_are_checked(libraries: Libraries, inputs: Inputs) -> None:
    region = make(libraries)
    x = inputs[0].detach().clone().requires_grad_()
    for changed in (x, "result"):
        y = region(x, inputs[1])[0]
        with torch.no_grad():
            (y if changed == "result" else x).add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_the_graph_is_freed_unless_retained(libraries: Libraries, inputs: Inputs) -> None:
    region = make(libraries)
    y = region(*inputs)[0]
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


def test_saved_tensor_hooks(libraries: Libraries, inputs: Inputs) -> None:
    packed: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> int:
        packed.append(tensor.clone())
        return len(packed) - 1

    region = make(libraries)
    wanted = gradients(eager, inputs)
    with saved_tensors_hooks(pack, lambda number: packed[number]):
        y = region(*inputs)[0]
    assert len(packed) == 3
    for given in inputs:
        given.grad = None
    y.sum().backward()
    assert all(torch.equal(given.grad, other) for given, other in zip(inputs, wanted, strict=True))


def test_tensor_and_node_hooks(libraries: Libraries, inputs: Inputs) -> None:
    seen = []
    y = make(libraries)(*inputs)[0]
    y.register_hook(lambda gradient: gradient * 2)
    y.grad_fn.register_hook(lambda grads, tangents: seen.append(len(grads)))
    y.sum().backward()
    doubled = inputs[1].grad
    assert seen == [2] and doubled is not None
    assert torch.allclose(doubled, 2 * gradients(eager, inputs)[1])


def test_create_graph_through_a_replay(libraries: Libraries) -> None:
    region = make(libraries, replay=eager)
    found = []
    for function in (region, eager):
        torch.manual_seed(3)
        base = torch.randn(3, 4, requires_grad=True)
        w = torch.randn(4, 2, requires_grad=True)
        x = base * 2  # x depends on an input of another input's history
        y = function(x, (w + x[0].sum()))[0]
        (first,) = torch.autograd.grad((y * y).sum(), [base], create_graph=True)
        found.append((first, *torch.autograd.grad(first.square().sum(), [base, w])))
    for ours, theirs in zip(*found, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_create_graph_without_a_replay_raises_when_differentiated(libraries: Libraries, inputs: Inputs) -> None:
    y = make(libraries)(*inputs)[0]
    (first,) = torch.autograd.grad(y.sum(), [inputs[0]], create_graph=True)
    assert torch.allclose(first, gradients(eager, inputs)[0]) and first.requires_grad
    with pytest.raises(RuntimeError, match="KILN4008"):
        first.sum().backward()


def test_the_refused_second_derivative_is_not_unused(libraries: Libraries, inputs: Inputs) -> None:
    """Asked for an input, or a tangent, it raises rather than finding that nothing depends on it."""
    y = make(libraries)(*inputs)[0]
    tangent = torch.ones_like(y, requires_grad=True)
    (first,) = torch.autograd.grad(y, [inputs[0]], tangent, create_graph=True)
    for source in (inputs[0], tangent):
        with pytest.raises(RuntimeError, match="KILN4008"):
            torch.autograd.grad(first.sum(), [source], allow_unused=True, retain_graph=True)


def test_missing_tangents_are_zeros() -> None:
    """Two results, one of which the loss does not use."""
    got = []

    def backward(mask: Mask) -> Any:
        def run(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
            got.append(b)
            return (a + b,)

        return run

    both = RegionSpec(1, (PlanOutput(slot=1), PlanOutput(slot=2)), (True, True), ())
    region = make_region(lambda x: (x + 1, x[:2] * 2), backward, both)
    x = torch.randn(3, requires_grad=True)
    first, _ = region(x)
    with pytest.raises(RuntimeError):  # the sizes of a and b differ: only to see b
        first.sum().backward()
    assert torch.equal(got[0], torch.zeros(2))


def test_a_result_that_the_loss_does_not_use_adds_nothing() -> None:
    """As in eager, its inputs get no gradient at all rather than zeros."""
    compiled: list[tuple[Mask, Mask]] = []

    def backward(mask: Mask, given: Mask) -> Any:
        compiled.append((mask, given))

        def run(*tangents: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            found = iter(tangents)
            return tuple(next(found) * 2 if there else None for there in given)

        return run

    outputs = (PlanOutput(slot=2), PlanOutput(slot=3))
    rows = RegionSpec(2, outputs, (True, True), (), optional_tangents=True)
    region = make_region(lambda x, w: (x * 2, w * 2), backward, rows, replay=lambda x, w: (x * 2, w * 2))
    x, w = torch.randn(3, requires_grad=True), torch.randn(2, requires_grad=True)
    for _ in range(2):
        region(x, w)[0].sum().backward()
    assert w.grad is None and x.grad is not None and x.grad.tolist() == [4.0] * 3
    sum(result.sum() for result in region(x, w)).backward()  # type: ignore[union-attr]
    assert compiled == [((True, True), (True, False)), ((True, True), (True, True))]
    first = torch.autograd.grad(region(x, w)[1].sum(), [x, w], create_graph=True, allow_unused=True)
    assert first[0] is None and first[1].tolist() == [2.0, 2.0]


def test_views_and_inputs_as_results(libraries: Libraries) -> None:
    """(x * 2, a view of that, a view of x, x itself)."""
    plan = Plan(
        "views",
        (PlanInput("x", spec(4)),),
        (),
        (AllocateStep(1, spec(4)), LaunchStep("k_scale", (0, 1), (0,), (2.0,), 4)),
        (
            PlanOutput(slot=1), PlanOutput(alias_output=0, view=spec(2, 2)),
            PlanOutput(alias_input=0, view=spec(2, offset=2)), PlanOutput(alias_input=0),
        ),
        (SCALE,),
        num_slots=2,
    )  # fmt: skip
    rows = RegionSpec(1, plan.outputs, (True, False, False, False), ())
    region = make_region(make_executor(plan, libraries), lambda mask: lambda tangent: (tangent * 2,), rows)
    leaf = torch.randn(4, requires_grad=True)
    x = leaf * 1
    y, view, part, same = region(x)
    assert same is x and part._base is x and view._base is y
    (y.sum() + view.sum() + part.sum()).backward()
    assert leaf.grad is not None and leaf.grad.tolist() == [4.0, 4.0, 5.0, 5.0]
    y, view, part, same = region(leaf * 1)
    view.mul_(3)  # autograd sees the change through the view
    y.sum().backward()
    assert leaf.grad.tolist() == [10.0, 10.0, 11.0, 11.0]


def test_written_inputs() -> None:
    """x.mul_(2) and a result: the new value is copied in, seen by autograd."""
    rows = RegionSpec(1, (PlanOutput(slot=1), PlanOutput(slot=2)), (True, True), (), written=((0, 0),))
    region = make_region(lambda x: (x * 2, x * 3), lambda mask: lambda a, b: (2 * a + 3 * b,), rows)
    leaf = torch.randn(3, requires_grad=True)
    x = leaf * 1
    version = x._version
    _, y = region(x)
    assert x._version > version and torch.equal(x, leaf * 2)
    (x.sum() + y.sum()).backward()
    assert leaf.grad is not None and leaf.grad.tolist() == [5.0] * 3
    with pytest.raises(RuntimeError, match="leaf Variable"):
        region(leaf)
    with pytest.raises(ValueError, match="save a copy"):
        RegionSpec(1, (), (), (Saved("input", 0),), mutated=(0,))


def test_extras_that_are_views_share_the_version(libraries: Libraries) -> None:
    """Backward saves x.t(), a view of the input; changing x afterwards must be noticed."""
    plan = Plan(
        "saves_view",
        (PlanInput("x", spec(2, 3)),),
        (),
        (
            ViewStep(1, 0, spec(3, 2, strides=(1, 3))),
            AtenStep("aten.mul.Tensor", (Ref(0), Ref(0)), (), (2,), (spec(2, 3),)),
        ),
        (PlanOutput(slot=2), PlanOutput(slot=1)),
        (),
        num_slots=3,
    )
    extra = saved_extra(plan, 1)
    assert extra == Saved("extra", 1, view_of_input=0)
    rows = RegionSpec(1, plan.outputs[:1], (True,), (extra,))
    region = make_region(make_executor(plan, libraries), lambda mask: lambda xt, t: (2 * xt.t() * t,), rows)
    x = torch.randn(2, 3, requires_grad=True)
    (y,) = region(x)
    y.sum().backward()
    assert x.grad is not None and torch.allclose(x.grad, 2 * x)
    (y,) = region(x)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_coded_errors_in_backward(libraries: Libraries, inputs: Inputs) -> None:
    def backward(mask: Mask) -> Any:
        raise KeyError("no backward for this mask")

    region = make_region(make_executor(forward_plan(), libraries), backward, SPEC)
    for _ in range(2):
        with pytest.raises(KeyError, match="no backward"):
            region(*inputs)[0].sum().backward()
    with pytest.raises(TypeError, match="KILN4003"):
        region(inputs[0], inputs[0])
    with pytest.raises(TypeError, match="takes 2 arguments"):
        region(inputs[0])


def test_numbers_are_saved() -> None:
    rows = RegionSpec(2, (PlanOutput(slot=2),), (True,), (Saved("input", 1), Saved("extra", 1)))
    region = make_region(lambda x, n: (x * n, n + 1), lambda mask: lambda n, m, t: (t * n * m, None), rows)
    x = torch.ones(2, requires_grad=True)
    y = region(x, 3)[0]
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [24.0, 24.0]


def test_forward_mode_is_refused(libraries: Libraries, inputs: Inputs) -> None:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(inputs[0], torch.ones(3, 4))
        with pytest.raises(NotImplementedError, match="KILN4009"):
            make(libraries)(dual, inputs[1])


def test_saved_memory_is_freed_by_backward(libraries: Libraries) -> None:
    region = make(libraries)
    w = torch.randn(4, 2, requires_grad=True)
    array = numpy.ones((3, 4), dtype=numpy.float32)
    memory = weakref.ref(array)
    x = torch.from_numpy(array)
    y = region(x, w)[0]
    del x, array
    y.sum().backward(retain_graph=True)
    assert memory() is not None
    y.sum().backward()
    assert memory() is None


@pytest.mark.unrecorded  # an operator that only this test knows
def test_saved_memory_is_freed_at_its_last_use(libraries: Libraries) -> None:
    """x is dead when the second step of the backward runs: the step sees it."""
    array = numpy.ones(4, dtype=numpy.float32)
    memory = weakref.ref(array)
    alive: list[bool] = []

    with torch.library._scoped_library("kiln_test", "FRAGMENT") as library:
        library.define("look(Tensor x) -> Tensor")

        def look(x: torch.Tensor) -> torch.Tensor:
            alive.append(memory() is not None)
            return x.clone()

        library.impl("look", look, "CPU")
        plan = Plan(
            "backward",
            (PlanInput("x", spec(4)), PlanInput("tangent", spec(4))),
            (),
            (
                ViewStep(2, 0, spec(2, 2)),
                AtenStep("kiln_test.look.default", (Ref(2),), (), (3,), (spec(2, 2),)),
                AtenStep("kiln_test.look.default", (Ref(3),), (), (4,), (spec(2, 2),)),
                AtenStep("aten.add.Tensor", (Ref(1), 0), (), (5,), (spec(4),)),
            ),
            (PlanOutput(), PlanOutput(slot=5)),
            (),
            num_slots=6,
        )
        rows = RegionSpec(2, (PlanOutput(slot=2),), (True,), (Saved("input", 0),))
        region = make_region(lambda x, w: (w * 1,), lambda mask: make_executor(plan, libraries, adapt=(1,)), rows)
        w = torch.randn(4, requires_grad=True)
        (y,) = region(torch.from_numpy(array), w)
        del array
        y.sum().backward()
    assert alive == [True, False]


@pytest.mark.unrecorded  # results that no step writes; memory that only a native caller donates
def test_saved_memory_is_reused_unless_the_graph_is_retained(libraries: Libraries) -> None:
    """Backward writes its gradient into the memory of the extra that it was given."""
    plan = Plan(
        "reuses",
        (PlanInput("extra", spec(8)), PlanInput("tangent", spec(4))),
        (),
        (AllocateStep(2, spec(4), reuse=0), LaunchStep("k_scale", (1, 2), (0,), (3.0,), 4)),
        (PlanOutput(slot=2),),
        (SCALE,),
        num_slots=3,
        donated=(0,),
    )
    steps = (AllocateStep(1, spec(4)), LaunchStep("k_scale", (0, 1), (0,), (3.0,), 4), AllocateStep(2, spec(8)))
    outputs = (PlanOutput(slot=1), PlanOutput(slot=2))
    forward = Plan("forward", (PlanInput("x", spec(4)),), (), steps, outputs, (SCALE,), num_slots=3)
    rows = RegionSpec(1, outputs[:1], (True,), (Saved("extra", 1),))
    region = make_region(
        make_executor(forward, libraries), lambda mask: make_executor(plan, libraries, adapt=(1,)), rows
    )
    x = torch.randn(4, requires_grad=True)
    (y,) = region(x)
    (kept,) = torch.autograd.grad(y.sum(), [x], retain_graph=True)
    (last,) = torch.autograd.grad(y.sum(), [x])
    assert (kept.untyped_storage().nbytes(), last.untyped_storage().nbytes()) == (16, 32)
    assert kept.tolist() == last.tolist() == [3.0] * 4


def test_regions_are_collected(libraries: Libraries) -> None:
    class Holder:
        region: Any = None

        def backward(self, mask: Mask) -> Any:
            return make_executor(backward_plan(mask), libraries)

    holder = Holder()
    holder.region = make_region(make_executor(forward_plan(), libraries), holder.backward, SPEC)
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None


def test_many_threads_run_forward_and_backward(libraries: Libraries) -> None:
    region = make(libraries)
    problems: list[str] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(100):
            x = torch.randn(3, 4, generator=generator, requires_grad=True)
            w = torch.randn(4, 2, generator=generator, requires_grad=True)
            ours = torch.autograd.grad(region(x, w)[0].sum(), [x, w])
            theirs = torch.autograd.grad(eager(x, w)[0].sum(), [x, w])
            if not all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)):
                problems.append(f"seed {seed}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
