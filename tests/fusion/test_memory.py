"""Lifetimes of buffers: calls, views, writes to inputs, in-place scatters, reuse of dead arguments."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kiln.graph.prims.rows import PRIMS
from kiln.loops.body.body import LoopBody
from kiln.loops.body.builder import BodyBuilder
from kiln.loops.body.indexing import Axis
from kiln.loops.fusion.schedule import schedule
from kiln.loops.kernel.launches.program import KernelProgram
from kiln.loops.kernel.launches.text import kernel_program_text
from kiln.loops.program.nodes import Buffer, BufferArg, Extern, LoopOutput, LoopProgram, Pointwise, ReduceOp, Scatter
from kiln.support.events import Event, EventSink
from kiln.symbolic import symbol
from kiln.tensor.spec import TensorSpec
from tests.fusion.check import TARGET, assert_same_values, kernels, scheduled

F32 = torch.float32
I0, I1 = symbol("i0"), symbol("i1")
ROWS = (Axis(I0, 6), Axis(I1, 4))


def buffer(name: str, *sizes: int, base: str | None = None, offset: int = 0) -> Buffer:
    spec = TensorSpec(F32, (), ()).with_sizes(sizes)
    return Buffer(name, spec.with_view(spec.sizes, spec.strides, offset), base)


def body(op: str, *names: str) -> LoopBody:
    builder = BodyBuilder()
    return builder.finish(builder.pointwise(PRIMS[op], F32, *(builder.load(name, (I0, I1), F32) for name in names)))


def pointwise(out: Buffer, op: str, *names: str) -> Pointwise:
    return Pointwise(out, ROWS, body(op, *names))


def mm(out: Buffer, one: str, other: str) -> Extern:
    return Extern((out,), "aten.mm.default", (BufferArg(one), BufferArg(other)))


def allocated_over(made: KernelProgram) -> dict[str, str | None]:
    return {allocation.buffer.name: allocation.buffer.base for allocation in made.allocations}


def test_result_over_dead_argument(golden: Callable[..., None]) -> None:
    """exp overwrites the product; the sum may not overwrite its argument, a result."""
    nodes = (
        mm(buffer("b0", 6, 4), "x", "w"),
        pointwise(buffer("b1", 6, 4), "exp", "b0"),
        mm(buffer("b2", 6, 4), "b1", "w"),
        pointwise(buffer("b3", 6, 4), "neg", "b2"),
    )
    inputs = (buffer("x", 6, 4), buffer("w", 4, 4))
    outputs = (LoopOutput(buffer="b3"), LoopOutput(buffer="b2"))
    made = assert_same_values(LoopProgram("chain", inputs, (), nodes, outputs, ()))
    assert allocated_over(made) == {"b1": "b0", "b3": None}
    golden(kernel_program_text(made))


def test_view_of_a_call_keeps_memory() -> None:
    """A view of the argument is read later, so its memory is not reused."""
    view = Extern((buffer("v", 6, 4, base="b0"),), "aten.view.default", (BufferArg("b0"), [6, 4]))
    nodes = (
        mm(buffer("b0", 6, 4), "x", "w"),
        view,
        pointwise(buffer("b1", 6, 4), "exp", "b0"),
        pointwise(buffer("b2", 6, 4), "add", "v", "b1"),
    )
    inputs = (buffer("x", 6, 4), buffer("w", 4, 4))
    outputs = (LoopOutput(buffer="b2"), LoopOutput(buffer="b1"))
    made = assert_same_values(LoopProgram("view", inputs, (), nodes, outputs, ()))
    assert allocated_over(made)["b1"] is None


def test_inputs_are_written_at_the_end() -> None:
    nodes = (pointwise(buffer("b0", 6, 4), "exp", "x"), pointwise(buffer("b1", 6, 4), "add", "x", "b0"))
    inputs = (buffer("x", 6, 4),)
    outputs = (LoopOutput(buffer="b1"), LoopOutput(alias_input=0), LoopOutput(value=3))
    made = assert_same_values(LoopProgram("write", inputs, (), nodes, outputs, (("x", "b0"),)))
    assert len(kernels(made)) == 1


def test_parts_of_one_memory_are_not_fused() -> None:
    """As concatenation is lowered: two loops write the halves of a buffer that a third reads."""
    empty = Extern((buffer("b0", 12, 4),), "kiln.empty", ())
    whole = (Axis(I0, 12), Axis(I1, 4))
    nodes = (
        empty,
        pointwise(buffer("b1", 6, 4, base="b0"), "exp", "x"),
        pointwise(buffer("b2", 6, 4, base="b0", offset=24), "neg", "x"),
        Pointwise(buffer("b3", 12, 4), whole, body("abs", "b0")),
    )
    made = scheduled(LoopProgram("cat", (buffer("x", 6, 4),), (), nodes, (LoopOutput(buffer="b3"),), ()))
    assert len(kernels(made)) == 3
    assert allocated_over(made) == {"b1": "b0", "b2": "b0", "b3": None}
    freed = [name for names in made.frees for name in names]
    assert sorted(freed) == ["b0", "b1", "b2"]
    assert "b0" in made.frees[-1]


def test_scatter_in_place_stays_in_order() -> None:
    """Reads of the memory before and after the scatter see different contents."""
    at = Buffer("at", TensorSpec(torch.int64, (6,), (1,)))
    builder = BodyBuilder()
    place = builder.bind(builder.load("at", (I0,), torch.int64), 6)
    value = builder.load("y", (I0, I1), F32)
    scatter = Scatter(
        buffer("b1", 6, 4, base="b0"), "b0", ROWS, (place, I1), ReduceOp.SUM,
        builder.finish(value, used=frozenset({place}) if not isinstance(place, int) else frozenset()),
    )  # fmt: skip
    nodes = (
        pointwise(buffer("b0", 6, 4), "exp", "x"),
        pointwise(buffer("b2", 6, 4), "neg", "b0"),
        scatter,
        pointwise(buffer("b3", 6, 4), "sub", "b1", "b2"),
    )
    inputs = (buffer("x", 6, 4), at, buffer("y", 6, 4))
    made = assert_same_values(LoopProgram("scatter", inputs, (), nodes, (LoopOutput(buffer="b3"),), ()))
    assert len(kernels(made)) == 4


def test_mutating_call_is_a_barrier() -> None:
    call = Extern((), "aten.mul_.Scalar", (BufferArg("x"), 2.0), mutates=("x",))
    nodes = (
        pointwise(buffer("b0", 6, 4), "exp", "x"),
        call,
        pointwise(buffer("b1", 6, 4), "neg", "x"),
        pointwise(buffer("b2", 6, 4), "add", "b0", "b1"),
    )
    made = scheduled(LoopProgram("mutate", (buffer("x", 6, 4),), (), nodes, (LoopOutput(buffer="b2"),), ()))
    assert [type(step).__name__ for step in made.steps] == ["KernelLaunch", "Extern", "KernelLaunch"]


def test_events() -> None:
    heard: list[Event] = []
    events = EventSink()
    events.listen(heard.append)
    nodes = (
        mm(buffer("b0", 6, 4), "x", "w"),
        pointwise(buffer("b1", 6, 4), "exp", "b0"),
        mm(buffer("b2", 6, 4), "b1", "w"),
        pointwise(buffer("b3", 6, 4), "exp", "b2"),
    )
    inputs = (buffer("x", 6, 4), buffer("w", 4, 4))
    schedule(LoopProgram("events", inputs, (), nodes, (LoopOutput(buffer="b3"),), ()), TARGET, events)
    said = {event.kind: dict(event.data) for event in heard}
    assert said["kernels"] == {"count": 1, "names": "exp: "}
    assert said["launches"] == {"count": 2}
    assert said["library_calls"] == {"count": 2}
    assert said["traffic"] == {"read": 2 * 96, "written": 2 * 96}


def test_looked_up_value_of_memory_that_changes_is_made() -> None:
    """`table` is read at few points, but a call changes its operand through a view."""
    at = Buffer("at", TensorSpec(torch.int64, (1,), (1,)))
    look = BodyBuilder()
    place = look.bind(look.load("at", (I0,), torch.int64), 6)
    picked = look.finish(look.load("table", (place, I1), F32), used=frozenset())
    whole = Extern((buffer("half", 3, 4, base="b0"),), "aten.slice.Tensor", (BufferArg("b0"), 0, 0, 3))
    change = Extern((), "aten.mul_.Scalar", (BufferArg("half"), 2.0), mutates=("half",))
    look_up = Pointwise(buffer("b2", 1, 4), (Axis(I0, 1), Axis(I1, 4)), picked)
    for calls, made_anyway in (((whole, change), True), ((), False)):
        nodes = (mm(buffer("b0", 6, 4), "x", "w"), pointwise(buffer("table", 6, 4), "exp", "b0"), *calls, look_up)
        inputs = (buffer("x", 6, 4), buffer("w", 4, 4), at)
        made = assert_same_values(LoopProgram("look", inputs, (), nodes, (LoopOutput(buffer="b2"),), ()))
        assert ("table" in allocated_over(made)) == made_anyway
