"""Whether a piece of a backward is linear in the gradients that it gets.

    %5 = mul(%g, %x)       linear               %5 = mul(%g, %g)       not linear
    %6 = sum(%5)                                %6 = add(%g, %x)       not linear either: its value for zero is not zero

Torch's own backwards are; hooks and the backward of an `autograd.Function` may be anything. Where gradients reach such
a piece on several ways, it matters whether it gets their sum. What is not known to be linear counts as not linear.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from kiln.graph.ir.flops import target_of
from kiln.graph.ir.node import Arg, Node
from kiln.graph.prims.table import Kind
from kiln.graph.trace import FakeTensor, Recorder

IN_ALL = frozenset(
    ("neg", "add", "sub", "sum", "cumsum", "clone", "reshape", "cat", "flip", "item", "materialised", "wait",
     "select_scatter", "slice_scatter", "diagonal_scatter", "as_strided_scatter")
)  # fmt: skip
"""Linear in all inputs together: those that do not depend on the gradients have to be zero."""
IN_FIRST = frozenset(("div", "gather", "index", "full"))
"""Linear in the first input, whatever the others are."""
PRODUCTS = frozenset(("mm", "bmm", "convolution"))
"""Of the library, linear in each operand; so is every operator of the library that ends in "backward" in its first."""


def is_linear(nodes: Iterable[Node], gradients: Collection[Node], results: Collection[Node]) -> bool:
    """Whether `results`, computed by `nodes` (in order), are linear in `gradients`."""
    linear, other = set(gradients), set[Node]()
    for node in nodes:
        if not other.isdisjoint(node.inputs):
            other.add(node)
        elif not linear.isdisjoint(node.inputs):
            (linear if keeps_linear(node, linear) else other).add(node)
    return all(result in linear or is_zero(result) for result in results)


def keeps_linear(node: Node, linear: Collection[Node]) -> bool:
    """Of a node with an input in `linear`, and none that depends on the gradients otherwise."""
    name, inputs = node.op.name, node.inputs
    depends = [value in linear for value in inputs]
    if node.op.kind is Kind.VIEW:
        return name != "view_dtype"
    if name in IN_ALL:
        return all(map(zero_or(linear), inputs))
    if name in IN_FIRST:
        return depends[0] and not any(depends[1:])
    if name == "mul":
        return sum(depends) == 1
    if name == "fma":
        return sum(depends[:2]) == 1 and zero_or(linear)(inputs[2])
    if name == "where":
        return not depends[0] and all(map(zero_or(linear), inputs[1:]))
    if name == "convert":
        return node.tensor.dtype.is_floating_point or node.tensor.dtype.is_complex
    if name == "pad":
        return all(map(zero_or(linear), inputs))
    if name == "scatter":
        return not depends[1] and node.attrs["reduce"] in (None, "sum") and all(map(zero_or(linear), inputs[::2]))
    if name == "index_put":
        return not any(depends[1:-1]) and all(map(zero_or(linear), (inputs[0], inputs[-1])))
    if name == "aten":
        target = target_of(node).partition(".")[0]
        places = [arg.index for arg in node.attrs["args"] if isinstance(arg, Arg)]  # an input may have several
        if set(places) != set(range(len(inputs))) or sum([depends[index] for index in places]) != 1:
            return False
        return target in PRODUCTS or (depends[places[0]] and target.endswith("backward"))
    return False


def zero_or(linear: Collection[Node]) -> Callable[[Node], bool]:
    return lambda value: value in linear or is_zero(value)


def is_zero(node: Node) -> bool:
    """Whether a value consists of zeros, as far as its nodes say."""
    while node.op.name != "constant":
        keeps = node.op.kind is Kind.VIEW or node.op.name in ("full", "clone", "convert", "reshape")
        if len(node.inputs) != 1 or not keeps:
            return False
        (node,) = node.inputs
    return bool(node.attrs["value"] == 0)


def note_nonlinear(
    recorder: Recorder, owner: object, first: int, gradients: Sequence[object], results: Sequence[object]
) -> None:
    """Add `owner`, whose Python has computed `results` of `gradients` by the nodes from number `first` on, to those
    whose backward is not linear."""
    given, made = [
        [recorder.node_of(fake) for fake in fakes if type(fake) is FakeTensor and not fake.is_outer]
        for fakes in (gradients, results)
    ]
    if recorder.is_differentiating and not is_linear(recorder.nodes[first:], given, made):
        recorder.nonlinear.add(owner)
