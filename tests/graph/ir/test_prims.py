"""Every primitive op: meaning, spec, text and fx view agree."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kiln.graph.ir.aten_rules import ATEN_RULES
from kiln.graph.ir.fx_view import fx_view
from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.parse import parse_graph
from kiln.graph.ir.text import graph_text
from kiln.graph.ir.verify import verify
from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Kind
from tests.graph.ir.samples import SAMPLES, sample_graph


def test_every_op_has_a_rule_or_is_walked() -> None:
    assert ATEN_RULES.gaps() == []
    nested = {"cond", "while_loop", "scan", "region"}
    walked = {"input", "constant_tensor", "item", "aten", "opaque", "scalar_tensor", "wait", *nested}
    assert {op.name for op in PRIMS if ATEN_RULES.get(op.name) is None} == walked


def test_rows(golden: Callable[..., None]) -> None:
    """What the stages read from a row: a cost or a flag that changes shows here."""
    lines = []
    for op in PRIMS:
        flags = [name for name in ("commutative", "floating", "pure") if getattr(op, name)]
        lines.append(
            f"{op.name}: {op.kind.name} {op.inputs}({', '.join(op.attrs)}) -> {op.result}, flops {op.flops} {flags}"
        )
    golden("\n".join(lines))


def test_every_op_has_a_sample() -> None:
    open_kinds = {Kind.RANDOM, Kind.DRAW, Kind.LIBRARY, Kind.STRUCTURE, Kind.EFFECT, Kind.NESTED}
    names = {op.name for op in PRIMS if op.kind not in open_kinds} - {"scalar_tensor", "empty"}
    assert names == set(SAMPLES)


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_op(name: str) -> None:
    graph, inputs = sample_graph(name)
    verify(graph, "test")
    (result,) = interpret(graph, inputs).outputs
    expected = SAMPLES[name].expected(*inputs)
    if SAMPLES[name].bits:
        assert torch.equal(result, expected)
    else:
        torch.testing.assert_close(result.double(), expected.double(), rtol=1e-5, atol=1e-6)
    again = parse_graph(graph_text(graph))
    assert graph_text(again) == graph_text(graph)
    assert torch.equal(interpret(again, inputs).outputs[0], result)
    assert torch.equal(fx_view(graph)(*inputs)[0], result)
