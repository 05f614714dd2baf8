"""Applies rewrite rules to every node until none matches.

    %2 = neg(%0); %3 = neg(%2); %4 = mul(%3, 1.0)      =>      %0

Needs: a functional graph.  Leaves: nodes without users, and outputs that may be inputs, for `dead-code` and
`separate-outputs`.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import final

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import rewrite
from kiln.graph.passes.manager import PassContext
from kiln.graph.passes.patterns import RewriteRule, RuleSet, build, match
from kiln.graph.passes.separate_outputs import shared_views
from kiln.graph.passes.uniform import Uniform
from kiln.support.records import dataclass

MOST_STEPS = 16
"""Rules applied to a node at most, in case rules form a cycle."""


@final
@dataclass(frozen=True)
class Simplify:
    """`rule_sets`: in the order in which their rules are tried."""

    rule_sets: tuple[RuleSet, ...]
    name: str = "simplify"
    by_root: dict[str, list[RewriteRule]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        for rules in self.rule_sets:
            for root, found in rules.by_root.items():
                self.by_root.setdefault(root, []).extend(found)

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        if context.without:
            kept = (RuleSet(*[rule for rule in rules if rule.name not in context.without]) for rules in self.rule_sets)
            return replace(self, rule_sets=tuple(kept)).rewritten(graph, context)
        return self.rewritten(graph, context)

    def rewritten(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        uniform = Uniform()
        kept = shared_views(graph)
        only = set(graph.nodes) - kept if kept else None
        return rewrite(graph, lambda builder, node: self.simplified(builder, node, uniform), context.oracle, only)

    def simplified(self, builder: Builder, node: Node, uniform: Uniform) -> Node | None:
        """The replacement of `node`, or None."""
        current = node
        for _ in range(MOST_STEPS):
            new = self.step(builder, current, uniform)
            if new is None:
                break
            current = new
        return None if current is node else current

    def step(self, builder: Builder, node: Node, uniform: Uniform) -> Node | None:
        rules = self.by_root.get(node.op.name)
        if rules is None:
            return None
        present = {operand.op.name for operand in node.inputs}
        if any(uniform.value(operand) is not None for operand in node.inputs):
            present.add("number")
        for rule in rules:
            if rule.needs <= present:
                found = match(rule, node, uniform)
                if found is not None and (new := build(rule, found, builder)) is not None:
                    return new
        return None
