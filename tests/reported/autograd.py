"""Gradients: autograd functions, hooks, detached and frozen parts, second derivatives, checkpoints, accumulation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tests.reported.registry import Compile, Programs, attempt, floats, ints, leaf, one_leaf

PROGRAMS = Programs("autograd")
add = PROGRAMS.add


class Doubled(torch.autograd.Function):
    """A backward that is not the derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * 10 + x


class Straight(torch.autograd.Function):
    """Rounds; the gradient passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Scaled(torch.autograd.Function):
    """Keeps a number, and gives no gradient for it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.factor, None


class TwoResults(torch.autograd.Function):
    """Two results, of which one has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        index = (x > y).long()
        ctx.mark_non_differentiable(index)
        ctx.save_for_backward(x, y)
        return x * y, index

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, y = ctx.saved_tensors
        return grad * y if ctx.needs_input_grad[0] else None, grad * x if ctx.needs_input_grad[1] else None


class Cleared(torch.autograd.Function):
    """A setup_context in a function of its own."""

    @staticmethod
    def forward(x: Tensor, n: int) -> Tensor:
        return x**n

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.n = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.saved_tensors[0] * ctx.n, None


class Identity(torch.autograd.Function):
    """Returns its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return -grad


class Written(torch.autograd.Function):
    """Writes its input, and says so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 3


add("a function with another gradient", lambda x: Doubled.apply(x * 1).sin(), one_leaf)
add("a function applied twice", lambda x: Doubled.apply(Doubled.apply(x)), one_leaf)
add("straight through", lambda x: Straight.apply(x) * x, one_leaf)
add("a function with a number", lambda x: Scaled.apply(x, 2.5) + Scaled.apply(x, -1), one_leaf)
add("a function with two results", lambda x, y: TwoResults.apply(x, y), lambda n: (leaf(n), leaf(n)))
add("a function with one gradient", lambda x, y: TwoResults.apply(x, y)[0], lambda n: (leaf(n), floats(n)))
add("a function with setup_context", lambda x: Cleared.apply(x, 3), one_leaf)
add("a function that returns its input", lambda x: Identity.apply(x) * 2, one_leaf)
add("a function that writes its input", lambda x: Written.apply(x * 1) + 1, one_leaf)
add(
    "a function in no_grad",
    lambda x: (lambda c: c.__enter__() or (Doubled.apply(x), c.__exit__(None, None, None))[0])(torch.no_grad()),
    one_leaf,
)
add("detach in the middle", lambda x: (x * x.detach(), (x * 2).detach() * x), one_leaf)
add("stop of a gradient in a mean", lambda x: x - x.mean(0, keepdim=True).detach(), one_leaf)
add("results with and without a gradient", lambda x: (x * 2, x > 0, x.detach() * 3, x.argmax(), x.shape[0]), one_leaf)
add("a gradient through an integer", lambda x: (x.long().float() + x, x.int() * 2), one_leaf)
add("an unused input", lambda x, y: x * 2, lambda n: (leaf(n), leaf(n)))
add("an input used for its shape", lambda x, y: x * y.shape[0] + y.new_ones(1), lambda n: (leaf(n), leaf(n)))
add("an expanded gradient", lambda x: x.sum(0).expand(5, -1), one_leaf)
add("broadcast gradients", lambda x, y: x + y * 2, lambda n: (leaf(n, 3), leaf(1, 3)))
add("broadcast gradients of rank 0", lambda x, y: (x * y, y + x[0]), lambda n: (leaf(n, 3), leaf()))
add("broadcast gradients of size 1", lambda x, y: x * y, lambda n: (leaf(n, 1), leaf(1, n)))
add("a gradient in two dtypes", lambda x: (x.double() * 2, x.half().float(), x.bfloat16()), one_leaf)
add("a gradient of a copy between dtypes", lambda x: torch.zeros(x.shape, dtype=torch.float64).copy_(x) * 2, one_leaf)
add("in place after a view", lambda x: (lambda y: (y.view(-1)[::2].mul_(3), y * y)[1])(x * 2), one_leaf)
add("in place twice", lambda x: (x * 2).add_(1).mul_(x).sub_(x.sum()), one_leaf)
add("an assignment to a row", lambda x: (lambda y: (y.__setitem__(0, x[1] * 2), y)[1])(x.clone()), one_leaf)
add("an assignment by a mask", lambda x: (lambda y: (y.__setitem__(y > 0, 0.0), y)[1])(x.clone()), one_leaf)
add("a gather with repeats", lambda x: x[torch.tensor([0, 0, 1, 0])] * 2, one_leaf)
add("index_add with repeats", lambda x: torch.zeros(2, 3).index_add(0, torch.tensor([0, 1, 0]), x[:3]), one_leaf)
add("a gradient of sort", lambda x: x.sort(0).values * torch.arange(x.shape[0])[:, None], one_leaf)
add(
    "a gradient of topk and kthvalue",
    lambda x: (x.topk(2, 0).values, x.kthvalue(2, 0).values, x.median(0).values),
    one_leaf,
)
add("a gradient of scans", lambda x: (x.cumsum(0), x.cumprod(0), x.cummax(0).values, x.logcumsumexp(0)), one_leaf)
add("a gradient of split and cat", lambda x: torch.cat([part * i for i, part in enumerate(x.split(2))]), one_leaf)
add("a gradient of var and std", lambda x: (x.var(0), x.std(), x.var(1, correction=0)), one_leaf)
add("a gradient of where", lambda x, y: torch.where(x > y, x * y, y), lambda n: (leaf(n), leaf(n)))
add("a gradient of a power", lambda x, y: (x.abs() + 1) ** y, lambda n: (leaf(n), leaf(n)))
add("a gradient of tril", lambda x: (x.tril(), x.triu(1)), one_leaf)
add("a gradient of an einsum", lambda x, y: torch.einsum("ij,kj->ik", x, y), lambda n: (leaf(n, 3), leaf(2, 3)))
add("a gradient of fold and unfold", lambda x: x.unfold(0, 2, 1).prod(-1), one_leaf)
add(
    "a gradient of pad",
    lambda x: (F.pad(x, (1, 2)), F.pad(x[None], (1, 1), mode="reflect"), F.pad(x, (-1, 0))),
    one_leaf,
)
add("requires_grad_ inside", lambda x: (x * 2).requires_grad_().sum())
add(
    "is_leaf and requires_grad",
    lambda x: (x.is_leaf, (x * 2).is_leaf, (x * 2).requires_grad, x.detach().is_leaf, (x * 2).grad_fn is None),
    one_leaf,
)
add(
    "set_grad_enabled",
    lambda x: (lambda c: (x * 2, c.__enter__(), x * 3, c.__exit__(None, None, None), x * 4))(
        torch.set_grad_enabled(False)
    )[0],
    one_leaf,
)


@PROGRAMS.program(one_leaf)
def a_part_in_no_grad(x: Tensor) -> Any:
    with torch.no_grad():
        scale = x.abs().sum()
        flag = torch.is_grad_enabled()
    return x / scale, scale, flag, torch.is_grad_enabled()


@PROGRAMS.program(one_leaf)
def enable_grad_inside_no_grad(x: Tensor) -> Any:
    with torch.no_grad():
        with torch.enable_grad():
            y = x * 2
        z = y * 3
    return y, z


@PROGRAMS.program(one_leaf)
def an_early_return_from_no_grad(x: Tensor) -> Any:
    with torch.no_grad():
        return x * 2


@PROGRAMS.program(one_leaf)
def a_decorator_no_grad(x: Tensor) -> Any:
    @torch.no_grad()
    def scaled(y: Tensor) -> Tensor:
        return y * 2

    return scaled(x) + x


@PROGRAMS.program(one_leaf)
def autograd_grad_inside(x: Tensor) -> Any:
    y = (x**2).sum()
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    return y + gradient.sum(), gradient.detach()


@PROGRAMS.program(one_leaf)
def a_checkpoint(x: Tensor) -> Any:
    return checkpoint(lambda y: (y.sin() * y).cos(), x * 2, use_reentrant=False) + x


@PROGRAMS.program(one_leaf)
def a_hook_of_a_value_inside(x: Tensor) -> Any:
    y = x * 2
    y.register_hook(lambda grad: grad * 5)
    return y.sin()


@PROGRAMS.program(one_leaf)
def two_hooks_of_a_value(x: Tensor) -> Any:
    y = x * 2
    y.register_hook(lambda grad: grad + 1)
    handle = y.register_hook(lambda grad: grad * 100)
    handle.remove()
    y.register_hook(lambda grad: grad * 3)
    return y + 1


@PROGRAMS.scenario
def a_hook_that_remembers(compile: Compile) -> Iterator[Any]:
    seen = []

    def program(x: Tensor) -> Tensor:
        y = x * 2
        y.register_hook(lambda grad: seen.append(grad.sum()))
        return y.sin().sum()

    f = compile(program)
    for n in (2, 2, 3):
        x = leaf(n)
        f(x).backward()
        yield x.grad, list(seen)


@PROGRAMS.scenario
def a_hook_of_an_input(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (x * 3).sum())
    for factor in (1, 2, 2):
        x = leaf(3)
        x.register_hook(lambda grad, factor=factor: grad * factor)
        f(x).backward()
        yield x.grad


@PROGRAMS.scenario
def a_hook_after_accumulation(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (x * 3).sum())
    seen = []
    x = leaf(3)
    x.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.clone()))
    for _ in range(2):
        f(x).backward()
        yield x.grad, list(seen)


@PROGRAMS.scenario
def a_hook_of_a_result(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: x * 3)
    for _ in range(2):
        x = leaf(3)
        y = f(x)
        y.register_hook(lambda grad: grad * 7)
        y.retain_grad()
        y.sum().backward()
        yield x.grad, y.grad


@PROGRAMS.scenario
def accumulated_gradients(compile: Compile) -> Iterator[Any]:
    w = leaf(3)
    f = compile(lambda x: (x * w).sum())
    for _ in range(3):
        f(floats(2, 3)).backward()
        yield w.grad
    w.grad = None
    f(floats(4, 3)).backward()
    yield w.grad


@PROGRAMS.scenario
def a_gradient_that_is_kept_by_the_caller(compile: Compile) -> Iterator[Any]:
    w = leaf(3)
    f = compile(lambda x: (x * w).sum())
    f(floats(3)).backward()
    kept = w.grad
    f(floats(3)).backward()
    yield kept is w.grad, kept, w.grad
    w.grad = None
    f(floats(3)).backward()
    yield kept is w.grad, kept, w.grad


@PROGRAMS.scenario
def a_graph_that_is_retained(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: x.exp() * x)
    x = leaf(3)
    y = f(x)
    for _ in range(2):
        y.sum().backward(retain_graph=True)
        yield x.grad
    y.sum().backward()
    yield x.grad
    yield attempt(y.sum().backward)


@PROGRAMS.scenario
def second_derivatives(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (x**3).sum())
    for n in (2, 2, 3):
        x = leaf(n)
        (first,) = torch.autograd.grad(f(x), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        yield first, second


@PROGRAMS.scenario
def a_gradient_penalty(compile: Compile) -> Iterator[Any]:
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    f = compile(net)
    for n in (2, 2, 4):
        x = leaf(n, 3)
        (gradient,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        net.zero_grad()
        (gradient.norm(dim=1) - 1).square().mean().backward()
        yield [parameter.grad for parameter in net.parameters()]


@PROGRAMS.scenario
def gradients_for_some_of_the_inputs(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x, y: x * y)
    for first, second in ((True, False), (False, True), (True, True), (False, False)):
        x, y = floats(3).requires_grad_(first), floats(3).requires_grad_(second)
        z = f(x, y)
        yield z
        if z.requires_grad:
            z.sum().backward()
        yield x.grad, y.grad


@PROGRAMS.scenario
def requires_grad_changes_between_calls(compile: Compile) -> Iterator[Any]:
    w = floats(3)
    f = compile(lambda x: x * w)
    for required in (False, True, False, True):
        w.requires_grad_(required)
        yield f(torch.ones(3))


@PROGRAMS.scenario
def the_mode_changes_between_calls(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (x * 2, torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
    x = leaf(3)
    yield f(x)
    with torch.no_grad():
        yield f(x)
    yield f(x)
    with torch.inference_mode():
        y = f(floats(3))
        yield y[0].is_inference(), y[1:]
    yield f(x)


@PROGRAMS.scenario
def tensors_of_inference_mode(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x, w: x * w)
    with torch.inference_mode():
        x = floats(3)
    yield attempt(f, x, floats(3))
    yield attempt(f, x, leaf(3))
    with torch.inference_mode():
        yield attempt(f, x, leaf(3))


@PROGRAMS.scenario
def only_some_results_are_used_in_the_backward(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x, y: (x * 2, y * 3, x * y))
    for used in (0, 1, 2, 0):
        x, y = leaf(3), leaf(3)
        f(x, y)[used].sum().backward()
        yield x.grad, y.grad


@PROGRAMS.scenario
def gradients_given_by_the_caller(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: x.t() * 2)
    for gradient in (torch.ones(3, 2), torch.ones(2, 3).t(), torch.ones(1).expand(3, 2), torch.ones(6).view(3, 2)):
        x = leaf(2, 3)
        f(x).backward(gradient)
        yield x.grad, gradient
    yield attempt(f(leaf(2, 3)).backward, torch.ones(2, 3))


@PROGRAMS.scenario
def backward_inside(compile: Compile) -> Iterator[Any]:
    def program(x: Tensor, w: Tensor) -> Tensor:
        loss = (x * w).sum()
        loss.backward()
        return w.grad * 2  # type: ignore[operator]

    f = compile(program)
    w = leaf(3)
    for _ in range(3):
        yield f(floats(3), w), w.grad
    w.grad = None
    yield f(floats(3), w), w.grad


@PROGRAMS.scenario
def a_leaf_made_inside(compile: Compile) -> Iterator[Any]:
    def program(x: Tensor) -> Any:
        w = torch.ones(3, requires_grad=True)
        y = (x * w).sum()
        y.backward()
        return w.grad, y.detach()

    f = compile(program)
    for _ in range(2):
        yield f(floats(3))


@PROGRAMS.scenario
def gradients_of_shared_inputs(compile: Compile) -> Iterator[Any]:
    f = compile(lambda a, b: a * b)
    x, y = leaf(3), leaf(3)
    f(x, x).sum().backward()
    yield x.grad
    f(x, y).sum().backward()
    yield x.grad, y.grad


@PROGRAMS.scenario
def anomaly_mode(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: x.sqrt() * 0)
    with torch.autograd.detect_anomaly(check_nan=True):
        yield attempt(f(torch.zeros(2, requires_grad=True)).sum().backward)


@PROGRAMS.scenario
def saved_tensors_hooks(compile: Compile) -> Iterator[Any]:
    count = []

    def pack(x: Tensor) -> Tensor:
        count.append("pack")
        return x.double()

    f = compile(lambda x: (x * x).sum())
    for _ in range(2):
        x = leaf(3)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda y: y.float()):
            y = f(x)
        y.backward()
        yield x.grad, bool(count)


@PROGRAMS.scenario
def gradients_of_a_non_scalar(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: x * 2)
    yield attempt(f(leaf(3)).backward)
    yield attempt(f(floats(3)).sum().backward)


@PROGRAMS.scenario
def functional_transforms_around(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (x.sin() * x).sum())
    x = floats(3)
    yield attempt(torch.func.grad(f), x)
    yield attempt(torch.func.vmap(f), floats(2, 3))
    yield attempt(torch.func.hessian(f), x)


@PROGRAMS.scenario
def functional_transforms_inside(compile: Compile) -> Iterator[Any]:
    def energy(x: Tensor) -> Tensor:
        return (x.sin() * x).sum()

    f = compile(
        lambda x: (torch.func.grad(energy)(x), torch.func.vmap(energy)(x[None]), torch.func.jacrev(torch.sin)(x))
    )
    for n in (2, 2, 3):
        yield f(floats(n))


@PROGRAMS.scenario
def embedding_with_padding(compile: Compile) -> Iterator[Any]:
    layer = torch.nn.Embedding(5, 3, padding_idx=1)
    f = compile(lambda i: layer(i).sum())
    for n in (4, 4, 6):
        layer.zero_grad()
        f(ints(n, low=0, high=5)).backward()
        yield layer.weight.grad
