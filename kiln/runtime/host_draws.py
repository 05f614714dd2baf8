"""Random numbers of Python and NumPy that a compiled function draws in front of its region, in the program's order.

draws = HostDraws((HostCall(random.uniform, (0, 1), (), NumberForm(float)),), ("random",))
drawn = draws()                  (0.37, states of the generators before), or None: a result of another form
draws.restore(drawn[-1])         as if nothing had been drawn
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias, final

import torch

from kiln.support.optional import load
from kiln.support.records import dataclass

numpy = load("numpy")
State: TypeAlias = tuple[object, ...]
"""Of a random generator, as its library gives it."""
Leaf = float | torch.Tensor


def numpy_state() -> State:
    assert numpy is not None
    name, key, *rest = numpy.random.get_state()
    return (name, key.tobytes(), *rest)


def set_numpy_state(state: State) -> None:
    assert numpy is not None
    name, key, *rest = state
    numpy.random.set_state((name, numpy.frombuffer(key, numpy.uint32), *rest))


GENERATORS: Mapping[str, tuple[Callable[[], State], Callable[[State], None]]] = {
    "random": (random.getstate, random.setstate),
    **({"numpy.random": (numpy_state, set_numpy_state)} if numpy is not None else {}),
}
"""How the state of each is read and set."""


@final
@dataclass(frozen=True, slots=True)
class NumberForm:
    """A float; an int is a tensor of rank 0."""

    kind: type[float] | type[int]


@final
@dataclass(frozen=True, slots=True)
class ArrayForm:
    """A contiguous array, or a scalar of NumPy; each is a tensor."""

    dtype: str
    shape: tuple[int, ...]
    is_scalar: bool


@final
@dataclass(frozen=True, slots=True)
class ValueForm:
    """Always the same value, which is no leaf."""

    value: bool | str | None


@final
@dataclass(frozen=True, slots=True)
class SequenceForm:
    kind: type[list[object]] | type[tuple[object, ...]]
    items: tuple[Form, ...]


Form: TypeAlias = NumberForm | ArrayForm | ValueForm | SequenceForm


def form_of(value: object, seen: tuple[object, ...] = ()) -> Form | None:
    """None for what a region cannot take: also a result that holds a list or an array twice, which would be two."""
    if type(value) in (int, float):
        fits = type(value) is float or -(1 << 63) <= value < 1 << 63  # type: ignore[operator]
        return NumberForm(float if type(value) is float else int) if fits else None
    if value is None or isinstance(value, bool | str):
        return ValueForm(value)
    if type(value) in (list, tuple):
        changeable = [item for item in value if not isinstance(item, int | float | bool | str | None)]  # type: ignore[attr-defined]
        if len({*map(id, (*changeable, *seen))}) < len(changeable) + len(seen):
            return None
        items = [form_of(item, (*seen, *changeable)) for item in value]  # type: ignore[attr-defined]
        found = tuple([item for item in items if item is not None])
        return SequenceForm(type(value), found) if len(found) == len(items) else None  # type: ignore[arg-type]
    if numpy is None or not isinstance(value, numpy.ndarray | numpy.generic):
        return None
    array = value.__array__()
    usable = array.flags.c_contiguous and array.dtype.isnative and type(value) is not numpy.matrix
    return ArrayForm(array.dtype.name, array.shape, isinstance(value, numpy.generic)) if usable else None


def leaves_of(value: object, form: Form) -> Iterator[Leaf]:
    """What a region takes of a result."""
    match form:
        case NumberForm():
            yield value if isinstance(value, float) else torch.tensor(value, dtype=torch.int64, device="cpu")
        case ArrayForm():
            array = value.__array__()  # type: ignore[attr-defined]
            yield torch.from_numpy(array if array.flags.writeable else array.copy())
        case SequenceForm():
            assert isinstance(value, list | tuple)
            for item, inner in zip(value, form.items, strict=True):
                yield from leaves_of(item, inner)


@final
@dataclass(frozen=True, slots=True)
class HostCall:
    """A call with constant arguments, and the form of its result."""

    function: Callable[..., object]
    args: tuple[object, ...]
    kwargs: tuple[tuple[str, object], ...]
    form: Form

    def run(self) -> object:
        return self.function(*self.args, **dict(self.kwargs))


@final
@dataclass(frozen=True, slots=True)
class HostDraws:
    """All calls of a function, and the generators that they change."""

    calls: tuple[HostCall, ...]
    generators: tuple[str, ...]

    def __call__(self) -> tuple[object, ...] | None:
        """The leaves of all results, and the states before; None if one has another form or raises."""
        states = tuple([GENERATORS[name][0]() for name in self.generators])
        leaves: list[object] = []
        try:
            for call in self.calls:
                result = call.run()
                if form_of(result) != call.form:
                    self.restore(states)
                    return None
                leaves += leaves_of(result, call.form)
        except Exception:  # eager raises it at its place
            self.restore(states)
            return None
        return (*leaves, states)

    def restore(self, states: tuple[State, ...]) -> None:
        for name, state in zip(self.generators, states, strict=True):
            GENERATORS[name][1](state)
