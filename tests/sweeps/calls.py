"""Random calls of functions and methods written in C, and operators on pairs of values, compiled and in plain Python.

    def f(a):                                  the result (or error) and what became of `a`, of an argument and of a
        r = a.index('b', Idx())        =>      value made in the frame; each program runs twice
        return r, a

A case is 20 programs. Iterators are compared by their items; addresses are left out.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import random
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

import kiln
from tests.sweeps.runner import Finding, Note
from tests.sweeps.trial import OPTIONS

PRELUDE = """
import array, bisect, collections, copy, fractions, functools, heapq, itertools, math, operator, statistics, string
import textwrap, types, typing
from collections import Counter, OrderedDict, defaultdict, deque
class L(list): pass
class T(tuple): pass
class D(dict): pass
class S(set): pass
class Idx:
    def __index__(self): return 1
class It:
    def __iter__(self): return iter([3, 1])
class Seq:
    def __len__(self): return 2
    def __getitem__(self, i):
        if i > 1: raise IndexError
        return i * 10
class E:
    def __eq__(self, other): return "E"
    def __ne__(self, other): return "NE"
NT = collections.namedtuple("NT", "a b")
"""
# fmt: off
VALUES = (
    "[3, 1, 2]", "(3, 1, 2)", "{1, 3}", "frozenset([1])", "{1: 2, 'a': 3}", "{1: 1}.keys()", "{1: 2}.items()",
    "{1: 1}.values()", "deque([1, 2, 3])", "L([1, 2])", "T((1, 2))", "OrderedDict({1: 1, 2: 2})", "5", "-3", "2.5",
    "float('nan')", "True", "1 + 2j", "range(1, 9, 2)", "NT(1, 2)", "D({1: 1})", "S({1})", "slice(1, 5, 2)",
    "'ab cd'", "b'ab cd'", "bytearray(b'abc')", "None", "defaultdict(int, {1: 1})", "Counter('aab')",
    "array.array('i', [1, 2])", "iter([1, 2])", "zip([1, 2], [3, 4])", "enumerate([5, 6])", "map(str, [1, 2])",
    "types.SimpleNamespace(a=1)", "memoryview(b'abc')", "functools.partial(max, 1)", "fractions.Fraction(1, 3)",
    "reversed([1, 2])", "(i for i in [1, 2])", "types.MappingProxyType({1: 1})",
)
PLAIN = (
    "1", "0", "-1", "2.0", "True", "None", "'a'", "'ab'", "''", "b'a'", "[1, 2]", "(1, 2)", "{1: 9}", "{1, 2}",
    "Idx()", "It()", "Seq()", "slice(0, 2)", "str", "[('k', 1)]", "range(2)", "1 << 70", "'{}'", "deque([1])",
)
FUNCTIONS = (
    "abs", "all", "any", "ascii", "bin", "bool", "bytes", "bytearray", "chr", "complex", "dict", "divmod", "enumerate",
    "filter", "float", "format", "frozenset", "getattr", "hasattr", "hex", "int", "isinstance", "issubclass", "iter",
    "len", "list", "max", "map", "min", "next", "oct", "ord", "pow", "range", "repr", "reversed", "round", "set",
    "slice", "sorted", "str", "sum", "tuple", "type", "zip", "callable", "operator.add", "operator.mul",
    "operator.index", "operator.getitem", "operator.contains", "operator.countOf", "operator.indexOf",
    "operator.concat", "operator.iadd", "operator.truth", "operator.not_", "operator.length_hint", "math.floor",
    "math.sqrt", "math.gcd", "math.prod", "math.isclose", "math.fsum", "math.hypot", "math.copysign",
    "itertools.chain", "itertools.islice", "itertools.accumulate", "itertools.product", "itertools.permutations",
    "itertools.combinations", "itertools.groupby", "itertools.zip_longest", "itertools.starmap",
    "itertools.takewhile", "itertools.compress", "itertools.pairwise", "functools.reduce", "heapq.nlargest",
    "heapq.merge", "bisect.bisect", "copy.copy", "copy.deepcopy", "Counter", "deque", "OrderedDict",
    "collections.ChainMap", "statistics.mean", "string.capwords", "textwrap.dedent",
)
OPERATORS = (
    "a == b", "a != b", "a < b", "a >= b", "type(a).__eq__(a, b)", "type(a).__ne__(a, b)", "type(a).__lt__(a, b)",
    "a.__ge__(b)", "a in [b]", "a is b", "a + b", "a | b", "a * b", "a - b", "a & b", "a % b", "a ^ b", "a[b]",
    "f'{a}{b}'", "'%s' % (a,)", "[*a, b]", "{**a, 1: b}", "print(*a, end=b)", "a if b else 0", "a and b",
)
LEFT_OUT = frozenset((
    "__init_subclass__", "__subclasshook__", "__new__", "__class__", "__reduce__", "__reduce_ex__", "__sizeof__",
    "__dir__", "__getstate__", "__setstate__", "__hash__", "__doc__", "__getattribute__", "__delattr__", "__setattr__",
    "__class_getitem__", "__init__", "__copy__", "__deepcopy__", "buffer_info", "__getnewargs__",
))
# fmt: on
TAILS = ("r, a", "r", "r, a, list(r) if hasattr(r, '__iter__') and not isinstance(r, str) and r is not a else 0")
HUGE = re.compile("mul|lshift|pow|center|just|zfill|range|product|repeat|perm|expand|round|format|bytes|rotate|islice")
"""Calls that a huge number makes endless, or larger than memory."""
PROGRAMS_OF_A_CASE = 20
SECONDS_OF_A_PROGRAM = 5


@dataclasses.dataclass(frozen=True)
class Program:
    """A function `f` of the values that `arguments` gives, if it has parameters."""

    source: str
    arguments: tuple[str, ...]

    def function(self) -> tuple[Callable[..., Any], Callable[[], list[Any]]]:
        space = dict(prelude())
        exec(self.source, space)
        return space["f"], lambda: [eval(text, space) for text in self.arguments]


@functools.cache
def prelude() -> dict[str, Any]:
    space: dict[str, Any] = {}
    exec(PRELUDE, space)
    return space


def program(chance: random.Random) -> Program:
    """Of a function, of a method, or of an operator."""
    inside, kind = chance.random() < 0.5, chance.random()
    a, tail = chance.choice(VALUES), chance.choice(TAILS)
    names = ("a",)
    texts = (a,)
    if kind < 0.4:
        call = chance.choice(FUNCTIONS)
        given = ["a", *chance.choices(PLAIN, k=chance.choice((0, 0, 1, 1, 2)))]
        if chance.random() < 0.3:
            chance.shuffle(given)
        call = f"{call}({', '.join(given)})"
    elif kind < 0.8:
        name = chance.choice(methods(a))
        given = chance.choices(PLAIN, k=chance.choice((0, 1, 1, 1, 2, 2, 3)))
        call = f"type(a).{name}({', '.join(['a', *given])})" if kind < 0.5 else f"a.{name}({', '.join(given)})"
    else:
        call, names = chance.choice(OPERATORS), ("a", "b")
        texts = (a, chance.choice((*VALUES, *PLAIN, "E()", "len", "[].append", "int", "NotImplemented", "object()")))
    if "1 << 70" in (call + texts[-1]) and HUGE.search(call):
        call = "a"
    made = "".join(f"    {name} = {text}\n" for name, text in zip(names, texts, strict=True)) if inside else ""
    parameters = "" if inside else ", ".join(names)
    return Program(f"def f({parameters}):\n{made}    r = {call}\n    return {tail}\n", () if inside else texts)


@functools.cache
def methods(text: str) -> list[str]:
    value = eval(text, dict(prelude()))
    return [name for name in dir(value) if name not in LEFT_OUT and callable(getattr(value, name))]


class TooLong(BaseException):
    """A program does not end."""


def stop(*_: object) -> None:
    raise TooLong


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS_OF_A_PROGRAM)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(function: Callable[..., Any], arguments: list[Any]) -> str:
    """The text of a result, or the class and text of an error; without addresses."""
    try:
        found = text_of(function(*arguments))
    except Exception as error:
        found = f"raises {type(error).__name__}: {error}"
    return re.sub("0x[0-9a-f]+", "0x", found)


def text_of(value: Any) -> str:
    if isinstance(value, list | tuple | collections.deque):
        return f"{type(value).__name__}{[text_of(item) for item in value]}"
    if hasattr(value, "__next__"):
        try:
            return f"iterator{text_of(list(itertools.islice(value, 20)))}"
        except Exception as error:
            return f"iterator {error!r}"
    return f"{type(value).__name__}: {value!r}"


def check(tried: Program) -> Finding | None:
    """What differs, None if nothing does."""
    function, arguments = tried.function()
    try:
        with time_limit():
            plain = outcome(function, arguments())
    except TooLong:
        return None
    with time_limit():
        compiled: Any = kiln.compile(function, backend="eager", options=OPTIONS)
        ours = [outcome(compiled, arguments()) for _ in range(2)]
    report = kiln.report_of(compiled)
    said = [f"{entry.code} {entry.reason}" for entry in (*report.breaks, *report.eager_reasons)]
    subject = tried.source.splitlines()[-2].strip().partition(" = ")[2].partition("(")[0]
    if any(other != plain for other in ours):
        detail = f"{ours[0] if ours[0] != plain else 'the second time ' + ours[1]}, and in Python {plain}"
        return Finding(subject, "outcome", detail[:1000], f"{tried.source}{tried.arguments}")
    faults = [text for text in said if any(word in text for word in ("KILN9000", "KILN1102", "recurses too deeply"))]
    return Finding(subject, "internal", faults[0], f"{tried.source}{tried.arguments}") if faults else None


class CallSweep:
    """A case is some random programs, by its number."""

    def total(self) -> int:
        return 1 << 40

    def run(self, number: int, note: Note) -> list[Finding]:
        chance = random.Random(number)
        found = []
        for _ in range(PROGRAMS_OF_A_CASE):
            tried = program(chance)
            note(tried.source, "")
            try:
                finding = check(tried)
            except TooLong:
                finding = Finding("time", "timeout", f"over {SECONDS_OF_A_PROGRAM} s", tried.source)
            found += [finding] if finding is not None else []
        kiln.reset()
        return found
