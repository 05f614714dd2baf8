"""Builds the native tree that checks guards.

    self.__dict__['_parameters']['weight']: tensor       0 local 0
    self.__dict__['_parameters']['bias']: is_none   =>   1   dict_attr '_parameters'
    self: type_is Linear                                 2     item 'weight'     checks: tensor
                                                         3     item 'bias'       checks: is
Sources with a common prefix share its nodes, so each object is fetched once. Nodes are in preorder; the checks of a
node are cheapest first, with `type_is` before all others, which may rely on it. The numbers of accesses and kinds are
those of csrc/frames/guard_tree.h.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import TypeAlias, TypeVar, cast, final

import torch

import kiln.runtime.guards.source as src
from kiln.native import _frames
from kiln.runtime.guards.constant import ObjectRef, is_constant
from kiln.runtime.guards.guard import (
    AliasExpectation,
    FunctionExpectation,
    GlobalState,
    Guard,
    GuardKind,
    SetExpectation,
    ShapeRelation,
    TensorExpectation,
)
from kiln.runtime.guards.shape_program import compile_relation
from kiln.runtime.guards.source import Source
from kiln.runtime.guards.state import DTYPE_NUMBERS, state_to_word
from kiln.support.records import dataclass

# fmt: off
(LOCAL, GLOBALS, CELL, CONST, ATTR, DICT_ATTR, ITEM, DEFAULT,
 KW_DEFAULT, CLOSURE, TYPE, METHOD_FUNC, METHOD_SELF, KEY, MRO, CELL_OBJECT, CALL, VALUE) = range(18)
(TYPE_IS, EQUALS, IS, LENGTH, DICT_KEYS, HAS_ATTR, NO_ATTR, ABSENT, EMPTY_DICT,
 TENSOR, FUNCTION_CODE, SET_ITEMS, ALIASES, RELATION, GLOBAL_STATE) = range(15)
# fmt: on

_EXTENTS: dict[type[Source], int] = {src.SizeSource: 0, src.StrideSource: 1, src.OffsetSource: 2}
_PYTHON_INT = 3

NodeRow: TypeAlias = tuple[int, int, int, int, int, object, int]
"""(access, parent, end of its subtree, first check, end of its checks, key, index)"""
CheckRow: TypeAlias = tuple[int, int, int, object]
"""(kind, number of the guard, node or -1, payload)"""
S = TypeVar("S", bound=Source)
T = TypeVar("T")


class BadGuard(ValueError):
    """A guard or source that the native tree cannot check."""


@final
class _Node:
    __slots__ = ("access", "checks", "children", "index", "key", "number")

    def __init__(self, access: int, key: object, index: int) -> None:
        self.access = access
        self.key = key
        self.index = index
        self.children: dict[tuple[object, ...], _Node] = {}
        self.checks: list[tuple[int, int, object]] = []
        self.number = -1

    def child(self, access: int, key: object = None, index: int = 0) -> _Node:
        # Other objects are compared by address (the node keeps them alive); the type tells `True` from `1`.
        identity: tuple[object, ...]
        if type(key) is str:
            identity = (access, key)
        else:
            identity = (access, index, type(key), key if isinstance(key, (str, int)) else id(key))
        node = self.children.get(identity)
        if node is None:
            node = self.children[identity] = _Node(access, key, index)
        return node


def _local_slots(function: FunctionType) -> dict[str, int]:
    code = function.__code__
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & 4) + bool(code.co_flags & 8)  # *args, **kwargs
    return {name: slot for slot, name in enumerate(code.co_varnames[:count])}


@final
class TreeBuilder:
    """Grows the tree node by node; `number_nodes` fixes the order."""

    def __init__(self, function: FunctionType) -> None:
        self.root = _Node(-1, None, 0)
        self.slots = _local_slots(function)
        self.cells = {name: index for index, name in enumerate(function.__code__.co_freevars)}
        self.tree_checks: list[tuple[int, int, Callable[[], object]]] = []
        """Checks of several nodes: their payload needs the numbers of nodes."""
        # By address, since hashing a source walks all its steps; the source is kept so that its address is not reused.
        self.known: dict[int, tuple[Source, _Node]] = {}

    def node(self, source: Source) -> _Node:
        """The node of `source`, made with its ancestors."""
        known = self.known.get(id(source))
        if known is not None:
            return known[1]
        step = _STEPS.get(type(source))
        if step is None:
            raise BadGuard(f"{source.text()} is an integer, not an object")
        node = step(self, source)
        self.known[id(source)] = source, node
        return node

    def operand(self, source: Source) -> tuple[int, _Node, int]:
        """An integer for a shape relation: an extent of a tensor, or a Python int."""
        kind = _EXTENTS.get(type(source), _PYTHON_INT)
        if kind == _PYTHON_INT:
            return kind, self.node(source), 0
        assert source.parent is not None
        return kind, self.node(source.parent), getattr(source, "dim", 0)

    def relation(self, guard: int, text: str, names: dict[str, Source]) -> None:
        steps, used = compile_relation(text)
        if missing := set(used) - set(names):
            raise BadGuard(f"`{text}` has names without a source: {sorted(missing)}")
        operands = [self.operand(names[name]) for name in used]
        self.tree_checks.append((RELATION, guard, lambda: (steps, tuple((k, n.number, d) for k, n, d in operands))))

    def add(self, number: int, guard: Guard) -> None:
        if guard.kind is GuardKind.EQUALS and type(guard.source) in _EXTENTS:
            self.relation(number, f"n == {guard.expected}", {"n": guard.source})
            return
        # `_value_`: the hash of an enum member is computed in Python.
        row = _ROWS.get(guard.kind._value_)
        if row is None:
            _TREE_CHECKS[guard.kind](self, number, guard)
            return
        kind, payload = row
        self.node(guard.source).checks.append((kind, number, payload(guard)))

    def number_nodes(self) -> tuple[list[NodeRow], list[CheckRow]]:
        nodes: list[NodeRow] = []
        checks: list[CheckRow] = []

        def visit(node: _Node, parent: int) -> None:
            number = node.number = len(nodes)
            nodes.append(UNFINISHED)
            first = len(checks)
            if len(node.checks) > 1:
                node.checks.sort(key=_by_kind)
            for kind, guard, payload in node.checks:
                checks.append((kind, guard, number, payload))
            last = len(checks)
            for child in node.children.values():
                visit(child, number)
            nodes[number] = (node.access, parent, len(nodes), first, last, node.key, node.index)

        for node in self.root.children.values():
            visit(node, -1)
        checks.extend((kind, guard, -1, payload()) for kind, guard, payload in self.tree_checks)
        return nodes, checks


UNFINISHED: NodeRow = (0, 0, 0, 0, 0, None, 0)


def _by_kind(check: tuple[int, int, object]) -> int:
    return check[0]


def _local(builder: TreeBuilder, source: src.LocalSource) -> _Node:
    if source.name not in builder.slots:
        raise BadGuard(f"the function has no argument {source.name!r}")
    return builder.root.child(LOCAL, None, builder.slots[source.name])


def _cell(builder: TreeBuilder, source: src.CellSource | src.CellObjectSource) -> _Node:
    if source.name not in builder.cells:
        raise BadGuard(f"the function has no free variable {source.name!r}")
    access = CELL if type(source) is src.CellSource else CELL_OBJECT
    return builder.root.child(access, None, builder.cells[source.name])


def _module_dict(name: str) -> dict[str, object]:
    module = sys.modules.get(name)
    if module is None:
        raise BadGuard(f"module {name!r} is not imported")
    return vars(module)


def _default(builder: TreeBuilder, source: src.DefaultSource) -> _Node:
    base = builder.node(source.base)
    return base.child(DEFAULT, None, source.key) if isinstance(source.key, int) else base.child(KW_DEFAULT, source.key)


def _item(builder: TreeBuilder, source: src.ItemSource) -> _Node:
    index = source.key if type(source.key) is int else 0
    return builder.node(source.base).child(ITEM, source.key, index)


def _call(builder: TreeBuilder, source: src.CallSource) -> _Node:
    arguments = tuple([_argument(value) for value in source.arguments])
    keywords = {name: _argument(value) for name, value in source.keywords} or None
    return builder.node(source.base).child(CALL, (arguments, keywords))


def _argument(value: object) -> object:
    return value.value if isinstance(value, ObjectRef) else value


def _row(kind: type[S], node: Callable[[TreeBuilder, S], _Node]) -> tuple[type[Source], NodeMaker]:
    return kind, cast(NodeMaker, node)


NodeMaker = Callable[[TreeBuilder, Source], _Node]
_STEPS: dict[type[Source], NodeMaker] = dict((
    _row(src.LocalSource, _local),
    _row(src.CellSource, _cell),
    _row(src.CellObjectSource, _cell),
    _row(src.GlobalSource, lambda b, s: b.root.child(GLOBALS).child(ITEM, s.name)),
    _row(src.ModuleGlobalSource, lambda b, s: b.root.child(CONST, _module_dict(s.module)).child(ITEM, s.name)),
    _row(src.BuiltinSource, lambda b, s: b.root.child(CONST, vars(builtins)).child(ITEM, s.name)),
    _row(src.ImportSource, lambda b, s: b.root.child(CONST, sys.modules).child(ITEM, s.module)),
    _row(src.AttrSource, lambda b, s: b.node(s.base).child(ATTR, s.name)),
    _row(src.DictAttrSource, lambda b, s: b.node(s.base).child(DICT_ATTR, s.name)),
    _row(src.ItemSource, _item),
    _row(src.DefaultSource, _default),
    _row(src.ClosureSource, lambda b, s: b.node(s.base).child(CLOSURE, None, s.index)),
    _row(src.TypeSource, lambda b, s: b.node(s.base).child(TYPE)),
    _row(src.MethodFuncSource, lambda b, s: b.node(s.base).child(METHOD_FUNC)),
    _row(src.MethodSelfSource, lambda b, s: b.node(s.base).child(METHOD_SELF)),
    _row(src.GradSource, lambda b, s: b.node(s.base).child(ATTR, "grad")),
    _row(src.KeysSource, lambda b, s: b.node(s.base).child(KEY, None, s.index)),
    _row(src.ValuesSource, lambda b, s: b.node(s.base).child(VALUE, None, s.index)),
    _row(src.MroSource, lambda b, s: b.node(s.base).child(MRO, None, s.index)),
    _row(src.CallSource, _call),
))  # fmt: skip


def _expected(guard: Guard, kind: type[T]) -> T:
    if not isinstance(guard.expected, kind):
        raise BadGuard(f"{guard.kind.value} at {guard.source.text()} expects a {kind.__name__}")
    return guard.expected


def _constant(guard: Guard) -> object:
    if isinstance(guard.expected, ObjectRef) or not is_constant(guard.expected):
        raise BadGuard(f"{guard.source.text()}: a {type(guard.expected).__name__} is not a constant")
    return guard.expected


def _function(guard: Guard) -> tuple[object, int, int, int]:
    expected = _expected(guard, FunctionExpectation)
    return expected.code.value, expected.defaults, expected.keyword_defaults, expected.closure


def _set_items(guard: Guard) -> tuple[bool, tuple[object, ...]]:
    expected = _expected(guard, SetExpectation)
    return expected.ordered, tuple(item.value if isinstance(item, ObjectRef) else item for item in expected.items)


_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)


def _tensor(guard: Guard) -> tuple[object, ...]:
    expected = _expected(guard, TensorExpectation)
    leaf = -1 if expected.is_leaf is None else int(expected.is_leaf)
    if expected.dtype not in DTYPE_NUMBERS:
        raise BadGuard(f"{guard.source.text()}: the native checks do not support {expected.dtype}")
    if leaf >= 0 and expected.python_type.value not in _PLAIN_TYPES:
        raise BadGuard(f"{guard.source.text()}: `is_leaf` of a tensor subclass may run Python code")
    return (
        *(expected.python_type.value, expected.keys, DTYPE_NUMBERS[expected.dtype], str(expected.device)),
        *(expected.requires_grad, leaf, expected.sizes, expected.strides),
    )


_NODE_CHECKS: dict[GuardKind, tuple[int, Callable[[Guard], object]]] = {
    GuardKind.TYPE_IS: (TYPE_IS, lambda guard: _expected(guard, ObjectRef).value),
    GuardKind.EQUALS: (EQUALS, _constant),
    GuardKind.IS: (IS, lambda guard: _expected(guard, ObjectRef).value),
    GuardKind.IS_NONE: (IS, lambda guard: None),
    GuardKind.LENGTH: (LENGTH, lambda guard: _expected(guard, int)),
    GuardKind.DICT_KEYS: (DICT_KEYS, lambda guard: _expected(guard, tuple)),
    GuardKind.HAS_ATTR: (HAS_ATTR, lambda guard: _expected(guard, str)),
    GuardKind.NO_ATTR: (NO_ATTR, lambda guard: _expected(guard, str)),
    GuardKind.ABSENT: (ABSENT, lambda guard: None),
    GuardKind.EMPTY_DICT: (EMPTY_DICT, lambda guard: None),
    GuardKind.TENSOR: (TENSOR, _tensor),
    GuardKind.FUNCTION_CODE: (FUNCTION_CODE, _function),
    GuardKind.SET_ITEMS: (SET_ITEMS, _set_items),
}
_ROWS = {kind.value: row for kind, row in _NODE_CHECKS.items()}


def _aliases(builder: TreeBuilder, number: int, guard: Guard) -> None:
    expected = _expected(guard, AliasExpectation)
    nodes = [builder.node(source) for source in expected.sources]
    order: dict[int, int] = {}
    groups = tuple(order.setdefault(group, len(order)) for group in expected.groups)
    by_storage = expected.by == "storage"
    builder.tree_checks.append((ALIASES, number, lambda: (by_storage, tuple(n.number for n in nodes), groups)))


def _relation(builder: TreeBuilder, number: int, guard: Guard) -> None:
    expected = _expected(guard, ShapeRelation)
    builder.relation(number, expected.relation, dict(expected.names))


def _state(builder: TreeBuilder, number: int, guard: Guard) -> None:
    word = state_to_word(_expected(guard, GlobalState))
    builder.tree_checks.append((GLOBAL_STATE, number, lambda: word))


_TREE_CHECKS: dict[GuardKind, Callable[[TreeBuilder, int, Guard], None]] = {
    GuardKind.TENSOR_ALIASES: _aliases,
    GuardKind.SHAPE_RELATION: _relation,
    GuardKind.GLOBAL_STATE: _state,
}


@final
@dataclass(frozen=True, slots=True)
class TreeRows:
    """What the native tree is made from: nodes in preorder, checks, and the nodes whose objects it collects."""

    nodes: list[NodeRow]
    checks: list[CheckRow]
    collect: tuple[int, ...]

    def tree(self) -> _frames.GuardTree:
        return _frames.GuardTree(self.nodes, self.checks, self.collect)


def tree_rows(guards: Iterable[Guard], *, collect: Iterable[Source] = (), function: FunctionType) -> TreeRows:
    """The rows of the tree that `build_tree` makes."""
    builder = TreeBuilder(function)
    for number, guard in enumerate(guards):
        builder.add(number, guard)
    collected = [builder.node(source) for source in collect]
    nodes, checks = builder.number_nodes()
    return TreeRows(nodes, checks, tuple(node.number for node in collected))


def build_tree(guards: Iterable[Guard], *, collect: Iterable[Source] = (), function: FunctionType) -> _frames.GuardTree:
    """The native tree that checks `guards` on the arguments, globals and cells of `function`.

    A successful check leaves the objects at the sources `collect` in `tree.bindings`; the callable of an entry gets
    them from `_frames.BoundCall(tree, target)`. `tree.explain(locals)` gives the index of the guard that fails.
    Arguments are in slot order: positional, keyword-only, `*args`, `**kwargs`. Raises `BadGuard`.
    """
    return tree_rows(guards, collect=collect, function=function).tree()
