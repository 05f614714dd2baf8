"""Errors of the shape rules: what eager also refuses.

`broadcast` of [3] and [4]  =>  KILN2201: the sizes 3 and 4 do not broadcast
"""

from __future__ import annotations

from kiln.support.errors import KilnError


class ShapeMismatch(KilnError, RuntimeError):
    """Sizes that an op does not accept; eager raises too."""

    code = "KILN2201"
    what = "`{op}` does not accept these sizes"
    why = "{problem}"
    try_ = ("run the program eagerly: it raises for the same mismatch",)


class DeviceMismatch(KilnError, RuntimeError):
    """Inputs on different devices; only CPU tensors of rank 0 mix with another device."""

    code = "KILN2202"
    what = "`{op}` has inputs on different devices"
    why = "{problem}"
    try_ = ("move the tensors to one device with `.to(device)`",)


class ImpossibleView(KilnError, RuntimeError):
    """A view that is only possible as a copy."""

    code = "KILN2203"
    what = "a tensor of sizes {sizes} and strides {strides} has no view of sizes {new_sizes}"
    why = "the elements of a dimension would not be evenly spaced"
    try_ = ("use `reshape`, which copies where necessary",)
