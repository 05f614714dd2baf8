"""How many arguments a function written in C takes, so that the errors of wrong calls are those of Python.

len([], [])        TypeError: len() takes exactly one argument (2 given)
{}.get(key=1)      TypeError: dict.get() takes no keyword arguments

A handler that does not look at keyword arguments is not called with any: the call breaks the graph.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import re
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import final

from kiln.capture.bytecode.decode import decode
from kiln.capture.bytecode.postdominators import RETURNS
from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.support.records import dataclass

C_FUNCTIONS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
DICTS = (dict, OrderedDict)
SETS = (set, frozenset)
ANY = None
"""Any number of arguments, or any keywords."""
NO_SIGNATURE: dict[object, tuple[int, int | None, frozenset[str] | None]] = {
    **dict.fromkeys((bool, float, list, tuple, set, frozenset), (0, 1, frozenset())),
    **dict.fromkeys((iter, next), (1, 2, frozenset())),
    **dict.fromkeys((range, slice), (1, 3, frozenset())),
    int: (0, 2, frozenset(("base",))),
    str: (0, 3, frozenset(("object", "encoding", "errors"))),
    getattr: (2, 3, frozenset()),
    dict.pop: (2, 3, frozenset()),
    vars: (0, 1, frozenset()),
    super: (0, 2, frozenset()),
    **dict.fromkeys(DICTS, (0, 1, ANY)),
    **dict.fromkeys([cls.update for cls in DICTS], (1, 2, ANY)),
    **{
        getattr(cls, name): (1, 1, frozenset())
        for cls in (*DICTS, types.MappingProxyType)
        for name in ("clear", "copy", "items", "keys", "values", "__reversed__")
        if hasattr(cls, name)
    },
    **dict.fromkeys(
        [set.clear, set.pop, set.copy, frozenset.copy, types.GeneratorType.close, types.CoroutineType.close],
        (1, 1, frozenset()),
    ),
    **{getattr(set, name): (2, 2, frozenset()) for name in ("add", "discard", "remove", "symmetric_difference_update")},
    **{
        getattr(cls, name): (2, 2, frozenset())
        for cls in SETS
        for name in ("isdisjoint", "issubset", "issuperset", "symmetric_difference", "__contains__")
    },
    defaultdict.copy: (1, 1, frozenset()),
    **dict.fromkeys((max, min), (1, ANY, frozenset(("default", "key")))),
    **dict.fromkeys(
        (list.__getitem__, dict.__getitem__, types.GeneratorType.send, types.CoroutineType.send), (2, 2, frozenset())
    ),
    **dict.fromkeys((types.GeneratorType.throw, types.CoroutineType.throw), (2, 4, frozenset())),
    types.MappingProxyType.get: (2, 3, frozenset()),
    filter: (2, 2, frozenset()),
    map: (2, ANY, frozenset()),
    zip: (0, ANY, frozenset(("strict",))),
    functools.reduce: (2, 3, frozenset()),
    bytes: (0, 3, frozenset(("encoding", "errors", "source"))),
    **dict.fromkeys((BaseException.with_traceback, BaseException.add_note), (2, 2, frozenset())),
}
"""Fewest and most positional arguments and the keywords of builtins that do not tell `inspect.signature`."""
NEEDS_ARGUMENTS: Mapping[type, Callable[[], object]] = {
    range: lambda: range(0),
    types.GeneratorType: lambda: (item for item in tuple[object, ...]()),
    types.MappingProxyType: lambda: types.MappingProxyType({}),
}
"""Instances of classes that cannot be called without arguments."""
PLAIN_SIGNATURE = re.compile(r"""\(([\w$*/., =<>-]|'[^',()]*')*\)""")
"""A `__text_signature__` without brackets or commas in its defaults, which would take a parser."""


@final
@dataclass(frozen=True, slots=True)
class Arity:
    """What a call may pass."""

    fewest: int
    """Positional parameters without a default that have no keyword."""
    most: int | None
    """Positional arguments; None: any number."""
    keywords: frozenset[str] | None
    """None: any."""

    def fits(self, positional: int, keywords: Collection[str]) -> bool:
        if self.keywords is not None and not self.keywords.issuperset(keywords):
            return False
        return self.fewest <= positional + len(keywords) and (self.most is None or positional <= self.most)


@functools.lru_cache(maxsize=4096)
def arity(function: Callable[..., object]) -> Arity | None:
    """The arity of a builtin, None if it is not known."""
    if function in NO_SIGNATURE:
        fewest, most, keywords = NO_SIGNATURE[function]
        return Arity(fewest, most, keywords)
    is_builtin = vars(builtins).get(getattr(function, "__name__", "")) is function
    if not is_builtin and not isinstance(function, C_FUNCTIONS):
        return None
    text = getattr(function, "__text_signature__", None)
    if text and PLAIN_SIGNATURE.fullmatch(text):
        return written_arity(text, getattr(function, "__self__", None) is not None)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return None
    kinds = {parameter.kind for parameter in parameters}
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = frozenset(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
    return Arity(
        sum(parameter.default is parameter.empty for parameter in by_position),
        None if inspect.Parameter.VAR_POSITIONAL in kinds else len(by_position),
        None if inspect.Parameter.VAR_KEYWORD in kinds else names,
    )


def written_arity(text: str, is_bound: bool) -> Arity:
    """What `inspect.signature` reads in `($self, key, default=None, /)`, a hundred times as fast."""
    parameters = [part.strip() for part in text[1:-1].split(",")]
    if is_bound and parameters[0].startswith("$"):
        del parameters[0]
        if parameters and parameters[0] == "/":
            del parameters[0]
    names: list[str] = []
    fewest = positional = 0
    only_keywords = any_number = any_keyword = False
    for parameter in parameters:
        if parameter == "/":
            names.clear()
        elif parameter.startswith("**"):
            any_keyword = True
        elif parameter.startswith("*"):
            only_keywords, any_number = True, any_number or parameter != "*"
        elif parameter:
            if not parameter.startswith("$"):
                names.append(parameter.partition("=")[0].strip())
            positional += not only_keywords
            fewest += not only_keywords and "=" not in parameter
    return Arity(fewest, None if any_number else positional, None if any_keyword else frozenset(names))


def error_of_call(function: Callable[..., object], positional: int, keywords: Collection[str]) -> TypeError | None:
    """What Python raises for a call with so many arguments; None if they may fit.

    The function is called with placeholders, which it refuses to count.
    """
    known = arity(function)
    if known is None or known.fits(positional, keywords):
        return None
    given: list[object] = [None] * positional
    owner = getattr(function, "__objclass__", None)
    if owner is not None and given:
        try:
            given[0] = NEEDS_ARGUMENTS[owner]() if owner in NEEDS_ARGUMENTS else owner()
        except TypeError:
            return None
    try:
        function(*given, **dict.fromkeys(keywords))
    except TypeError as error:
        return error
    except Exception:
        return None
    return None


@functools.lru_cache(maxsize=1024)
def drops_keywords(handler: Callable[..., object]) -> bool:
    """Whether the code of `handler(s, args, kwargs)` returns without looking at its keyword arguments."""
    code = getattr(handler, "__code__", None)
    if code is None:
        return False
    keywords, steps = code.co_varnames[2], decode(code).instructions
    if keywords in code.co_cellvars or any(step.name == "LOAD_FAST" and step.arg == keywords for step in steps):
        return False
    return any(step.name in RETURNS for step in steps)


def refuse_unread(function: Callable[..., object], handler: Callable[..., object], keywords: Collection[str]) -> None:
    """Break the graph at keyword arguments that the handler would drop."""
    if keywords and drops_keywords(handler):
        name = getattr(function, "__qualname__", None) or repr(function)
        raise UnsupportedCall(function=name, why=f"its handler does not take {', '.join(keywords)} by keyword")
