"""Random numbers of Python, NumPy and generators of the program that a compiled function draws in front of its region.

They are drawn in the program's order.

draws = HostDraws((HostCall(random.uniform, (0, 1), (), NumberForm(float)),), ("random",))
drawn = draws(*generators)       (0.37, states of the generators before), or None: a result of another form
draws.restore(drawn[-1])         as if nothing had been drawn
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, final

import torch

from kiln.support.optional import load
from kiln.support.records import dataclass

numpy: Any = load("numpy")
State: TypeAlias = tuple[object, ...]
"""Of a random generator, as its library gives it."""
Leaf = float | torch.Tensor


def numpy_state() -> State:
    name, key, *rest = numpy.random.get_state()
    return (name, key.tobytes(), *rest)


def set_numpy_state(state: State) -> None:
    name, key, *rest = state
    numpy.random.set_state((name, numpy.frombuffer(key, numpy.uint32), *rest))


def set_bits(generator: object, state: object) -> None:
    operator.attrgetter("bit_generator")(generator).state = state


Accessors: TypeAlias = tuple[Callable[..., object], Callable[..., object]]
OBJECTS: dict[type, Accessors] = {
    torch.Generator: (torch.Generator.get_state, torch.Generator.set_state),
    random.Random: (random.Random.getstate, random.Random.setstate),
}
"""How the state of a generator is read and set, by its type."""
if numpy is not None:
    OBJECTS[numpy.random.RandomState] = (numpy.random.RandomState.get_state, numpy.random.RandomState.set_state)
    OBJECTS[numpy.random.Generator] = (operator.attrgetter("bit_generator.state"), set_bits)
GENERATORS: Mapping[str, tuple[Callable[[], State], Callable[[State], None]]] = {
    "random": (random.getstate, random.setstate),
    **({"numpy.random": (numpy_state, set_numpy_state)} if numpy is not None else {}),
}
"""How the state of each is read and set."""


@final
@dataclass(frozen=True, slots=True)
class NumberForm:
    """A float; an int is a tensor of rank 0. One that decides what the program does has its value here, and no leaf."""

    kind: type[float] | type[int]
    value: int | None = None


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


@final
@dataclass(frozen=True, slots=True)
class TensorForm:
    """A contiguous tensor on the CPU without a gradient."""

    dtype: torch.dtype
    shape: tuple[int, ...]


Form: TypeAlias = NumberForm | ArrayForm | TensorForm | ValueForm | SequenceForm


def form_of(value: object, seen: tuple[object, ...] = (), decides: bool = False) -> Form | None:
    """None for what a region cannot take: also a result that holds a list or an array twice, which would be two.

    `decides`: the program depends on the values of the integers in it.
    """
    if type(value) is float:
        return NumberForm(float)
    if type(value) is int:
        fits = decides or -(1 << 63) <= value < 1 << 63
        return NumberForm(int, value if decides else None) if fits else None
    if value is None or isinstance(value, bool | str):
        return ValueForm(value)
    if type(value) in (list, tuple):
        changeable = [item for item in value if not isinstance(item, int | float | bool | str | None)]  # type: ignore[attr-defined]
        if len({*map(id, (*changeable, *seen))}) < len(changeable) + len(seen):
            return None
        items = [form_of(item, (*seen, *changeable), decides) for item in value]  # type: ignore[attr-defined]
        found = tuple([item for item in items if item is not None])
        return SequenceForm(type(value), found) if len(found) == len(items) else None  # type: ignore[arg-type]
    if type(value) is torch.Tensor:
        plain = value.layout is torch.strided and value.device.type == "cpu" and not value.requires_grad
        return TensorForm(value.dtype, tuple(value.shape)) if plain and value.is_contiguous() else None
    if numpy is None or not isinstance(value, numpy.ndarray | numpy.generic):
        return None
    array = value.__array__()
    usable = array.flags.c_contiguous and array.dtype.isnative and type(value) is not numpy.matrix
    return ArrayForm(array.dtype.name, array.shape, isinstance(value, numpy.generic)) if usable else None


def leaves_of(value: object, form: Form) -> Iterator[Leaf]:
    """What a region takes of a result."""
    match form:
        case NumberForm() if form.value is None:
            yield value if isinstance(value, float) else torch.tensor(value, dtype=torch.int64, device="cpu")
        case TensorForm():
            assert isinstance(value, torch.Tensor)
            yield value
        case ArrayForm():
            array = value.__array__()  # type: ignore[attr-defined]
            yield torch.from_numpy(array if array.flags.writeable else array.copy())
        case SequenceForm():
            assert isinstance(value, list | tuple)
            for item, inner in zip(value, form.items, strict=True):
                yield from leaves_of(item, inner)


def filled(method: str, shape: tuple[int, ...], dtype: torch.dtype, *args: object, **kwargs: object) -> torch.Tensor:
    """What `uniform_` and its like write to a contiguous tensor."""
    made = torch.empty(shape, dtype=dtype, device="cpu")
    return getattr(made, method)(*args, **kwargs)  # type: ignore[no-any-return]


def seed_given(generator: torch.Generator, seed: int) -> None:
    generator.manual_seed(seed)


@final
@dataclass(frozen=True, slots=True)
class GivenGenerator:
    """An argument of a call: the generator with this number among those that the compiled function is given.

    `is_made`: among those that the function makes.
    """

    number: int
    is_made: bool = False


@final
@dataclass(frozen=True, slots=True)
class HostCall:
    """A call whose arguments are constants and generators, and the form of its result; `decides`: see `form_of`."""

    function: Callable[..., object]
    args: tuple[object, ...]
    kwargs: tuple[tuple[str, object], ...]
    form: Form
    decides: bool = False

    def run(self, given: Sequence[object], made: Sequence[object]) -> object:
        def real(arg: object) -> object:
            return (made if arg.is_made else given)[arg.number] if isinstance(arg, GivenGenerator) else arg

        return self.function(*map(real, self.args), **{name: real(arg) for name, arg in self.kwargs})


Making: TypeAlias = tuple[Callable[..., object], tuple[object, ...]]
"""What makes a generator, and its arguments."""


@final
@dataclass(frozen=True, slots=True)
class HostDraws:
    """All calls of a function, the generators that they change, and how those are made that the function makes."""

    calls: tuple[HostCall, ...]
    generators: tuple[str, ...]
    made: tuple[Making, ...] = ()

    def __call__(self, *given: object) -> tuple[object, ...] | None:
        """The leaves of all results, and the states before; None if one has another form or raises.

        torch's own generator is none that can be given: the region may draw from it too, in another order.
        """
        if any(generator is torch.default_generator for generator in given):
            return None
        named = tuple([GENERATORS[name][0]() for name in self.generators])
        states = named, states_of(given)
        made = [make(*args) for make, args in self.made]
        leaves: list[object] = []
        try:
            for call in self.calls:
                result = call.run(given, made)
                if form_of(result, decides=call.decides) != call.form:
                    self.restore(states)
                    return None
                leaves += leaves_of(result, call.form)
        except Exception:  # eager raises it at its place
            self.restore(states)
            return None
        return (*leaves, states)

    def restore(self, states: tuple[tuple[State, ...], list[tuple[object, object]]]) -> None:
        named, given = states
        for name, state in zip(self.generators, named, strict=True):
            GENERATORS[name][1](state)
        restore_states(given)


def states_of(generators: Sequence[object]) -> list[tuple[object, object]]:
    return [(generator, OBJECTS[type(generator)][0](generator)) for generator in generators]


def restore_states(states: Sequence[tuple[object, object]]) -> None:
    """Put them back, last first: one may be there twice."""
    for generator, state in reversed(states):
        OBJECTS[type(generator)][1](generator, state)
