"""Patterns and rewrite rules as data.

    x, k = var("x"), const("k")
    RewriteRule("neg_neg", -(-x), x)
    RewriteRule("permute_permute", op.permute(op.permute(x, dims=attr("p")), dims=attr("q")),
                                   op.permute(x, dims=computed(compose, "p", "q")))

In a pattern, `var` matches any value (for equal names, the same node), a number every uniform value equal to it,
`const` any uniform value, `attr` any attribute. Commutative ops match in both orders. A replacement is only made if it
has the spec of the pattern: sizes, dtype, device and strides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Union, final

from kiln.graph.ir.build import Builder
from kiln.graph.ir.node import Attr, Node
from kiln.graph.ir.size_oracle import UnknownRelation
from kiln.graph.passes.uniform import Number, Uniform, same_number
from kiln.graph.prims.errors import DeviceMismatch, ImpossibleView, ShapeMismatch
from kiln.graph.prims.meta import same_strides
from kiln.graph.prims.rows import PRIMS
from kiln.support.records import dataclass
from kiln.tensor.spec import Spec, TensorSpec


class Pattern:
    """Base of patterns; Python's operators make patterns of primitive ops."""

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
AttrPattern = Union["AttrVar", "Computed", Attr]


@final
@dataclass(frozen=True, slots=True)
class Var(Pattern):
    """Matches any value."""

    name: str


@final
@dataclass(frozen=True, slots=True)
class ConstVar(Pattern):
    """Matches any uniform value; in a replacement, its number."""

    name: str


@final
@dataclass(frozen=True, slots=True)
class Literal(Pattern):
    """A number."""

    value: Number


@final
@dataclass(frozen=True, slots=True)
class AttrVar:
    """Matches any attribute."""

    name: str


@final
@dataclass(frozen=True, slots=True)
class Computed(Pattern):
    """In a replacement: an attribute or number computed from the match. None: the rule does not apply."""

    function: Callable[..., Attr]
    names: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class Apply(Pattern):
    """A primitive op; attributes are values, `AttrVar` or `Computed`. Attributes left out match anything."""

    name: str
    inputs: tuple[Pattern, ...]
    attrs: tuple[tuple[str, AttrPattern], ...] = ()


var, const, attr = Var, ConstVar, AttrVar


def computed(function: Callable[..., Attr], *names: str) -> Computed:
    return Computed(function, names)


def apply(name: str, *inputs: PatternLike, **attrs: AttrPattern) -> Apply:
    wrapped = tuple([part if isinstance(part, Pattern) else Literal(part) for part in inputs])
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
    """`replacement` for `pattern` if `only_if` holds for the match."""

    name: str
    pattern: Apply
    replacement: Pattern
    only_if: Condition | None = None
    needs: frozenset[str] = field(init=False)
    """Required among the inputs of a node: names of ops, or "number" for a uniform value."""

    def __post_init__(self) -> None:
        parts = self.pattern.inputs
        needs = {part.name for part in parts if isinstance(part, Apply)}
        if any(isinstance(part, Literal | ConstVar) for part in parts):
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
    """A match of a pattern: nodes of variables, numbers of constants, values of attributes."""

    root: Node
    uniform: Uniform
    nodes: dict[str, Node] = field(default_factory=dict)
    numbers: dict[str, Number] = field(default_factory=dict)
    attrs: dict[str, Attr] = field(default_factory=dict)

    def bound(self, name: str) -> Attr | Spec:
        """The number, the attribute, or the spec of the variable called `name`."""
        if name in self.numbers:
            return self.numbers[name]
        return self.attrs[name] if name in self.attrs else self.nodes[name].spec


def match(rule: RewriteRule, node: Node, uniform: Uniform) -> Match | None:
    """The match of `rule` on `node`, if there is one."""
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
        and all(_match(part, operand, found) for part, operand in zip(pattern.inputs, inputs, strict=True))
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
            return number is not None and same_number(found.numbers.setdefault(name, number), number)
        case Apply(name, _, _):
            if node.op.name != name:
                return False
            for inputs in _orders(node):
                nodes, numbers, attrs = dict(found.nodes), dict(found.numbers), dict(found.attrs)
                if _match_apply(pattern, node, inputs, found):
                    return True
                found.nodes, found.numbers, found.attrs = nodes, numbers, attrs
    return False


def _match_attr(expected: AttrPattern, actual: Attr, found: Match) -> bool:
    if isinstance(expected, AttrVar):
        known = found.attrs.setdefault(expected.name, actual)
        return bool(known == actual)
    return bool(expected == actual)


def build(rule: RewriteRule, found: Match, builder: Builder) -> Node | None:
    """The replacement, or None if its sizes, dtype, device or strides differ; dead nodes may stay in the builder."""
    try:
        new = _build(rule.replacement, found, builder)
    except (NotApplicable, ShapeMismatch, DeviceMismatch, ImpossibleView, UnknownRelation):
        return None
    return new if new is not None and can_replace(new.spec, found.root.spec) else None


def _build(pattern: Pattern, found: Match, builder: Builder) -> Node | None:
    match pattern:
        case Var(name):
            return found.nodes[name]
        case Literal() | ConstVar() | Computed():
            number = _number(pattern, found)
            spec = found.root.tensor
            return None if number is None else builder.constant(number, spec.dtype, spec.device)
        case Apply(name, inputs, attrs):
            nodes = [_build(part, found, builder) for part in inputs]
            values = {key: _attr_value(value, found) for key, value in attrs}
            if any(node is None for node in nodes):
                return None
            return builder.node(name, *[node for node in nodes if node is not None], **values)
    raise TypeError(f"not a pattern: {pattern!r}")


def _number(pattern: Pattern, found: Match) -> Number | None:
    match pattern:
        case Literal(value):
            return value
        case ConstVar(name):
            return found.numbers[name]
        case Computed(function, names):
            number = function(*[found.bound(name) for name in names])
            return number if isinstance(number, Number) else None
    return None


class NotApplicable(Exception):
    """A computed attribute is None: the rule does not apply."""


def _attr_value(value: AttrPattern, found: Match) -> Attr:
    if isinstance(value, AttrVar):
        return found.attrs[value.name]
    if isinstance(value, Computed):
        result = value.function(*[found.bound(name) for name in value.names])
        if result is None:
            raise NotApplicable
        return result
    return value


def can_replace(new: Spec, old: Spec) -> bool:
    """Whether `new` can replace a value of spec `old`; strides of size-1 dimensions may differ."""
    if new is old or new == old:
        return True
    return (
        isinstance(new, TensorSpec)
        and isinstance(old, TensorSpec)
        and (new.dtype, new.sizes, new.offset, new.device) == (old.dtype, old.sizes, old.offset, old.device)
        and same_strides(new.strides, old.strides, new.sizes)
    )
