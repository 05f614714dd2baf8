"""Branches and loops through all stages: every form of a graph gives what its interpreter gives."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

from kiln.debug.stage_results import wrong_stage
from kiln.graph.ir.errors import InvalidGraph
from kiln.graph.ir.parse import parse_graph
from kiln.graph.ir.text import graph_text
from kiln.graph.ir.verify import verify
from kiln.pipeline.reproduce import graph_plan
from kiln.plan.serialize import decode_plan, encode_plan
from kiln.plan.text import plan_text

COND = """\
graph(%0: b8[] "c", %1: f32[s0, 8] "x", %2: f32[8] "w"):
    %3: f32[s0, 8] = sin(%1)
    %4: (f32[s0, 8], f32[s0]) = cond(%0, %3, %2, true=@0, false=@1, exist=())
        @0 = graph true(%0: f32[s0, 8] "x", %1: f32[8] "w"):
            %2: f32[s0, 8] = mul(%0, %1)
            %3: f32[s0] = sum(%2, axes=(1,))
            return %2, %3
        @1 = graph false(%0: f32[s0, 8] "x", %1: f32[8] "w"):
            %2: f32[s0, 8] = exp(%0)
            %3: f32[s0] = amax(%2, axes=(1,))
            return %2, %3
    %5: f32[s0, 8] = item(%4, index=0)
    %6: f32[s0] = item(%4, index=1)
    %7: f32[s0, 8] = add(%5, %3)
    return %7, %6"""

WHILE = """\
graph(%0: i64[] "i", %1: f32[3, s0] "x", %2: f32[s0] "w"):
    %3: (i64[], f32[3, s0]) = while_loop(%0, %1, %2, test=@0, body=@1)
        @0 = graph test(%0: i64[] "i", %1: f32[3, s0] "x", %2: f32[s0] "w"):
            %3: i64[] = constant(value=4, dtype=i64, device=cpu)
            %4: b8[] = lt(%0, %3)
            return %4
        @1 = graph body(%0: i64[] "i", %1: f32[3, s0] "x", %2: f32[s0] "w"):
            %3: i64[] = constant(value=1, dtype=i64, device=cpu)
            %4: i64[] = add(%0, %3)
            %5: f32[3, s0] = mul(%1, %2)
            return %4, %5
    %4: i64[] = item(%3, index=0)
    %5: f32[3, s0] = item(%3, index=1)
    return %4, %5"""

SCAN = """\
graph(%0: f32[8] "c", %1: f32[s0, 8] "x", %2: f32[8] "w"):
    %3: (f32[8], f32[s0], f32[s0, 8]) = scan(%0, %1, %2, body=@0, carried=1, rows=1)
        @0 = graph body(%0: f32[8] "c", %1: f32[8] "row", %2: f32[8] "w"):
            %3: f32[8] = mul(%0, %2)
            %4: f32[8] = add(%3, %1)
            %5: f32[] = sum(%4, axes=(0,))
            %6: f32[8] = neg(%4)
            return %4, %5, %6
    %4: f32[8] = item(%3, index=0)
    %5: f32[s0] = item(%3, index=1)
    %6: f32[s0, 8] = item(%3, index=2)
    return %4, %5, %6"""

BRANCH_IN_LOOP = """\
graph(%0: i64[] "i", %1: f32[4] "x"):
    %2: (i64[], f32[4]) = while_loop(%0, %1, test=@0, body=@1)
        @0 = graph test(%0: i64[] "i", %1: f32[4] "x"):
            %2: i64[] = constant(value=5, dtype=i64, device=cpu)
            %3: b8[] = lt(%0, %2)
            return %3
        @1 = graph body(%0: i64[] "i", %1: f32[4] "x"):
            %2: i64[] = constant(value=1, dtype=i64, device=cpu)
            %3: i64[] = add(%0, %2)
            %4: f32[] = amax(%1, axes=(0,))
            %5: f32[] = constant(value=2.0, dtype=f32, device=cpu)
            %6: b8[] = gt(%4, %5)
            %7: (f32[4],) = cond(%6, %1, true=@0, false=@1, exist=())
                @0 = graph true(%0: f32[4] "x"):
                    %1: f32[] = constant(value=0.5, dtype=f32, device=cpu)
                    %2: f32[4] = mul(%0, %1)
                    return %2
                @1 = graph false(%0: f32[4] "x"):
                    %1: f32[] = constant(value=3.0, dtype=f32, device=cpu)
                    %2: f32[4] = mul(%0, %1)
                    return %2
            %8: f32[4] = item(%7, index=0)
            return %3, %8
    %3: f32[4] = item(%2, index=1)
    return %3"""

torch.manual_seed(0)
CALLS = (
    (COND, [torch.tensor(True), torch.randn(3, 8), torch.randn(8)]),
    (COND, [torch.tensor(False), torch.randn(5, 8), torch.randn(8)]),
    (WHILE, [torch.tensor(0), torch.randn(3, 6), torch.randn(6)]),
    (WHILE, [torch.tensor(9), torch.randn(3, 6), torch.randn(6)]),
    (SCAN, [torch.randn(8), torch.randn(5, 8), torch.randn(8)]),
    (BRANCH_IN_LOOP, [torch.tensor(0), torch.rand(4) + 0.1]),
)


@pytest.mark.parametrize("call", range(len(CALLS)))
def test_every_stage_computes_what_the_graph_does(call: int) -> None:
    text, inputs = CALLS[call]
    graph = parse_graph(text)
    verify(graph, "test")
    assert graph_text(graph) == text
    assert wrong_stage(graph, inputs, {}, {}) is None


@pytest.mark.parametrize("text", [COND, WHILE, SCAN], ids=["cond", "while", "scan"])
def test_plan(text: str, golden: Callable[..., None]) -> None:
    plan = graph_plan(parse_graph(text), {})
    assert decode_plan(encode_plan(plan)) == plan
    golden(re.sub("k_[0-9a-f]{16}", "kernel", plan_text(plan)))


@pytest.mark.parametrize(
    ("text", "old", "new", "says"),
    [
        (COND, "cond(%0, %3, %2,", "cond(%0, %2, %3,", "graph `true` takes"),
        (COND, "%3: f32[s0] = amax(%2, axes=(1,))", "%3: f32[] = amax(%2, axes=(0, 1))", "graph `false` returns"),
        (WHILE, "%5: f32[3, s0] = mul(%1, %2)", "%5: b8[3, s0] = lt(%1, %2)", "its shape rule gives"),
        (SCAN, "carried=1, rows=1", "carried=1, rows=2", "graph `body` takes"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, old: str, new: str, says: str) -> None:
    graph = parse_graph(text.replace(old, new))
    with pytest.raises(InvalidGraph, match=says.replace("(", r"\(")):
        verify(graph, "test")
