"""Why loops are not fused: each veto on a small program, as in the dump of the schedule."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from kiln.loops.fusion.costs import FusionContext, Pair
from kiln.loops.fusion.dependencies import Dependencies
from kiln.loops.fusion.group import Group, GroupSymbols
from kiln.loops.fusion.order import GroupOrder
from kiln.loops.fusion.schedule import schedule
from kiln.loops.fusion.vetoes import CONFLICT, PAIR_VETOES, VETOES, two_blockings
from kiln.loops.kernel.launches.not_fused import NotFused, Refusal
from kiln.loops.program.nodes import LoopProgram
from kiln.loops.program.text import program_text
from kiln.report import Report
from kiln.support.events import EventSink
from kiln.support.target import Target
from kiln.symbolic import symbol
from tests.fusion.check import TARGET, scheduled
from tests.fusion.programs import PROGRAMS
from tests.fusion.random_loops import random_program
from tests.loop_ir.parse import parse_program

GPU = Target(device="cuda", capability=(9, 0), multiprocessors=132)


def chain(*loops: str, inputs: int = 1, size: int = 64) -> str:
    """One-dimensional loops b0, b1, ... over inputs a0, a1, ...; the last is the result."""
    given = [f"    a{place}: f32[{size}] = input {place}" for place in range(inputs)]
    nodes = [f"    b{place}: f32[{size}] = pointwise (i0: {size}): {body}" for place, body in enumerate(loops)]
    return "\n".join(["loops chain", *given, *nodes, f"    return b{len(loops) - 1}"])


def added(first: int, last: int, value: str = "f32(0.0)") -> str:
    """The sum of the inputs `first` to `last - 1` and `value`."""
    for place in range(first, last):
        value = f"add({value}, load a{place}[i0])"
    return value


def nested(op: str, times: int, value: str) -> str:
    return f"{op}(" * times + value + ")" * times


COLUMNS = """
loops columns
    x: f32[64, 1024, 1024] = input 0
    s: f32[64, 1024] = reduction sum over (i1: 15) keeping (i0: 64, i2: 1024): load x[i0, 65*i1, i2]
    y: f32[64, 1024] = reduction sum over (i1: 1024) keeping (i0: 64, i2: 1024):
        -> abs(sub(load x[i0, i1, i2], load s[i0, i2]))
    return y
"""
GATHER = """
loops gather
    x: f32[40] = input 0
    at: i64[40] = input 1
    y: f32[40] = pointwise (i0: 40): exp(load x[i0])
    z: f32[40] = pointwise (i0: 40):
        j0 = indirect(load at[i0], 40)
        -> load y[j0]
    return z
"""
DEVICES = """
loops devices
    x: f32[64] = input 0
    y: f32[64 @cuda:0] = pointwise (i0: 64): exp(load x[i0])
    z: f32[64] = pointwise (i0: 64): neg(load x[i0])
    return y, z
"""
OVERWRITTEN = """
loops overwritten
    x: f32[6, 4] = input 0
    all: f32[6, 4] = pointwise (i0: 6, i1: 4): exp(load x[i0, i1])
    row: f32[4] in all = pointwise (i0: 4): load x[0, i0]
    out: f32[6, 4] = pointwise (i0: 6, i1: 4): neg(load all[i0, i1])
    return out
"""
SLICES = """
loops slices
    x: f32[64, 50] = input 0
    y: f32[10, 50] = pointwise (i0: 10, i1: 50): exp(load x[i0, i1])
    z: f32[64, 20] = pointwise (i0: 64, i1: 20): neg(load x[i0, i1])
    return y, z
"""
REVERSED = chain("exp(load a0[i0])", "neg(load b0[63 - i0])")
NEEDED = chain(
    "exp(load a0[i0])",
    "neg(load a0[63 - i0])",
    *(f"neg(load b{n}[63 - i0])" for n in range(1, 201)),
    "add(load b0[i0], load b201[i0])",
)
HELD = chain("exp(load a0[i0])", *(f"neg(load b{n}[65535 - i0])" for n in range(201)), "abs(load b0[i0])", size=1 << 16)
GROUPS = """
loops groups
    x: f32[400, 128] = input 0
    a: f32[32, 4] = reduction sum over (i2: 400) keeping (i0: 32, i1: 4): exp(load x[i2, 4*i0 + i1])
    b: f32[32] = reduction sum over (i1: 4) keeping (i0: 32): load a[i0, i1]
    return b
"""
MANY_LOOPS = chain("load a0[i0]", *(f"exp(load b{n}[i0])" for n in range(48)))
MANY_OPS = chain(*(nested("exp", 140, f"load {name}[i0]") for name in ("a0", "b0", "b1", "b2", "b3")))
MANY_BUFFERS = chain(added(0, 50), added(50, 100, "load b0[i0]"), added(100, 150, "load b1[i0]"), inputs=150)


def random_text(seed: int, nodes: int) -> str:
    return program_text(random_program(seed, nodes=nodes))


CASES = {
    "memory-order": (OVERWRITTEN, TARGET),
    "too-many-between": (NEEDED, TARGET),
    "dependency-between": (random_text(35, 3), TARGET),
    "held-for-long": (HELD, TARGET),
    "other-device": (DEVICES, TARGET),
    "too-many-loops": (MANY_LOOPS, TARGET),
    "too-many-ops": (MANY_OPS, TARGET),
    "too-many-buffers": (MANY_BUFFERS, TARGET),
    "not-affine": (GATHER, TARGET),
    "not-local": (REVERSED, TARGET),
    "loses-units": (SLICES, TARGET),
    "loses-vector": (random_text(9, 2), TARGET),
    "unmatched-loops": (random_text(6, 2), GPU),
    "loses-rows": (random_text(15, 2), TARGET),
    "too-many-columns": (PROGRAMS["two_columns"], GPU),
    "sums-no-unit": (random_text(6, 2), GPU),
    "other-split": (PROGRAMS["two_columns"], TARGET),
    "parts-lose-units": (PROGRAMS["two_columns"], GPU),
    "sum-across-blocks": (PROGRAMS["two_columns"], TARGET),
    "too-few-pieces": (PROGRAMS["cross_entropy"], TARGET),
    "rows-of-results": (random_text(8, 2), GPU),
    "other-columns": (COLUMNS, GPU),
    "serial-rows": (random_text(194, 2), GPU),
    "units-become-rows": (random_text(30, 2), TARGET),
    "narrow-rows": (GROUPS, TARGET),
    "little-shared": (random_text(143, 2), TARGET),
    "extra-launch": (PROGRAMS["cross_entropy"], TARGET),
}
"""A program on which each veto stops a fusion."""
LONG = {"too-many-between", "held-for-long", "too-many-loops", "too-many-ops", "too-many-buffers"}


@pytest.mark.parametrize("veto", CASES)
def test_text(veto: str, golden: Callable[..., None]) -> None:
    text, target = CASES[veto]
    refusals = [str(refusal) for refusal in scheduled(text, target).not_fused if refusal.veto == veto]
    golden("\n".join([*refusals, "", "" if veto in LONG else text.strip()]))


def test_every_veto_has_a_program() -> None:
    assert {veto.name for veto in (*PAIR_VETOES, *VETOES)} == {*CASES, "two-blockings"}


def test_two_blockings() -> None:
    """No known program reaches this veto first."""
    first, second = Group(blocked={symbol("g0"): 4}), Group(blocked={symbol("g1"): 8})
    empty = LoopProgram("empty", (), (), (), (), ())
    context = FusionContext({}, Dependencies(empty, {}), GroupOrder(), GroupSymbols(), TARGET, {})
    assert two_blockings(Pair(first, second, context)) == CONFLICT
    assert two_blockings(Pair(first, Group(), context)) is None


def test_loops_that_are_fused_in_the_end_are_not_listed() -> None:
    refusal = Refusal("b0", "b1", "vertical", "not-local", 1, 0, "", "because")
    assert list(NotFused((refusal, refusal), {"b0": 0, "b1": 0})) == []
    assert NotFused((refusal, refusal), {"b0": 0, "b1": 1}).between("b1", "b0") == (refusal,)


def test_the_report_says_why() -> None:
    events, report = EventSink(), Report()
    events.listen(report.record)
    schedule(parse_program(REVERSED), TARGET, events)
    (reason,) = json.loads(report.to_json())["not_fused"]
    assert reason == "b0, b1: vertical: not-local (a unit would read what another one writes)"
