"""`shuffle` of NumPy's generators: an array takes the order of a permutation that is drawn in front of the region.

    np.random.shuffle(indices)      =>      indices[:] = indices[np.random.permutation(len(indices))]

Both draw the same numbers. Arrays from outside, lists, and other axes than the first are left to NumPy.
"""

from __future__ import annotations

from collections.abc import Callable

from kiln.capture.interpreter.core import HANDLERS, Args, CaptureState, Handler, Kwargs, Value, handles
from kiln.capture.interpreter.host_draws import drawn, once
from kiln.capture.interpreter.variables.array import NumpyObject
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.known_array import KnownArray
from kiln.support.optional import load

numpy: NumpyObject = load("numpy")


def shuffling(permutation: Callable[..., object], other: Handler) -> Handler:
    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        array = args[1] if len(args) == 2 and not kwargs else None
        if not isinstance(array, KnownArray) or array.array.ndim != 1 or not once(s):
            return other(s, args, kwargs)
        array.traced(s)  # what it refuses, it refuses before numbers are drawn
        order = drawn(s, permutation, [args[0], s.const(len(array.array))], {})
        if order is None:
            return other(s, args, kwargs)
        array.set_item(s, s.const(slice(None)), array.get_item(s, order))
        return Constant(None)

    return handler


def register() -> None:
    if numpy is None:
        return
    for owner in (numpy.random.RandomState, numpy.random.Generator):
        shuffle = owner.shuffle
        handles(shuffle)(shuffling(owner.permutation, HANDLERS[shuffle]))


register()
