"""Calls of NumPy's functions in a region: probed like other operators without a rule, with warnings put away.

kiln_numpy.call("unique", ..., [a], [])      [n, padded] = kiln_numpy.padded(...); u0 = the item of n; padded[:u0]
kiln_numpy.call("bincount", ..., [a], [])    u0 = the item of max(a) + 1, and NumPy's result has u0 elements
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

import torch
from torch._ops import OpOverload

from kiln.graph.ir.node import Node
from kiln.graph.trace.data_dependent import item_of
from kiln.graph.trace.fallback import fallback_handler
from kiln.graph.trace.mode import Args, Kwargs, RecordingMode
from kiln.graph.trace.special import special
from kiln.plan.numpy_operators import CALL, PADDED, VARYING, numpy, place_of_inverse
from kiln.plan.overloads import find_overload
from kiln.runtime.heard_warnings import hearing
from kiln.symbolic import Int
from kiln.tensor.spec import TensorSpec


@special(CALL)
def numpy_call(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    name, form = str(args[0]), str(args[1])
    if name == "bincount":
        return counted(mode, op, args, kwargs)
    if name not in VARYING:
        return probed(mode, op, args, kwargs)
    count, *found = [mode.node_of(part) for part in probed(mode, find_overload(PADDED), args, kwargs)]
    number, inverse = item_of(mode, count, found[0].tensor.numel()), place_of_inverse(name, form)

    def begun(place: int, padded: Node) -> Node:
        return padded if place == inverse else mode.emit.node("slice", padded, axis=0, start=0, stop=number, step=1)

    return [mode.wrap(begun(place, padded)) for place, padded in enumerate(found)]


def probed(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> Sequence[object]:
    with hearing(), numpy.errstate(all="ignore"):
        return cast(Sequence[object], fallback_handler(op)(mode, op, args, kwargs))


def counted(mode: RecordingMode, op: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """`np.bincount(x, weights, minlength)`: one number for each from 0 to the largest, at least `minlength` of them."""
    emit, read = mode.emit, json.loads(str(args[1]))
    x = mode.node_of(cast(Sequence[object], args[2])[0])
    positional = dict(zip(("x", "weights", "minlength"), read["args"], strict=False))
    asked = positional | read["named"]
    least = asked.get("minlength", 0)
    if isinstance(least, dict):
        least = mode.value(cast(Sequence[object], args[3])[least["number"]])
    last = emit.node("full", emit.number(cast(Int, least) - 1, torch.int64, x.tensor.device), sizes=(1,))
    largest = emit.node("amax", emit.node("cat", emit.convert(x, torch.int64), last, axis=0), axes=(0,))
    size = item_of(mode, emit.pointwise("add", largest, 1), None, cast(Int, least))
    dtype = torch.int64 if asked.get("weights") is None else torch.float64
    values, named = mode.arguments(args, kwargs)
    made = emit.library(str(op), values, named, (TensorSpec(dtype, (size,), (1,), 0, x.tensor.device),))
    return [mode.wrap(part) for part in made]
