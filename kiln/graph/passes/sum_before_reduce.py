"""Adds gradients before they are reduced, where a backward adds what it has reduced.

    %2 = opaque all_reduce(%0, 'sum', '0')         %2 = add(%0, %1)
    %3 = wait(%2, %0)                         =>   %3 = opaque all_reduce(%2, 'sum', '0')
    %4 = opaque all_reduce(%1, 'sum', '0')         %4 = wait(%3, %2)
    %5 = wait(%4, %1)
    %6 = add(%3, %5)

Tensor parallel layers with a common input each reduce its gradient: query, key and value, or gate and up.
Gradients only: a backward adds what the engine accumulates, on all ranks alike. A forward may add two results on one
rank and not on another, which would then wait for a call that the first does not make.
Needs: graphs that are not differentiated any more.
"""

from __future__ import annotations

from typing import final

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import Users, has_effect, rebuilt, users_of, with_inputs
from kiln.graph.passes.bucket_all_reduces import ALL_REDUCE
from kiln.graph.passes.manager import PassContext
from kiln.plan.overloads import is_collective
from kiln.support.records import dataclass


@final
@dataclass(frozen=True)
class SumBeforeReduce:
    name: str = "sum-before-reduce"

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        changes = 0
        while (total := next_total(graph)) is not None:
            graph = with_sum_before(graph, total)
            changes += 1
        return graph, changes


def next_total(graph: Graph) -> Node | None:
    """The first sum of two gradients, each reduced for it alone."""
    if not any(is_gradient_sum(node) for node in graph.nodes):
        return None
    users, kept = users_of(graph), set(graph.roots())
    for node in graph.nodes:
        parts = node.inputs
        if node.op.name != "add" or parts[0] is parts[1] or not all(is_reduced(part) for part in parts):
            continue
        alone = all(users[part] == [node] and part not in kept for part in parts)
        if alone and alike(node, users) and joins_calls_only(graph, node):
            return node
    return None


def is_gradient_sum(node: Node) -> bool:
    call = node.op.name == "opaque" and node.attrs["target"] == ALL_REDUCE and node.attrs["args"][1] == "sum"
    return call and node.origin is not None and node.origin.backward


def is_reduced(node: Node) -> bool:
    return node.op.name == "wait" and is_gradient_sum(node.inputs[0])


def alike(total: Node, users: Users) -> bool:
    """Whether the two all-reduces are for this sum only, in the same group and with its layout."""
    first, second = [wait.inputs[0] for wait in total.inputs]
    specs = [value.spec for call in (first, second) for value in (call, call.inputs[0])]
    same = first.attrs["args"] == second.attrs["args"] and all(spec == total.spec for spec in specs)
    return same and len(users[first]) == len(users[second]) == 1


def joins_calls_only(graph: Graph, total: Node) -> bool:
    """Whether nothing but collectives and waits is done between the first of the two calls and their sum."""
    calls = [part.inputs[0] for part in total.inputs]
    begin = min(graph.nodes.index(call) for call in calls)
    between = graph.nodes[begin : graph.nodes.index(total)]
    return all(
        node.op.name == "wait" or (node.op.name == "opaque" and is_collective(node.attrs["target"]))
        for node in between
        if has_effect(node)
    )


def with_sum_before(graph: Graph, total: Node) -> Graph:
    waits = total.inputs
    first, second = [wait.inputs[0] for wait in waits]
    summed = Node(total.op, (first.inputs[0], second.inputs[0]), total.attrs, total.spec, total.origin)
    call = Node(first.op, (summed,), first.attrs, first.spec, second.origin)
    wait = Node(waits[0].op, (call, summed), waits[0].attrs, waits[0].spec, waits[1].origin)
    dropped, replaced = {first, second, *waits}, {total: wait}
    nodes = list[Node]()
    for node in graph.nodes:
        if node is total:
            nodes += [summed, call, wait]
        elif node not in dropped:
            changed = with_inputs(node, tuple([replaced.get(value, value) for value in node.inputs]))
            if changed is not node:
                replaced[node] = changed
            nodes.append(changed)
    return rebuilt(graph, nodes, replaced)
