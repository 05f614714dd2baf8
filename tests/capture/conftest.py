"""Capturing in tests: graphs and guards as text, and the transformed code run against eager."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from kiln.capture.interpreter import Callbacks, Capture, capture_frame
from kiln.graph.trace.recorder import Recorder
from kiln.native._frames import BoundCall, Dispatcher, Entry
from kiln.runtime.guards.guard import Guard
from kiln.runtime.guards.tree import build_tree
from kiln.support.events import EventSink
from kiln.symbolic import ShapeEnv


def graph_text(gm: torch.fx.GraphModule) -> str:
    lines = []
    for node in gm.graph.nodes:
        target = getattr(node.target, "__name__", node.target)
        lines.append(f"{node.op} {node.name} {target} {node.args}" + (f" {node.kwargs}" if node.kwargs else ""))
    return "\n".join(lines)


def guard_line(guard: Guard) -> str:
    """With the user line that caused it."""
    return guard.text() + (f"   # {guard.location.file}:{guard.location.line}" if guard.location else "")


@dataclass
class Lab:
    """Compiles a function with graphs run by fx; resume functions are captured when first called."""

    captures: list[Capture] = field(default_factory=list)
    failures: list[Any] = field(default_factory=list)
    is_compiling: bool = False

    def compile_region(self, recorder: Any, trace: Any) -> Callable[..., Any]:
        gm = trace.torch_graph()
        wanted = [node.target for node in gm.graph.nodes if node.op == "placeholder"]
        for record in trace.inputs:
            record.used = record.name in wanted
        names = [record.name for record in trace.used_inputs]

        def run(*args: Any) -> tuple[Any, ...]:
            given = dict(zip(names, args, strict=True))
            result = gm(*[given[name] for name in wanted])
            return result if isinstance(result, tuple) else (result,)

        return run

    def capture(self, function: Any, locals: dict[str, Any], **options: Any) -> Capture:
        recorder_factory = lambda: Recorder(env=ShapeEnv(), events=EventSink())  # noqa: E731
        callbacks = Callbacks(self.compile_region, recorder_factory, self.compile, **options)
        got = capture_frame(function, locals, callbacks, is_compiling=self.is_compiling)
        self.captures.append(got)
        return got

    def compile(self, function: types.FunctionType) -> Any:
        """A dispatcher: captured on a miss, guarded by the native tree."""
        return Dispatcher(function, self.miss)

    def miss(self, dispatcher: Dispatcher, locals: dict[str, Any]) -> Any:
        return self.add_entry(dispatcher, self.capture(dispatcher.function, locals), locals)

    def add_entry(self, dispatcher: Dispatcher, got: Capture, locals: dict[str, Any]) -> Entry | None:
        function = dispatcher.function
        if got.function is None:
            return None
        tree = build_tree(got.guards, collect=got.collect, function=function)
        self.failures.append(tree.explain(tuple(locals.values()), function.__globals__, function.__closure__))
        target = BoundCall(tree, got.function) if got.collect else got.function
        entry = Entry(tree, target)
        dispatcher.set_entries([*dispatcher.entries, entry])
        return entry

    def graphs(self) -> str:
        return "\n---\n".join(graph_text(region.trace.torch_graph()) for got in self.captures for region in got.regions)

    def guards(self) -> str:
        return "\n---\n".join("\n".join(map(guard_line, got.guards)) for got in self.captures)

    def breaks(self) -> list[str]:
        return [stop.code for got in self.captures for stop in got.breaks]

    def skipped(self) -> list[str]:
        return [got.skipped.code for got in self.captures if got.skipped]


@pytest.fixture
def lab() -> Lab:
    return Lab()


@pytest.fixture
def same(lab: Lab) -> Callable[..., Any]:
    """`same(f, *args)`: the compiled function gives what eager gives, in one graph unless `breaks` says which codes."""

    def check(function: Any, *args: Any, breaks: list[str] | None = None, **kwargs: Any) -> Any:
        expected = function(*args, **kwargs)
        got = lab.compile(function)(*args, **kwargs)
        assert lab.skipped() == [], [str(capture.skipped) for capture in lab.captures]
        assert lab.breaks() == (breaks or []), [str(stop) for capture in lab.captures for stop in capture.breaks]
        assert lab.failures == [None] * len(lab.failures), "a guard fails on the call it was made from"
        assert_equal(got, expected)
        return got

    return check


@pytest.fixture
def equal() -> Callable[[Any, Any], None]:
    return assert_equal


def assert_equal(got: Any, expected: Any) -> None:
    assert type(got) is type(expected), (type(got), type(expected))
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(got, expected)
    elif isinstance(expected, (list, tuple)):
        assert len(got) == len(expected)
        for a, b in zip(got, expected, strict=True):
            assert_equal(a, b)
    elif isinstance(expected, dict):
        assert list(got) == list(expected)
        for key in expected:
            assert_equal(got[key], expected[key])
    elif hasattr(expected, "__dict__") and (
        type(expected).__eq__ is object.__eq__ or dataclasses.is_dataclass(expected)
    ):
        assert_equal(got.__dict__, expected.__dict__)
    else:
        assert got == expected
