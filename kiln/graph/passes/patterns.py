"""Patterns and rules as data.

    x, k = var("x"), const("k")
    RewriteRule("neg_neg", -(-x), x)
    RewriteRule("permute_permute", op.permute(op.permute(x, dims=attr("p")), dims=attr("q")),
                            op.permute(x, dims=computed(compose, "p", "q")))

In a pattern `var` matches any value (twice the same name: the same node), a number every uniform value that is
that number, `const` any uniform value, `attr` any attribute. A commutative op matches both ways. A replacement
takes the place only if its spec is that of the pattern: sizes, dtype, device and strides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, final

from kiln.graph.ir.build import Builder
from kiln.graph.ir.node import Node
from kiln.graph.ir.size_oracle import UnknownRelation
from kiln.graph.passes.uniform import Number, Uniform, same_number
from kiln.graph.prims.errors import DeviceMismatch, ImpossibleView, ShapeMismatch
from kiln.graph.prims.rows import PRIMS
from kiln.tensor.spec import TensorSpec


class Pattern:
    """Base of what can be matched and built; Python's operators make patterns of primitive ops."""

    __slots__ = ()

    def __add__(self, other: PatternLike) -> Apply:
        return apply("add", self, other)

    def __sub__(self, other: PatternLike) -> Apply:
        return apply("sub", self, other)

    def __mul__(self, other: PatternLike) -> Apply:
        return apply("mul", self, other)

    def __truediv__(self, other: PatternLike) -> Apply:
        return apply("div", self, other)

    def __neg__(self) -> Apply:
        return apply("neg", self)

    def __invert__(self) -> Apply:
        return apply("bitwise_not", self)


PatternLike = Pattern | int | float | bool


@final
@dataclass(frozen=True, slots=True)
class Var(Pattern):
    """Any value."""

    name: str


@final
@dataclass(frozen=True, slots=True)
class ConstVar(Pattern):
    """Any uniform value; in a replacement the same number."""

    name: str


@final
@dataclass(frozen=True, slots=True)
class Literal(Pattern):
    """One number."""

    value: Number


@final
@dataclass(frozen=True, slots=True)
class Attr:
    """Any attribute."""

    name: str


@final
@dataclass(frozen=True, slots=True)
class Computed(Pattern):
    """In a replacement: an attribute, or a number, from what was matched. None: the rule does not apply."""

    function: Callable[..., Any]
    names: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class Apply(Pattern):
    """A primitive op; attributes are values, `Attr` or `Computed`. No attributes in a pattern: any."""

    name: str
    inputs: tuple[Pattern, ...]
    attrs: tuple[tuple[str, Any], ...] = ()


def var(name: str) -> Var:
    return Var(name)


def const(name: str) -> ConstVar:
    return ConstVar(name)


def attr(name: str) -> Attr:
    return Attr(name)


def computed(function: Callable[..., Any], *names: str) -> Computed:
    return Computed(function, names)


def apply(name: str, *inputs: PatternLike, **attrs: Any) -> Apply:
    wrapped = tuple([one if isinstance(one, Pattern) else Literal(one) for one in inputs])
    return Apply(name, wrapped, tuple(attrs.items()))


@final
class _Ops:
    """`op.where(c, x, y)` is the pattern of that primitive op."""

    def __getattr__(self, name: str) -> Callable[..., Apply]:
        row = PRIMS[name.removesuffix("_")].name
        return lambda *inputs, **attrs: apply(row, *inputs, **attrs)


op = _Ops()

Condition = Callable[["Match"], bool]


@final
@dataclass(frozen=True, slots=True)
class RewriteRule:
    """`replacement` for `pattern` where `only_if` holds of the match."""

    name: str
    pattern: Apply
    replacement: Pattern
    only_if: Condition | None = None
    needs: frozenset[str] = field(init=False)
    """What must be among the inputs of a node: ops by name, "number" for a uniform value."""

    def __post_init__(self) -> None:
        parts = self.pattern.inputs
        needs = {one.name for one in parts if isinstance(one, Apply)}
        if any(isinstance(one, Literal | ConstVar) for one in parts):
            needs.add("number")
        object.__setattr__(self, "needs", frozenset(needs))


@final
class RuleSet:
    """Rules by the op at the root of their pattern."""

    def __init__(self, *rules: RewriteRule) -> None:
        self.rules = rules
        self.by_root: dict[str, list[RewriteRule]] = {}
        names = [rule.name for rule in rules]
        if len(set(names)) != len(names):
            raise ValueError("two rules have one name")
        for rule in rules:
            self.by_root.setdefault(rule.pattern.name, []).append(rule)

    def __iter__(self) -> Iterator[RewriteRule]:
        return iter(self.rules)


@final
@dataclass(slots=True)
class Match:
    """A pattern on a node: nodes of variables, numbers of constants, values of attributes."""

    root: Node
    uniform: Uniform
    nodes: dict[str, Node] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    def bound(self, name: str) -> Any:
        """The number or attribute called `name`, or the spec of that variable."""
        return self.values[name] if name in self.values else self.nodes[name].spec


def match(rule: RewriteRule, node: Node, uniform: Uniform) -> Match | None:
    """How `rule` fits `node`, if it does."""
    for inputs in _orders(node):
        found = Match(node, uniform)
        if _match_apply(rule.pattern, node, inputs, found) and (rule.only_if is None or rule.only_if(found)):
            return found
    return None


def _orders(node: Node) -> Iterator[tuple[Node, ...]]:
    yield node.inputs
    if node.op.commutative and node.inputs[0] is not node.inputs[1]:
        yield node.inputs[::-1]


def _match_apply(pattern: Apply, node: Node, inputs: tuple[Node, ...], found: Match) -> bool:
    return (
        len(inputs) == len(pattern.inputs)
        and all(_match_attr(expected, node.attrs.get(key), found) for key, expected in pattern.attrs)
        and all(_match(part, one, found) for part, one in zip(pattern.inputs, inputs, strict=True))
    )


def _match(pattern: Pattern, node: Node, found: Match) -> bool:
    match pattern:
        case Var(name):
            return found.nodes.setdefault(name, node) is node
        case Literal(value):
            number = found.uniform.value(node)
            return number is not None and same_number(number, value)
        case ConstVar(name):
            number = found.uniform.value(node)
            known = found.values.setdefault(name, number)
            return number is not None and known is not None and same_number(known, number)
        case Apply(name, _, _):
            if node.op.name != name:
                return False
            for inputs in _orders(node):
                nodes, values = dict(found.nodes), dict(found.values)
                if _match_apply(pattern, node, inputs, found):
                    return True
                found.nodes, found.values = nodes, values
    return False


def _match_attr(expected: Any, actual: Any, found: Match) -> bool:
    if isinstance(expected, Attr):
        known = found.values.setdefault(expected.name, actual)
        return bool(known == actual)
    return bool(expected == actual)


NOT_APPLICABLE = (ShapeMismatch, DeviceMismatch, ImpossibleView, UnknownRelation)


def build(rule: RewriteRule, found: Match, builder: Builder) -> Node | None:
    """The replacement, or None where it would differ in sizes, dtype, device or strides.

    On None, what was begun stays in the builder as dead code.
    """
    try:
        new = _build(rule.replacement, found, builder)
    except NOT_APPLICABLE:
        return None
    return new if new is not None and same_place(new.spec, found.root.spec) else None


def _build(pattern: Pattern, found: Match, builder: Builder) -> Node | None:
    match pattern:
        case Var(name):
            return found.nodes[name]
        case Literal() | ConstVar() | Computed():
            number = _number(pattern, found)
            spec = found.root.tensor
            return None if number is None else builder.constant(number, spec.dtype, spec.device)
        case Apply(name, inputs, attrs):
            nodes = [_build(one, found, builder) for one in inputs]
            values = {key: _attr_value(value, found) for key, value in attrs}
            if any(one is None for one in nodes) or any(value is NOTHING for value in values.values()):
                return None
            return builder.node(name, *[one for one in nodes if one is not None], **values)
    raise TypeError(f"not a pattern: {pattern!r}")


def _number(pattern: Pattern, found: Match) -> Any:
    match pattern:
        case Literal(value):
            return value
        case ConstVar(name):
            return found.values[name]
        case Computed(function, names):
            return function(*[found.bound(name) for name in names])
    return None


NOTHING: Any = object()


def _attr_value(value: Any, found: Match) -> Any:
    if isinstance(value, Attr):
        return found.values[value.name]
    if isinstance(value, Computed):
        result = value.function(*[found.bound(name) for name in value.names])
        return NOTHING if result is None else result
    return value


def same_place(new: Any, old: Any) -> bool:
    """May a value of spec `new` stand where `old` was? Strides of size-1 dimensions do not count."""
    if new is old or new == old:
        return True
    return (
        isinstance(new, TensorSpec)
        and isinstance(old, TensorSpec)
        and (new.dtype, new.sizes, new.offset, new.device) == (old.dtype, old.sizes, old.offset, old.device)
        and all(a == b or size == 1 for a, b, size in zip(new.strides, old.strides, new.sizes, strict=True))
    )
