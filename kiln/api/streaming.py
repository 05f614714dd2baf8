"""Generator functions and `async def`: what compiles them gives generators and coroutines, as they do."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

from kiln.native._frames import Dispatcher
from kiln.pipeline.dispatchers import original_of
from kiln.runtime.suspended import drive, drive_coroutine


def streamed(dispatcher: Dispatcher) -> Callable[..., object]:
    """A function that drives the pieces of a generator or a coroutine; `dispatcher` itself for other functions."""
    function = original_of(dispatcher)
    flags = function.__code__.co_flags
    if flags & inspect.CO_COROUTINE:

        @functools.wraps(dispatcher)
        async def coroutine(*args: object, **kwargs: object) -> object:
            return await drive_coroutine(dispatcher, args, kwargs)

        return coroutine
    if not flags & inspect.CO_GENERATOR:
        return dispatcher

    @functools.wraps(dispatcher)
    def generator(*args: object, **kwargs: object) -> object:
        function(*args, **kwargs)  # not started: raises what is wrong with the arguments
        made = drive(dispatcher, args, kwargs)
        for name in ("__name__", "__qualname__"):
            setattr(made, name, getattr(function, name))
        return made

    return generator
