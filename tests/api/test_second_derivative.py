"""create_graph=True: gradients of compiled functions that are differentiated again, against eager."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import kiln
from kiln.pipeline.gradient_regions import GradientRegions
from kiln.plan.plan import Plan
from kiln.plan.steps import AtenStep
from kiln.runtime.executor import OBSERVERS


@pytest.fixture(params=["compiled", "loaded"])
def compile_twice(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    """`kiln.compile`; "loaded": from the variant on disk that a first compile wrote."""

    def make(function: Any, *inputs: Any, **arguments: Any) -> Any:
        options = {"cache": True, "cache_dir": str(tmp_path)}
        if request.param == "loaded":
            kiln.compile(function, fullgraph=True, options=options, **arguments)(*inputs)
        compiled = kiln.compile(function, fullgraph=True, options=options, **arguments)
        compiled(*inputs)
        report = kiln.report_of(compiled)
        assert report.loaded == (request.param == "loaded") and report.eager == 0, report
        return compiled

    return make


def twice(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """A loss of value and gradients, differentiated."""
    wanted = [given for given in inputs if given.requires_grad]
    result = function(*inputs)
    gradients = torch.autograd.grad((result * result.detach().cos()).sum(), wanted, create_graph=True)
    loss = result.sum() + sum((gradient * gradient).sum() for gradient in gradients)
    second = torch.autograd.grad(loss, wanted, allow_unused=True)
    return [*gradients, *[gradient for gradient in second if gradient is not None]]


def chunks(x: Tensor, w: Tensor) -> Tensor:
    a, b = (x @ w).chunk(2, dim=-1)
    return F.gelu(a) * b.sigmoid()


def constants(x: Tensor, w: Tensor) -> Tensor:
    scale = torch.tensor([1.0, 2.0, 0.5, 3.0])
    return (x * scale) @ w + torch.ones(6)


def without_grad(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        size = x.norm(dim=-1, keepdim=True)
    return (x / size) @ w


def at_zero(x: Tensor, w: Tensor) -> Tensor:
    """Points where decompositions have other derivatives than eager: relu at 0, and so on."""
    return F.relu(x - x.detach()) + F.relu(x) @ w[:, :4]


def view_of_input(x: Tensor, w: Tensor) -> Tensor:
    return torch.stack([x.t()[0] * 2, x[:, 1] ** 3]).tanh().exp() @ w[:3]


def in_place(x: Tensor, w: Tensor) -> Tensor:
    y = torch.sin(x)
    y.mul_(x)
    y[:, 1] = w[0, 0]
    return y.add_(1) @ w


PROGRAMS = (chunks, constants, without_grad, at_zero, view_of_input, in_place)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function", PROGRAMS)
def test_second_derivatives(function: Any, dynamic: bool | None, compile_twice: Any) -> None:
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 6, requires_grad=True)
    compiled = compile_twice(function, x, w, dynamic=dynamic)
    for ours, theirs in zip(twice(compiled, x, w), twice(function, x, w), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_other_sizes_and_numbers(compile_twice: Any) -> None:
    def function(x: Tensor, scale: int) -> Tensor:
        return (x.reshape(-1, 2) * scale).tanh().reshape(x.shape[0], -1) / x.size(1)

    compiled = compile_twice(function, torch.randn(3, 4, requires_grad=True), 2, dynamic=True)
    for rows, columns, scale in ((3, 4, 2), (5, 6, 3), (2, 8, -1)):
        x = torch.randn(rows, columns, requires_grad=True)
        results = [twice(partial(call, scale=scale), x) for call in (compiled, function)]
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 1)).double()


def test_gradient_penalty_and_buffers() -> None:
    """Batch norm writes its statistics in forward; differentiating the gradient must not write them again."""
    eager = network()
    model = copy.deepcopy(eager)
    results = []
    for module, call in ((eager, eager), (model, kiln.compile(model, fullgraph=True))):
        x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4).requires_grad_()
        y = call(x)
        (gradient,) = torch.autograd.grad(y.sum(), [x], create_graph=True)
        loss = y.square().mean() + (gradient.norm(dim=1) - 1).square().mean()
        loss.backward()
        results.append([loss, gradient, *[parameter.grad for parameter in module.parameters()], *module.buffers()])
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_hessian_vector_product() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    compiled = kiln.compile(model, fullgraph=True)
    x, parameters = torch.randn(6, 3), list(model.parameters())
    vector = [torch.randn_like(parameter) for parameter in parameters]
    products = []
    for call in (model, compiled):
        gradients = torch.autograd.grad(call(x).square().mean(), parameters, create_graph=True)
        products.append(torch.autograd.grad(gradients, parameters, grad_outputs=vector))
    for theirs, ours in zip(*products, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_third_derivative_across_a_break() -> None:
    def function(x: Tensor) -> Tensor:
        y = torch.sin(x) * x
        if y.sum() > -100:
            y = y**3
        return y * x

    x = torch.randn(4, requires_grad=True)
    results = []
    for call in (function, kiln.compile(function)):
        value = call(x).sum()
        for _ in range(3):
            (gradient,) = torch.autograd.grad(value, [x], create_graph=True)
            value = (gradient * gradient).sum()
        results.append(gradient)
    torch.testing.assert_close(results[1], results[0])


def test_ambient_autocast_and_dtype_are_those_of_the_forward() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).float().tanh() * torch.ones(4)

    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    results = []
    for call in (function, kiln.compile(function, fullgraph=True)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = call(x, w)
        gradients = torch.autograd.grad(y.sum(), [x, w], create_graph=True)
        results.append([*gradients, *torch.autograd.grad(gradients[0].square().sum(), [x, w])])
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-2, rtol=2e-2)


def refused(function: Callable[..., Tensor], *inputs: Tensor) -> str:
    """The first derivative works; differentiating it raises."""
    result = kiln.compile(function, fullgraph=True)(*inputs)
    leaf = next(given for given in inputs if given.is_leaf and given.requires_grad)
    (gradient,) = torch.autograd.grad(result.sum(), [leaf], create_graph=True)
    assert gradient.requires_grad
    with pytest.raises(RuntimeError, match="KILN4008") as raised:
        gradient.sum().backward()
    return str(raised.value)


def test_random_numbers_that_a_library_draws_are_refused() -> None:
    """Those of Kiln are saved: `tests/faults/test_second_gradients.py`."""
    x = torch.randn(5, requires_grad=True)
    result = kiln.compile(lambda x: x[torch.multinomial(torch.ones(5), 2)] ** 2)(x)
    with pytest.raises(RuntimeError, match=r"(?s)KILN4008.*random"):
        torch.autograd.grad(result.sum(), [x], create_graph=True)


def test_large_changed_inputs_are_refused() -> None:
    """Old contents of small ones are saved: `tests/faults/test_penalties_of_overwritten_state.py`."""

    def function(x: Tensor, count: Tensor) -> Tensor:
        count.add_(1)
        return x * x * count

    assert "`count`" in refused(function, torch.randn(2**17, requires_grad=True), torch.zeros(2**17))


def test_inputs_changed_later_are_noticed() -> None:
    """The bias is saved for second derivatives only; changing it in between raises."""

    def function(x: Tensor, bias: Tensor) -> Tensor:
        return (x * 2 + bias).exp()

    compiled = kiln.compile(function, fullgraph=True)
    x, bias = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    y = compiled(x, bias).sum()
    with torch.no_grad():
        bias.add_(1)
    torch.autograd.grad(y, [x], retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y, [x], create_graph=True)


def test_the_graph_is_freed_unless_retained() -> None:
    x = torch.randn(4, requires_grad=True)
    y = kiln.compile(lambda x: (x * 2).exp(), fullgraph=True)(x).sum()
    torch.autograd.grad(y, [x], create_graph=True, retain_graph=False)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, [x], create_graph=True)


def test_hooks_see_what_they_see_without_a_second_derivative() -> None:
    """Inputs kept only for the replay are not saved tensors."""
    seen: list[Tensor] = []

    def pack(one: Tensor) -> Tensor:
        seen.append(one)
        return one

    pack.preserves_values = True  # type: ignore[attr-defined]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
        x, bias = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
        kiln.compile(lambda x, bias: x * 3 + bias, fullgraph=True)(x, bias)
    assert not any(item is bias or item is x for item in seen)


def third(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """The gradients of a loss of second gradients."""
    wanted = [given for given in inputs if given.requires_grad]
    results: list[Tensor] = []
    loss = function(*inputs).square().sum()
    for _ in range(3):
        found = torch.autograd.grad(loss, wanted, create_graph=True, allow_unused=True)
        gradients = [gradient for gradient in found if gradient is not None and gradient.requires_grad]
        if not gradients:
            break
        results += gradients
        loss = sum((gradient * gradient.detach().tanh()).sum() for gradient in gradients)  # type: ignore[assignment]
    return results


@pytest.fixture
def gradient_runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An entry per call of compiled gradients."""
    found: list[str] = []
    inner = GradientRegions.find

    def find(self: GradientRegions, *arguments: Any) -> Any:
        run = inner(self, *arguments)
        found.extend(["run"] if run is not None else [])
        return run

    monkeypatch.setattr(GradientRegions, "find", find)
    return found


@pytest.fixture
def in_double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("derivatives", [twice, third])
@pytest.mark.parametrize("function", PROGRAMS)
def test_gradients_are_compiled_when_they_come_again(
    function: Any, derivatives: Any, gradient_runs: list[str], in_double: None
) -> None:
    """An input without a gradient is another compile."""
    compiled = kiln.compile(function, fullgraph=True)
    for scale, needs_grad in [(1, True)] * 3 + [(2, True)] * 2 + [(2, False)] * 2:
        x = torch.randn(3, 4, requires_grad=True) * scale
        w = torch.randn(4, 6, requires_grad=needs_grad)
        for ours, theirs in zip(derivatives(compiled, x, w), derivatives(function, x, w), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
            assert ours.requires_grad == theirs.requires_grad
    assert gradient_runs


@pytest.fixture
def products() -> Iterator[list[int]]:
    """How many matrix products each new plan has."""
    counts: list[int] = []

    def note(plan: Plan, libraries: object, constants: object, adapt: object, executor: Any) -> Any:
        counts.append(sum(isinstance(step, AtenStep) and "mm" in step.target for step in plan.steps))
        return executor

    OBSERVERS.append(note)
    yield counts
    OBSERVERS.remove(note)


def test_gradients_read_what_the_forward_saved(products: list[int], compile_twice: Any) -> None:
    """A product for each layer and derivative: the forward is not computed again, nor are gradients of weights."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))

    def step(model: Callable[[Tensor], Tensor]) -> list[Tensor]:
        x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
        result = model(x)
        (first,) = torch.autograd.grad(result.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first[:, 0].sum(), x, create_graph=True)
        loss = (first.square() + second + result).sum()
        return [first, second, *torch.autograd.grad(loss, list(parameters), allow_unused=True)[:-1]]

    parameters = list(model.parameters())
    compiled = compile_twice(model, torch.randn(3, 4))
    products.clear()
    for _ in range(3):
        torch.testing.assert_close(step(compiled), step(model), rtol=1e-4, atol=1e-5)
    assert products[:2] == [3, 5]


def test_saved_values_that_were_changed_are_noticed() -> None:
    compiled = kiln.compile(lambda x, w: (x @ w).exp())
    for turn in range(3):
        x, w = torch.ones(3, 3, requires_grad=True), torch.ones(3, 3)
        result = compiled(x, w)
        if turn == 2:
            result.detach().zero_()
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                torch.autograd.grad(result.sum(), x, create_graph=True)
        else:
            (first,) = torch.autograd.grad(result.sum(), x, create_graph=True)
            torch.autograd.grad(first.sum(), x)


def test_only_gradients_that_are_asked_for_are_computed(products: list[int]) -> None:
    """Of many selections, the later ones get a backward that makes all."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    compiled = kiln.compile(model)
    x = torch.randn(3, 4, requires_grad=True)
    result = compiled(x).sum()
    products.clear()
    torch.autograd.grad(result, x, retain_graph=True)
    assert products == [3]
    for parameter in model.parameters():
        found = torch.autograd.grad(result, parameter, retain_graph=True)
        torch.testing.assert_close(found, torch.autograd.grad(model(x).sum(), parameter))
    assert len(products) == 5 and products[-1] == 6


def test_sizes_that_do_not_come_again_are_not_compiled(gradient_runs: list[str]) -> None:
    compiled = kiln.compile(chunks, dynamic=True, fullgraph=True)
    w = torch.randn(4, 6, requires_grad=True)
    for rows in range(2, 8):
        twice(compiled, torch.randn(rows, 4, requires_grad=True), w)
    assert not gradient_runs


def test_layouts_that_do_not_come_again_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiln.pipeline.gradient_regions.MOST_LAYOUTS", 4)
    made: list[GradientRegions] = []
    create = GradientRegions.__init__

    def noted(self: GradientRegions, *parts: Any) -> None:
        made.append(self)
        create(self, *parts)

    monkeypatch.setattr(GradientRegions, "__init__", noted)
    compiled = kiln.compile(lambda x: x.sin(), fullgraph=True, dynamic=True, options={"cache": False})
    for size in range(2, 20):
        twice(compiled, torch.rand(size, requires_grad=True))
    assert made and all(len(regions.known) <= 4 for regions in made)


def test_a_failed_compile_of_gradients_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr("kiln.pipeline.gradient_compile.Recorder", fail)
    compiled = kiln.compile(chunks)
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 6, requires_grad=True)
    twice(compiled, x, w)
    with pytest.warns(UserWarning, match="KILN9000"):
        results = twice(compiled, x, w)
    for ours, theirs in zip(results, twice(chunks, x, w), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_statistics_are_written_once(gradient_runs: list[str]) -> None:
    eager = network()
    model = copy.deepcopy(eager)
    compiled = kiln.compile(model, fullgraph=True)
    for _ in range(3):
        for module, call in ((eager, eager), (model, compiled)):
            x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4).requires_grad_()
            (gradient,) = torch.autograd.grad(call(x).sum(), [x], create_graph=True)
            module.zero_grad()
            gradient.square().sum().backward()
        for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)
        for ours, theirs in zip(model.buffers(), eager.buffers(), strict=True):
            torch.testing.assert_close(ours, theirs)
    assert gradient_runs


@pytest.mark.parametrize("dynamic", [None, True])
def test_numbers_that_change(dynamic: bool | None) -> None:
    """A gradient penalty with a factor that is lowered from call to call."""

    def program(x: torch.Tensor, factor: float, count: int) -> torch.Tensor:
        scaled = torch.nn.functional.leaky_relu(x.tanh() * factor, factor / 2)
        return scaled.square().sum() * (factor**2 + count) + x.shape[0] * factor

    def penalised(run: Callable[..., torch.Tensor], factor: float, count: int) -> torch.Tensor:
        x = torch.linspace(-1, 1, 3 + count, dtype=torch.float64).requires_grad_()
        loss = run(x, factor, count)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        return torch.autograd.grad(loss + slope.square().sum(), x)[0]

    compiled = kiln.compile(program, dynamic=dynamic)
    for factor, count in ((0.5, 0), (0.4, 1), (0.3, 2), (0.2, 0), (0.2, 0)):
        torch.testing.assert_close(penalised(compiled, factor, count), penalised(program, factor, count))


@pytest.mark.parametrize("dynamic", [None, True])
def test_what_no_gradient_reads_may_change_before(dynamic: bool | None) -> None:
    """A penalty on a batch behind another call of the critic: its batch norm has other statistics since."""

    def train(compiled: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        critic = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1)).double()
        run = kiln.compile(critic, dynamic=dynamic) if compiled else critic
        for _ in range(3):
            real, fake = torch.randn(5, 4, dtype=torch.float64).requires_grad_(), torch.randn(5, 4, dtype=torch.float64)
            loss = run(real).mean() - run(fake).mean()
            (slope,) = torch.autograd.grad(loss, real, create_graph=True)
            (loss + slope.square().sum()).backward()
        return [parameter.grad for parameter in critic.parameters()]

    for actual, expected in zip(train(True), train(False), strict=True):
        torch.testing.assert_close(actual, expected)


def test_what_was_added_may_change_before() -> None:
    offset = torch.zeros(3)

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + offset

    x = torch.ones(3, requires_grad=True)
    result = kiln.compile(program, options={"cache": False})(x)
    offset.add_(1)
    (slope,) = torch.autograd.grad(result.sum(), x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(slope.sum(), x)[0], -x.sin())


def test_what_a_gradient_reads_must_not_change_before() -> None:
    factor = torch.ones(3)

    def program(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * factor).sum()

    x = torch.ones(3, requires_grad=True)
    loss = kiln.compile(program, options={"cache": False})(x)
    factor.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(loss, x, create_graph=True)


def test_a_graph_of_which_a_part_was_freed() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (w**3).sum(), (x.sin() * w).sum()

    def derivatives(run: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
        x, w = torch.ones(3).requires_grad_(), torch.full((3,), 2.0).requires_grad_()
        first, second = run(x, w)
        (freed,) = torch.autograd.grad(second, x)
        (slope,) = torch.autograd.grad(first, w, create_graph=True)
        return [freed, slope.detach(), *torch.autograd.grad(slope.sum(), w)]

    compiled = kiln.compile(program)
    for _ in range(3):
        torch.testing.assert_close(derivatives(compiled), derivatives(program))
