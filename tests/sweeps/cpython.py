"""CPython's own tests of its language, each test method compiled and in plain Python.

    python -m tests.sweeps cpython --only test_dict,test_set
    python -m tests.sweeps cpython --shard 0/3 --out found.jsonl

A method passes, is skipped or raises; compiled it must do the same. What it asserts is what compares values. Only the
method is compiled, with what it calls; `setUp` is not. The files are those of the Python that runs the sweep.

native      interpreted whole
resumed     with graph breaks: the instruction of each break ran in Python, all others were interpreted
fallback    a part of the method, or all of it, ran in Python
internal    the compiler failed, or saw an exception that Python does not raise (KILN1102): the method ran in Python
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import functools
import importlib
import io
import unittest
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import kiln
from kiln.report.report import Report
from tests.sweeps.runner import Finding, Note
from tests.sweeps.trial import OPTIONS

# fmt: off
FILES = (
    "test_abc", "test_augassign", "test_binop", "test_bool", "test_builtin", "test_bytes", "test_call",
    "test_class", "test_collections", "test_compare", "test_complex", "test_contains", "test_context",
    "test_contextlib", "test_copy", "test_dataclasses", "test_decorators", "test_defaultdict", "test_deque",
    "test_descr", "test_dict", "test_dictcomps", "test_dictviews", "test_dynamic", "test_dynamicclassattribute",
    "test_enum", "test_enumerate", "test_exception_group", "test_exception_hierarchy",
    "test_exception_variations", "test_exceptions", "test_extcall", "test_float", "test_fractions",
    "test_fstring", "test_funcattrs", "test_functools", "test_generators", "test_genericalias",
    "test_genericclass", "test_genexps", "test_getopt", "test_global", "test_hash", "test_heapq", "test_index",
    "test_int", "test_isinstance", "test_iter", "test_iterlen", "test_itertools", "test_keywordonlyarg",
    "test_lambda", "test_list", "test_listcomps", "test_long", "test_math", "test_metaclass",
    "test_named_expressions", "test_namedtuple", "test_numeric_tower", "test_opcodes", "test_operator",
    "test_ordered_dict", "test_patma", "test_pep646_syntax", "test_positional_only_arg", "test_pow",
    "test_property", "test_raise", "test_range", "test_reprlib", "test_richcmp", "test_scope", "test_set",
    "test_setcomps", "test_slice", "test_sort", "test_statistics", "test_string", "test_subclassinit",
    "test_super", "test_textwrap", "test_tuple", "test_types", "test_typechecks", "test_unary", "test_unicode",
    "test_unpack", "test_unpack_ex", "test_userdict", "test_userlist", "test_userstring", "test_weakset",
    "test_with", "test_yield_from", "test_zip",
)
# fmt: on

Outcome = tuple[str, str]
"""How a test ended ("passed", "skipped", or the class of what it raised), and the text."""


class Ending(unittest.TestResult):
    """Keeps how the last test ended."""

    def __init__(self) -> None:
        super().__init__()
        self.outcome: Outcome = ("passed", "")

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self.raised(err)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.raised(err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None and self.outcome[0] == "passed":
            self.raised(err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.outcome = ("skipped", reason)

    def raised(self, err: Any) -> None:
        self.outcome = (err[0].__name__, self._exc_info_to_string(err, unittest.TestCase())[-1200:])  # type: ignore[attr-defined]


class CPythonSweep:
    """A case is a test method."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.only = frozenset(filter(None, arguments.only.split(",")))

    @functools.cached_property
    def cases(self) -> list[tuple[type[unittest.TestCase], str]]:
        return [case for name in FILES for case in self.tests_of(name)]

    def tests_of(self, name: str) -> Iterator[tuple[type[unittest.TestCase], str]]:
        if not any(wanted.partition(".")[0] == name for wanted in self.only) and self.only:
            return
        try:
            with quiet():
                module = importlib.import_module(f"test.{name}")
        except (ImportError, unittest.SkipTest):  # not in this version of Python
            return
        for cls in vars(module).values():
            if isinstance(cls, type) and issubclass(cls, unittest.TestCase) and cls.__module__ == module.__name__:
                for method in unittest.TestLoader().getTestCaseNames(cls):
                    full = f"{name}.{cls.__name__}.{method}"
                    if not self.only or self.only & {name, full, f"{name}.{cls.__name__}"}:
                        yield cls, method

    def total(self) -> int:
        return len(self.cases)

    def run(self, number: int, note: Note) -> list[Finding]:
        cls, method = self.cases[number]
        subject = f"{cls.__module__.removeprefix('test.')}.{cls.__name__}.{method}"
        note("eager", subject)
        plain = ending_of(cls, method, leave)
        if plain[0] != "passed":
            return [Finding(subject, "skipped", f"{plain[0]}: {plain[1][-200:]}", mode="cpython")]
        note(subject, "")
        compiled: list[Any] = []
        ours = ending_of(cls, method, functools.partial(compiling, compiled))
        reports = [kiln.report_of(function) for function in compiled]
        reasons = [reason for report in reports for reason in reasons_of(report)]
        if ours[0] != plain[0]:
            again = ending_of(cls, method, leave)
            if again[0] != plain[0]:  # it passes once in a process
                return [Finding(subject, "skipped", f"the second time {again[0]}", mode="cpython")]
            return [Finding(subject, "outcome", f"{ours[0]}: {ours[1]}", "; ".join(reasons)[:1000], "cpython")]
        faults = [reason for reason in reasons if "KILN9000" in reason or "KILN1102" in reason]
        eager = any(report.eager_reasons for report in reports)
        kind = "internal" if faults else "fallback" if eager else "resumed" if reasons else "native"
        return [Finding(subject, kind, "; ".join(faults or reasons)[:2000], mode="cpython")]


Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def leave(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def compiling(compiled: list[Any], function: Callable[..., Any]) -> Callable[..., Any]:
    found = kiln.compile(function, backend="eager", options=OPTIONS)
    compiled.append(found)
    return found


def reasons_of(report: Report) -> list[str]:
    found = [f"{entry.code} {entry.reason}"[:300] for entry in (*report.breaks, *report.eager_reasons)]
    return list(dict.fromkeys(found))


def ending_of(cls: type[unittest.TestCase], method: str, wrap: Wrap) -> Outcome:
    """Run one test; its fixtures of the class included."""
    function = wrap(getattr(cls, method))
    instance = cls(method)
    setattr(instance, method, lambda: function(instance))
    result = Ending()
    with quiet(), own_builtins():
        cls.setUpClass()
        try:
            instance.run(result)
        finally:
            cls.tearDownClass()
            cls.doClassCleanups()
    return result.outcome


@contextlib.contextmanager
def own_builtins() -> Iterator[None]:
    """A test that fails while it has replaced a builtin does not disturb those behind it."""
    before = dict(vars(builtins))
    try:
        yield
    finally:
        vars(builtins).update(before)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Nothing is printed or warned of."""
    out, err = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    with out, err, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
