"""Builds the native tree that checks guards.

    self.__dict__['_parameters']['weight']: tensor       0 local 0
    self.__dict__['_parameters']['bias']: is_none   =>   1   dict_attr '_parameters'
    self: type_is Linear                                 2     item 'weight'     checks: tensor
                                                         3     item 'bias'       checks: is
Sources with a common prefix share its nodes, so each object is fetched once. Nodes are in preorder; the checks of a
node are cheapest first, with `type_is` before all others, which may rely on it. The numbers of kinds are those of
csrc/frames/guard_tree.h.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterable, Sequence
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import FunctionType
from typing import TypeVar, final

import torch

import kiln.runtime.guards.source as src
from kiln.native import _frames
from kiln.native._frames import GuardPaths
from kiln.runtime.guards.constant import ObjectRef, is_constant
from kiln.runtime.guards.guard import (
    AliasExpectation,
    FunctionExpectation,
    GlobalState,
    Guard,
    GuardKind,
    SetExpectation,
    SetMember,
    ShapeRelation,
    TensorExpectation,
)
from kiln.runtime.guards.paths import (
    ANSWER,
    ARRAY,
    CALL,
    CELL,
    CELL_OBJECT,
    CONST,
    ITEM,
    LOCAL,
    STEPS,
    CheckRow,
    NodeRow,
    StepForms,
    Steps,
)
from kiln.runtime.guards.shape_program import compile_relation
from kiln.runtime.guards.source import Source
from kiln.runtime.guards.state import DTYPE_NUMBERS, state_to_word
from kiln.support.records import dataclass

# fmt: off
(TYPE_IS, EQUALS, IS, LENGTH, DICT_KEYS, HAS_ATTR, NO_ATTR, ABSENT, EMPTY_DICT,
 TENSOR, FUNCTION_CODE, SET_ITEMS, SET_HOLDS, ALIASES, RELATION, GLOBAL_STATE) = range(16)
# fmt: on

_EXTENTS: dict[type[Source], int] = {src.SizeSource: 0, src.StrideSource: 1, src.OffsetSource: 2}
_PYTHON_INT = 3


T = TypeVar("T")


def is_extent(source: Source) -> bool:
    """Whether it is a number of a tensor, and no object that a tree can collect."""
    return type(source) in _EXTENTS


def extent_of(source: Source, tensor: torch.Tensor) -> int:
    """The number of `tensor` that `source` stands for."""
    if isinstance(source, src.SizeSource):
        return int(tensor.size(source.dim))
    return int(tensor.stride(source.dim) if isinstance(source, src.StrideSource) else tensor.storage_offset())


class BadGuard(ValueError):
    """A guard or source that the native tree cannot check."""


def _local_slots(function: FunctionType) -> dict[str, int]:
    code = function.__code__
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
    return {name: slot for slot, name in enumerate(code.co_varnames[:count])}


@final
class TreeBuilder:
    """Collects checks by path; `rows` fixes the order of the nodes."""

    def __init__(self, function: FunctionType) -> None:
        slots = _local_slots(function)
        cells = {name: index for index, name in enumerate(function.__code__.co_freevars)}

        def local(source: src.LocalSource) -> Steps:
            if source.name not in slots:
                raise BadGuard(f"the function has no argument {source.name!r}")
            return ((LOCAL, None, slots[source.name]),)

        def cell(source: src.CellSource | src.CellObjectSource) -> Steps:
            if source.name not in cells:
                raise BadGuard(f"the function has no free variable {source.name!r}")
            return ((CELL if type(source) is src.CellSource else CELL_OBJECT, None, cells[source.name]),)

        self.paths = GuardPaths({**_STEPS, src.LocalSource: local, src.CellSource: cell, src.CellObjectSource: cell})
        self.checks: list[CheckRow] = []
        """(kind, number of the guard, path, payload)"""
        self.tree_checks: list[tuple[int, int, Callable[[Sequence[int]], object]]] = []
        """Checks of several nodes: their payload needs the node of each path."""

    def operand(self, source: Source) -> tuple[int, int, int]:
        """An integer for a shape relation: an extent of the tensor at a path, or a Python int."""
        kind = _EXTENTS.get(type(source), _PYTHON_INT)
        if kind == _PYTHON_INT:
            return kind, self.paths.number(source), 0
        assert source.parent is not None
        return kind, self.paths.number(source.parent), getattr(source, "dim", 0)

    def relation(self, guard: int, text: str, names: dict[str, Source]) -> None:
        steps, used = compile_relation(text)
        if missing := set(used) - set(names):
            raise BadGuard(f"`{text}` has names without a source: {sorted(missing)}")
        operands = [self.operand(names[name]) for name in used]
        self.tree_checks.append((RELATION, guard, lambda node: (steps, tuple((k, node[n], d) for k, n, d in operands))))

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
        self.checks.append((kind, number, self.paths.number(guard.source), payload(guard)))

    def rows(self, collect: Iterable[Source]) -> TreeRows:
        collected = [self.paths.number(source) for source in collect]
        nodes, checks, node_of = self.paths.rows(self.checks)
        checks.extend((kind, guard, -1, payload(node_of)) for kind, guard, payload in self.tree_checks)
        return TreeRows(nodes, checks, tuple([node_of[path] for path in collected]))


def _module_dict(name: str) -> dict[str, object]:
    module = sys.modules.get(name)
    if module is None:
        raise BadGuard(f"module {name!r} is not imported")
    return vars(module)


def _call(source: src.CallSource) -> Steps:
    arguments = tuple([_argument(value) for value in source.arguments])
    keywords = {name: _argument(value) for name, value in source.keywords} or None
    return ((CALL, (arguments, keywords), 0),)


def _argument(value: object) -> object:
    return value.value if isinstance(value, ObjectRef) else value


def _integer(source: Source) -> Steps:
    raise BadGuard(f"{source.text()} is an integer, not an object")


_STEPS: StepForms = {
    **STEPS,
    src.ModuleGlobalSource: lambda source: ((CONST, _module_dict(source.module), 0), (ITEM, source.name, 0)),
    src.BuiltinSource: lambda source: ((CONST, vars(builtins), 0), (ITEM, source.name, 0)),
    src.ImportSource: lambda source: ((CONST, sys.modules, 0), (ITEM, source.module, 0)),
    src.CallSource: _call,
    src.ArraySource: lambda source: ((ARRAY, torch.from_numpy, 0),),
    src.AnswerSource: lambda source: ((ANSWER, source.function.value, 0),),
    **dict.fromkeys(_EXTENTS, _integer),
}


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


def _set_holds(guard: Guard) -> tuple[object, bool]:
    expected = _expected(guard, SetMember)
    return expected.item, expected.held


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
    GuardKind.SET_HOLDS: (SET_HOLDS, _set_holds),
}
_ROWS = {kind.value: row for kind, row in _NODE_CHECKS.items()}


def _aliases(builder: TreeBuilder, number: int, guard: Guard) -> None:
    expected = _expected(guard, AliasExpectation)
    paths = [builder.paths.number(source) for source in expected.sources]
    order: dict[int, int] = {}
    groups = tuple(order.setdefault(group, len(order)) for group in expected.groups)
    by_storage = expected.by == "storage"
    builder.tree_checks.append((ALIASES, number, lambda node: (by_storage, tuple(node[n] for n in paths), groups)))


def _relation(builder: TreeBuilder, number: int, guard: Guard) -> None:
    expected = _expected(guard, ShapeRelation)
    builder.relation(number, expected.relation, dict(expected.names))


def _state(builder: TreeBuilder, number: int, guard: Guard) -> None:
    word = state_to_word(_expected(guard, GlobalState))
    builder.tree_checks.append((GLOBAL_STATE, number, lambda node: word))


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
    return builder.rows(collect)


def build_tree(guards: Iterable[Guard], *, collect: Iterable[Source] = (), function: FunctionType) -> _frames.GuardTree:
    """The native tree that checks `guards` on the arguments, globals and cells of `function`.

    A successful check leaves the objects at the sources `collect` in `tree.bindings`; the callable of an entry gets
    them from `_frames.BoundCall(tree, target)`. `tree.explain(locals)` gives the index of the guard that fails.
    Arguments are in slot order: positional, keyword-only, `*args`, `**kwargs`. Raises `BadGuard`.
    """
    return tree_rows(guards, collect=collect, function=function).tree()
