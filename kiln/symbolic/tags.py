"""Plain floats that stand for symbolic numbers while C++ carries them.

    torch.layer_norm(x, (8,), w, b, eps)              C++ takes a double: it gets a tag near the number of this call
    aten.native_layer_norm(x, (8,), w, b, tag)       the recording finds `eps` again

The last bits of a tag are like no other number's, so what C++ computes from it as in `derived_from` is recognised, and
what it computes otherwise is noticed: within the call, `find` refuses a float that is neither in the call nor a round
number. C++ may treat 0, 1 and what lies between them on their own: a tag is of the same class as its number, and the
code that is compiled checks the class in each call (`same_class`).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import TypeVar, final

from kiln.symbolic.values import Real

NEARNESS = 2.0**-20
"""How far a tag is from its number, as a share of it."""
LARGEST_FACTOR = 1 << 20


def class_of(number: float) -> int:
    """Negative, 0, between 0 and 1, 1, above; NaN and infinities are classes of their own."""
    if not math.isfinite(number):
        return 5 if math.isnan(number) else 6 if number > 0 else 7
    return 0 if number < 0 else 1 if number == 0 else 2 if number < 1 else 3 if number == 1 else 4


def same_class(number: float, expected: float) -> bool:
    return class_of(number) == expected


Number = TypeVar("Number", float, Real)


def derived_from(m: Number) -> Iterator[Number]:
    """What C++ computes from the doubles that it takes."""
    yield from (m, 1 - m, -m, 1 / m, -1 / m, 1 / (1 - m), m * m)
    if isinstance(m, Real):
        yield Real("sqrt", (m,))
    elif m > 0:
        yield math.sqrt(m)


def in_float32(number: float) -> float:
    """Rounded to single precision; infinite where it does not fit."""
    try:
        made: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
    return made


def is_round(number: float) -> bool:
    """A number that somebody wrote down: `1e-08`, `0.1f`, a small binary fraction, an infinity."""
    if not math.isfinite(number) or (number * 64).is_integer():
        return True
    written = float(f"{number:.5g}")
    return number in (written, in_float32(written))


class UnknownNumber(Exception):
    """C++ computed something else from a tag, or did not pass it on."""


@final
class Tags:
    """The tags of a recording; `begin` and `end` enclose a torch call that takes some."""

    def __init__(self) -> None:
        self._by_real: dict[Real, float] = {}
        self._known: dict[float, Real] = {}
        self._sources: dict[float, Real] = {}
        self._unused: set[Real] = set()
        self._plain: set[float] | None = None
        """Floats of the torch call; None outside of one."""

    def __bool__(self) -> bool:
        return bool(self._by_real)

    def begin(self, plain: set[float]) -> None:
        self._unused.clear()
        self._plain = plain

    def end(self) -> bool:
        """Whether a tag was made that reached no operator."""
        self._plain = None
        return bool(self._unused)

    def tag(self, value: Real, number: float) -> float | None:
        """The tag of `value`, which is `number` in this call; None for a number that may be special."""
        found = self._by_real.get(value)
        if found is None:
            share = math.modf((len(self._by_real) + 1) * 0.6180339887498949 + 0.2360679774997897)[0]
            found = number * (1 + NEARNESS * (0.25 + 0.5 * share))
            if class_of(number) not in (0, 2, 4) or class_of(found) != class_of(number):
                return None
            self._by_real[value] = found
            self._learn(found, value, value)
        self._unused.add(value)
        return found

    def _learn(self, number: float, made: Real, source: Real) -> None:
        """`number` stands for `made`, and what C++ may compute from it."""
        for derived, value in zip(derived_from(number), derived_from(made), strict=False):
            self._known[derived] = self._known[in_float32(derived)] = value
            self._sources[derived] = self._sources[in_float32(derived)] = source

    def find(self, number: float) -> Real | None:
        """What a float stands for; None for a number of its own. Raises UnknownNumber where that is not sure."""
        found = self.find_tag(number)
        if found is None and not (self._plain is None or number in self._plain or is_round(number)):
            raise UnknownNumber
        return found

    def find_tag(self, number: float) -> Real | None:
        """What a float stands for; None for one that is no tag, nor computed from one as far as that is known."""
        found = self._known.get(number)
        if found is not None:
            self._unused.discard(self._sources[number])
            return found
        if self._plain is None or number in self._plain or is_round(number):
            return None
        for value, tag in self._by_real.items():
            if (made := _multiple(value, tag, number)) is not None:
                self._unused.discard(value)
                self._learn(number, made, value)
                return made
        return None


def _multiple(value: Real, tag: float, number: float) -> Real | None:
    """`number` as a multiple of the tag, or as a part of it, by an integer."""
    factor, divisor = number / tag, tag / number
    if 1 < abs(factor) < LARGEST_FACTOR and tag * round(factor) == number:
        return Real("mul", (value, round(factor)))
    if 1 < abs(divisor) < LARGEST_FACTOR and tag / round(divisor) == number:
        return Real("truediv", (value, round(divisor)))
    return None
