"""`dynamic_shapes` read: a wish for each size of the arguments, as `torch.export` takes them, or examples.

    {"x": {0: batch}, "rest": {"y": {0: "rows"}}}        by argument name, `**rest` among them; a string names a `Dim`
    ({0: batch}, None)                                   by position: of the call, or of the signature
    torch.export.ShapesCollection, AdditionalInputs      by tensor; by more calls
    kiln.Examples((x2,), (x3,))                          the sizes that differ between the examples

Objects of `torch.export` are known by their attributes.
"""

from __future__ import annotations

import keyword
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Literal, cast

import torch
from torch.utils import _pytree as pytree

from kiln.graph.ir.parse import NAMED
from kiln.programs.call.errors import BadDynamicShapes
from kiln.programs.call.tree import fields_of, flatten, present_fields
from kiln.programs.dims import AnyDim, DerivedDim, Dim, DimHint, DimTable, Examples
from kiln.programs.naming import CallNames

NAME = re.compile(r"(?!(?:[su]\d+|min|max|cpu|cuda|meta|mps|xpu|_(?:value|graph|device)_.*)$)[A-Za-z_]\w*$")
"""A name that means nothing else in the text of a graph."""
LARGEST_SIZE = 1 << 48
"""Larger upper ends of a range mean that there is none."""


def examples_in(shapes: object) -> Examples | None:
    """The calls of `Examples`, or of its counterpart of `torch.export`."""
    if isinstance(shapes, Examples):
        return shapes
    calls = getattr(shapes, "_examples", None)
    if type(shapes).__name__ != "AdditionalInputs" or not isinstance(calls, list):
        return None
    found = Examples()
    for args, kwargs in calls:
        found.call(*args, **(kwargs or {}))
    return found


def dim_table(call: CallNames, shapes: object, others: Sequence[CallNames] = ()) -> DimTable:
    """The wishes of `shapes` for a call, or of `others`, those of `Examples`."""
    table = DimTable()
    by_tensor = getattr(shapes, "_shapes", None) if type(shapes).__name__ == "ShapesCollection" else None
    if others:
        _infer(table, call, others)
    elif isinstance(by_tensor, Mapping):
        _assign_by_tensor(table, call, by_tensor)
    elif isinstance(shapes, Mapping):
        known = {**call.bound, **call.values}
        unknown = [str(name) for name in shapes if name not in known]
        if unknown:
            problem = f"there is no argument `{unknown[0]}`; the arguments are {', '.join(call.values)}"
            raise BadDynamicShapes(place=unknown[0], problem=problem)
        for name, wish in shapes.items():
            _assign(table, known[name], wish, name)
    elif isinstance(shapes, tuple | list):
        for (name, value), wish in zip(_in_order(call, shapes), shapes, strict=True):
            _assign(table, value, wish, name)
    elif shapes is not None:
        problem = "it is a dict by argument name, a tuple, or kiln.Examples"
        raise BadDynamicShapes(place="dynamic_shapes", problem=problem)
    table.solve_roots([leaf for leaf in call.leaves if isinstance(leaf, torch.Tensor)])
    return table


def _in_order(call: CallNames, shapes: Sequence[object]) -> list[tuple[str, object]]:
    """The arguments that a tuple of wishes means: those of the signature, of which `**rest` may be one or several, or
    those of the call."""
    last = shapes[-1] if shapes else None
    args, kwargs = call.arguments()
    given = {**{f"argument {number}": value for number, value in enumerate(args)}, **kwargs}
    by_parameter = {} if call.bound.keys() - call.values.keys() and not _has_names(last) else call.bound
    for rows in (by_parameter, call.values, given):
        if len(rows) == len(shapes):
            return list(rows.items())
    raise BadDynamicShapes(place="the tuple", problem=f"it has {len(shapes)} items for {len(call.values)} arguments")


def _has_names(wish: object) -> bool:
    return wish is None or (isinstance(wish, Mapping) and all([isinstance(key, str) for key in wish]))


def _assign(table: DimTable, value: object, wish: object, place: str) -> None:
    if wish is None or (not isinstance(value, torch.Tensor) and is_empty(wish)):
        return
    if isinstance(value, torch.Tensor):
        _assign_tensor(table, value, wish, place)
        return
    value, wish = _by_name(value, wish)
    if isinstance(value, Mapping) and isinstance(wish, Mapping):
        for key, inner in wish.items():
            if key not in value:
                raise BadDynamicShapes(place=f"{place}[{key!r}]", problem="the argument has no such key")
            _assign(table, value[key], inner, f"{place}[{key!r}]")
        return
    if isinstance(value, tuple | list) and isinstance(wish, tuple | list) and len(value) == len(wish):
        for number, (item, inner) in enumerate(zip(value, wish, strict=True)):
            _assign(table, item, inner, f"{place}[{number}]")
        return
    if type(value) in (int, float, bool):
        problem = f"{value!r} is a number: those among the arguments are fixed"
        raise BadDynamicShapes(place=place, problem=problem)
    raise BadDynamicShapes(place=place, problem=f"{wish!r} does not fit a {type(value).__name__}")


def is_empty(wish: object) -> bool:
    """Whether it wishes for nothing, or for what is so in any case."""
    hint = as_dim(wish, "") if type(wish).__name__ in ("DimHint", "_DimHint") else None
    return hint in (Dim.AUTO, Dim.STATIC) or (isinstance(wish, Mapping | tuple | list) and not wish)


def _by_name(value: object, wish: object) -> tuple[object, object]:
    """The fields of a dataclass as a dict, the items of a registered class as a list; others as they are."""
    kind = type(value)
    names = () if isinstance(value, tuple) else fields_of(kind)
    if is_dataclass(kind) and type(wish) is kind:  # taken apart as registered, fields that are None would be missing
        names = tuple([field.name for field in fields(kind)])
    if names:
        of_wish = wish if type(wish) is not kind else {name: getattr(wish, name) for name in names}
        return {name: getattr(value, name) for name in names}, of_wish
    node = None if isinstance(value, tuple | list | dict) else pytree.SUPPORTED_NODES.get(kind)
    if node is None:
        return value, wish
    parts, context = node.flatten_fn(value)
    if isinstance(wish, Mapping) and is_dataclass(kind) and present_fields(kind, context) is not None:
        return {field.name: getattr(value, field.name) for field in fields(kind)}, wish
    if isinstance(wish, Mapping) and isinstance(context, list | tuple) and len(context) == len(parts):
        return dict(zip(context, parts, strict=True)), wish
    return parts, node.flatten_fn(wish)[0] if type(wish) is kind else wish


def _assign_tensor(table: DimTable, value: torch.Tensor, wish: object, place: str) -> None:
    if isinstance(wish, Mapping):
        pairs = list(wish.items())
    elif isinstance(wish, tuple | list) and len(wish) == value.dim():
        pairs = list(enumerate(wish))
    elif is_empty(wish):
        pairs = []
    else:
        problem = f"{wish!r} is neither a dict from dimension to Dim nor a tuple of {value.dim()}"
        raise BadDynamicShapes(place=place, problem=problem)
    for axis, dim in pairs:
        if type(axis) is not int or not -value.dim() <= axis < value.dim():
            raise BadDynamicShapes(place=place, problem=f"there is no dimension {axis!r}")
        if dim is None:
            continue
        if type(dim) is int:
            if value.shape[axis] != dim:
                raise BadDynamicShapes(place=place, problem=f"dimension {axis} is {value.shape[axis]}, not {dim}")
            continue
        table.add(value, axis % value.dim(), as_dim(dim, place), place)


def _assign_by_tensor(table: DimTable, call: CallNames, wishes: Mapping[int, object]) -> None:
    """The wishes of a `torch.export.ShapesCollection`, by the `id` of the tensor that was given."""
    given = {id(leaf) for leaf in call.given}
    if any([each not in given for each in wishes]):
        raise BadDynamicShapes(place="the ShapesCollection", problem="it has a tensor that is no argument")
    for leaf, used, name in zip(call.given, call.leaves, call.names, strict=True):
        if isinstance(used, torch.Tensor):
            _assign(table, used, wishes.get(id(leaf)), name)


def as_dim(dim: object, place: str) -> AnyDim:
    """One of ours, or its counterpart of `torch.export`, known by its attributes; or the one with a name."""
    if isinstance(dim, Dim):
        if not NAME.match(dim.name) or dim.name in NAMED or keyword.iskeyword(dim.name):
            raise BadDynamicShapes(place=place, problem=f"{dim.name!r} cannot be the name of a dimension")
        return dim
    if isinstance(dim, str):
        return as_dim(Dim(dim), place)
    if isinstance(dim, DerivedDim | DimHint):
        return dim
    if type(dim).__name__ == "_DimHint":
        kind = str(getattr(getattr(dim, "type", None), "name", "")).lower()
        if kind in ("auto", "dynamic", "static"):
            return DimHint(cast(Literal["auto", "dynamic", "static"], kind))
    root, compute = getattr(dim, "root", None), getattr(dim, "fn", None)
    if root is not None and callable(compute):
        named = as_dim(root, place)
        assert isinstance(named, Dim)
        offset = compute(0)
        return DerivedDim(named, compute(1) - offset, offset)
    name, low, high = (getattr(dim, key, None) for key in ("__name__", "min", "max"))
    if isinstance(name, str) and low is not None and not isinstance(dim, type(None)):
        lowest, highest = operator.index(low), _end(high)
        return as_dim(Dim(name, max(lowest, 0), highest), place)
    raise BadDynamicShapes(place=place, problem=f"{dim!r} is not a dimension")


def _end(high: object) -> int | None:
    if type(high) is int and high < LARGEST_SIZE:
        return high
    return None


def _infer(table: DimTable, first: CallNames, calls: Sequence[CallNames]) -> None:
    """A symbol for each size that differs between the calls."""
    tree, leaves = flatten(dict(first.values))
    places = list(tree.paths("arguments"))
    for call in calls:
        other_tree, others = flatten(dict(call.values))
        if other_tree != tree:
            raise BadDynamicShapes(place="Examples", problem=f"one call has {other_tree}, the first has {tree}")
        for place, value, other in zip(places, leaves, others, strict=True):
            if not isinstance(value, torch.Tensor):
                continue
            if not isinstance(other, torch.Tensor) or value.dim() != other.dim() or value.dtype != other.dtype:
                raise BadDynamicShapes(place=place, problem="one call has a tensor of another rank or dtype")
            for axis, (size, changed) in enumerate(zip(value.shape, other.shape, strict=True)):
                if size != changed:
                    table.add(value, axis, Dim.AUTO, place)
