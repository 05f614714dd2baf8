"""`kiln.compile_backward()`: gradients, hooks and errors are those of torch's engine."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn.functional import gelu
from torch.utils.checkpoint import checkpoint

import kiln
from kiln.pipeline.eager_backward.programs import MOST_KNOWN, Programs
from kiln.support.errors import KilnError

Program = Callable[[], object]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(0)
    kiln.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    kiln.reset()


def compare(program: Program, *, segments: int = 1, close: float = 1e-6) -> None:
    """What `program` returns is equal with and without the context, which compiles so many segments."""
    wanted = program()
    backward = kiln.compile_backward()
    regions = backward.report().regions
    with backward:
        found = program()
        again = program()
    made = backward.report().regions - regions
    for results in (found, again):
        torch.testing.assert_close(results, wanted, rtol=close, atol=close)
    assert made == segments


def net() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)), torch.randn(5, 6)


def grads(module: nn.Module) -> list[torch.Tensor | None]:
    return [None if parameter.grad is None else parameter.grad.clone() for parameter in module.parameters()]


def test_gradients_of_a_module() -> None:
    def program() -> object:
        model, x = net()
        model(x).square().mean().backward()
        return grads(model)

    compare(program)


def test_gradients_are_added_to_those_that_are_there() -> None:
    model, x = net()

    def program() -> object:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        before = [parameter.grad for parameter in model.parameters()]
        model(x).square().mean().backward()
        assert all(parameter.grad is old for parameter, old in zip(model.parameters(), before, strict=True))
        return grads(model)

    compare(program)


def test_grad_of_inputs_only() -> None:
    model, x = net()
    x.requires_grad_()

    def program() -> object:
        y = model(x)
        found = torch.autograd.grad(y, [x, model[0].weight], torch.ones_like(y))
        assert model[3].weight.grad is None
        return found

    compare(program)


def test_grad_of_an_inner_value() -> None:
    x, w = torch.randn(4, 5), torch.randn(5, 5, requires_grad=True)

    def program() -> object:
        inner = gelu(x @ w) * 2
        loss = (inner.exp().sin() * 3).cos().sum()
        return torch.autograd.grad(loss, [inner, w])

    compare(program)


def test_backward_for_some_inputs() -> None:
    model, x = net()

    def program() -> object:
        model.zero_grad()
        model(x).square().mean().backward(inputs=[model[3].weight])
        return grads(model)

    compare(program)


def test_several_roots_with_tangents() -> None:
    model, x = net()

    def program() -> object:
        model.zero_grad()
        a = model(x)
        b = a.sin().cos().exp()
        torch.autograd.backward([a, b.sum()], [torch.ones_like(a), None])
        return grads(model)

    compare(program)


def test_a_graph_that_is_kept() -> None:
    model, x = net()

    def program() -> object:
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        return grads(model)

    compare(program)


def test_a_saved_tensor_that_has_changed() -> None:
    def program() -> object:
        w = torch.ones(4, requires_grad=True)
        a = w * 2
        loss = (a.exp() * a.sin()).cos().sum()
        a.data.add_(0)
        a.detach().add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        return w.grad

    compare(program, segments=0)


def test_hooks_see_real_gradients_in_their_places() -> None:
    model, x = net()

    def program() -> object:
        seen: list[torch.Tensor] = []
        model.zero_grad()
        hidden = model[1](model[0](x))
        hidden.register_hook(lambda grad: seen.append(grad.clone()) or grad * 2)
        hidden.retain_grad()
        y = model[3](model[2](hidden)).exp().sin()
        y.grad_fn.register_prehook(lambda grads: seen.append(grads[0].clone()))
        handles = [model[0].weight.register_hook(lambda grad: grad + 1)]
        handles.append(model[0].bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone())))
        (y.cos().exp() * y).sum().backward()
        for handle in handles:
            handle.remove()
        return grads(model), seen, hidden.grad

    compare(program, segments=2)


def test_a_hook_on_several_gradients() -> None:
    model, x = net()

    def program() -> object:
        seen: list[object] = []
        model.zero_grad()
        a = model[0](x)
        b = model[1](a)
        torch.autograd.graph.register_multi_grad_hook((a, b), lambda found: seen.append([g.clone() for g in found]))
        model[3](model[2](b)).square().mean().backward()
        return grads(model), seen

    compare(program)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        return grad * 2 + x * 0


def test_functions_in_python_stay_eager_between_segments() -> None:
    model, x = net()

    def program() -> object:
        model.zero_grad()
        model[3](model[2](Doubled.apply(model[1](model[0](x))))).square().mean().backward()
        return grads(model)

    compare(program, segments=2)


def test_a_write_to_a_view() -> None:
    w = torch.randn(4, 4, requires_grad=True)

    def program() -> object:
        w.grad = None
        x = w.exp().sin()
        x = x * 2
        x[:, 1] = w[:, 2].cos().exp().sin()
        (x.square() * 3).exp().mean().backward()
        return w.grad.clone()

    compare(program, segments=2)


def test_sparse_gradients() -> None:
    table = nn.Embedding(10, 4, sparse=True)
    numbers = torch.tensor([1, 2, 2, 5])

    def program() -> object:
        table.zero_grad()
        (table(numbers).sin().exp() * 2).square().sum().backward()
        assert table.weight.grad.is_sparse
        return table.weight.grad.to_dense()

    compare(program)


def test_regions_inside() -> None:
    model, x = net()
    head = kiln.compile(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))

    def program() -> object:
        model.zero_grad()
        head.zero_grad()
        head(model(x)).square().mean().exp().backward()
        return grads(model), grads(head)

    compare(program, segments=2)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant: bool) -> None:
    model, x = net()
    x.requires_grad_()

    def program() -> object:
        model.zero_grad()
        hidden = checkpoint(model[:2], x, use_reentrant=reentrant)
        model[2:](hidden).square().mean().backward()
        return grads(model)

    compare(program, segments=2 if reentrant else 1)


def test_saved_tensors_on_the_host() -> None:
    model, x = net()

    def program() -> object:
        model.zero_grad()
        with torch.autograd.graph.save_on_cpu():
            hidden = model[:2](x)
        model[2:](hidden).square().mean().backward()
        return grads(model)

    compare(program)


def test_differentiable_gradients() -> None:
    """The first backward runs in the engine; that of its result is compiled."""
    w = torch.randn(4, 4, requires_grad=True)

    def program() -> object:
        w.grad = None
        loss = (w.sin().exp() @ w).square().sum()
        (grad,) = torch.autograd.grad(loss, w, create_graph=True)
        (grad.square().sum() + loss).backward()
        return w.grad.clone()

    compare(program, close=1e-4)


def test_one_compile_for_equal_graphs() -> None:
    model, x = net()
    backward = kiln.compile_backward()
    for _ in range(3):
        with kiln.compile_backward():
            model(x + 1).square().mean().backward()
    assert backward.report().regions == 1


def test_sizes_that_change_are_compiled_twice() -> None:
    """With numbers, then with symbols; further sizes only cost a recording."""
    model, _ = net()
    model.insert(1, nn.LayerNorm(8))
    backward = kiln.compile_backward()

    def gradients(rows: int) -> list[torch.Tensor | None]:
        model.zero_grad()
        x = torch.arange(float(rows * 6)).reshape(rows, 6).cos()
        (model(x).softmax(0).square().mean() + model(x[:3]).sum() / rows).backward()
        return grads(model)

    sizes = (5, 7, 12, 9, 31, 20, 11, 14)
    wanted = list(map(gradients, sizes))
    with backward:
        found = list(map(gradients, sizes))
    torch.testing.assert_close(found, wanted)
    assert backward.report().regions == 2


def test_numbers_that_follow_no_formula_are_compiled_each() -> None:
    w = torch.randn(64, requires_grad=True)
    backward = kiln.compile_backward()
    with backward:
        for count, step in ((5, 2), (7, 5), (11, 3)):
            (found,) = torch.autograd.grad((w[: count * step : step].sin() * 2).exp().sum(), w)
            assert int(found.count_nonzero()) == count
    assert backward.report().regions <= 3


def test_cat_keeps_sizes_that_cannot_be_read() -> None:
    w = torch.randn(2, 3, requires_grad=True)

    def gradient(first: int, last: int) -> torch.Tensor:
        parts = [torch.ones(first, 3), w.sin() * 2, torch.ones(last, 3)]
        scale = torch.arange(6.0).reshape(6, 1)
        (found,) = torch.autograd.grad((torch.cat(parts) * scale).exp().sum(), w)
        return found

    compare(lambda: [gradient(1, 3), gradient(3, 1)], close=1e-5)


def test_other_threads_and_what_follows_run_in_the_engine() -> None:
    engine = torch.autograd.Variable._execution_engine
    with kiln.compile_backward(), pytest.raises(ValueError, match="inside"):
        assert torch.autograd.Variable._execution_engine is not engine
        raise ValueError("inside")
    assert torch.autograd.Variable._execution_engine is engine


def test_fullgraph_raises() -> None:
    model, x = net()
    with kiln.compile_backward(fullgraph=True):
        model(x).square().mean().backward()
        loss = model[3](Doubled.apply(model[:3](x))).square().mean()
        with pytest.raises(KilnError, match=r"(?s)KILN1100.*Doubled"):
            loss.backward()
        with pytest.raises(KilnError, match="KILN1099"):
            torch.autograd.grad(model(x).square().sum(), list(model.parameters()), create_graph=True)


def test_backwards_that_stay_eager_are_forgotten_like_others() -> None:
    programs = Programs(cast(Any, None))
    for key in range(MOST_KNOWN + 10):
        programs.keep_eager(key, cast(Any, SimpleNamespace(nodes=[])), "refused")
    assert list(programs.known) == list(range(10, MOST_KNOWN + 10))
