"""What is compiled grows linearly with breaks, nesting, sizes, variants, closures and guards."""

from __future__ import annotations

import resource
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln
from kiln.api import report_of
from kiln.api.compiler import session_of
from kiln.capture.bytecode.decode import decode
from kiln.capture.interpreter.frame import CODES
from kiln.pipeline import python_stretches, session
from kiln.pipeline.session import KilnWarning

X = torch.ones(3)


def graph_backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
    return module.forward


def made(source: list[str], name: str) -> Callable[..., Any]:
    namespace: dict[str, Any] = {"time": time, "torch": torch, "__name__": __name__}
    exec("\n".join(source), namespace)
    return namespace[name]


def breaking(breaks: int, depth: int = 0) -> Callable[..., Any]:
    """A function with `breaks` graph breaks, `depth` calls deep."""
    source = ["def g0(x):", *(f"    x = x + {number}; time.sleep(0)" for number in range(breaks)), "    return x"]
    for level in range(1, depth + 1):
        source += [f"def g{level}(x):", f"    x = g{level - 1}(x) + 1", "    return x"]
    return made(source, f"g{depth}")


def compiles(function: Callable[..., Any], *calls: tuple[Any, ...], **options: Any) -> int:
    """How often it is compiled for the calls; the results are eager's."""
    compiled: Any = kiln.compile(function, backend=graph_backend, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KilnWarning)
        for arguments in calls:
            torch.testing.assert_close(compiled(*arguments), function(*arguments))
    return int(compiled.report().compiles)


@pytest.mark.parametrize("breaks", [4, 8, 16])
def test_breaks(breaks: int) -> None:
    assert compiles(breaking(breaks), (X,)) == breaks  # what returns is not compiled


def test_straight_code_behind_breaks_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is left is found by a fixed point over the whole function, which is not for each break."""
    searched = list[object]()
    found = python_stretches.leaving_places
    monkeypatch.setattr(python_stretches, "leaving_places", lambda *args: (searched.append(args), found(*args))[1])
    compiles(breaking(16), (X,))
    assert len(searched) <= 1


@pytest.mark.parametrize("depth", [2, 8, 24])
def test_nesting(depth: int) -> None:
    """A break in a nested call compiles one more frame, not one for each level."""
    assert compiles(breaking(4, depth), (X,)) == 5


def test_more_breaks_than_pay_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the call runs eager."""
    monkeypatch.setattr(session, "MOST_BREAKS", 6)
    compiled: Any = kiln.compile(breaking(20), backend=graph_backend)
    with pytest.warns(KilnWarning, match="KILN1095"):
        torch.testing.assert_close(compiled(X), breaking(20)(X))
    assert (compiled.report().compiles, compiled.report().eager) == (6, 1)
    for number in range(3):
        torch.testing.assert_close(compiled(X + number), breaking(20)(X + number))
    assert compiled.report().eager <= 2


@pytest.mark.parametrize("breaks", [2, 6])
def test_breaks_times_sizes(breaks: int) -> None:
    """Variants of a frame share the frames behind its breaks."""
    sizes = [(torch.ones(size),) for size in (3, 4, 5, 6, 7)]
    assert compiles(breaking(breaks), *sizes) <= 2 * (breaks + 1)


@pytest.mark.parametrize("breaks", [1, 2, 4])
def test_breaks_times_values(breaks: int) -> None:
    """Each part of a function has its own reasons to be compiled again: their sum counts, not their product."""
    source = ["def f(x, *modes):"]
    for number in range(breaks):
        source += [f"    if modes[{number}] == 'a': x = x + 1", "    torch._C._log_api_usage_once", "    time.sleep(0)"]
    function = made([*source, "    return x"], "f")
    modes = [tuple("ab"[number >> bit & 1] for bit in range(breaks)) for number in range(2**breaks)]
    assert compiles(function, *[(X, *mode) for mode in modes]) <= 4 * (breaks + 1) * (breaks + 1)


def test_what_a_frame_in_eager_resumes_is_not_compiled_level_by_level() -> None:
    def inner(x: Tensor) -> Tensor:
        return x + len("a" * int(x.sum().item()))

    def middle(x: Tensor) -> Tensor:
        return inner(x) * 2

    def outer(x: Tensor) -> Tensor:
        return middle(x) + 1

    calls = [(X * number,) for number in range(12)]
    assert compiles(outer, *calls, options={"variants": 3}) <= 1 + 2 * 3  # the side exit of `int` has variants too


def test_side_exits_are_shared() -> None:
    def function(x: Tensor, *masks: Tensor) -> Tensor:
        for mask in masks:
            x = x + 1 if mask.all() else x * 2
        return x

    masks = [[torch.tensor(bool(number >> bit & 1)) for bit in range(3)] for number in range(8)]
    sizes = [torch.ones(size) for size in (3, 4, 5)]
    assert compiles(function, *[(x, *mask) for x in sizes for mask in masks]) <= 3 * 8


def test_side_exits_break_to_the_same_resume_functions() -> None:
    def f(x: Tensor, mask: Tensor) -> Tensor:
        x = x.exp() if mask.all() else x.masked_fill(mask, 0.0)
        time.sleep(0)
        return x * 2

    compiled = kiln.compile(f, options={"cache": False})
    for mask in (torch.ones(4, dtype=torch.bool), torch.tensor([True, False, True, False])):
        x = torch.ones(4)
        assert torch.equal(compiled(x, mask), f(x, mask))
    assert report_of(compiled).compiles == 3  # the function, its side exit, and what both continue with


@pytest.mark.parametrize("count", [4, 16, 64])
def test_guards_of_equal_layers(count: int) -> None:
    """At most a constant number of guards per layer."""
    model = nn.Sequential(*[nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(count)])
    compiled: Any = kiln.compile(model, backend=graph_backend)
    compiled(torch.ones(2))
    assert compiled.report().guards <= 60 + 60 * count


@pytest.mark.parametrize("count", [2, 8, 32])
def test_closures(count: int) -> None:
    source = ["def make():", *(f"    v{number} = {number}" for number in range(count))]
    source += ["    def f0(x): return x + v0"]
    source += [f"    def f{number}(x): return f{number - 1}(x) + v{number}" for number in range(1, count)]
    function = made([*source, f"    return f{count - 1}"], "make")()
    compiled: Any = kiln.compile(function, backend=graph_backend)
    compiled(X)
    assert compiled.report().compiles == 1 and compiled.report().guards <= 20 + 8 * count


def test_the_steps_of_the_interpreter_grow_linearly_with_breaks() -> None:
    """Opcodes interpreted in all captures together."""

    def steps(breaks: int) -> int:
        compiled = kiln.compile(breaking(breaks), backend=graph_backend)
        counted: list[int] = []
        session_of(compiled).events.listen(
            lambda event: counted.append(int(str(event.data["steps"]))) if event.kind == "captured" else None
        )
        compiled(X)
        return sum(counted)

    assert 0 < steps(16) <= 2.5 * steps(8)


@pytest.mark.parametrize("breaks", [4, 16, 80])
def test_the_frame_is_decoded_once_for_all_breaks(breaks: int) -> None:
    function = breaking(breaks + 1)  # no other test has decoded it: equal code is decoded once
    decoded = CODES.decoded
    assert compiles(function, (X,)) == breaks + 1
    assert CODES.decoded - decoded == len(decode(function.__code__).instructions)


# CPU seconds, for the table of `pytest -s -m slow tests/api/test_scaling.py`.


def lines(start: str, line: str, count: int) -> Callable[..., Any]:
    """A function with `line` for each number below `count`."""
    return made([start, *(line.replace("NUMBER", str(number)) for number in range(count)), "    return x"], "f")


def run_once(function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    compiled: Any = kiln.compile(function, **(options or {"backend": graph_backend}))
    compiled(*arguments)


def optimizer_steps(count: int) -> None:
    parameters = [nn.Parameter(torch.ones(3)) for _ in range(count)]
    optimizer = torch.optim.Adam(parameters)
    for parameter in parameters:
        parameter.grad = torch.ones(3)
    step: Any = kiln.compile(optimizer.step, options={"cache": False})
    step()
    step()


def different_layers(count: int) -> None:
    layers = [nn.Sequential(nn.Linear(size + 2, size + 3), nn.Tanh()) for size in range(count)]
    compiled: Any = kiln.compile(nn.Sequential(*layers), options={"cache": False})
    compiled(torch.ones(1, 2)).sum().backward()


def variants(count: int) -> None:
    compiled: Any = kiln.compile(lambda x, mode: x + len(mode), backend=graph_backend, options={"variants": count + 1})
    for number in range(count):
        compiled(X, str(number))


def inlined(count: int) -> Callable[..., Any]:
    calls = [f"def g{number}(x): return g{number - 1}(x) + 1" for number in range(1, count + 1)]
    return made(["def g0(x): return x + 1", *calls], f"g{count}")


OUTPUT = "    x = x + NUMBER; time.sleep(0)"
COSTS: dict[str, Callable[[int], None]] = {
    "branches on data": lambda count: run_once(lines("def f(x):", "    if x.sum() > -NUMBER: x = x + 1", count), X),
    "breaks": lambda count: run_once(lines("def f(x):", OUTPUT, count), X),
    "breaks, with kernels": lambda count: run_once(lines("def f(x):", OUTPUT, count), X, options={"cache": False}),
    "breaks in try": lambda count: run_once(
        lines("def f(x):", f"    try:\n    {OUTPUT}\n    finally: x = x * 1", count), X
    ),
    "breaks in with": lambda count: run_once(lines("def f(x):", f"    with torch.no_grad():\n    {OUTPUT}", count), X),
    "nesting of breaks": lambda count: run_once(breaking(4, count), X),
    "nesting of calls": lambda count: run_once(inlined(count), X),
    "variants": variants,
    "different layers": different_layers,
    "parameters of Adam": optimizer_steps,
    "pointwise operations": lambda count: run_once(
        lines("def f(x):", "    x = (x + NUMBER.5).sin()", count), X, options={"cache": False}
    ),
    "tensors in a dict": lambda count: run_once(
        lambda tensors: sum(tensors.values()), {str(number): X for number in range(count)}
    ),
}


def cpu_seconds() -> float:
    """Of this process and of those that it waited for."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


@pytest.mark.slow
@pytest.mark.parametrize("name", COSTS)
def test_time_is_linear(name: str) -> None:
    """Twice as much takes less than three times as long."""
    COSTS[name](4)
    seconds = []
    for count in (10, 20, 40, 80):
        start = cpu_seconds()
        COSTS[name](count)
        seconds.append(cpu_seconds() - start)
    print(f"{name:22}" + "".join(f"{value:8.3f}" for value in seconds))
    assert seconds[3] <= 3 * max(seconds[2], 0.01)


def optimizer(count: int) -> Callable[[], object]:
    parameters = [nn.Parameter(torch.ones(3)) for _ in range(count)]
    for parameter in parameters:
        parameter.grad = torch.ones(3)
    return torch.optim.SGD(parameters, 0.1, momentum=0.9).step


def in_place(count: int) -> Callable[[], object]:
    tensors = [torch.ones(3) for _ in range(count)]

    def add(tensors: list[Tensor]) -> None:
        for tensor in tensors:
            tensor.add_(1)

    return lambda: add(tensors)


ENTERED: dict[str, Callable[[int], Callable[[], object]]] = {
    "an optimizer": optimizer,
    "tensors changed in place": in_place,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTERED)
def test_the_time_of_a_later_call_is_linear(name: str) -> None:
    """For eight times as many tensors a call takes less than sixteen times as long."""
    seconds = []
    for count in (100, 800):
        compiled: Any = kiln.compile(ENTERED[name](count), backend="eager", options={"cache": False})
        for _ in range(3):
            compiled()
        start = cpu_seconds()
        for _ in range(50):
            compiled()
        seconds.append(cpu_seconds() - start)
    print(f"{name:26}" + "".join(f"{value:8.3f}" for value in seconds))
    assert seconds[1] <= 16 * max(seconds[0], 0.01)
