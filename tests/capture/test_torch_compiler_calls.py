"""What programs say to torch.compile in the functions themselves: ignored, followed, or refused with a code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor
from torch._dynamo import error_on_graph_break
from torch._dynamo.comptime import comptime
from torch.fx.experimental.symbolic_shapes import guard_or_false, guard_or_true, statically_known_true, sym_and

import kiln
from kiln.capture.interpreter.breaks import GraphBreak

if not hasattr(torch._dynamo, "override_cudagraphs"):
    pytest.skip("torch 2.11 has no `override_cudagraphs`", allow_module_level=True)

# mypy: disallow_untyped_decorators = False, disallow_untyped_calls = False


class Layer(torch.nn.Module):
    @torch.compiler.nested_compile_region
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ x.T)


@torch.compiler.nested_compile_region
def region(x: Tensor, scale: int = 2) -> Tensor:
    return x.sin() * scale


def nested_regions(x: Tensor) -> Tensor:
    for _ in range(3):
        x = region(x)
    return Layer()(region(x, scale=3))


def compile_time_calls(x: Tensor) -> Tensor:
    @comptime  # type: ignore[operator]
    def _(context: Any) -> None:
        context.print_graph()

    comptime.print_locals()
    comptime.assert_static(x)
    return x + 1


@error_on_graph_break(False)
def allowed(x: Tensor) -> Tensor:
    return x * 3


@torch._dynamo.dont_skip_tracing
@torch._dynamo.override_cudagraphs(fwd=False)
def decorated(x: Tensor) -> Tensor:
    return x * 3


def scopes(x: Tensor) -> Tensor:
    with error_on_graph_break(True), torch._dynamo.override_cudagraphs(fwd=False):
        return allowed(x) + decorated(x)


def marks(x: Tensor) -> Tensor:
    y = x + 1
    torch._dynamo.mark_dynamic(y, 0)
    torch._dynamo.decorators.mark_unbacked(x * 2, 0)
    torch._dynamo.mark_static(y, 1)
    return y * 2 + torch._dynamo.is_compiling() * 0


def questions(x: Tensor) -> Tensor:
    n = x.shape[0]
    if guard_or_false(n == 4) and not statically_known_true(n > 100):
        return x + 1
    return x + 2 if guard_or_true(n > 2) and sym_and(n > 1, x.shape[1] > 2) else x


@pytest.mark.parametrize("program", [nested_regions, compile_time_calls, scopes, marks, questions])
def test_one_graph(program: Callable[[Tensor], Tensor]) -> None:
    compiled = kiln.compile(program, fullgraph=True)
    for rows in (4, 5, 7):
        x = torch.rand(rows, 4)
        torch.testing.assert_close(compiled(x), program(x))


def forbidden(x: Tensor) -> Tensor:
    with error_on_graph_break(True):
        y = x + 1
        torch._dynamo.graph_break()
    return y * 2


def allowed_within(x: Tensor) -> Tensor:
    with error_on_graph_break(True):
        y = x + 1
        with error_on_graph_break(False):
            torch._dynamo.graph_break()
            y = y * 3
    torch._dynamo.graph_break()
    return y * 2


def test_a_break_that_the_program_forbids_is_raised() -> None:
    compiled = kiln.compile(forbidden)
    with pytest.raises(GraphBreak, match="graph_break"):
        compiled(torch.ones(3))
    compiled = kiln.compile(allowed_within)
    assert compiled(torch.ones(3)).tolist() == allowed_within(torch.ones(3)).tolist()
    assert len(kiln.report_of(compiled).breaks) == 2


def function() -> Callable[[Tensor], Tensor]:
    model = linear()
    return torch.compile(lambda x: model(x))


def linear() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())


def in_place() -> torch.nn.Module:
    made = linear()
    made.compile()
    return made


def exported() -> torch.nn.Module:
    return torch.export.export(linear(), (torch.randn(3, 4),), dynamic_shapes=({0: torch.export.Dim("n")},)).module()


MADE_BY_TORCH: dict[str, Callable[[], Any]] = {
    "function": function,
    "module": lambda: torch.compile(linear()),
    "in-place": in_place,
    "exported": exported,
    "fx": lambda: torch.fx.symbolic_trace(linear()),
}


@pytest.mark.parametrize("name", MADE_BY_TORCH)
def test_what_torch_has_made_of_a_program_is_one_region(name: str) -> None:
    """Called by the user, and inside of another function."""
    x = torch.randn(5, 4)
    made = MADE_BY_TORCH[name]()
    torch.testing.assert_close(kiln.compile(made, fullgraph=True)(x), linear()(x))
    torch.testing.assert_close(kiln.compile(lambda x: made(x) * 2, fullgraph=True)(x), linear()(x) * 2)


@pytest.mark.parametrize("name", ["module", "in-place", "exported", "fx"])
def test_what_torch_has_made_of_a_program_is_exported(name: str) -> None:
    rows, x = kiln.Dim("rows"), torch.randn(5, 4)
    program = kiln.export(MADE_BY_TORCH[name](), (torch.randn(3, 4),), dynamic_shapes=({0: rows},))
    assert program.state_dict().keys() == linear().state_dict().keys()
    torch.testing.assert_close(program(x), linear()(x))
