"""Ops on lists of tensors, from the op on a single tensor.

    _foreach_add_.List(xs, ys, alpha=2)     =>     x.add_(y, alpha=2) for each pair

The overload tells what the other operands are: a number or a tensor for all, or one for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from torch._ops import OpOverload

from kiln.graph.ir.node import Argument, Node
from kiln.graph.ops.registry import Decomposition
from kiln.graph.trace.mode import Args, Handler, Kwargs, RecordingMode, real_in
from kiln.graph.trace.shared_memory import by_storage, refuse_shared_memory

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
        values, named = mode.arguments(args, kwargs)
        if packed:
            values[-1] = elements(mode, cast(Node, values[-1]))
        targets = cast(Sequence[object], next(arg for arg in args if isinstance(arg, list | tuple)))
        if in_place:
            read = by_storage(mode, args[1:])
            for target in targets:
                refuse_shared_memory(mode, op, target, read, pointwise=True)
        results = [_single(mode, rule, i, values, named, zero) for i in range(len(targets))]
        if not in_place:
            return [mode.wrap(result) for result in results]
        for target, value in zip(targets, results, strict=True):
            mode.write(target, mode.emit.convert(value, mode.view_of(target).spec.dtype), op)
        return None

    return handler


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
