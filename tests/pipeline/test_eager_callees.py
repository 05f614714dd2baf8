"""What a function calls that runs eager is compiled."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln
from kiln.native import _frames
from kiln.pipeline.session import KilnWarning

if not _frames.hook_supported:
    pytest.skip("no frame hook for this CPython", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore::kiln.pipeline.session.KilnWarning")


def line_in_python() -> int:
    """A traceback is read, which interpreted frames do not have."""
    try:
        raise ValueError("to be read")
    except ValueError as error:
        assert error.__traceback__ is not None
        return error.__traceback__.tb_lineno > 0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x: Tensor, *more: Tensor, scale: float = 1.0, **rest: Any) -> Tensor:
        for other in more:
            x = x + other
        return self.layers(x).sin().cos() * scale + len(rest)  # type: ignore[no-any-return]


def prepared(x: Tensor, low: float = -1.0) -> Tensor:
    return x.sub(0.5).mul(2).clamp(low, 1)


def train(net: Net, batches: list[Tensor]) -> list[Tensor]:
    line = line_in_python()
    return [net(prepared(x), x, scale=2.0, extra=line).sum() + line for x in batches]


def compiled_train(**options: object) -> Callable[..., Any]:
    return kiln.compile(train, options={"cache": False, **options})


def test_callees_are_compiled() -> None:
    net, batches = Net(), [torch.randn(3, 4) for _ in range(3)]
    compiled = compiled_train()
    for _ in range(2):
        results = []
        for function in (train, compiled):
            net.zero_grad()
            losses = function(net, batches)
            torch.stack(losses).sum().backward()
            results.append([*losses, *[parameter.grad for parameter in net.parameters()]])
        torch.testing.assert_close(results[1], results[0])
    report = compiled.report()
    assert report.regions == 2, report  # `prepared`, and `forward`, which calls `layers`
    assert report.eager == 1
    assert _frames.hook_wanted() == 0


def test_what_is_called_once_is_not_compiled() -> None:
    compiled = compiled_train()
    compiled(Net(), [torch.randn(3, 4)])
    assert compiled.report().regions == 0


def test_marked_functions_run_in_python_with_all_that_they_call() -> None:
    seen = []

    def inner(x: Tensor) -> Tensor:
        seen.append(torch.compiler.is_compiling())
        return x.sin().cos()

    @kiln.disable
    def outer(x: Tensor) -> Tensor:
        return inner(x)

    def program(x: Tensor) -> Tensor:
        line_in_python()
        return outer(x) + outer(x) + outer(x)

    compiled = kiln.compile(program)
    torch.testing.assert_close(compiled(torch.ones(3)), 3 * torch.ones(3).sin().cos())
    assert compiled.report().regions == 0
    assert len(seen) == 3


def recursive(x: Tensor, depth: int) -> Tensor:
    line_in_python()
    return prepared(x) if depth == 0 else recursive(x + 1, depth - 1)


def test_recursion_and_closures() -> None:
    def program(x: Tensor) -> list[Tensor]:
        line_in_python()
        return [(lambda y, k=k: y * k + k)(x) for k in range(12)] + [recursive(x, 3)]

    compiled, x = kiln.compile(program), torch.randn(3)
    for _ in range(6):
        torch.testing.assert_close(compiled(x), program(x))


def test_closures_beyond_the_limit_leave_the_others_compiled() -> None:
    scales = [lambda x, k=k: x.sin() * k for k in range(12)]

    def program(x: Tensor) -> list[Tensor]:
        line_in_python()
        return [scale(x) for scale in scales]

    compiled, x = kiln.compile(program), torch.randn(3)
    for _ in range(5):
        torch.testing.assert_close(compiled(x), program(x))
    launches = compiled.report().launches
    assert launches == 8, compiled.report()


def items(x: Tensor) -> Iterator[Tensor]:
    yield prepared(x)
    yield prepared(x) + 1


def test_generators_run_as_they_are() -> None:
    def program(x: Tensor) -> list[Tensor]:
        line_in_python()
        return list(items(x))

    compiled, x = kiln.compile(program), torch.randn(3)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), program(x))
    assert compiled.report().regions == 1


def test_errors_have_the_lines_of_the_program() -> None:
    def mismatched(x: Tensor) -> Tensor:
        return x @ x

    def program(x: Tensor) -> Tensor:
        line_in_python()
        return mismatched(x)

    compiled = kiln.compile(program)
    for _ in range(6):
        with pytest.raises(RuntimeError, match="cannot be multiplied") as caught:
            compiled(torch.ones(2, 3))
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[1:] == ["program", "mismatched"]
    assert _frames.hook_wanted() == 0


def test_the_hook_is_not_set_where_nothing_was_compiled() -> None:
    seen = []

    def program(x: Tensor) -> Tensor:
        line_in_python()
        seen.append(_frames.hook_wanted())
        return x + 1

    compiled = kiln.compile(program)
    for _ in range(6):
        compiled(torch.ones(2))
    assert seen == [1, 1, 1, 1, 0, 0]


def test_threads() -> None:
    net, x, compiled = Net(), torch.randn(3, 4), compiled_train()
    expected, results = train(net, [x, x]), []

    def run() -> None:
        results.extend([compiled(net, [x, x]) for _ in range(5)])

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 20
    torch.testing.assert_close(results, [expected] * 20)
    assert _frames.hook_wanted() == 0


def test_one_warning() -> None:
    with pytest.warns(KilnWarning, match="KILN1101") as caught:
        compiled_train()(Net(), [torch.randn(3, 4) for _ in range(4)])
    assert len([found for found in caught if issubclass(found.category, KilnWarning)]) == 1
