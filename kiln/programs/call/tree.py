"""The structure of arguments and results: containers taken apart into leaves, and put together again.

    tree, leaves = flatten(({"x": x}, 3))
    tree                    tuple(dict(x=*), *)
    leaves                  [x, 3]
    tree.build([y, 4])      ({"x": y}, 4)

Tuples, lists and dicts are built in; other classes are those that `torch.utils._pytree` knows (the results of Hugging
Face models), named tuples and dataclasses. A file names them; a reader neither imports nor runs their code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import cast, final

import torch
from torch import nn
from torch.utils import _pytree as pytree

from kiln.programs.call.errors import DamagedProgram, NotSavable
from kiln.programs.call.fields import Fields, Json
from kiln.support.records import dataclass

Key = str | int
PLAIN: dict[type, str] = {tuple: "tuple", list: "list", dict: "dict"}
TUPLES = frozenset({torch.Size, *torch.return_types.all_return_types})
"""Tuples of torch, whose classes take their items."""
LARGEST_DEPTH = 64


@final
@dataclass(frozen=True, slots=True)
class Tree:
    """A leaf (`type` is None), or a container with its children.

    `keys` of a dict, or the fields of a class; `context` of a registered class.
    """

    type: type | None = None
    children: tuple[Tree, ...] = ()
    keys: tuple[Key, ...] = ()
    context: object = None

    def __str__(self) -> str:
        if self.type is None:
            return "*"
        names = list(self.context) if isinstance(self.context, list | tuple) else list(self.keys)
        if len(names) == len(self.children) and names:
            inside = [f"{key}={child}" for key, child in zip(names, self.children, strict=True)]
        else:
            inside = [str(child) for child in self.children]
        return f"{self.type.__name__}({', '.join(inside)})"

    def size(self) -> int:
        """How many leaves it has."""
        return 1 if self.type is None else sum(child.size() for child in self.children)

    def build(self, leaves: Sequence[object]) -> object:
        """The containers around other leaves."""
        remaining = iter(leaves)
        return self._built(remaining)

    def _built(self, leaves: Iterator[object]) -> object:
        if self.type is None:
            return next(leaves)
        parts = [child._built(leaves) for child in self.children]
        if self.type is dict:
            return dict(zip(self.keys, parts, strict=True))
        if self.type in PLAIN:
            return self.type(parts)
        if self.type in TUPLES:
            return self.type(parts)
        if issubclass(self.type, tuple):
            return tuple.__new__(self.type, parts)
        if self.keys:
            made = object.__new__(self.type)
            for key, part in zip(self.keys, parts, strict=True):
                object.__setattr__(made, str(key), part)
            return made
        return pytree.SUPPORTED_NODES[self.type].unflatten_fn(parts, self.context)

    def paths(self, root: str) -> Iterator[str]:
        """The text of each leaf's place: `x['mask'][0]`."""
        if self.type is None:
            yield root
        for number, child in enumerate(self.children):
            key = self.keys[number] if self.keys else number
            yield from child.paths(f"{root}[{key!r}]" if self.type in PLAIN or not self.keys else f"{root}.{key}")

    # The form in files.

    def to_json(self) -> Json:
        if self.type is None:
            return None
        children: Json = [child.to_json() for child in self.children]
        if self.type in PLAIN:
            return {"type": PLAIN[self.type], "keys": list(self.keys), "children": children}
        name = f"{self.type.__module__}:{self.type.__qualname__}"
        if class_named(name) is self.type:
            return {"type": f"class {name}", "keys": list(self.keys), "children": children}
        registered = pytree.SUPPORTED_SERIALIZED_TYPES.get(self.type)
        known = registered.serialized_type_name if registered is not None else None
        # Classes that are registered without a name share one.
        unnamed = not isinstance(known, str) or known == pytree.NO_SERIALIZED_TYPE_NAME_FOUND
        present = present_fields(self.type, self.context) if unnamed else None
        if present is not None and class_of_fields(name) is self.type:
            return {"type": f"fields {name}", "keys": list(present), "children": children}
        if unnamed or not is_json(self.context):
            raise NotSavable(place="a result or argument", type=self.type.__qualname__)
        return {"type": f"registered {known}", "keys": cast(Json, self.context), "children": children}


LEAF = Tree()


def fields_of(kind: type) -> tuple[str, ...]:
    """The fields of a named tuple or dataclass that is not registered; of others none."""
    if issubclass(kind, tuple):
        return getattr(kind, "_fields", ())
    if not dataclasses.is_dataclass(kind) or kind.__new__ is not object.__new__:
        return ()
    is_other = kind in pytree.SUPPORTED_NODES or issubclass(kind, nn.Module)
    return () if is_other else tuple([field.name for field in dataclasses.fields(kind)])


def class_named(name: str) -> type | None:
    """A class of a module that is imported already, if its objects are only their fields."""
    found = object_named(name)
    return found if isinstance(found, type) and (found in TUPLES or fields_of(found)) else None


def object_named(name: str) -> object:
    """What `module:path` means, if the module is imported already."""
    module, _, path = name.partition(":")
    found: object = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found


def init_fields(kind: type) -> list[str]:
    """The fields of a dataclass that its constructor takes; of others none."""
    return [field.name for field in dataclasses.fields(kind) if field.init] if dataclasses.is_dataclass(kind) else []


def present_fields(kind: type, context: object) -> list[str] | None:
    """The fields that are not None, if `torch.utils._pytree.register_dataclass` has registered a class."""
    if not isinstance(context, list) or len(context) != 2 or not all(isinstance(names, list) for names in context):
        return None
    present, absent = context
    names = present + absent
    return present if all(type(name) is str for name in names) and sorted(names) == sorted(init_fields(kind)) else None


def class_of_fields(name: str) -> type | None:
    """A dataclass of a module that is imported already, which pytree knows."""
    found = object_named(name)
    return found if isinstance(found, type) and init_fields(found) and found in pytree.SUPPORTED_NODES else None


def is_json(value: object, depth: int = 0) -> bool:
    """Whether a file gives it back, tuples as lists."""
    if isinstance(value, list | tuple):
        return depth < LARGEST_DEPTH and all(is_json(item, depth + 1) for item in value)
    return value is None or type(value) in (str, int, bool)


def flatten(value: object) -> tuple[Tree, list[object]]:
    """The structure of a value and its leaves in order."""
    leaves: list[object] = []
    return _flat(value, leaves), leaves


def _flat(value: object, leaves: list[object]) -> Tree:
    kind = type(value)
    if isinstance(value, tuple | list) and kind in PLAIN:
        return Tree(kind, tuple([_flat(item, leaves) for item in value]))
    if kind is dict and isinstance(value, dict) and all(type(key) in (str, int) for key in value):
        return Tree(kind, tuple([_flat(item, leaves) for item in value.values()]), tuple(value))
    names = fields_of(kind)
    if isinstance(value, tuple):
        return Tree(kind, tuple([_flat(item, leaves) for item in value]), names)
    if names and all(hasattr(value, name) for name in names):
        return Tree(kind, tuple([_flat(getattr(value, name), leaves) for name in names]), names)
    node = pytree.SUPPORTED_NODES.get(kind)
    parts = None
    if node is not None and kind is not dict:
        with contextlib.suppress(Exception):  # not every object of a registered class can be taken apart
            parts, context = node.flatten_fn(value)
    if parts is None:
        leaves.append(value)
        return LEAF
    return Tree(kind, tuple([_flat(part, leaves) for part in parts]), (), context)


def tree_from_json(data: Json, depth: int = 0, *, plain: bool = False) -> Tree:
    """Inverse of `Tree.to_json`; `plain`: registered classes become dicts and tuples. Raises DamagedProgram."""
    if data is None:
        return LEAF
    if depth >= LARGEST_DEPTH:
        raise DamagedProgram(problem=f"containers are nested deeper than {LARGEST_DEPTH}")
    fields = Fields(data, "tree")
    name = fields.text("type")
    children = tuple([tree_from_json(child, depth + 1, plain=plain) for child in fields.items("children")])
    found = next((kind for kind, plain in PLAIN.items() if plain == name), None)
    if found is not None:
        keys = tuple([_key(key) for key in fields.items("keys")])
        wanted = len(children) if found is dict else 0
        if len(set(keys)) != len(keys) or len(keys) != wanted:
            raise DamagedProgram(problem=f"the keys of a {name} do not fit its items")
        fields.finish()
        return Tree(found, children, keys)
    how, _, name = name.partition(" ")
    if how not in ("registered", "class", "fields"):
        raise DamagedProgram(problem=f"unknown container {how!r}")
    if plain:
        names = fields.take("keys")
        fields.finish()
        texts = tuple([key for key in names if isinstance(key, str)]) if isinstance(names, list) else ()
        return Tree(dict, children, texts) if len(set(texts)) == len(texts) == len(children) else Tree(tuple, children)
    named = {"class": class_named, "fields": class_of_fields}
    kind = named.get(how, pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get)(name)
    if kind is None or kind in PLAIN:
        raise DamagedProgram(problem=f"the class {name!r} is not known here; import its library first")
    context = fields.take("keys")
    fields.finish()
    members = fields_of(kind) if how == "class" else ()
    if how == "class" and context == list(members) and (kind in TUPLES or len(members) == len(children)):
        return Tree(kind, children, members)
    if how == "fields" and isinstance(context, list) and len(context) == len(children):
        absent = [field for field in init_fields(kind) if field not in context]
        if present_fields(kind, [context, absent]) is not None:
            return Tree(kind, children, (), [context, absent])
    if how != "registered" or not is_json(context):
        raise DamagedProgram(problem=f"the class {name!r} has fields of another kind")
    return Tree(kind, children, (), context)


def _key(value: Json) -> Key:
    if type(value) not in (str, int):
        raise DamagedProgram(problem=f"a key of a dict is {value!r}")
    return cast(Key, value)
