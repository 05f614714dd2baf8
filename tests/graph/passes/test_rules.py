"""Every rule on random inputs with special values: pattern and replacement give the same bits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.node import Node
from kiln.graph.ir.parse import parse_graph
from kiln.graph.ir.size_oracle import GuardFreeOracle
from kiln.graph.ir.verify import verify
from kiln.graph.passes.arithmetic import ARITHMETIC
from kiln.graph.passes.manager import PassContext
from kiln.graph.passes.patterns import Apply, AttrVar, ConstVar, Literal, Pattern, RewriteRule, RuleSet, Var
from kiln.graph.passes.simplify import Simplify
from kiln.graph.passes.view_rules import VIEWS
from kiln.tensor.spec import TensorSpec, contiguous_strides

CONTEXT = PassContext(GuardFreeOracle())
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool)
NUMBERS: tuple[Any, ...] = (2.0, -0.25, 3.0, 7)
SPECIAL = (0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.0, -1.0, 0.5)
SIZES = (3, 8)


def names_in(pattern: Any, kind: type) -> set[str]:
    if isinstance(pattern, kind):
        return {pattern.name}  # type: ignore[attr-defined]
    if isinstance(pattern, Apply):
        parts = [*pattern.inputs, *[value for _, value in pattern.attrs]]
        return set().union(*[names_in(part, kind) for part in parts]) if parts else set()
    return set()


def instance(rule: RewriteRule, dtypes: dict[str, torch.dtype], number: Any, attrs: dict[str, torch.dtype]) -> Graph:
    """The pattern of a rule as a graph; its numbers have the dtype of the values beside them."""
    builder = Builder(GuardFreeOracle())
    inputs = {
        name: builder.input(name, TensorSpec(dtype, SIZES, contiguous_strides(SIZES)))
        for name, dtype in sorted(dtypes.items())
    }

    def make(pattern: Pattern, beside: torch.dtype) -> Node:
        match pattern:
            case Var(name):
                return inputs[name]
            case ConstVar():
                return builder.constant(number, beside, torch.device("cpu"))
            case Literal(value):
                kind = torch.bool if isinstance(value, bool) else beside
                return builder.constant(value, kind, torch.device("cpu"))
            case Apply(name, parts, values):
                below = [make(part, beside) for part in parts]
                return builder.node(name, *below, **{key: attrs[item.name] for key, item in values})
        raise AssertionError(pattern)

    beside = dtypes.get("x", torch.float32)
    return builder.finish([make(rule.pattern, beside)])


def instances(rule: RewriteRule) -> Iterator[Graph]:
    names = sorted(names_in(rule.pattern, Var))
    attr_names = sorted(names_in(rule.pattern, AttrVar))
    for dtype, number in itertools.product(DTYPES, NUMBERS):
        for bools in itertools.product((False, True), repeat=len(names)):
            dtypes = {name: torch.bool if flag else dtype for name, flag in zip(names, bools, strict=True)}
            for kinds in itertools.product(DTYPES, repeat=len(attr_names)):
                try:
                    graph = instance(rule, dtypes, number, dict(zip(attr_names, kinds, strict=True)))
                    verify(graph, "test")
                except Exception:
                    continue
                yield graph


def values_for(node: Node) -> torch.Tensor:
    spec = node.tensor
    if spec.dtype.is_floating_point:
        x = torch.randn(SIZES) * 3
        x.view(-1)[: len(SPECIAL)] = torch.tensor(SPECIAL)
        return x.view(-1)[torch.randperm(x.numel())].view(SIZES).to(spec.dtype)
    return torch.randint(-9, 9, SIZES).to(spec.dtype)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype.is_floating_point:
        nan = left.isnan()
        same_sign = torch.equal(left.signbit() & ~nan, right.signbit() & ~nan)
        return torch.equal(nan, right.isnan()) and torch.equal(left.nan_to_num(), right.nan_to_num()) and same_sign
    return torch.equal(left, right)


def runs(graph: Graph, inputs: list[torch.Tensor]) -> list[torch.Tensor] | None:
    try:
        return list(interpret(graph, inputs).outputs)
    except RuntimeError:  # eager has no kernel for this dtype
        return None


@pytest.mark.parametrize("rule", list(ARITHMETIC), ids=lambda rule: rule.name)
def test_arithmetic(rule: RewriteRule) -> None:
    alone = Simplify((RuleSet(rule),))
    applied = 0
    for graph in instances(rule):
        changed, count = alone.run(graph, CONTEXT)
        if not count:
            continue
        inputs = [values_for(node) for node in graph.inputs]
        expected = runs(graph, inputs)
        if expected is None:
            continue
        applied += 1
        verify(changed, rule.name)
        (actual,) = interpret(changed, inputs).outputs
        assert same_bits(actual, expected[0]), (rule.name, [str(node.spec) for node in graph.inputs])
    assert applied, "the rule never applied"


EXAMPLES = {
    "permute_permute": """
        %1: f32[8, 4 | 1, 8] = permute(%0, dims=(1, 0))
        %2: f32[4, 8] = permute(%1, dims=(1, 0))
    """,
    "permute_nothing": """
        %2: f32[4, 8] = permute(%0, dims=(0, 1))
    """,
    "view_view": """
        %1: f32[32] = view(%0, sizes=(32,))
        %2: f32[2, 16] = view(%1, sizes=(2, 16))
    """,
    "view_unsqueeze": """
        %1: f32[4, 1, 8] = unsqueeze(%0, axis=1)
        %2: f32[32] = view(%1, sizes=(32,))
    """,
    "view_squeeze": """
        %1: f32[4, 1, 8] = unsqueeze(%0, axis=1)
        %3: f32[4, 8] = squeeze(%1, axes=(1,))
        %2: f32[32] = view(%3, sizes=(32,))
    """,
    "view_reshape": """
        %3: f32[8, 4 | 1, 8] = permute(%0, dims=(1, 0))
        %1: f32[32] = reshape(%3, sizes=(32,))
        %2: f32[2, 16] = view(%1, sizes=(2, 16))
    """,
    "view_nothing": """
        %2: f32[4, 8] = view(%0, sizes=(4, 8))
    """,
    "expand_expand": """
        %3: f32[4, 1 | 8, 1] = slice(%0, axis=1, start=0, stop=1, step=1)
        %1: f32[4, 3 | 8, 0] = expand(%3, sizes=(4, 3))
        %2: f32[2, 4, 3 | 0, 8, 0] = expand(%1, sizes=(2, 4, 3))
    """,
    "expand_nothing": """
        %2: f32[4, 8] = expand(%0, sizes=(4, 8))
    """,
    "squeeze_nothing": """
        %2: f32[4, 8] = squeeze(%0, axes=())
    """,
    "squeeze_unsqueeze": """
        %1: f32[4, 1, 8] = unsqueeze(%0, axis=1)
        %2: f32[4, 8] = squeeze(%1, axes=(1,))
    """,
    "unsqueeze_squeeze": """
        %1: f32[4, 1, 8] = unsqueeze(%0, axis=1)
        %3: f32[4, 8] = squeeze(%1, axes=(1,))
        %2: f32[4, 1, 8] = unsqueeze(%3, axis=1)
    """,
    "slice_whole": """
        %2: f32[4, 8] = slice(%0, axis=1, start=0, stop=8, step=1)
    """,
    "reshape_reshape": """
        %1: f32[32] = reshape(%0, sizes=(32,))
        %2: f32[2, 16] = reshape(%1, sizes=(2, 16))
    """,
    "reshape_view": """
        %1: f32[32] = view(%0, sizes=(32,))
        %2: f32[2, 16] = reshape(%1, sizes=(2, 16))
    """,
    "reshape_packed": """
        %2: f32[2, 16] = reshape(%0, sizes=(2, 16))
    """,
    "clone_nothing": """
        %2: f32[4, 8] = clone(%0, strides=None)
    """,
    "clone_clone": """
        %1: f32[4, 8 | 1, 4] = clone(%0, strides=(1, 4))
        %2: f32[4, 8] = clone(%1, strides=(8, 1))
    """,
    "reshape_clone": """
        %1: f32[4, 8 | 1, 4] = clone(%0, strides=(1, 4))
        %2: f32[32] = reshape(%1, sizes=(32,))
    """,
    "cat_one": """
        %2: f32[4, 8] = cat(%0, axis=1)
    """,
    "flip_nothing": """
        %2: f32[4, 8] = flip(%0, axes=())
    """,
    "slice_of_scatter": """
        %3: f32[4, 2] = neg(%1)
        %4: f32[4, 8] = slice_scatter(%0, %3, axis=1, start=2, stop=6, step=2)
        %2: f32[4, 2 | 8, 2 at 2] = slice(%4, axis=1, start=2, stop=6, step=2)
    """,
    "select_of_scatter": """
        %3: f32[4] = select(%0, axis=1, index=3)
    """,
    "scatter_own_slice": """
        %3: f32[4, 2 | 8, 2 at 2] = slice(%0, axis=1, start=2, stop=6, step=2)
        %2: f32[4, 8] = slice_scatter(%0, %3, axis=1, start=2, stop=6, step=2)
    """,
    "scatter_own_select": """
        %3: f32[4 | 8 at 3] = select(%0, axis=1, index=3)
        %2: f32[4, 8] = select_scatter(%0, %3, axis=1, index=3)
    """,
    "slice_scatter_twice": """
        %3: f32[4, 8] = slice_scatter(%0, %1, axis=1, start=2, stop=6, step=2)
        %4: f32[4, 2] = neg(%1)
        %2: f32[4, 8] = slice_scatter(%3, %4, axis=1, start=2, stop=6, step=2)
    """,
    "select_scatter_twice": """
        %5: f32[4 | 2] = select(%1, axis=1, index=0)
        %3: f32[4, 8] = select_scatter(%0, %5, axis=1, index=3)
        %4: f32[4 | 2 at 1] = select(%1, axis=1, index=1)
        %2: f32[4, 8] = select_scatter(%3, %4, axis=1, index=3)
    """,
}
"""A pattern of each rule that applies; %0 is f32[4, 8], %1 may be f32[4, 2]."""

LAYOUTS = {
    "slice_of_scatter": """
        %3: f32[4, 2 | 8, 2 at 2] = slice(%0, axis=1, start=2, stop=6, step=2)
        %4: f32[4, 8] = slice_scatter(%1, %3, axis=1, start=2, stop=6, step=2)
        %2: f32[4, 2 | 8, 2 at 2] = slice(%4, axis=1, start=2, stop=6, step=2)
    """,
    "select_of_scatter": """
        %3: f32[4 | 8 at 3] = select(%0, axis=1, index=3)
        %4: f32[4, 8] = select_scatter(%1, %3, axis=1, index=3)
        %2: f32[4 | 8 at 3] = select(%4, axis=1, index=3)
    """,
}
"""The rule applies only if the replacement has the same layout; %1 is f32[4, 8]."""


def example(name: str) -> Graph:
    wide = name in LAYOUTS
    body = LAYOUTS.get(name) or EXAMPLES[name]
    second = ', %1: f32[4, 8] "y"' if wide else ', %1: f32[4, 2] "y"' if "%1)" in body or "%1," in body else ""
    if "%1: " in body:
        second = ""
    return parse_graph(f'graph(%0: f32[4, 8] "x"{second}):{body}return %2')


def test_every_view_rule_has_an_example() -> None:
    assert {rule.name for rule in VIEWS} == set(EXAMPLES)


@pytest.mark.parametrize("rule", list(VIEWS), ids=lambda rule: rule.name)
def test_views(rule: RewriteRule) -> None:
    graph = example(rule.name)
    verify(graph, "test")
    changed, count = Simplify((RuleSet(rule),)).run(graph, CONTEXT)
    assert count
    verify(changed, rule.name)
    inputs = [torch.randn(node.tensor.sizes) for node in graph.inputs]
    actual, expected = interpret(changed, inputs).outputs[0], interpret(graph, inputs).outputs[0]
    assert torch.equal(actual, expected)
    assert actual.stride() == expected.stride()


def test_a_replacement_that_lies_elsewhere_does_not_apply() -> None:
    graph = parse_graph(
        'graph(%0: f32[4, 8] "x", %1: f32[4, 2] "y"):\n'
        + EXAMPLES["slice_of_scatter"]
        + "\n%5: f32[2, 4 | 2, 8 at 2] = permute(%2, dims=(1, 0))\nreturn %5"
    )
    assert Simplify((VIEWS,)).run(graph, CONTEXT)[1] == 0
