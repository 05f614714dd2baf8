"""The rows of a native guard tree as JSON, and back to a tree of this process.

    write_tree(tree_rows(guards, collect=..., function=f), guards)   ->  {"nodes": ..., "checks": ..., "objects": ...}
    read_tree(data, f, values)                                       ->  GuardTree, or what does not fit

Reading follows no source twice and makes no `Guard`: it takes milliseconds where collecting took a second. Classes and
functions are imported. An object that cannot be imported (`reference.py`) is looked up where its guard looks, on the
values of the current call, and accepted if its contents are those that were written.

A list stands for a tuple, `{"o": n}` for object n, `{"c": ...}` for a constant unknown to JSON, `{"m": name}` for the
namespace of a module, `{"k": {...}}` for keywords of a call.
"""

from __future__ import annotations

import sys
import types
from bisect import bisect_left
from collections.abc import Sequence
from typing import TypedDict, final

from kiln.native._frames import GuardTree
from kiln.runtime.guards.constant import (
    Json,
    NotSerialisable,
    ObjectRef,
    constant_from_json,
    constant_to_json,
    is_constant,
)
from kiln.runtime.guards.guard import FunctionExpectation, Guard
from kiln.runtime.guards.paths import CheckRow, NodeRow
from kiln.runtime.guards.reference import CONTENT, fits, load_named, reference_path, resolve
from kiln.runtime.guards.tree import FUNCTION_CODE, TYPE_IS, TreeRows
from kiln.support.records import dataclass

TYPE, SELF = "type", "self"


@final
@dataclass(frozen=True)
class Misfit:
    """Guard number `guard` (-1: unknown) does not hold of the call, in which it found `actual`."""

    guard: int
    actual: str


class TreeData(TypedDict):
    """What `write_tree` gives; read from JSON, its tuples are lists."""

    nodes: list[NodeRow]
    checks: list[CheckRow]
    collect: list[int]
    objects: list[str | tuple[str, int, str]]


def write_tree(tree: TreeRows, guards: Sequence[Guard]) -> Json:
    """`guards` are those that the tree was made from. Raises NotSerialisable."""
    writer = TreeWriter(guards)
    checks: list[Json] = [writer.check(*check) for check in tree.checks]
    nodes: list[Json] = [[*row[:5], writer.key(row[5]), row[6]] for row in tree.nodes]
    return {"nodes": nodes, "checks": checks, "collect": list(tree.collect), "objects": writer.objects}


@final
class TreeWriter:
    def __init__(self, guards: Sequence[Guard]) -> None:
        self.guards = guards
        self.objects: list[Json] = []
        self._numbers: dict[tuple[str, int], int] = {}
        self._paths: dict[int, str] = {}
        self._checked: dict[int, int] = {}

    def check(self, kind: int, guard: int, node: int, payload: object) -> Json:
        if kind == FUNCTION_CODE:
            assert isinstance(payload, tuple)
            code, *counts = payload
            expected = self.guards[guard].expected
            module = expected.module if isinstance(expected, FunctionExpectation) else ""
            return [kind, guard, node, [self.live_object(code, node, f"function {module}"), *counts]]
        return [kind, guard, node, self.value(payload, node, TYPE if kind == TYPE_IS else SELF)]

    def value(self, value: object, node: int, how: str) -> Json:
        if value is None or type(value) in (bool, int, str):
            return value  # type: ignore[return-value]
        if isinstance(value, tuple) and type(value) is tuple:
            return [self.value(item, -1, how) for item in value]
        return {"c": constant_to_json(value)} if is_constant(value) else self.live_object(value, node, how)

    def live_object(self, value: object, node: int, how: str) -> Json:
        path = self._paths.get(id(value))
        if path is None:
            path = self._paths[id(value)] = reference_path(ObjectRef("", value))
        by_content = path.startswith(CONTENT)
        if by_content and node < 0:  # the argument of a call: a check of the object itself says where it is
            if id(value) not in self._checked:
                raise NotSerialisable(f"{value!r:.100} cannot be imported")
            return {"o": self._checked[id(value)]}
        number = self._numbers.setdefault((path, node if by_content else -1), len(self.objects))
        if how == SELF:
            self._checked[id(value)] = number
        if number == len(self.objects):
            self.objects.append([path, node, how] if by_content else path)
        return {"o": number}

    def key(self, key: object) -> Json:
        if type(key) is tuple and len(key) == 2 and type(key[1]) is dict:  # the arguments of a call
            return [self.value(key[0], -1, SELF), {"k": {name: self.value(v, -1, SELF) for name, v in key[1].items()}}]
        if not isinstance(key, dict) or type(key) is not dict:
            return self.value(key, -1, SELF)
        if key is sys.modules:
            return {"m": ""}
        name = key.get("__name__")
        if not isinstance(name, str) or vars(sys.modules.get(name, types)) is not key:
            raise NotSerialisable("a namespace belongs to no module")
        return {"m": name}


def read_tree(data: TreeData, function: types.FunctionType, values: Sequence[object]) -> GuardTree | Misfit:
    """The tree for a call of `function` with `values` in slot order, whose guards hold.

    Raises NotSerialisable, KeyError, TypeError or ValueError where the data names what does not exist.
    """
    scope = (values, function.__globals__, function.__closure__)
    reader = TreeReader()
    reader.objects = [load_named(row) if isinstance(row, str) else None for row in data["objects"]]
    nodes = reader.nodes(data)
    by_content = [(number, *row) for number, row in enumerate(data["objects"]) if not isinstance(row, str)]
    if by_content:
        finder = paths_only(nodes, [node for _, _, node, _ in by_content])
        if not finder.check(*scope):
            return Misfit(-1, "no object at a path that is identified by its contents")
        for (number, path, node, how), found in zip(by_content, finder.bindings or (), strict=True):
            part = _expected_part(found, how)
            if not fits(path, part):
                return Misfit(guard_of(data["checks"], node), f"{found!r:.100}")
            reader.objects[number] = part
        nodes = reader.nodes(data)  # calls get such objects too
    checks = [(kind, guard, node, reader.value(payload)) for kind, guard, node, payload in data["checks"]]
    tree = GuardTree(nodes, checks, tuple(data["collect"]))
    return tree if tree.check(*scope) else Misfit(*(tree.explain(*scope) or (-1, "other values")))


def guard_of(checks: Sequence[CheckRow], node: int) -> int:
    """The number of a guard on the value at `node`, or -1."""
    return next((guard for _, guard, checked, _ in checks if checked == node), -1)


def paths_only(nodes: Sequence[NodeRow], wanted: Sequence[int]) -> GuardTree:
    """A tree without checks that fetches only the nodes `wanted`: others may not exist, as their checks say."""
    kept: set[int] = set()
    for node in wanted:
        while node >= 0 and node not in kept:
            kept.add(node)
            node = nodes[node][1]
    order = sorted(kept)
    number = {node: position for position, node in enumerate(order)}
    rows: list[NodeRow] = [
        (access, number.get(parent, -1), bisect_left(order, end), 0, 0, key, index)
        for access, parent, end, _, _, key, index in (nodes[node] for node in order)
    ]
    return GuardTree(rows, [], tuple([number[node] for node in wanted]))


def _expected_part(found: object, how: str) -> object:
    """What a check compares: the type, the object, or the code of a function of the named module."""
    if how == TYPE:
        return type(found)
    kind, _, module = how.partition(" ")
    if kind != "function":
        return found
    same = isinstance(found, types.FunctionType) and found.__globals__.get("__name__", "") == module
    return found.__code__ if same else None  # type: ignore[attr-defined]


@final
class TreeReader:
    def __init__(self) -> None:
        self.objects: list[object] = []

    def nodes(self, data: TreeData) -> list[NodeRow]:
        return [(*row[:5], self.value(row[5]), row[6]) for row in data["nodes"]]

    def value(self, data: object) -> object:
        if isinstance(data, list):
            return tuple([self.value(item) if type(item) in (list, dict) else item for item in data])
        if not isinstance(data, dict):
            return data
        ((kind, content),) = data.items()
        if kind == "o":
            return self.objects[content]
        if kind == "k":
            return {name: self.value(item) for name, item in content.items()}
        if kind == "m":
            return vars(resolve(f"{content}:")) if content else sys.modules
        return constant_from_json(content)
