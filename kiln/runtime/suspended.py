"""Compiled generators and coroutines: a driver runs their pieces, each from one `yield` or `await` to the next.

    def f(x):                              f(x)  =  drive(piece, (x,), {})
        received = yield x + 1      =>     piece(x)          ->  Suspended(x + 1, Continuation(piece_2, [...], 0), None)
        return received * 2                piece_2(received) ->  Returned(received * 2)

A piece that runs in Python gives a generator or a coroutine, which runs to the end.
"""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Generator
from typing import cast, final

from kiln.native._frames import Dispatcher, Driven
from kiln.support.records import dataclass


@final
@dataclass(slots=True)
class Continuation:
    """`function(arguments)`, where item `place` of the list is what the frame is sent, or the exception thrown."""

    function: Callable[[list[object]], object]
    arguments: list[object]
    place: int

    def run(self, value: object) -> object:
        arguments, self.arguments = self.arguments, []  # the piece is their only owner
        arguments[self.place] = value
        return self.function(arguments)

    def run_in_python(self, value: object) -> object:
        function = self.function.function if isinstance(self.function, Driven) else self.function
        plain: Callable[..., object] = function.function if isinstance(function, Dispatcher) else function
        arguments, self.arguments = self.arguments, []
        arguments[self.place] = value
        return plain(*arguments)


@final
@dataclass(slots=True)
class Suspended:
    """The frame yields `value`; `thrown` is None where no handler of the frame is entered by an exception.

    `delegates`: it yields what the iterator `value` yields, and is sent the iterator's result.
    """

    value: object
    delegates: bool
    sent: Continuation
    thrown: Continuation | None

    def take(self) -> object:
        """The value, which only the receiver holds from now on."""
        value, self.value = self.value, None
        return value

    def iterator(self) -> Generator[object, object, object]:
        return cast(Generator[object, object, object], self.take())

    def throw(self, error: BaseException) -> object:
        if self.thrown is None:
            raise error
        if isinstance(error, GeneratorExit):  # it is being closed: what follows is not worth compiling
            return self.thrown.run_in_python(error)
        return self.thrown.run(error)


@final
@dataclass(slots=True)
class Returned:
    """The frame returns."""

    value: object


def suspended(
    value: object,
    delegates: bool,
    function: Callable[[list[object]], object],
    arguments: list[object],
    place: int,
    handler: Callable[[list[object]], object] | None,
    handled: list[object],
    place_of_error: int,
) -> Suspended:
    """Called by transformed code."""
    thrown = None if handler is None else Continuation(handler, handled, place_of_error)
    return Suspended(value, delegates, Continuation(function, arguments, place), thrown)


def drive(
    first: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> Generator[object, object, object]:
    """The generator whose first piece is `first(*args, **kwargs)`."""
    piece = first(*args, **kwargs)
    del args, kwargs
    while type(piece) is Suspended:
        try:
            value = (yield from piece.iterator()) if piece.delegates else (yield piece.take())
        except BaseException as error:
            piece = piece.throw(error)
        else:
            sent, piece = piece.sent, None
            piece = sent.run(value)
    if type(piece) is Returned:
        return piece.value
    assert isinstance(piece, types.GeneratorType)
    return (yield from piece)


@final
@dataclass(slots=True)
class Awaited:
    """What a frame awaits: a coroutine, or the iterator of an awaitable."""

    inner: object

    def __await__(self) -> Generator[object, object, object]:
        found = self.inner.__await__() if isinstance(self.inner, Awaitable) else self.inner
        return cast(Generator[object, object, object], found)


async def drive_coroutine(first: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """The coroutine whose first piece is `first(*args, **kwargs)`."""
    piece = first(*args, **kwargs)
    del args, kwargs
    while type(piece) is Suspended:
        assert piece.delegates
        try:
            value = await Awaited(piece.take())
        except BaseException as error:
            piece = piece.throw(error)
        else:
            sent, piece = piece.sent, None
            piece = sent.run(value)
    if type(piece) is Returned:
        return piece.value
    return await Awaited(piece)
