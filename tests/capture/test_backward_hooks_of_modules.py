"""Full backward hooks of modules: what they see and change is as in eager, and the rest of the model is compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln

Seen = list[object]


class Model(nn.Module):
    """Its parts have results of all kinds: fresh, views, tuples, arguments, numbers of the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.act = nn.Tanh()
        self.flat = nn.Flatten()
        self.split = nn.Unflatten(1, (4, -1))
        self.same = nn.Identity()
        self.rnn = nn.GRU(8, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.same(self.split(self.flat(self.act(self.conv(x)))))
        out, last = self.rnn(y)
        return self.head(out) + self.head(last[0].unsqueeze(1))  # type: ignore[no-any-return]


PARTS = ("conv", "act", "flat", "split", "same", "rnn", "head", "")


def sums(grads: tuple[Tensor | None, ...]) -> list[object]:
    return [None if grad is None else (tuple(grad.shape), round(float(grad.double().sum()), 4)) for grad in grads]


def noted(seen: Seen) -> Callable[..., None]:
    return lambda module, inputs, outputs: seen.append((type(module).__name__, sums(inputs), sums(outputs)))


def halved(seen: Seen) -> Callable[..., Any]:
    return lambda module, inputs, outputs: tuple([None if grad is None else grad * 0.5 for grad in inputs])


def train(compile: Callable[[nn.Module], Any], name: str, register: str, hook: Any, sizes: tuple[int, ...]) -> Seen:
    torch.manual_seed(0)
    seen: Seen = []
    model = Model()
    part = model.get_submodule(name)
    handle = getattr(part, f"register_full_backward_{register}")(hook(seen))
    compiled = compile(model)
    for size in sizes:
        x = torch.linspace(-1, 1, size * 36).view(size, 1, 6, 6).requires_grad_(name != "conv")
        model.zero_grad()
        compiled(x).pow(2).mean().backward()
        seen.append([sums((parameter.grad,)) for parameter in model.parameters()])
        seen.append(sums((x.grad,)))
    with torch.no_grad():
        seen.append(sums((compiled(x),)))
    handle.remove()
    compiled(x).sum().backward()
    seen.append([sums((parameter.grad,)) for parameter in model.parameters()])
    return seen


@pytest.mark.parametrize("name", PARTS)
def test_hook(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        expected = train(lambda model: model, name, "hook", noted, (2, 3))
        assert train(kiln.compile, name, "hook", noted, (2, 3)) == expected


@pytest.mark.parametrize("name", ["act", "split", "rnn"])
def test_hook_that_changes_gradients(name: str) -> None:
    expected = train(lambda model: model, name, "hook", halved, (2,))
    assert train(lambda model: kiln.compile(model, dynamic=True), name, "hook", halved, (2,)) == expected


@pytest.mark.parametrize("name", ["conv", "flat", "head"])
def test_hook_in_front(name: str) -> None:
    def doubled(seen: Seen) -> Any:
        return lambda module, outputs: tuple([grad * 2 for grad in outputs])

    expected = train(lambda model: model, name, "pre_hook", doubled, (2,))
    assert train(kiln.compile, name, "pre_hook", doubled, (2,)) == expected


def test_the_rest_of_the_model_is_compiled() -> None:
    model = Model()
    seen: Seen = []
    model.act.register_full_backward_hook(noted(seen))
    compiled = kiln.compile(model)
    compiled(torch.ones(2, 1, 6, 6)).sum().backward()
    report = compiled.report()
    assert len(seen) == 1
    assert not report.eager
    assert {entry.code for entry in report.breaks} == {"KILN1002"}


def test_modules_whose_hooks_break_are_called_as_a_whole() -> None:
    """The calls that torch makes around a `forward` are no graph breaks of their own."""

    def stepped(compile: Callable[..., Any]) -> tuple[Any, Seen]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        seen: Seen = []
        for part in net:
            part.register_full_backward_hook(noted(seen))

        def step(x: Tensor) -> Any:
            net.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            return loss

        compiled = compile(step)
        for size in (4, 4, 5, 6):
            compiled(torch.linspace(-1, 1, size * 3).view(size, 3))
            seen.append([sums((parameter.grad,)) for parameter in net.parameters()])
        return compiled, seen

    expected = stepped(lambda step: step)[1]
    compiled, seen = stepped(kiln.compile)
    report = kiln.report_of(compiled)
    assert seen == expected and not report.eager
    assert report.compiles <= 12, str(report)


class Explained:
    """A map of what a class is seen by (Grad-CAM): hooks store what goes through a layer on the object."""

    def __init__(self, part: nn.Module, model: nn.Module) -> None:
        self.model = model
        part.register_forward_hook(self.keep_result)
        part.register_full_backward_hook(self.keep_gradient)

    def keep_result(self, module: nn.Module, inputs: Any, result: Tensor) -> None:
        self.result = result.detach()

    def keep_gradient(self, module: nn.Module, inputs: Any, gradients: tuple[Tensor, ...]) -> None:
        self.gradient = gradients[0].detach()

    def __call__(self, x: Tensor) -> Tensor:
        self.model.zero_grad()
        self.model(x).amax(1).sum().backward()
        weights = self.gradient.mean((2, 3), keepdim=True)
        return (weights * self.result).sum(1).relu()


def explained(compile: Callable[..., Any]) -> tuple[Any, list[Tensor]]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 4))
    compiled = compile(Explained(net[2], net).__call__)
    return compiled, [compiled(torch.linspace(-1, 1, size * 36).view(size, 1, 6, 6)) for size in (2, 2, 3)]


class Trainer:
    """The backward is in another method than the call of the model."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self.norms: dict[str, Tensor] = {}
        for name, part in self.model.named_children():
            part.register_full_backward_hook(lambda module, inputs, outputs, at=name: self.note(at, outputs))

    def note(self, name: str, gradients: tuple[Tensor, ...]) -> None:
        self.norms[name] = gradients[0].norm()

    def step(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        loss = self.model(x).square().mean()
        self.train(loss)
        return loss.detach(), dict(self.norms)

    def train(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_the_backward_may_be_in_a_method_that_is_called_behind_the_model() -> None:
    compiled = kiln.compile(Trainer().step)
    plain = Trainer().step
    for size in (2, 2, 3):
        x = torch.linspace(-1, 1, size * 3).view(size, 3)
        torch.testing.assert_close(compiled(x), plain(x))
    assert not kiln.report_of(compiled).breaks


@pytest.mark.parametrize("options", [{}, {"backend": lambda graph, inputs: graph}])
def test_hooks_store_what_the_code_behind_the_backward_reads(options: dict[str, Any]) -> None:
    compiled, got = explained(lambda function: kiln.compile(function, **options))
    for a, b in zip(got, explained(lambda function: function)[1], strict=True):
        torch.testing.assert_close(a, b)
    assert not kiln.report_of(compiled).breaks


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front, self.part, self.back = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.front(x)
        return self.back(y + self.part(self.part(y)).tanh()).square().sum()  # type: ignore[no-any-return]


Hook = Callable[[nn.Module, Any, Any], Any]


def halving(module: nn.Module, inputs: Any, outputs: Any) -> None:
    outputs[0].mul_(0.5)


def clipping(module: nn.Module, inputs: Any, outputs: Any) -> None:
    module.weight.data.clamp_(-0.01, 0.01)  # the backward of its first call reads it later


def averaging(module: nn.Module, inputs: Any, outputs: Any) -> None:
    module.average.mul_(0.9).add_(outputs[0].norm())  # type: ignore[operator]


def reading(module: nn.Module, inputs: Any, outputs: Any) -> None:
    module.average.copy_(module.weight.grad.sum() if module.weight.grad is not None else -outputs[0].sum())  # type: ignore[operator]


def doubling(module: nn.Module, inputs: Any, outputs: Any) -> Any:
    return (inputs[0] * 2,)


def hooked_steps(compile: Callable[..., Any], hook: Hook, again: bool) -> tuple[Any, list[object]]:
    torch.manual_seed(0)
    model = Residual()
    model.part.register_buffer("average", torch.zeros(()))
    model.part.register_full_backward_hook(hook)

    def step(x: Tensor) -> Tensor:
        model.zero_grad()
        loss: Tensor = model(x)
        loss.backward(retain_graph=again)
        return loss

    compiled, seen = compile(step), list[object]()
    for size in (2, 2, 3):
        loss = compiled(torch.linspace(-1, 1, size * 3).view(size, 3))
        if again:
            loss.backward()
        tensors = [*model.part.buffers(), *model.parameters(), *[each.grad for each in model.parameters()]]
        seen.append(sums(tuple(tensors)))
    return compiled, seen


@pytest.mark.parametrize("hook", [halving, clipping, averaging, reading, doubling])
@pytest.mark.parametrize("again", [False, True])
def test_what_hooks_change_and_read_is_as_in_eager(hook: Hook, again: bool) -> None:
    """A second backward, outside of the function, calls them as well."""
    compiled, got = hooked_steps(kiln.compile, hook, again)
    assert got == hooked_steps(lambda function: function, hook, again)[1]
    assert bool(kiln.report_of(compiled).breaks) is (again or hook is not averaging)


def test_the_warning_of_a_module_whose_inputs_need_no_gradient_names_the_line_of_the_program() -> None:
    def warned(compile: Callable[..., Any]) -> list[tuple[str, str, int]]:
        seen: Seen = []
        net = nn.Sequential(nn.Linear(3, 2))
        net[0].register_full_backward_hook(noted(seen))

        def step(x: Tensor) -> None:
            net(x).sum().backward()

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            compile(step)(torch.ones(2, 3))
        return [(str(warning.message), warning.filename, warning.lineno) for warning in caught]

    assert warned(kiln.compile) == warned(lambda step: step) != []
