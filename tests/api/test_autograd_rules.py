"""Autograd's behaviour, call by call: a compiled function does what eager does, errors included.

Each scenario gets a function and tells what it saw: tensors, numbers, texts. It is run with the original and with the
compiled one; both accounts must agree.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import kiln
from kiln.pipeline.session import KilnWarning
from kiln.support.errors import KilnError

Call = Callable[..., Any]
Account = list[Any]


def attempt(work: Callable[[], Any], *words: str) -> Account:
    """The class of the error that `work` raises and which of the words its text has; [] where it raises none."""
    try:
        work()
    except Exception as problem:
        return [type(problem).__name__, [word for word in words if word in str(problem)]]
    return []


def leaf(*sizes: int) -> Tensor:
    return torch.linspace(-1, 1.5, torch.Size(sizes).numel()).reshape(sizes).requires_grad_()


def inputs() -> tuple[Tensor, Tensor]:
    return leaf(3, 4), leaf(4, 2)


def product(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x @ w) * 2


INPLACE = "modified by an inplace operation"


def changed_input(call: Call) -> Account:
    x, w = inputs()
    y = call(x, w)
    with torch.no_grad():
        w.add_(1)
    return attempt(y.sum().backward, INPLACE)


def changed_result(call: Call) -> Account:
    """`exp` saves its result; `* 2` behind it does not."""
    x, w = inputs()
    y = call(x, w)
    with torch.no_grad():
        y.mul_(2)
    return [*attempt(y.sum().backward, INPLACE), x.grad]


def changed_and_seen(call: Call) -> Account:
    """An in-place change that autograd sees is part of the history."""
    x, w = inputs()
    y = call(x * 1, w)
    y.mul_(3)
    y.sum().backward()
    return [y, x.grad, w.grad]


def changed_data(call: Call) -> Account:
    """`.data` is outside of autograd: no check."""
    x, w = inputs()
    y = call(x, w)
    x.data.fill_(0)
    y.sum().backward()
    return [x.grad, w.grad]


def twice(call: Call) -> Account:
    x, w = inputs()
    y = call(x, w).sum()
    y.backward(retain_graph=True)
    y.backward()
    return [x.grad, w.grad, *attempt(y.backward, "second time")]


def accumulated(call: Call) -> Account:
    x, w = inputs()
    for _ in range(3):
        call(x, w).sum().backward()
    (call(x, w) + call(w.t()[:, :4], x[:2].t())[0, 0]).sum().backward()
    return [x.grad, w.grad]


def some_inputs(call: Call) -> Account:
    x, w = inputs()
    call(x, w).sum().backward(inputs=[w])
    return [x.grad, w.grad, *torch.autograd.grad(call(x, w).sum(), [x])]


def one_needs_none(call: Call) -> Account:
    x, w = inputs()
    call(x.detach(), w).sum().backward()
    return [w.grad, call(x.detach(), w.detach()).requires_grad]


def views(call: Call) -> Account:
    base = leaf(6, 8)
    x, w = base[::2, 1::2], base.t()[:4, 3:5]
    call(x, w).sum().backward()
    return [base.grad]


def not_leaves(call: Call) -> Account:
    a, b = inputs()
    x, w = a * 2, b.exp()
    x.retain_grad()
    call(x, w).sum().backward()
    return [a.grad, b.grad, x.grad]


def tangents(call: Call) -> Account:
    x, w = inputs()
    found: Account = []
    for tangent in (torch.randn(2, 3).t(), torch.ones(1).expand(3, 2), torch.randn(3, 4)[:, ::2]):
        found += torch.autograd.grad(call(x, w), [x, w], tangent.mul(1.5) if tangent.stride(0) else tangent)
    return [len(found), *torch.autograd.grad(call(x, w), [x], torch.arange(6.0).reshape(2, 3).t())]


def hooks(call: Call) -> Account:
    seen: Account = []
    x, w = inputs()
    x.register_hook(lambda grad: grad * 2)
    w.register_post_accumulate_grad_hook(lambda one: seen.append(one.grad.clone()))
    y = call(x, w)
    y.register_hook(seen.append)
    y.retain_grad()
    y.sum().backward()
    return [*seen, x.grad, y.grad]


def packed(call: Call) -> Account:
    """Hooks see tensors, and what they return is what backward gets."""
    x, w = inputs()
    count = []

    def pack(one: Tensor) -> Any:
        count.append(1)
        return one.detach().clone().to(torch.float64)

    pack.preserves_values = True  # type: ignore[attr-defined]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one.to(torch.float32)):
        y = call(x, w)
    y.sum().backward()
    return [bool(count), x.grad, w.grad]


def packed_elsewhere(call: Call) -> Account:
    x, w = inputs()
    with torch.autograd.graph.save_on_cpu():
        y = call(x, w)
    y.sum().backward()
    return [x.grad, w.grad]


def packed_in_another_layout(call: Call) -> Account:
    x, w = (given.detach().t().contiguous().t().requires_grad_() for given in inputs())

    def pack(one: Tensor) -> Tensor:
        return one.detach().contiguous()

    pack.preserves_values = True  # type: ignore[attr-defined]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
        y = call(x, w)
    y.sum().backward()
    return [x.grad, w.grad]


def unpacking_fails(call: Call) -> Account:
    def fail(one: Any) -> Any:
        raise KeyError("lost")

    x, w = inputs()

    def pack(one: Tensor) -> int:
        return 0

    pack.preserves_values = True  # type: ignore[attr-defined]
    with torch.autograd.graph.saved_tensors_hooks(pack, fail):
        y = call(x, w)
    return attempt(y.sum().backward, "lost")


def hooks_forbidden(call: Call) -> Account:
    x, w = inputs()
    with torch.autograd.graph.disable_saved_tensors_hooks("no hooks here"):
        y = call(x, w)
    y.sum().backward()
    return [x.grad]


def mutation_allowed(call: Call) -> Account:
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        x, w = inputs()
        y = call(x * 1, w)
        with torch.no_grad():
            w.add_(1)
        y.sum().backward()
        return [x.grad, w.grad]


def checkpointed(call: Call) -> Account:
    found: Account = []
    for reentrant in (False, True):
        x, w = inputs()
        checkpoint(call, x * 1, w, use_reentrant=reentrant).sum().backward()
        found += [x.grad, w.grad]
    return found


def in_another_thread(call: Call) -> Account:
    x, w = inputs()
    y = call(x, w).sum()
    problems: Account = []
    thread = threading.Thread(target=lambda: problems.extend(attempt(y.backward)))
    thread.start()
    thread.join()
    return [problems, x.grad, w.grad]


def modes(call: Call) -> Account:
    """The same arguments under every mode, one after the other."""
    x, w = inputs()
    found: Account = []
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad, torch.no_grad, nullcontext):
        with mode():
            y = call(x, w)
        found += [y, y.requires_grad, y.is_inference(), y.is_leaf]
    y.sum().backward()
    return [*found, x.grad]


def inference_tensors(call: Call) -> Account:
    """They may be inputs of a training call unless one has to be saved."""
    _x, w = inputs()
    with torch.inference_mode():
        frozen = torch.ones(3, 4)
    return [*attempt(lambda: call(frozen, w).sum().backward(), "nference tensors"), call(frozen, w.detach())]


def anomaly(call: Call) -> Account:
    x, w = inputs()
    with warnings.catch_warnings(), torch.autograd.detect_anomaly(check_nan=True):
        warnings.simplefilter("ignore")
        y = call(x, w)
        good = attempt(y.sum().backward)
        bad = attempt(lambda: call(x, w).backward(torch.full((3, 2), float("nan"))), "nan values")
    return [good, bad, x.grad]


def requires_grad_later(call: Call) -> Account:
    x, w = inputs()
    y = call(x.detach(), w.detach())
    y.requires_grad_()
    (y * y).sum().backward()
    x.requires_grad_(False)
    call(x, w).sum().backward()
    return [y.grad, x.grad, w.grad]


def inside_a_function(call: Call) -> Account:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return call(x, w)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            x, w = ctx.saved_tensors
            with torch.enable_grad():
                x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
                return torch.autograd.grad(call(x, w), [x, w], grad)

    x, w = inputs()
    Own.apply(x, w).sum().backward()
    return [x.grad, w.grad]


def transforms(call: Call) -> Account:
    """`torch.func` passes wrapped tensors, on which the compiled function runs eager."""
    x, w = inputs()
    x, w = x.detach(), w.detach()
    return [
        torch.func.grad(lambda x: call(x, w).sum())(x),
        torch.func.vmap(lambda row: call(row[None], w))(x),
        torch.func.jvp(lambda x: call(x, w), (x,), (torch.ones_like(x),))[1],
        call(x, w),
    ]


def dual_numbers(call: Call) -> Account:
    """Forward mode, with and without gradients; a variant that was compiled before is left alone."""
    x, w = inputs()
    found: Account = [call(x, w)]
    with torch.no_grad():
        found.append(call(x, w))
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x.detach(), torch.ones(3, 4))
            found += torch.autograd.forward_ad.unpack_dual(call(dual, w.detach()))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones(3, 4))
        found += torch.autograd.forward_ad.unpack_dual(call(dual, w))
    return [*found, call(x, w)]


def batched_tangents(call: Call) -> Account:
    """vmap over the backward, as in `torch.autograd.functional.jacobian(vectorize=True)`."""
    x, w = inputs()
    many = torch.eye(6).reshape(6, 3, 2)
    (found,) = torch.autograd.grad(call(x, w), [x], many, is_grads_batched=True, retain_graph=True)
    return [found, found.requires_grad, *torch.autograd.functional.jacobian(call, (x, w), vectorize=True)]


def tape_is_local(call: Call) -> Account:
    """A graph that is dropped while another is alive frees what it saved."""
    x, w = inputs()
    kept = [call(x, w) for _ in range(4)]
    del kept[1:3]
    sum(result.sum() for result in kept).backward()
    return [x.grad]


SCENARIOS = (
    changed_input, changed_result, changed_and_seen, changed_data, twice, accumulated, some_inputs, one_needs_none,
    views, not_leaves, tangents, hooks, packed, packed_elsewhere, packed_in_another_layout,
    unpacking_fails, hooks_forbidden, mutation_allowed,
    checkpointed, in_another_thread, modes, inference_tensors, anomaly, requires_grad_later, inside_a_function,
    transforms, dual_numbers, batched_tangents, tape_is_local,
)  # fmt: skip


RUN_EAGER = (transforms, dual_numbers, mutation_allowed)
"""Under modes that see every call."""


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_as_eager(scenario: Callable[[Call], Account]) -> None:
    expected = scenario(product)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if scenario in RUN_EAGER else "error", KilnWarning)
        got = scenario(kiln.compile(product))
    assert len(got) == len(expected)
    for ours, theirs in zip(got, expected, strict=True):
        if isinstance(theirs, Tensor):
            torch.testing.assert_close(ours, theirs)
        else:
            assert ours == theirs


class FunctionMode(TorchFunctionMode):
    """Counts calls and turns `sin` into `cos`."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return (torch.cos if function is torch.sin else function)(*args, **(kwargs or {}))


def test_modes_of_the_user_see_every_call() -> None:
    compiled, x = kiln.compile(lambda x: torch.sin(x) + 1), torch.ones(3)
    assert torch.equal(compiled(x), torch.sin(x) + 1)
    with pytest.warns(KilnWarning, match="KILN1091"), FunctionMode() as mode:
        result = compiled(x)
    assert mode.calls == 2 and torch.equal(result, torch.cos(x) + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", KilnWarning)  # once
        with FunctionMode():
            compiled(x)
    assert torch.equal(compiled(x), torch.sin(x) + 1) and kiln.report_of(compiled).compiles == 1
    with FunctionMode(), pytest.raises(KilnError, match="TorchFunctionMode"):
        kiln.compile(lambda x: torch.sin(x), fullgraph=True)(x)


def test_a_changed_leaf_is_refused() -> None:
    def function(x: Tensor) -> Tensor:
        x.mul_(2)
        return x + 1

    for call in (function, kiln.compile(function)):
        with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
            call(torch.ones(3, requires_grad=True))


def test_a_model_keeps_training_between_other_uses() -> None:
    """Training steps with evaluation in between, and a frozen parameter for a while."""
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))]
    models.append(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
    models[1].load_state_dict(models[0].state_dict())
    calls = [models[0], kiln.compile(models[1], fullgraph=True)]
    x = torch.randn(5, 4)
    for step in range(6):
        losses = []
        for model, call in zip(models, calls, strict=True):
            model[0].weight.requires_grad_(step not in (2, 3))
            with torch.inference_mode():
                call(x)
            model.zero_grad()
            loss = call(x).square().mean()
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter -= 0.1 * parameter.grad
            losses.append(loss.detach())
        torch.testing.assert_close(losses[1], losses[0])


def test_batched_tangents_get_the_random_numbers_of_the_forward() -> None:
    x = torch.ones(3, requires_grad=True)
    y = kiln.compile(lambda x: nn.functional.dropout(x * 2, 0.5))(x)
    (slopes,) = torch.autograd.grad(y, [x], torch.eye(3), is_grads_batched=True)
    assert torch.equal(slopes, torch.diag(y.detach()))


def test_batched_tangents_without_a_replay_are_refused() -> None:
    def program(x: Tensor, counter: Tensor) -> Tensor:
        y = x * 2 + counter[:3]
        counter.add_(1)
        return y

    x = torch.ones(3, requires_grad=True)
    y = kiln.compile(program)(x, torch.ones(3))
    (slopes,) = torch.autograd.grad(y, [x], torch.eye(3), is_grads_batched=True)
    assert torch.equal(slopes, torch.eye(3) * 2)
    y = kiln.compile(program)(x, torch.ones(2**17))  # its old contents are not saved
    with pytest.raises(NotImplementedError, match="KILN4015"):
        torch.autograd.grad(y, [x], torch.eye(3), is_grads_batched=True)


def test_a_default_device_is_guarded() -> None:
    """It is a TorchFunctionMode too, but affects factory functions only."""
    compiled = kiln.compile(lambda x: x.shape[0] + torch.ones(3), fullgraph=True)
    x = torch.zeros(3)
    try:
        for device, compiles in (("cpu", 1), ("cpu", 1), (torch.device("cpu", 0), 2)):
            torch.set_default_device(device)
            assert torch.equal(compiled(x), torch.full((3,), 4.0))
            assert kiln.report_of(compiled).compiles == compiles
    finally:
        torch.set_default_device(None)
    assert torch.equal(compiled(x), torch.full((3,), 4.0))
    assert kiln.report_of(compiled).compiles == 3


def test_a_device_as_context_is_a_default() -> None:
    compiled, x = kiln.compile(lambda x: x + torch.ones(3)), torch.zeros(3)
    with torch.device("cpu"):
        assert torch.equal(compiled(x), torch.ones(3))
    with torch.device("meta"), pytest.raises(RuntimeError, match="device"):
        compiled(x)
