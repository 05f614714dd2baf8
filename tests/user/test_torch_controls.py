"""Kiln follows what programs say to torch.compile: stance, reset, marks on functions, settings."""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention

import kiln
from kiln.api.compiler import compile_graph
from kiln.support.options import Options
from tests.user.conftest import Run

X = torch.linspace(-1, 1, 6).reshape(2, 3)


def marked(x: Tensor) -> Tensor:
    """The sign says who ran it."""
    return x * (1.0 if kiln.is_compiling() else -1.0)


@pytest.fixture
def compiled() -> Iterator[Any]:
    yield kiln.compile(marked, options={"cache": False})
    torch.compiler.set_stance("default")


# The stance.


def test_force_eager(compiled: Any) -> None:
    assert torch.equal(compiled(X), X)
    with torch.compiler.set_stance("force_eager"):
        assert torch.equal(compiled(X), -X)
        module = kiln.compile(nn.Sequential(nn.Linear(3, 3)))
        module(X)
        assert kiln.report_of(module).compiles == 0
    assert torch.equal(compiled(X), X)
    torch.compiler.set_stance("force_eager")
    assert torch.equal(compiled(X), -X)
    torch.compiler.set_stance("default")
    assert torch.equal(compiled(X), X)

    @torch.compiler.set_stance("force_eager")
    def evaluate() -> Tensor:
        return compiled(X)

    assert torch.equal(evaluate(), -X) and torch.equal(compiled(X), X)


def test_eager_on_recompile(compiled: Any) -> None:
    compiled(X)
    with torch.compiler.set_stance("eager_on_recompile"):
        assert torch.equal(compiled(X), X)
        assert torch.equal(compiled(X.double()), -X.double())
    assert torch.equal(compiled(X.double()), X.double())
    assert kiln.report_of(compiled).eager == 0


def test_fail_on_recompile(compiled: Any) -> None:
    compiled(X)
    with torch.compiler.set_stance("fail_on_recompile"):
        assert torch.equal(compiled(X), X)
        with pytest.raises(RuntimeError, match=r"KILN1097[^`]*`marked` would be compiled"):
            compiled(X.double())
    assert torch.equal(compiled(X.double()), X.double())


def test_eager_then_compile(compiled: Any) -> None:
    with torch.compiler.set_stance("eager_then_compile"):
        assert torch.equal(compiled(X), -X)
        other = torch.ones(5, 3)
        assert torch.equal(compiled(other), other)
    for rows in (6, 7, 8):
        assert torch.equal(compiled(torch.ones(rows, 3)), torch.ones(rows, 3))
    assert kiln.report_of(compiled).compiles == 1


def test_eager_then_compile_after_a_reset(compiled: Any) -> None:
    with torch.compiler.set_stance("eager_then_compile"):
        for _ in range(2):
            assert torch.equal(compiled(X), -X)
            assert torch.equal(compiled(X), X)
            kiln.reset()


# Reset, marks.


def test_reset_keeps_which_inputs_of_a_graph_change() -> None:
    module = torch.fx.symbolic_trace(lambda x: x + 1)
    compiled = compile_graph(module, "graph", Options(cache=False), {"x": (0,)})
    for _ in range(2):
        for rows in (3, 4, 5):
            assert torch.equal(compiled(torch.ones(rows, 2)), torch.full((rows, 2), 2.0))  # type: ignore[arg-type]
        assert kiln.report_of(compiled).compiles == 1
        kiln.reset()


def test_reset_forgets_without_loading_the_other_compiler(run: Run) -> None:
    run(
        """
        import sys, torch, kiln
        compiled = kiln.compile(lambda x: x + 1, options={"cache": False})
        compiled(torch.ones(2))
        torch.compiler.reset()
        assert kiln.report_of(compiled).compiles == 0
        compiled(torch.ones(2))
        assert kiln.report_of(compiled).compiles == 1
        assert "torch._dynamo" not in sys.modules
        """
    )


def test_disable() -> None:
    inner = torch.compiler.disable(lambda x: marked(x))
    outer = kiln.compile(lambda x: inner(x) + 1)
    assert torch.equal(outer(X), -X + 1)
    assert kiln.report_of(outer).breaks[0].code == "KILN1009"


def test_step_marks_and_queries() -> None:
    def function(x: Tensor) -> Tensor:
        return x + 1 if torch.compiler.is_compiling() else x + 1.0

    compiled = kiln.compile(function, fullgraph=True)
    torch.compiler.cudagraph_mark_step_begin()
    assert torch.equal(compiled(X), X + 1) and torch.compiler.is_compiling() is False


calls: list[int] = []


def counted(x: Tensor) -> Tensor:
    calls.append(len(x))
    return torch.sin(x)


def test_allow_in_graph() -> None:
    torch.compiler.allow_in_graph(counted)
    compiled = kiln.compile(lambda x: counted(x) + 1, fullgraph=True)
    torch.testing.assert_close(compiled(X), torch.sin(X) + 1)
    traced = len(calls)
    torch.testing.assert_close(compiled(X), torch.sin(X) + 1)
    assert len(calls) == traced  # it belongs to the graph, and what else it does happens while tracing


# Settings.


def test_settings_that_are_not_followed_are_said_once(run: Run) -> None:
    done: subprocess.CompletedProcess[str] = run(
        """
        import torch, torch._dynamo, kiln
        torch._dynamo.config.recompile_limit = 64
        torch._dynamo.config.verbose = True
        with torch._dynamo.config.patch(accumulated_recompile_limit=7):
            pass
        for _ in range(2):
            kiln.compile(lambda x: x + 1)(torch.ones(2))
            kiln.compile(lambda x: x + 1)(torch.ones(3))
        """
    )
    assert done.stderr.count("KILN5014") == 1 and "torch._dynamo.config.recompile_limit = 64" in done.stderr


def test_settings_that_torch_makes_for_itself_are_not_mentioned(run: Run) -> None:
    done = run(
        """
        import torch
        for dynamic in (True, False):
            torch.compile(lambda x: x + 1, backend="kiln", dynamic=dynamic)(torch.ones(3))
        """
    )
    assert "KILN5014" not in done.stderr, done.stderr


def test_compiling_inside_compiled_code_is_one_break() -> None:
    def program(x: Tensor) -> Tensor:
        return kiln.compile(lambda y: y + 1)(x) * 2  # type: ignore[no-any-return]

    compiled = kiln.compile(program, options={"cache": False})
    assert torch.equal(compiled(X), (X + 1) * 2)
    assert [entry.code for entry in kiln.report_of(compiled).breaks] == ["KILN1002"]


def test_flex_attention_itself_is_compiled() -> None:
    """`torch.compile(flex_attention)` is how its documentation asks to call it."""
    compiled = kiln.compile(flex_attention, options={"cache": False})
    x = torch.randn(1, 2, 16, 8)
    causal = compiled(x, x, x, score_mod=lambda score, b, h, q, k: torch.where(q >= k, score, -float("inf")))
    torch.testing.assert_close(causal, nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True))
    report = kiln.report_of(compiled)
    assert (report.compiles, report.breaks, report.eager) == (1, [], 0)


# Objects that hold compiled functions.


def test_a_compiled_function_is_copied_like_a_function(compiled: Any) -> None:
    assert copy.copy(compiled) is compiled and copy.deepcopy([compiled])[0] is compiled
