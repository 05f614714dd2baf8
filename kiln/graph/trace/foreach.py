"""Ops on lists of tensors, from the op on a single tensor.

    _foreach_add_.List(xs, ys, alpha=2)     =>     x.add_(y, alpha=2) for each pair

The overload tells what the other operands are: a number or a tensor for all, or one for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, product
from typing import cast

from torch._ops import OpOverload

from kiln.graph.ir.node import Argument, Node
from kiln.graph.ops.breaks import UnsupportedMutation
from kiln.graph.ops.registry import Decomposition
from kiln.graph.trace.mode import Args, Handler, Kwargs, RecordingMode, real_in
from kiln.graph.trace.shared_memory import by_storage, for_these_sizes, refuse_shared_memory, with_hints
from kiln.graph.trace.storage_view import StorageView, extent

PREFIX = "aten._foreach_"
SINGLE = {"norm.Scalar": "linalg_vector_norm.default", "zero.default": "fill.Scalar", "copy.default": "copy.default"}
"""Where the op on a single tensor has another name."""


def single_names(name: str) -> list[str]:
    """Names of the overloads on a single tensor, likely ones first."""
    base, overload = name.removeprefix(PREFIX).rsplit(".", 1)
    base = base.removesuffix("_")
    if special := SINGLE.get(f"{base}.{overload}"):
        return [f"aten.{special}"]
    kinds = {
        "Scalar": ("Tensor_Scalar", "Scalar"),
        "ScalarList": ("Tensor_Scalar", "Scalar"),
        "List": ("Tensor",),
        "ScalarAndTensor": ("Scalar",),
    }
    return [f"aten.{base}.{kind}" for kind in (*kinds.get(overload, ()), "Tensor", "Tensor_Tensor", "default")]


def foreach_handler(op: OpOverload, find: Callable[[str], Decomposition | None]) -> Handler | None:
    """The handler of a `_foreach_` op if its op on a single tensor has a rule."""
    name = str(op)
    if not name.startswith(PREFIX):
        return None
    rule = next((found for single in single_names(name) if (found := find(single))), None)
    if rule is None:
        return None
    arguments = op._schema.arguments
    packed = any(argument.name == "scalars" and str(argument.type) == "Tensor" for argument in arguments)
    return _handler(rule, in_place=op._schema.is_mutable, zero="_foreach_zero" in name, packed=packed)


def _handler(rule: Decomposition, *, in_place: bool, zero: bool, packed: bool) -> Handler:
    """`packed`: the last argument is a tensor that holds one number for each element of the lists."""

    def handler(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
        targets = cast(Sequence[object], next(arg for arg in args if isinstance(arg, list | tuple)))
        if in_place:
            rows = [[at(arg, index) for arg in args] for index in range(len(targets))]
            for row in rows:
                refuse_shared_memory(mode, op, row[0], by_storage(mode, row[1:]), pointwise=True)
            if len(rows) > 1 and are_ordered(mode, op, rows):
                numbers, named = mode.arguments(args[-1:] if packed else (), kwargs)
                for index, row in enumerate(rows):
                    values = mode.values(row)
                    if packed:
                        values[-1] = elements(mode, cast(Node, numbers[0]))[index]
                    write(mode, op, row[0], _single(mode, rule, index, values, named, zero))
                return None
        values, named = mode.arguments(args, kwargs)
        if packed:
            values[-1] = elements(mode, cast(Node, values[-1]))
        results = [_single(mode, rule, i, values, named, zero) for i in range(len(targets))]
        if not in_place:
            return [mode.wrap(result) for result in results]
        for target, value in zip(targets, results, strict=True):
            write(mode, op, target, value)
        return None

    return handler


def write(mode: RecordingMode, op: OpOverload, target: object, value: Node) -> None:
    mode.write(target, mode.emit.convert(value, mode.view_of(target).spec.dtype), op)


def at(arg: object, index: int) -> object:
    """What an argument is for one element of the lists."""
    return arg[index] if isinstance(arg, list | tuple) else arg


def are_ordered(mode: RecordingMode, op: OpOverload, rows: Sequence[Sequence[object]]) -> bool:
    """Whether an element of the lists may read or write what another one writes: eager takes one after the other."""
    written = {id(mode.view_of(row[0]).storage) for row in rows}
    places: dict[int, dict[int, list[StorageView]]] = {}
    for index, row in enumerate(rows):
        for storage, views in by_storage(mode, row).items():
            if storage in written:
                places.setdefault(storage, {}).setdefault(index, []).extend(views)
    for users in places.values():
        if len(users) > 1 and not are_apart(mode, list(users.values())):
            if mode.view_of(rows[0][0]).spec.device.type != "cpu":
                raise UnsupportedMutation(op=str(op), reason="tensors of its lists share memory")
            return True
    return False


def are_apart(mode: RecordingMode, users: Sequence[Sequence[StorageView]]) -> bool:
    """Whether the views of each user have a stretch of the storage of their own; guarded where sizes may change."""
    stretches = []
    for views in users:
        spans = [cast("tuple[int, int]", extent(with_hints(mode, view.spec))) for view in views]
        stretches.append((min(start for start, _ in spans), max(end for _, end in spans), views))
    stretches.sort(key=lambda stretch: stretch[:2])
    for (_, end, views), (start, _, others) in pairwise(stretches):
        if end > start:
            return False
        for left, right in product(views, others):
            for_these_sizes(mode, left.spec, right.spec)
    return True


def elements(mode: RecordingMode, vector: Node) -> list[Argument]:
    """The numbers in a tensor of rank 1."""
    emit, count = mode.emit, mode.emit.static(vector.tensor.sizes[0])
    return [real_in(mode, emit.node("select", vector, axis=0, index=i)) for i in range(count)]  # type: ignore[misc]


def _single(
    mode: RecordingMode, rule: Decomposition, index: int, values: list[Argument], named: dict[str, Argument], zero: bool
) -> Node:
    """The result for element `index` of the lists."""
    args = [value[index] if isinstance(value, list) else value for value in values]
    if zero:
        args.append(0)
    if isinstance(scalars := named.get("scalars"), list):
        named = {key: value for key, value in named.items() if key != "scalars"}
        args.append(scalars[index])
    if len(args) == 4 and rule.__name__ in ("addcmul", "addcdiv"):
        return cast(Node, rule(mode.emit, *args[:3], value=args[3], **named))
    return cast(Node, rule(mode.emit, *args, **named))
