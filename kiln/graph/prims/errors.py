"""Errors of the shape rules: what eager itself would refuse.

`broadcast` of [3] and [4]  =>  KILN2201: the sizes 3 and 4 do not broadcast
"""

from __future__ import annotations

from kiln.support.errors import KilnError


class ShapeMismatch(KilnError, RuntimeError):
    """Sizes that do not fit an op; eager raises too."""

    code = "KILN2201"
    what = "`{op}` cannot take these sizes"
    why = "{problem}"
    try_ = ("run the program eagerly: it reports the same mismatch with its own message",)


class DeviceMismatch(KilnError, RuntimeError):
    """Tensors of two devices in one op; only CPU tensors of rank 0 mix with another device."""

    code = "KILN2202"
    what = "`{op}` has inputs on different devices"
    why = "{problem}"
    try_ = ("move the tensors to one device with `.to(device)`",)


class ImpossibleView(KilnError, RuntimeError):
    """A view that would need a copy."""

    code = "KILN2203"
    what = "a tensor of sizes {sizes} and strides {strides} has no view of sizes {new_sizes}"
    why = "a dimension would span elements that are not evenly spaced"
    try_ = ("use `reshape`, which copies where it must",)
