"""Functions of NumPy as operators of a plan, for what torch computes in another way or not at all.

kiln_numpy.call("argsort", '{"args": [{"array": 0}], "named": {"axis": 0}}', [a], [])     [np.argsort(a, axis=0)]
kiln_numpy.call("histogram", '{"args": [{"array": 0}, {"number": 0}], ...}', [a], [n])   [*np.histogram(a, n)]
kiln_numpy.padded("unique", ...)          [how many there are, np.unique(a) and undefined elements behind it]

`form` has the arguments of the call: arrays, scalars of NumPy and numbers that change by their places in the lists.
A plan has to know the sizes of results before it runs a step, so results whose number of elements depends on data are
padded to as many as the arrays have.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import ModuleType

import torch
from torch import Tensor

from kiln.support.optional import load

numpy = load("numpy") or ModuleType("numpy")
NAMESPACE = "kiln_numpy"
LIBRARY = torch.library.Library(NAMESPACE, "DEF")
ARGUMENTS = "(str name, str form, Tensor[] arrays, SymInt[] numbers) -> Tensor[]"
LIBRARY.define(f"call{ARGUMENTS}")
LIBRARY.define(f"padded{ARGUMENTS}")
CALL, PADDED = f"{NAMESPACE}.call.default", f"{NAMESPACE}.padded.default"
VARYING = frozenset(("unique", "setdiff1d", "intersect1d", "union1d", "compress", "extract", "trim_zeros"))
"""Functions with results of one dimension as long as data decide."""


def function_named(name: str) -> Callable[..., object]:
    """`linalg.svd`, or a function of `numpy` itself."""
    space, _, function = name.rpartition(".")
    found: Callable[..., object] = getattr(getattr(numpy, space) if space else numpy, function)
    return found


def given(part: object, arrays: Sequence[Tensor], numbers: Sequence[int]) -> object:
    """An argument of the call."""
    if isinstance(part, list):
        return [given(item, arrays, numbers) for item in part]
    if not isinstance(part, dict):
        return part
    ((kind, value),) = part.items()
    if kind == "tuple":
        return tuple([given(item, arrays, numbers) for item in value])
    if kind == "dtype":
        return numpy.dtype(value)
    if kind == "number":
        return numbers[value]
    array = arrays[value].numpy()
    return array[()] if kind == "scalar" else array


def as_tensor(made: object, arrays: Sequence[Tensor]) -> Tensor:
    """A result in memory of its own."""
    array = numpy.asarray(made)
    is_usable = array.flags.writeable and all(stride >= 0 for stride in array.strides)
    if not is_usable or any(numpy.may_share_memory(array, other.numpy()) for other in arrays):
        array = array.copy()
    return torch.from_numpy(array)


@lru_cache(maxsize=256)
def read_form(form: str) -> tuple[list[object], dict[str, object]]:
    """The arguments by position and by name, which nobody changes."""
    read = json.loads(form)
    return read["args"], read["named"]


def call(name: str, form: str, arrays: Sequence[Tensor], numbers: Sequence[int]) -> list[Tensor]:
    positional, named = read_form(form)
    args = [given(part, arrays, numbers) for part in positional]
    made = function_named(name)(*args, **{key: given(part, arrays, numbers) for key, part in named.items()})
    return [as_tensor(part, arrays) for part in (made if isinstance(made, list | tuple) else [made])]


def place_of_inverse(name: str, form: str) -> int | None:
    """Which result is as long as the argument: one number per element."""
    _, named = read_form(form)
    if name != "unique" or not named.get("return_inverse"):
        return None
    return 1 + bool(named.get("return_index"))


def padded(name: str, form: str, arrays: Sequence[Tensor], numbers: Sequence[int]) -> list[Tensor]:
    made, inverse = call(name, form, arrays, numbers), place_of_inverse(name, form)
    room, count = sum([array.numel() for array in arrays]), made[0].numel()
    found = [torch.tensor(count, device="cpu")]
    for place, part in enumerate(made):
        if place != inverse:
            longer = part.new_zeros(room)
            longer[:count] = part
            part = longer
        found.append(part)
    return found


LIBRARY.impl("call", call, "CompositeExplicitAutograd")
LIBRARY.impl("padded", padded, "CompositeExplicitAutograd")
