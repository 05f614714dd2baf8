"""`backward()` and `torch.autograd.grad` inside of a region: results, gradients and history as in eager."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import kiln

Program = Callable[["Net", Tensor], Any]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)
        self.unused = nn.Parameter(torch.ones(2))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.transposed = nn.Parameter(torch.ones(3, 4).t())

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x))) * self.frozen + x @ self.transposed


def plain(net: Net, x: Tensor) -> Any:
    loss = net(x).square().mean()
    loss.backward()
    return loss.detach()


def returned_loss(net: Net, x: Tensor) -> Any:
    loss = net(x).square().mean()
    loss.backward()
    return loss


def nothing_saved(net: Net, x: Tensor) -> Any:
    loss = net.unused.sum() + net.frozen.sum()
    loss.backward()
    return loss


def cleared_first(net: Net, x: Tensor) -> Any:
    for p in net.parameters():
        p.grad = None
    return plain(net, x)


def zeroed_first(net: Net, x: Tensor) -> Any:
    net.zero_grad(set_to_none=False)
    return plain(net, x)


def cleared_and_read(net: Net, x: Tensor) -> Any:
    old = net.unused.grad
    net.zero_grad()
    loss = net(x).sum() + net.unused.prod()
    loss.backward()
    return old, net.unused.grad


def micro_batches(net: Net, x: Tensor) -> Any:
    net.zero_grad()
    losses = []
    for part in x.split(2):
        loss = net(part).square().mean() / 3
        loss.backward()
        losses.append(loss.detach())
    return torch.stack(losses)


def two_losses(net: Net, x: Tensor) -> Any:
    y = net(x)
    a, b = y.sum(), y.square().sum()
    a.backward(retain_graph=True)
    b.backward()
    return a, b


def retained(net: Net, x: Tensor) -> Any:
    loss = net(x).square().sum()
    loss.backward(retain_graph=True)
    return loss


def given_gradient(net: Net, x: Tensor) -> Any:
    y = net(x)
    y.backward(torch.ones_like(y) * 2)
    return y


def several_roots(net: Net, x: Tensor) -> Any:
    y = net(x)
    torch.autograd.backward([y, y.sum()], [y.detach(), None])


def some_inputs(net: Net, x: Tensor) -> Any:
    loss = net(x).square().sum()
    loss.backward(inputs=[net.first.weight, net.second.bias])
    return loss


def one_input(net: Net, x: Tensor) -> Any:
    net(x).square().sum().backward(inputs=net.transposed)


def retained_result(net: Net, x: Tensor) -> Any:
    h = net.first(x)
    h.retain_grad()
    h.tanh().sum().backward()
    return h.grad


def gradient_used(net: Net, x: Tensor) -> Any:
    net.zero_grad()
    plain(net, x)
    return net.first.weight.grad * 2, net.first.weight.grad.is_leaf, net.first.weight.grad is net.first.weight.grad


def gradient_replaced(net: Net, x: Tensor) -> Any:
    plain(net, x)
    net.first.weight.grad = net.first.weight.grad * 3
    net.second.weight.grad = None


def gradient_changed(net: Net, x: Tensor) -> Any:
    net.zero_grad()
    plain(net, x)
    net.first.weight.grad.mul_(3)
    net.first.bias.grad.clamp_(-0.01, 0.01)
    return net.first.bias.grad


def under_no_grad(net: Net, x: Tensor) -> Any:
    net.zero_grad()
    loss = plain(net, x)
    with torch.no_grad():
        for p in net.parameters():
            if p.grad is not None:
                p -= 0.1 * p.grad
    return loss, net(x)


def own_leaf(net: Net, x: Tensor) -> Any:
    y = x.detach().clone().requires_grad_()
    net(y).square().sum().backward()
    return y.grad


def leaf_that_leaves(net: Net, x: Tensor) -> Any:
    y = x.detach().clone().requires_grad_()
    net(y).square().sum().backward()
    return y


def of_the_argument(net: Net, x: Tensor) -> Any:
    x.requires_grad_()
    x.grad = None
    net(x).sum().backward()
    return x.grad


def with_detach(net: Net, x: Tensor) -> Any:
    h = net.first(x)
    (net.second(h.detach()).sum() * h.sum()).backward()
    return h


def shared_gradient(net: Net, x: Tensor) -> Any:
    net.zero_grad()
    (net.first.bias + net.second.weight[0]).sum().backward()
    net.first.bias.grad.add_(1)
    return net.second.weight.grad


def penalty(net: Net, x: Tensor) -> Any:
    net.zero_grad()
    x = x.detach().requires_grad_()
    y = net(x).square().sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    loss = y + g.square().sum()
    loss.backward()
    return loss.detach()


def hessian_product(net: Net, x: Tensor) -> Any:
    w = net.first.weight
    (g,) = torch.autograd.grad(net(x).square().sum(), w, create_graph=True)
    (h,) = torch.autograd.grad(g.flatten() @ w.detach().flatten(), w)
    return h


def of_a_generator(net: Net, x: Tensor) -> Any:
    names = dict(net.second.named_parameters())
    grads = torch.autograd.grad(net(x).square().sum(), names.values(), create_graph=True)
    return torch.autograd.grad((g.square().sum() for g in grads), net.second.parameters())


def backward_of_a_generator(net: Net, x: Tensor) -> Any:
    y = net(x)
    torch.autograd.backward((y[i].sum() for i in range(2)), inputs=net.second.parameters())
    return y.detach()


def gradients_with_history(net: Net, x: Tensor) -> Any:
    net.zero_grad()
    net(x).square().sum().backward(create_graph=True)
    loss = sum(p.grad.square().sum() for p in net.parameters() if p.grad is not None)
    net.zero_grad()
    loss.backward()
    return loss.detach()


def freed_and_living(net: Net, x: Tensor) -> Any:
    loss = net(x).square().sum()
    loss.backward()
    return loss, net.first(x).sin().sum()


def freed_views(net: Net, x: Tensor) -> Any:
    y = net(x)
    y.square().sum().backward()
    return y, y.view(-1), y[0]


def autocast(net: Net, x: Tensor) -> Any:
    net.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = net(x).float().square().mean()
    loss.backward()
    return loss.detach()


def scaled(net: Net, x: Tensor) -> Any:
    net.zero_grad()
    loss = net(x).square().mean()
    (loss * 128.0).backward()
    torch._foreach_mul_([p.grad for p in net.parameters() if p.grad is not None], 1 / 128.0)
    return loss


def clipped(net: Net, x: Tensor) -> Any:
    net.zero_grad()
    plain(net, x)
    nn.utils.clip_grad_value_(net.parameters(), 0.01)
    return nn.utils.clip_grad_norm_(net.parameters(), 0.02)


def through_dead_code(net: Net, x: Tensor) -> Any:
    net(x).sum().backward()
    return 1


def after_a_break(net: Net, x: Tensor) -> Any:
    net.zero_grad()
    loss = net(x).square().mean()
    time.sleep(0)
    loss.backward()
    return loss


def before_a_break(net: Net, x: Tensor) -> Any:
    net.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    time.sleep(0)
    return net.first.weight.grad.sum(), loss


def unfrozen(net: Net, x: Tensor) -> Any:
    net.zero_grad()
    net.frozen.requires_grad_()
    return plain(net, x), net.frozen.requires_grad


def frozen_half(net: Net, x: Tensor) -> Any:
    for p in net.first.parameters():
        p.requires_grad_(False)
    return plain(net, x), net(x)


def frozen_in_between(net: Net, x: Tensor) -> Any:
    """As the critic while the generator learns."""
    net.zero_grad()
    plain(net, x)
    net.first.requires_grad_(False)
    (net.first(x) * net.unused.sum()).sum().backward()
    net.first.requires_grad_(True)
    return net(x).sum()


def frozen_behind(net: Net, x: Tensor) -> Any:
    y = net(x).square().sum()
    net.second.weight.requires_grad = False
    return y, net.second.weight.requires_grad


def unfrozen_for_results(net: Net, x: Tensor) -> Any:
    net.frozen.requires_grad = True
    return net(x)


PROGRAMS = [value for value in globals().values() if getattr(value, "__module__", "") == __name__ and value is not Net]
BREAKS = (leaf_that_leaves, unfrozen_for_results, after_a_break, before_a_break)


def outcome(program: Program, function: Program, net: Net, had: bool) -> Any:
    """What three calls return and leave behind, and what a second backward does."""
    generator = torch.Generator().manual_seed(0)
    made: list[Any] = []
    if had:
        for p in net.parameters():
            p.grad = torch.full_like(p, 0.5) if p.requires_grad else None
    for _ in range(3):
        x = torch.randn(6, 4, generator=generator)
        held = [p.grad for p in net.parameters()]
        result = function(net, x)
        made.append(told(result))
        made.append([(told(p.grad), p.grad is old) for p, old in zip(net.parameters(), held, strict=True)])
        made.append([told(old) for old in held])
        made.append([p.requires_grad for p in net.parameters()])
    for value in result if isinstance(result, tuple) else (result,):
        if isinstance(value, Tensor) and value.requires_grad:
            try:
                value.sum().backward()
                made.append([told(p.grad) for p in net.parameters()])
            except RuntimeError as error:
                made.append(str(error))
    return made


def told(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [told(item) for item in value]
    if not isinstance(value, Tensor):
        return value
    return value.requires_grad, value.is_leaf, value.stride(), value.dtype, value.detach().clone()


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, tuple | list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, Tensor):
        return torch.allclose(found, expected, rtol=1e-4, atol=1e-6)
    return bool(found == expected)


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_backward_inside(program: Program) -> None:
    torch.manual_seed(0)
    net = Net()
    for had in (False, True):
        compiled = kiln.compile(program, backend="eager", options={"cache": False})
        expected = outcome(program, program, copy.deepcopy(net), had)
        found = outcome(program, compiled, copy.deepcopy(net), had)
        assert same(found, expected), (found, expected)
        report = compiled.report()
        assert program in BREAKS or not report.breaks, report
        assert not report.eager and report.compiles <= 2 + 2 * (program in BREAKS), report


@pytest.mark.parametrize("function", [unfrozen, frozen_half, frozen_in_between, frozen_behind])
def test_frozen_parameters_with_own_kernels(function: Program) -> None:
    torch.manual_seed(0)
    net = Net()
    compiled = kiln.compile(function, options={"cache": False})
    expected = outcome(function, function, copy.deepcopy(net), False)
    found = outcome(function, compiled, copy.deepcopy(net), False)
    assert same(found, expected), (found, expected)
    assert not compiled.report().breaks and not compiled.report().eager


def test_a_whole_step_with_own_kernels() -> None:
    """Two variants: the gradients are None at first. A rate that changes, recomputed layers and dropout's draws."""

    def train(compiled: Callable[[Any], Any], dtype: torch.dtype) -> list[Tensor]:
        torch.manual_seed(0)
        net = Net().to(dtype)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            h = checkpoint(net, x, use_reentrant=False)
            loss = (h * torch.sigmoid(h)).square().mean() + net.unused.square().sum()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            return loss

        run = compiled(step)
        losses = [run(torch.randn(6, 4).to(dtype)) for _ in range(8)]
        assert all(loss.requires_grad and not loss.is_leaf for loss in losses)
        return [loss.detach() for loss in losses] + [p.detach() for p in net.parameters()]

    made: list[Any] = []

    def compiled(step: Any) -> Any:
        made.append(kiln.compile(step, options={"cache": False}))
        return made[0]

    found, expected = train(compiled, torch.float32), train(lambda step: step, torch.float32)
    for mine, eager, exact in zip(found, expected, train(lambda step: step, torch.float64), strict=True):
        largest = (eager - exact).abs().max()
        assert (mine - exact).abs().max() <= 2 * largest + 1e-6
    report = made[0].report()
    assert not report.breaks and not report.eager and report.compiles <= 3, report
    assert report.regions <= 2 * report.compiles


def test_a_queue_whose_position_is_a_buffer() -> None:
    """The number is read in the forward; the write of the queue comes at the end, with those of the weights."""

    def train(compiled: Callable[[Any], Any]) -> list[Tensor]:
        torch.manual_seed(0)
        net, queue, position = nn.Linear(4, 3).double(), torch.zeros(8, 3).double(), torch.zeros(1, dtype=torch.long)

        def step(x: Tensor) -> Tensor:
            keys = net(x)
            loss = (keys @ queue.clone().t()).exp().mean() - keys.sum()
            at = int(position)
            queue[at : at + 2] = keys.detach()
            position[0] = (at + 2) % 8
            loss.backward()
            with torch.no_grad():
                for p in net.parameters():
                    p -= 0.1 * p.grad
                    p.grad = None
            return loss.detach()

        run = compiled(step)
        return [run(torch.randn(2, 4).double()) for _ in range(6)] + [queue, position, *net.parameters()]

    fast: list[Any] = []
    found = train(lambda step: fast.append(kiln.compile(step, options={"cache": False})) or fast[0])
    torch.testing.assert_close(found, train(lambda step: step))
    assert fast[0].report().eager == 0 and fast[0].report().compiles == 1, fast[0].report()


def test_gradients_that_are_dropped_are_free_while_the_region_runs() -> None:
    net, held = Net(), []

    def step(x: Tensor) -> None:
        net.zero_grad()
        net(x).sum().backward()

    compiled = kiln.compile(step, backend="eager", options={"cache": False})
    for _ in range(3):
        compiled(torch.ones(2, 4))
    old = net.first.weight.grad
    assert old is not None
    net.first.weight.register_hook(lambda grad: held.append(net.first.weight.grad))  # runs eager from here
    compiled(torch.ones(2, 4))
    assert held == [None] and net.first.weight.grad is not old


def tensor_hook(net: Net, seen: list[Any]) -> None:
    net.first.weight.register_hook(lambda grad: seen.append("hook") or grad * 2)


def accumulated_hook(net: Net, seen: list[Any]) -> None:
    net.first.weight.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))


def node_hook(net: Net, seen: list[Any]) -> None:
    """As wrappers that reduce gradients over processes register them."""
    node = net.first.weight.expand_as(net.first.weight).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    node.register_hook(lambda *grads: seen.append("node"))  # type: ignore[union-attr]
    net.node = node  # type: ignore[assignment]


@pytest.mark.parametrize("register", [tensor_hook, accumulated_hook, node_hook])
def test_hooks_of_leaves_are_called(register: Callable[[Net, list[Any]], None]) -> None:
    outcomes: list[Any] = []
    for compiles in (False, True):
        torch.manual_seed(0)
        net, seen = Net(), list[Any]()
        register(net, seen)
        function = kiln.compile(cleared_first, backend="eager", options={"cache": False}) if compiles else cleared_first
        for _ in range(3):
            function(net, torch.ones(2, 4))
        assert net.first.weight.grad is not None
        outcomes.append((seen, net.first.weight.grad))
    assert outcomes[0][0] == outcomes[1][0] and len(outcomes[0][0]) == 3
    torch.testing.assert_close(outcomes[0][1], outcomes[1][1])


def hooked(p: Tensor, hook: Callable[[Tensor], Any]) -> None:
    p.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]


def clamped(net: Net, order: list[Any]) -> None:
    for p in net.parameters():
        if p.requires_grad:
            p.register_hook(lambda grad: grad.clamp(-0.1, 0.1))


def masked(net: Net, order: list[Any]) -> None:
    mask = (torch.randn(5, 4) > 0).float()
    for hook in (lambda grad: grad * mask, lambda grad: None, lambda grad: grad + 1):
        net.first.weight.register_hook(hook)


def steps(net: Net, order: list[Any]) -> None:
    """An optimizer for each parameter, within the backward."""
    optimizers = {p: torch.optim.SGD([p], 0.01, momentum=0.9) for p in net.parameters() if p.requires_grad}

    def step(p: Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in optimizers:
        hooked(p, step)


def told_in_order(net: Net, order: list[Any]) -> None:
    for name, p in net.named_parameters():
        if p.requires_grad:
            hooked(p, lambda p, name=name: order.append((name, torch.is_grad_enabled())))


def of_another(net: Net, order: list[Any]) -> None:
    """In eager the first layer has no gradient yet."""
    hooked(net.second.weight, lambda p: order.append(net.first.weight.grad is None))


def that_records(net: Net, order: list[Any]) -> None:
    net.first.bias.register_hook(lambda grad: order.append(1))


def that_raises(net: Net, order: list[Any]) -> None:
    def refuse(p: Tensor) -> None:
        raise ValueError("refused")

    hooked(net.first.bias, refuse)


BREAKING_HOOKS = (of_another, that_records, that_raises)


@pytest.mark.parametrize("backend", ["eager", "kiln"])
@pytest.mark.parametrize("hook", [clamped, masked, steps, told_in_order, *BREAKING_HOOKS])
def test_hooks_of_leaves(hook: Callable[[Net, list[Any]], None], backend: str) -> None:
    """Behind a break, a compiled region gives all gradients at once: the order of hooks is another."""
    outcomes: list[Any] = []
    broken = hook in BREAKING_HOOKS
    for compiles in (False, True):
        torch.manual_seed(0)
        net, made, order = Net(), list[Any](), list[Any]()
        hook(net, order)
        compiled = kiln.compile(plain, backend=backend, options={"cache": False})
        for scale in range(1, 4):
            try:
                made.append(told((compiled if compiles else plain)(net, torch.ones(2, 4) * scale)))
            except ValueError as error:
                made.append(str(error))
        grads = [] if hook is that_raises else [told(p.grad) for p in net.parameters()]
        told_order = len(order) if broken and backend == "kiln" else order
        outcomes.append([made, [told(p) for p in net.parameters()], grads, told_order])
        report = compiled.report()
        assert not compiles or (bool(report.breaks) == broken and not report.eager), report
    assert same(outcomes[1], outcomes[0]), outcomes


class Outside(torch.autograd.Function):
    """Its backward reads from outside, as torch.amp.custom_bwd does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.saved_tensors[0] * FACTORS["factor"]


FACTORS = {"factor": 2.0}


@pytest.mark.parametrize("backend", ["eager", "kiln"])
def test_a_backward_inside_reads_from_outside(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    w = torch.ones(3, requires_grad=True)

    def step(x: Tensor) -> Tensor | None:
        w.grad = None
        Outside.apply(w * x).sum().backward()  # type: ignore[no-untyped-call]
        return w.grad

    compiled = kiln.compile(step, backend=backend, options={"cache": False})
    for factor in (2.0, 2.0, 3.0):
        monkeypatch.setitem(FACTORS, "factor", factor)
        torch.testing.assert_close(compiled(torch.arange(3.0)), torch.arange(3.0) ** 2 * factor)
    assert not compiled.report().breaks


@pytest.mark.parametrize("backend", ["eager", "kiln"])
def test_casts_of_weights_that_change_between_calls(backend: str) -> None:
    """A graph of torch calls leaves nothing in eager's cache of casts."""
    w = torch.ones(4, 4, requires_grad=True)

    def program(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return x @ w

    compiled = kiln.compile(program, backend=backend, options={"cache": False})
    for value in (1.0, 2.0, 3.0):
        torch.testing.assert_close(compiled(torch.ones(1, 4)).float(), torch.full((1, 4), 4 * value))
        with torch.no_grad():
            w.add_(1)
