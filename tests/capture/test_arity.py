"""The arities of C functions are those that Python's `inspect` finds."""

from __future__ import annotations

import builtins
import collections
import inspect
import itertools
import math
import operator
from collections.abc import Callable, Iterator

import torch

from kiln.capture.interpreter.arity import C_FUNCTIONS, NO_SIGNATURE, PLAIN_SIGNATURE, Arity, arity

OWNERS: tuple[object, ...] = (
    *(builtins, collections, itertools, math, operator, torch._C),
    *(int, float, str, bytes, list, dict, set, tuple, object, type, torch.Tensor, torch.Size, collections.OrderedDict),
)


def c_functions() -> Iterator[Callable[..., object]]:
    """With methods of objects and classes, whose first parameter is bound."""
    for owner in OWNERS:
        yield from (value for value in vars(owner).values() if isinstance(value, C_FUNCTIONS))
    yield from (value for name, value in vars(builtins).items() if isinstance(value, type) and value.__name__ == name)
    yield from (getattr(bound, name) for bound in ([], {}, "", 1.0, dict) for name in dir(bound) if name != "__class__")


def inspected(function: Callable[..., object]) -> Arity | None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return None
    kinds = [parameter.kind for parameter in parameters]
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    fewest = sum(parameter.default is parameter.empty for parameter in positional)
    most = None if inspect.Parameter.VAR_POSITIONAL in kinds else len(positional)
    return Arity(fewest, most, None if inspect.Parameter.VAR_KEYWORD in kinds else frozenset(named))


def test_arities_are_those_of_inspect() -> None:
    checked = 0
    for function in c_functions():
        expected = inspected(function) if callable(function) and function.__hash__ is not None else None
        if expected is not None and function not in NO_SIGNATURE and isinstance(function, (*C_FUNCTIONS, type)):
            assert arity(function) == expected, (function, function.__text_signature__)
            checked += bool(PLAIN_SIGNATURE.fullmatch(function.__text_signature__ or ""))
    assert checked > 500
