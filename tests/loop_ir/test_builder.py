"""BodyBuilder: equal ops once, constants folded, dead ops dropped, bodies inlined."""

from __future__ import annotations

import torch

from kiln.graph.prims.rows import PRIMS
from kiln.loops.body.body import Check, Const, Indirect, LoopBody
from kiln.loops.body.builder import BodyBuilder, Inline
from kiln.loops.body.reference import REFERENCE
from kiln.loops.body.text import BodyText
from kiln.symbolic import rel_lt, symbol

F32, I64 = torch.float32, torch.int64
i0, i1, s0 = symbol("i0"), symbol("i1"), symbol("s0")


def body_text(body: LoopBody) -> str:
    text = BodyText(body)
    return "\n".join([*text.lines, f"-> {', '.join(text.results)}"])


def test_every_pointwise_prim_has_a_reference() -> None:
    assert REFERENCE.gaps() == []


def test_equal_ops_are_one_place() -> None:
    build = BodyBuilder()
    assert build.load("x", (i0,), F32) == build.load("x", (i0,), F32)
    assert build.constant(0.0, F32) != build.constant(-0.0, F32)


def test_constants_are_folded_and_dead_ops_dropped() -> None:
    build = BodyBuilder()
    x = build.load("x", (i0,), F32)
    build.pointwise(PRIMS["exp"], F32, x)
    two = build.pointwise(PRIMS["add"], F32, build.constant(1.5, F32), build.constant(0.5, F32))
    body = build.finish(build.pointwise(PRIMS["mul"], F32, x, two))
    assert body_text(body) == "-> mul(load x[i0], f32(2.0))"


def test_known_conditions_are_decided() -> None:
    build = BodyBuilder()
    x, y = build.load("x", (i0,), F32), build.load("y", (i0,), F32)
    assert build.pointwise(PRIMS["where"], F32, build.test(rel_lt(3, 4)), x, y) == x
    unknown = build.test(rel_lt(i0, 4))
    true = build.test(True)
    assert build.pointwise(PRIMS["bitwise_and"], torch.bool, unknown, true) == unknown


def test_inlining_substitutes_indices_and_replaces_loads() -> None:
    producer = BodyBuilder()
    gathered = producer.bind(producer.load("k", (i0,), I64), s0)
    body = producer.finish(producer.load("x", (gathered, i0), F32))

    consumer = BodyBuilder()
    own = consumer.bind(consumer.load("n", (i1,), I64), 8)

    def constant_x(name: str, index: object, dtype: torch.dtype, mask: int | None) -> int | None:
        return consumer.constant(1.0, dtype) if name == "z" else None

    (value,) = body.run(Inline(consumer, {i0: i1 + 1}, constant_x))
    outer = consumer.load("y", (own,), F32)
    text = body_text(consumer.finish(consumer.pointwise(PRIMS["add"], F32, value, outer)))
    assert text == (
        "j0 = indirect(load n[i1], 8)\nj1 = indirect(load k[i1 + 1], s0)\n-> add(load x[j1, i1 + 1], load y[j0])"
    )


def test_constants_that_are_equal_numbers_are_not_equal_data() -> None:
    zero, minus, nan = (Const(value, torch.float32) for value in (0.0, -0.0, float("nan")))
    assert zero != minus and nan == Const(float("nan"), torch.float32)
    assert Const(1, torch.int64) != Const(True, torch.bool)
    assert len({zero, minus, nan, Const(0.0, torch.float32)}) == 3


def test_an_index_that_does_not_count_from_the_end_is_checked_by_itself() -> None:
    build = BodyBuilder()
    x = build.load("x", (i0,), I64)
    negative = build.pointwise(PRIMS["lt"], torch.bool, x, build.constant(0, I64))
    large = build.pointwise(PRIMS["where"], I64, negative, build.constant(torch.iinfo(I64).max, I64), x)
    small = build.pointwise(PRIMS["where"], I64, negative, build.constant(3, I64), x)
    at, wrapped, chosen = (build.bind(index, 8) for index in (large, x, small))
    y = build.load("y", (at, wrapped, chosen), F32)
    assert body_text(build.finish(y)).split("\n")[-4:] == [
        "j0 = indirect(v0, 8, not negative)",
        "j1 = indirect(v0, 8)",
        "j2 = indirect(where(lt(v0, i64(0)), i64(3), v0), 8)",
        "-> load y[j0, j1, j2]",
    ]


def test_a_clamped_index_is_not_checked() -> None:
    build = BodyBuilder()
    x, zero, one, seven, eight = (build.load("x", (i0,), I64), *[build.constant(value, I64) for value in (0, 1, 7, 8)])

    def clamped(low: int, high: int) -> int:
        return build.pointwise(PRIMS["maximum"], I64, build.pointwise(PRIMS["minimum"], I64, x, high), low)

    chosen = build.pointwise(PRIMS["where"], I64, build.pointwise(PRIMS["lt"], torch.bool, x, zero), one, seven)
    indices = (clamped(zero, seven), clamped(zero, eight), build.pointwise(PRIMS["minimum"], I64, x, seven), chosen)
    y = build.load("y", tuple(build.bind(index, 8) for index in indices), F32)
    checks = [op.check for op in build.finish(y).ops if isinstance(op, Indirect)]
    assert checks == [Check.IN_RANGE, Check.IN_SIZE, Check.IN_SIZE, Check.IN_RANGE]
