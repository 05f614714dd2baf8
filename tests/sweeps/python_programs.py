"""Random Python programs around a few tensor calls, compiled and eager: results, errors, effects and identities.

    def f(t0, t1, i0, l0, d0, s0, o0):
        for i1 in gen(i0):
            l0.append(i1 % i0)                =>     the same three calls, compiled and not: what they return or raise,
        o0.v = t0 + len(l0)                          what became of the arguments and globals, and what is shared
        return t0, i0, l0, d0, s0, o0

What is found is shrunk to the smallest program that fails in the same way. The back end is `eager`: kernels are tested
by other sweeps.
"""

from __future__ import annotations

import copy
import random
import re
import signal
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import kiln
from kiln.pipeline.session import KilnWarning
from kiln.support.errors import ERRORS
from tests.sweeps.canonical import Canonical, canonical, difference
from tests.sweeps.runner import Finding, Note
from tests.sweeps.samples import seed_torch
from tests.sweeps.shrink import Block, Statement, shrunk, text_of

PRELUDE = """
import contextlib, functools, itertools, operator, re, torch, kiln
COUNT = 0
WORD = re.compile("[a-z0-9]+")
LOG = []

class Thing:
    kind = "thing"
    def __init__(self, v, name="a"):
        self.v = v
        self.name = name
    def scale(self, t, by=2):
        return t * by + self.v
    def bump(self, k=1, *rest, **options):
        self.v = self.v + k + len(rest) + len(options)
        return self
    @property
    def double(self):
        return self.v * 2
    @double.setter
    def double(self, value):
        self.v = value // 2
    @classmethod
    def make(cls, v):
        return cls(v, name=cls.kind)
    @staticmethod
    def twice(v):
        return v + v
    def __eq__(self, other):
        return isinstance(other, Thing) and self.v == other.v
    def __hash__(self):
        return 7
    def __len__(self):
        return abs(self.v) % 4
    def __iter__(self):
        yield self.v
        yield self.v + 1
    def __getitem__(self, key):
        if key > 3:
            raise IndexError(key)
        return self.v + key
    def __contains__(self, item):
        return item == self.v
    def __call__(self, t):
        return t + self.v
    def __add__(self, other):
        return Thing(self.v + (other.v if isinstance(other, Thing) else other))
    def __lt__(self, other):
        return self.v < other.v
    def __bool__(self):
        return self.v != 0
    def __enter__(self):
        self.v += 1
        return self
    def __exit__(self, kind, value, trace):
        self.v -= 3
        return kind is KeyError
    def __repr__(self):
        return f"Thing({self.v})"

class Other(Thing):
    kind = "other"
    def scale(self, t, by=3):
        return super().scale(t, by) - 1
    def __getattr__(self, name):
        if name.startswith("x"):
            return len(name)
        raise AttributeError(name)

class Failure(ValueError):
    pass

def gen(n):
    total = 0
    for i in range(n):
        got = yield i * 2
        total += got or 0
    return total

def chain(n):
    last = yield from gen(n)
    yield last

@contextlib.contextmanager
def scope(log, name):
    log.append(name)
    try:
        yield len(log)
    finally:
        log.append(name + "!")

def logged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        LOG.append(function.__name__)
        return function(*args, **kwargs)
    return wrapper

@logged
def helper(t, k=2, *, add=0):
    return t * k + add

def default(value, cache=[]):
    cache.append(value)
    return len(cache)

def checked(k):
    if k > 4:
        raise Failure(k, "large")
    return k

@kiln.disable
def pause(value):
    return value
"""


PLACE = re.compile(r"\{([tildsobkTILDSOB])\}")


class Generator:
    """Writes a program; variables are named by their kind: t tensor, i int, l list, d dict, s str, o object, b bool."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.names = {kind: [f"{kind}0"] for kind in "tilds" + "o"} | {"b": ["b0"]}
        self.names["t"].append("t1")
        self.fresh = 2
        self.loops = 0
        self.inner = 0
        """Depth of functions inside the function."""

    def pick(self, *choices: Any) -> Any:
        return self.rng.choice(choices)

    def name(self, kind: str) -> str:
        return self.rng.choice(self.names[kind])

    def new(self, kind: str) -> str:
        if self.rng.random() < 0.6:
            return self.name(kind)
        self.fresh += 1
        return f"{kind}{self.fresh}"

    def add(self, kind: str, name: str) -> None:
        if name not in self.names[kind]:
            self.names[kind].append(name)

    def expression(self, kind: str, depth: int = 2) -> str:
        """An expression of a kind."""
        if depth <= 0 or self.rng.random() < 0.25:
            return self.name(kind)
        template = self.rng.choice(EXPRESSIONS[kind])
        return self.filled(template, depth - 1)

    def filled(self, template: str, depth: int = 1) -> str:
        """A template with `{t}`, `{i}`, ... replaced by expressions, `{T}` by variables, `{k}` by a number."""

        def made(match: re.Match[str]) -> str:
            what = match[1]
            if what == "k":
                return str(self.pick(0, 1, 2, 3, 5, -1, -2, 7))
            return self.name(what.lower()) if what.isupper() else self.expression(what, depth)

        return PLACE.sub(made, template)

    def block(self, depth: int, size: int | None = None) -> Block:
        size = size or self.rng.randint(1, 4)
        known = {kind: list(names) for kind, names in self.names.items()}
        made = tuple(self.statement(depth) for _ in range(size))
        if self.rng.random() < 0.8:  # else names stay, which may be unbound: errors are results too
            self.names = known
        return made

    def statement(self, depth: int) -> Statement:
        if depth > 0 and self.rng.random() < 0.45:
            return self.rng.choice(COMPOUND)(self, depth - 1)
        if self.rng.random() < 0.5:
            return self.assignment()
        template = self.rng.choice(SIMPLE)
        return Statement(self.filled(template))

    def assignment(self) -> Statement:
        kind = self.rng.choice("tttiiillddsob")
        value = self.expression(kind, 3)
        name = self.new(kind)
        self.add(kind, name)
        return Statement(f"{name} = {value}")

    def loop(self, depth: int) -> Statement:
        kind, header = self.rng.choice(LOOPS)
        header = self.filled(header)
        self.loops += 1
        name = self.new(kind)
        self.add(kind, name)
        body = self.block(depth)
        if self.rng.random() < 0.4:
            stop = Statement(f"if {self.expression('b')}:", (Statement(self.pick("break", "continue")),))
            at = self.rng.randint(0, len(body))
            body = (*body[:at], stop, *body[at:])
        self.loops -= 1
        other = (Statement("else:", self.block(depth)),) if self.rng.random() < 0.2 else ()
        return Statement(f"for {name} in {header}:", body, other)

    def while_loop(self, depth: int) -> Statement:
        self.fresh += 1
        counter = f"w{self.fresh}"
        body = (Statement(f"{counter} += 1"), *self.block(depth))
        inner = Statement(f"while {counter} < {self.pick(1, 2, 4)} and {self.expression('b')}:", body)
        return Statement("if True:", (Statement(f"{counter} = 0"), inner))

    def choice(self, depth: int) -> Statement:
        rest = (Statement(f"elif {self.expression('b')}:", self.block(depth)),) if self.rng.random() < 0.3 else ()
        rest += (Statement("else:", self.block(depth)),) if self.rng.random() < 0.5 else ()
        return Statement(f"if {self.expression('b')}:", self.block(depth), rest)

    def tensor_choice(self, depth: int) -> Statement:
        rest = (Statement("else:", self.block(depth)),) if self.rng.random() < 0.5 else ()
        return Statement(f"if {self.expression('t')}.sum() > {self.pick(0, 3, -5)}:", self.block(depth), rest)

    def attempt(self, depth: int) -> Statement:
        kind = self.pick(
            "KeyError", "(IndexError, ZeroDivisionError)", "Exception", "ValueError", "Failure", "TypeError",
            "AttributeError", "LookupError", "RuntimeError",
        )  # fmt: skip
        self.fresh += 1
        error = f"e{self.fresh}"
        body = self.block(depth)
        if self.rng.random() < 0.5:
            body = (*body, Statement(self.filled(self.rng.choice(RAISES))))
        handler = self.block(depth)
        if self.rng.random() < 0.6:
            text = self.pick(f"s0 = s0 + str({error})", f"s0 = type({error}).__name__", f"l0.append({error}.args)")
            handler = (Statement(text), *handler)
        if self.rng.random() < 0.15:
            handler = (
                *handler,
                Statement(self.pick("raise", "raise KeyError('again')", f"raise Failure from {error}")),
            )
        rest: tuple[Statement, ...] = (Statement(f"except {kind} as {error}:", handler),)
        rest += (Statement("else:", self.block(depth)),) if self.rng.random() < 0.2 else ()
        rest += (Statement("finally:", self.block(depth)),) if self.rng.random() < 0.3 else ()
        return Statement("try:", body, rest)

    def context(self, depth: int) -> Statement:
        header = self.filled(self.rng.choice(CONTEXTS))
        if header.endswith(" as"):
            name = self.new("o" if "Thing" in header else "i")
            self.add(name[0], name)
            header = f"{header} {name}"
        return Statement(f"with {header}:", self.block(depth))

    def function(self, depth: int) -> Statement:
        """A closure, called once or twice."""
        self.fresh += 1
        name = f"g{self.fresh}"
        captured = [kind for kind in "til" if self.names[kind]]
        parameters = self.pick("t9", "t9, i9=2", "t9, *l9", "t9, *, i9=1", "t9, i9=i0, **d9")
        known = {kind: list(names) for kind, names in self.names.items()}
        for parameter in ("t9", "i9", "l9", "d9"):
            if parameter in parameters:
                self.names[parameter[0]].append(parameter)
        body: Block = self.block(depth)
        outer = [n for n in known[self.rng.choice(captured)] if n != "t9" and not n.endswith("9")]
        if self.inner == 0 and self.rng.random() < 0.3 and outer:
            changed = self.rng.choice(outer)
            body = (Statement(f"nonlocal {changed}"), Statement(f"{changed} = {changed} * 2"), *body)
        self.names = known
        if self.rng.random() < 0.25:
            body = (*body, Statement("yield t9"), Statement(self.filled("yield {t}")))
            call = f"t0 = sum({name}({self.filled('{t}')}), t0)"
        else:
            body = (*body, Statement(self.filled("return t9 + {k}")))
            call = f"t0 = {name}({self.filled('{t}')})"
        rest = (Statement(call),) * self.pick(1, 2)
        return Statement("if True:", (Statement(f"def {name}({parameters}):", body), *rest))

    def matched(self, depth: int) -> Statement:
        cases = tuple(
            Statement(f"case {self.filled(pattern)}:", self.block(depth)) for pattern in self.rng.sample(PATTERNS, 3)
        )
        subject = self.pick(self.expression("l"), self.expression("d"), self.expression("i"), self.expression("o"))
        return Statement(f"match {subject}:", cases)

    def program(self) -> Block:
        # Each statement keeps its text, so a part that is left out does not change the rest.
        return self.block(3, self.rng.randint(2, 6))


COMPOUND: tuple[Callable[[Generator, int], Statement], ...] = (
    Generator.loop, Generator.loop, Generator.while_loop, Generator.choice, Generator.choice, Generator.tensor_choice,
    Generator.attempt, Generator.attempt, Generator.context, Generator.function, Generator.matched,
)  # fmt: skip

# fmt: off
EXPRESSIONS: dict[str, tuple[str, ...]] = {
    "t": (
        "({t} + {t})", "({t} * {k})", "({t} - {i})", "(-{t})", "{t}.relu()", "{t}.sum()",
        "torch.where({t} > 0, {t}, {t})",
        "helper({t})", "helper({t}, {k}, add={i})", "{o}.scale({t})", "{O}.scale({t}, by={k})", "{o}({t})",
        "{t}.clone()",
        "torch.stack([{T}, {T}]).sum(0)", "({t} if {b} else {t})", "functools.partial(helper, add={k})({t})",
        "(lambda v: v + {k})({t})", "sum(({T}, {T}, {T}))", "functools.reduce(operator.add, [{T}, {T}])", "pause({t})",
        "torch.zeros({i} % 3 + 1).sum() + {t}", "{t}.detach()", "max([{T}.sum(), {T}.sum()], key=lambda v: 0)",
        "[v * 2 for v in ({T}, {T})][{k} % 2]", "dict(a={T})['a']", "next(iter([{t}]))", "Other.scale(Other({k}), {t})",
        "{t}.sum(dim=-1, keepdim=True)", "({t}, {t})[1]", "torch.tensor({l} or [1]).sum() + {t}", "{t}.float()",
        "getattr({t}, 'abs')()", "{t}[..., :1]", "{t}.mul({i})", "{t}.unsqueeze(0).squeeze(0)",
    ),
    "i": (
        "({i} + {i})", "({i} * {k})", "({i} // {i})", "({i} % {i})", "len({l})", "len({d})", "len({s})", "{t}.dim()",
        "{T}.shape[-1:].numel()", "max({i}, {k})", "min({i}, {i})", "abs({i})", "{l}[{k}]", "{d}.get({k}, {i})",
        "{d}[{k}]",
        "sum(v for v in {l} if isinstance(v, int))", "int({b})", "checked({i})", "{o}.v", "{O}.double", "default({i})",
        "({i} ** 2)", "({i} & 7)", "(~{i})", "({i} if {b} else {k})", "{s}.count('a')", "{s}.find('b')", "len({o})",
        "{l}.index({i})", "int({t}.sum().item())", "pause({i})", "({i} << 1)", "round({i} / 3)", "divmod({i}, {k})[1]",
        "(lambda a, b=2, *c: a + b + len(c))({i}, {k})", "next(iter({l}), {k})", "sum(gen({k}))", "{O}[{k}]",
        "ord('a')",
        "int('12', 16)", "Thing.twice({i})", "operator.mul({i}, 2)", "hash({i}) % 5", "{T}.numel()", "bool({o}) + {i}",
        "(i9 := {i}) + 1", "isinstance({o}, Other) + {i}", "len(LOG)", "COUNT", "{t}.size(-1)",
    ),
    "l": (
        "[{i}, {k}]", "({l} + {l})[:8]", "sorted({l}, key=str)", "{l}[1:]", "{l}[::-1]", "[v for v in {l} if v]",
        "[v + {k} for v in {l}]", "list(range({i} % 5))", "list(gen({k}))", "list(map(lambda v: v * 2, {l}))",
        "[*{l}, {i}][-8:]",
        "list({d})", "list({d}.values())", "list(reversed({l}))", "[a * b for a, b in zip({l}, {l})]",
        "list(chain({k}))",
        "[n for n, v in enumerate({l}, {k})]", "list(filter(None, {l}))", "list(itertools.accumulate({l}))[:6]",
        "{l}.copy()",
        "list({o})", "[v for v in {s}]", "list(itertools.chain({l}, {l}))[:8]", "list(dict.fromkeys({l}))",
        "sorted({v for v in {l} if not torch.is_tensor(v)})",
        "[[v] * 2 for v in {l}]", "list(itertools.islice(itertools.count({k}), 3))", "({l} or [{k}])",
        "[{T}.dim(), {i}]",
        "[f() for f in [lambda v=v: v for v in {l}]]", "[f() for f in [lambda: v for v in {l}]]", "pause({l})",
        "[v for w in ({l}, {l}) for v in w][:6]", "list(zip({l}, {s}))", "list({d}.items())",
        "[x for x in itertools.pairwise({l})]",
        "list(itertools.takewhile(lambda v: v, {l}))", "[*{d}.keys()]", "list(map(str, {l}))", "{L}",
    ),
    "d": (
        "{'a': {i}, {k}: {k}}", "{v: n for n, v in enumerate({l})}", "({d} | {d})", "dict(zip({l}, {l}))",
        "{**{d}, 'z': {i}}",
        "dict({d}, q={k})", "{d}.copy()", "dict.fromkeys({l}, {i})", "{k: v for k, v in {d}.items() if v}", "{D}",
        "dict(sorted({d}.items(), key=str))", "{{i}: {l}}", "vars(Thing({k}))",
    ),
    "s": (
        "f'{{I}}-{{k}:>3}'", "({s} + 'ab')", "{s}.upper()", "','.join(map(str, {l}))", "str({i})", "repr({l})",
        "'%s:%d' % ({s}, {i})", "'{}!'.format({i})", "{s}[::-1]", "({s} * 2)[:9]", "type({o}).__name__", "{o}.name",
        "str({o})", "{s}.replace('a', 'b')", "{s}.split('a')[0]", "({s} if {b} else 'no')", "str({d})", "f'{{B}!r}'",
        "{o}.kind",
        "f'{{O}}'", "''.join(sorted({s}))", "{s}.strip('a')", "str(sorted({s}))", "helper.__name__", "str({T}.shape)",
        "str({T}.dtype)", "f'{{I}:04d}'", "{s}.partition('b')[2]",
    ),
    "o": (
        "Thing({i})", "Other({k})", "{o}.bump()", "{o}.bump({k}, {k}, z={i})", "({o} if {b} else {o})",
        "Thing.make({i})",
        "Other.make({k})", "max({o}, {o})", "({O} + {i})", "copy_of({o})", "type({o})({k})", "next(iter([{o}]))", "{O}",
    ),
    "b": (
        "{i} < {i}", "{i} == {k}", "{i} in {l}", "{k} in {d}", "not {b}", "({b} and {b})", "({b} or {b})",
        "isinstance({o}, Other)",
        "{l} == {l}", "{o} == {o}", "{o} is {o}", "any({l})", "all({l})", "{k} < {i} < 5", "'a' in {s}",
        "{t}.dim() > 0", "bool({l})",
        "hasattr({o}, 'v')", "hasattr({o}, 'xyz')", "{s} == {s}", "{i} in {o}", "{o} != {o}", "{t} is {t}",
        "callable({o})",
        "{l} is {l}", "{d} == {d}", "{s} < {s}", "{i} is not None", "{t}.shape == {t}.shape", "not {o}", "{o} < {o}",
        "len({l}) > 2",
    ),
}
SIMPLE: tuple[str, ...] = (
    "{L}.append({i})", "{L}.append({i})", "{L}.pop()", "{L}.insert({k}, {i})", "{L}.extend({l}[:3])", "{L}.remove({i})",
    "{L}.sort(key=str)", "{L}.reverse()", "{L}[{k}] = {i}", "{L}[1:] = {l}", "del {L}[{k}]", "{L}.clear()",
    "{L} += [{k}]",
    "{D}[{i}] = {k}", "{D}['t'] = {i}", "{D}.update(a={i})", "{D}.update({d})", "{D}.pop({k}, None)", "{D}.pop('a')",
    "del {D}['a']",
    "{D}.setdefault('q', []).append({i})", "{D}.popitem()", "{O}.v = {i}", "{O}.double = {i}", "{O}.w = {t}",
    "{O}.bump({k})",
    "del {O}.w", "setattr({O}, 'u', {i})", "{I} += {i}", "{I} -= {k}", "{I} *= {k}", "{I} //= {i}", "{T} += {k}",
    "{T} *= {t}",
    "{T}.add_({k})", "{T}.mul_({k})", "{T}[..., 0] = {k}", "{S} += str({i})", "{I}, *{L} = [{i}, *{l}]",
    "{I}, {L} = {i}, {l}",
    "{T}, {I} = {t}, {i}", "{L} = {L} = {l}", "COUNT += {i}", "LOG.append({s})", "LOG.append({i})", "assert {b}, {s}",
    "raise Failure({i})", "{I} = checked({i})", "{O} += {i}",
    "{T} = torch.cat([{T}.reshape(-1), {T}.reshape(-1)]).sum() + {T}",
    "l8 = {L}; l8.append({k})", "{L}[:] = [{i}]", "{D} = {d}; {D}['k'] = {D}.get('k', 0) + 1",
    "[{L}.append(v) for v in range(2)]",
    "it = iter({l}); {I} = next(it); {L} = list(it)", "g = gen({k}); {I} = next(g) + g.send({i})",
    "{S} = {O}.name = 'n'",
    "q = {*{l}}; q.add({i}); q.discard({k}); {I} = len(q)", "q = set({l}); q.remove({i}); {L} = sorted(q, key=str)",
    "{L} = list({*{l}} & {{i}, {k}, 0})", "{T} = {T}.view(-1)[:1] + {T}", "return {t}, {i}", "return {o}",
    "Thing.kind = {s}", "helper.extra = {i}", "{D}[{s}] = {T}", "{L}.append({T})", "{T} = {T} / {i}",
    "{I} = {T}.tolist() and {i}",
    "(lambda: {L}.append({i}))()", "{I} = [v for v in {l}][{k}]", "{B} = {b}", "{L}, {D} = {l}, {d}", "print({i}, {s})",
)
RAISES: tuple[str, ...] = (
    "raise KeyError({i})", "raise Failure({s})", "{L}[99]", "{D}['missing']", "{I} // 0", "checked(9)",
    "raise ValueError", "int('x')",
    "{O}.nothing", "next(iter([]))", "None + 1", "raise Failure({i}) from KeyError(1)", "{T} + 'a'",
    "assert False, {i}", "[].pop()",
    "undefined", "torch.zeros(2) + torch.zeros(3)", "raise IndexError", "({T}, ).x", "a, b = {l}",
    "raise StopIteration", "{L}.index(99)",
)
LOOPS: tuple[tuple[str, str], ...] = (
    ("i", "range({i} % 4)"), ("i", "{l}"), ("i", "range(3)"), ("i", "gen({k})"), ("i", "list({d}.values())"), ("s",
    "{s}[:3]"),
    ("l", "zip({l}, range(3))"), ("l", "enumerate({l})"), ("i", "{o}"), ("i", "reversed({l})"), ("s", "list({d})"),
    ("l", "list({d}.items())"),
    ("t", "[{T}, {T}]"), ("i", "chain({k})"), ("o", "[{O}, Thing({k})]"), ("i", "map(abs, {l})"), ("i",
    "sorted({l})"), ("t", "{t}"),
    ("l", "itertools.product(range(2), repeat=2)"), ("i", "{v for v in {l} if not torch.is_tensor(v)}"),
    ("i", "filter(None, {l})"), ("i", "{d}"),
)
CONTEXTS: tuple[str, ...] = (
    "Thing({k}) as", "{O}", "scope(LOG, {s}) as", "torch.no_grad()", "contextlib.suppress(KeyError, ValueError)",
    "Thing({i}), scope(LOG, 'm')",
    "contextlib.nullcontext({i}) as", "torch.enable_grad()",
)
PATTERNS: tuple[str, ...] = (
    "[i8, *l8]", "{'a': i8}", "{k}", "int()", "Thing(v={k})", "Other()", "[i8, j8]", "[]", "str() | None",
    "[int(), *_]", "Thing(name=s8)",
    "{**d8} if {b}", "{k} | {k}",
)
# fmt: on
PARAMETERS = "t0, t1, i0, l0, d0, s0, o0, b0"
SIGNATURE = f"def f({PARAMETERS}):"
RESULTS = Statement("return t0, t1, i0, l0, d0, s0, o0, b0")


def source_of(block: Block) -> str:
    return text_of((Statement(SIGNATURE, (Statement("global COUNT"), *block, RESULTS)),))


def arguments(number: int) -> list[Any]:
    """The arguments of a call: (2, 3) of the variants differ in numbers and in sizes."""
    size = (3, 3, 3, 2)[number]
    t0 = torch.arange(float(size)) - 1
    t1 = torch.arange(2.0 * size).reshape(2, size)
    integer = (2, 2, 3, 5)[number]
    items = ([1, 0, 2], [1, 0, 2], [3, 1], [4, 4, 0, 1])[number]
    return [t0, t1, integer, items, {"a": integer, 1: 5}, "ab", Kinds.MAKE[number % 2], number % 2 == 0]


class Kinds:
    """Placeholders for objects of the program's own classes, which exist once the prelude has run."""

    MAKE = ("Thing", "Other")


@dataclass
class Outcome:
    """What a call came to, in a form that can be compared."""

    result: Canonical
    raised: str


class Program:
    """A program with globals of its own."""

    def __init__(self, source: str) -> None:
        self.globals: dict[str, Any] = {"copy_of": copy.copy}
        exec(PRELUDE_CODE, self.globals)
        exec(compile(source, "<program>", "exec"), self.globals)
        self.globals["print"] = lambda *values: self.globals["LOG"].append(values)

    def call(self, function: Callable[..., Any], number: int) -> Outcome:
        values = arguments(number)
        values[6] = self.globals[values[6]](values[2])
        seed_torch(0)
        raised, result = "", None
        try:
            result = function(*values)
        except Exception as error:
            raised = f"{type(error).__name__}: {error}"
        state = [result, values, self.globals["COUNT"], self.globals["LOG"], self.globals["Thing"].kind]
        return Outcome(canonical(state), raised)


PRELUDE_CODE = compile(PRELUDE, "<prelude>", "exec")
CALLS = (0, 1, 2, 3, 0)


def check(source: str) -> tuple[str, str] | None:
    """Kind and detail of the first difference."""
    try:
        plain, tested = Program(source), Program(source)
    except SyntaxError:
        return None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", KilnWarning)
        compiled = kiln.compile(tested.globals["f"], backend="eager")
        try:
            for turn, number in enumerate(CALLS):
                eager = in_time(lambda number=number: plain.call(plain.globals["f"], number))
                if eager is None:
                    return None
                ours = tested.call(compiled, number)
                found = compare(eager, ours)
                if found is not None:
                    return found[0], f"call {turn}: {found[1]}"
        finally:
            kiln.reset()
    for warning in warned:
        code = next((code for code in ERRORS if code in str(warning.message)), "")
        if code.startswith("KILN9"):
            return "internal", str(warning.message)[:900]
    return None


class EagerTakesLong(BaseException):
    """A program that does not end, such as a loop over a list that it extends."""


def in_time(action: Callable[[], Outcome]) -> Outcome | None:
    """The outcome, if it takes less than half a second."""
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True
        raise EagerTakesLong

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.5, 0.1)  # once more, where an error in a `finally` takes its place
    try:
        outcome = action()
        return None if stopped else outcome
    except (EagerTakesLong, MemoryError):
        return None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def compare(eager: Outcome, ours: Outcome) -> tuple[str, str] | None:
    if eager.raised != ours.raised:
        left, right = eager.raised.partition(":")[0], ours.raised.partition(":")[0]
        kind = "error text" if left == right else "lost error" if not right else "error" if not left else "error class"
        return kind, f"{ours.raised!r} instead of {eager.raised!r}"
    if (place := difference(eager.result, ours.result)) is not None:
        return "values", place
    return None


class PythonSweep:
    """Case n: the program of seed n."""

    def total(self) -> int:
        return 100_000_000

    def run(self, number: int, note: Note) -> list[Finding]:
        block = Generator(random.Random(number)).program()
        note("python", source_of(block))
        found = check(source_of(block))
        if found is None:
            return []
        kind = found[0]

        def fails(smaller: Block) -> bool:
            again = check(source_of(smaller))
            return again is not None and again[0] == kind

        least = shrunk(block, fails)
        _, detail = check(source_of(least)) or found
        return [Finding(subject_of(kind, detail), kind, detail, source_of(least))]


def subject_of(kind: str, detail: str) -> str:
    """Findings with the same message are probably the same fault."""
    return f"{kind}: {detail.partition(': ')[2][:60]}" if kind != "internal" else detail[-160:]
