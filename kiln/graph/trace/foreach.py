"""Ops on lists of tensors, from the op on one tensor.

    _foreach_add_.List(xs, ys, alpha=2)     =>     x.add_(y, alpha=2) for each pair

The overload says what the other operands are: a number for all, a number, a tensor for each, or one tensor for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._ops import OpOverload

from kiln.graph.ir.node import Node
from kiln.graph.ops.emit import Rule
from kiln.graph.trace.mode import Handler, RecordingMode

PREFIX = "aten._foreach_"
SINGLE = {"norm.Scalar": "linalg_vector_norm.default", "zero.default": "fill.Scalar", "copy.default": "copy.default"}
"""Where the op on one tensor has another name."""


def single_names(name: str) -> list[str]:
    """Names of the overloads on one tensor, the likely ones first."""
    base, overload = name.removeprefix(PREFIX).rsplit(".", 1)
    base = base.removesuffix("_")
    if special := SINGLE.get(f"{base}.{overload}"):
        return [f"aten.{special}"]
    kinds = {"Scalar": ("Tensor_Scalar", "Scalar"), "ScalarList": ("Tensor_Scalar", "Scalar"), "List": ("Tensor",)}
    return [f"aten.{base}.{kind}" for kind in (*kinds.get(overload, ()), "Tensor", "Tensor_Tensor", "default")]


def foreach_handler(op: OpOverload, find: Callable[[str], Rule | None]) -> Handler | None:
    """The handler of a `_foreach_` op whose op on one tensor has a rule."""
    name = str(op)
    if not name.startswith(PREFIX):
        return None
    rule = next((found for one in single_names(name) if (found := find(one))), None)
    if rule is None:
        return None
    return _handler(rule, in_place=op._schema.is_mutable, zero="_foreach_zero" in name)


def _handler(rule: Rule, *, in_place: bool, zero: bool) -> Handler:
    def handler(mode: RecordingMode, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        values = mode.values(args)
        named = {key: mode.value(one) for key, one in kwargs.items()}
        results = [_one(mode, rule, i, values, named, zero) for i in range(len(args[0]))]
        if not in_place:
            return [mode.wrap(one) for one in results]
        for target, value in zip(args[0], results, strict=True):
            mode.write(target, mode.emit.convert(value, mode.view_of(target).spec.dtype), op)
        return None

    return handler


def _one(mode: RecordingMode, rule: Rule, index: int, values: list[Any], named: dict[str, Any], zero: bool) -> Node:
    """The result for one element of the lists."""
    args = [one[index] if isinstance(one, list) else one for one in values]
    if zero:
        args.append(0)
    args += [named.pop("scalars")[index]] if isinstance(named.get("scalars"), list) else []
    if len(args) == 4 and rule.__name__ in ("addcmul", "addcdiv"):
        return rule(mode.emit, *args[:3], value=args[3], **named)  # type: ignore[no-any-return]
    return rule(mode.emit, *args, **named)  # type: ignore[no-any-return]
