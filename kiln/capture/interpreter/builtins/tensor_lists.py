"""`tensor.tolist()`, whose numbers data decide.

counts.tolist()                 symbolic numbers, of a few elements; a length that is at least a number of the
                                program (`bincount(minlength=4)`) is taken to be that number
mask.nonzero().tolist()         a list that transformed code makes behind the region, if nothing reads it before;
                                a loop over it may be in the graph (`chosen_rows.py`)
"""

from __future__ import annotations

import math

import torch

from kiln.capture.interpreter.breaks import DataDependentValue, UnsupportedCall
from kiln.capture.interpreter.core import Args, CaptureState, Kwargs, Value, handles
from kiln.capture.interpreter.data_values import (
    LARGEST_SPECULATED,
    LENGTH,
    is_needed,
    past_step,
    speculated_size,
    speculated_value,
)
from kiln.capture.interpreter.frame import running_frame
from kiln.capture.interpreter.variables.deferred_text import Deferred, is_printed, readings_of
from kiln.capture.interpreter.variables.sequence import List
from kiln.capture.interpreter.variables.tensor import Tensor, data_number, record
from kiln.graph.trace.fake import is_wrapped
from kiln.symbolic import Symbol


@handles(torch.Tensor.tolist)
def tolist(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    value = args[0]
    if not isinstance(value, Tensor):
        raise UnsupportedCall(function="Tensor.tolist", why=f"it gets a {value.type_name()}")
    if args[1:] or kwargs:
        raise UnsupportedCall(function="Tensor.tolist", why="it is given arguments")
    s.counters.unguarded += 1
    if is_wrapped(value.fake):
        raise DataDependentValue(operation="Tensor.tolist")
    frame = running_frame(s)
    needed, of_length = is_needed(s), s.needed.get((frame.code, frame.at)) == LENGTH
    if s.policy.whole and (needed or of_length):
        fix_sizes(value)
    known = speculated_value(s, value.fake)
    if known is not None:
        return listed(s, known.tolist())
    found = None if needed or (of_length and not s.policy.whole) else data_list(s, value) or deferred_list(s, value)
    if found is None and not needed and s.policy.whole:  # nothing else can run in its place
        fix_sizes(value)
        found = data_list(s, value)
    if found is None:
        raise DataDependentValue(operation="Tensor.tolist")
    return found


def fix_sizes(value: Tensor) -> None:
    """The lists are as long as in this call."""
    for size in value.fake.shape:
        int(size)


def listed(s: CaptureState, value: object) -> Value:
    return List([listed(s, item) for item in value]) if isinstance(value, list) else s.wrap(value, None)


def data_list(s: CaptureState, value: Tensor) -> Value | None:
    """What `tolist` returns, of symbolic numbers; None for many elements, and dtypes without such numbers."""
    spec, dtype, env = value.fake.storage_view.spec, value.fake.dtype, s.recorder.env
    if dtype.is_complex or dtype is torch.bool:
        return None
    made = [size for size in spec.sizes if isinstance(size, Symbol) and not env.has_hint(size)]
    if not all([speculated_size(s, size) for size in made]):
        return None
    sizes = [size for size in map(env.simplify, spec.sizes) if isinstance(size, int)]
    if len(sizes) < len(spec.sizes):
        return None
    return nested_numbers(s, value, sizes) if math.prod(sizes) <= LARGEST_SPECULATED else None


def nested_numbers(s: CaptureState, value: Value, sizes: list[int]) -> Value:
    """The elements of a tensor as nested lists of symbolic numbers."""
    assert isinstance(value, Tensor)
    if not sizes:
        number = data_number(s, value, "item")
        assert number is not None, value.fake.dtype
        return number
    rows = [record(s, "select", [value, s.const(0), s.const(row)], {}) for row in range(sizes[0])]
    return List([nested_numbers(s, row, sizes[1:]) for row in rows])


def deferred_list(s: CaptureState, value: Tensor) -> Value | None:
    """The list of a tensor, which is made behind the region; None where that is not torch's own."""
    if value.fake.dim() == 0 or not is_printed(s, value):
        return None
    frame = running_frame(s)
    made_at = (frame.code, frame.at)
    return Deferred(made_at, past_step(frame), torch.Tensor.tolist, [value], readings_of(s, [value]), list, False)
