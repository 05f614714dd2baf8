"""A pytest plugin that notes which functions of kiln/ each test calls, and how long it takes.

    python -m pytest -p tools.mutate.calls --calls build/mutate/part.jsonl tests/fusion
    {"test": "tests/fusion/test_fusion.py::test_all", "calls": ["loops/fusion/fuse.py:fuse"], "seconds": 0.1}

A function is its file below kiln/ and its name there, `Class.method`. The file grows; the last line of a test counts.
Each function of kiln/ notes its call: modules are compiled with one statement more per function. (A tracer would not
do: the dispatchers hide the compiler from tracers.)
"""

from __future__ import annotations

import ast
import builtins
import importlib.machinery
import json
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = f"{ROOT}/kiln/"
CAPTURED = ("polyfills.py", "polyfill.py", "capture/interpreter/control_flow.py", "support/compiling.py")
"""Files whose functions the interpreter inlines into the user's: a call in them would break the graph."""
CALLED: set[str] = set()
NOTE = "__kiln_called__"


class Noting(ast.NodeTransformer):
    """Puts a call of `NOTE` in front of each function's body."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._around: list[str] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self._around.append(node.name)
        self.generic_visit(node)
        self._around.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self._around.append(node.name)
        self.generic_visit(node)
        name = f"{self._file}:{'.'.join(self._around)}"
        self._around.pop()
        call = ast.Call(ast.Name(NOTE, ast.Load()), [ast.Constant(name)], [])
        note = ast.fix_missing_locations(ast.copy_location(ast.Expr(call), node.body[0]))
        place = 1 if ast.get_docstring(node, clean=False) is not None else 0
        node.body.insert(place, note)
        return node


class NotingLoader(importlib.machinery.SourceFileLoader):
    def path_stats(self, path: str) -> Any:
        raise OSError("bytecode files do not note calls")

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> Any:
        tree = Noting(str(path).removeprefix(PACKAGE)).visit(ast.parse(data))
        return compile(tree, path, "exec", optimize=_optimize)

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Writes no bytecode."""


class NotingFinder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != "kiln":
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path)
        origin = "" if found is None or found.origin is None else found.origin
        noted = origin.startswith(PACKAGE) and origin.endswith(".py") and not origin.endswith(CAPTURED)
        if found is not None and noted:
            found.loader = NotingLoader(name, origin)
        return found


if any([argument.startswith("--calls") for argument in sys.argv]):  # before any conftest imports kiln
    setattr(builtins, NOTE, CALLED.add)
    sys.meta_path.insert(0, NotingFinder())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--calls", type=Path, help="where to note which functions each test calls")


def note_inlined_functions() -> None:
    """Functions in files of CAPTURED are not called: their frames are interpreted."""
    from kiln.capture.interpreter.frame import SymbolicFrame

    make = SymbolicFrame.__init__

    def make_noted(frame: SymbolicFrame, *args: Any, **kwargs: Any) -> None:
        make(frame, *args, **kwargs)
        if frame.code.co_filename.startswith(PACKAGE):
            name = frame.code.co_qualname.replace(".<locals>", "")
            CALLED.add(f"{frame.code.co_filename.removeprefix(PACKAGE)}:{name}")

    SymbolicFrame.__init__ = make_noted  # type: ignore[method-assign, assignment]


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--calls")
    if path is not None:
        note_inlined_functions()
        config.pluginmanager.register(CallRecorder(path), "mutate-calls")


class CallRecorder:
    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._out = path.open("a")
        self._passed = True
        self._ran = False

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Setup, call and teardown."""
        CALLED.clear()
        self._passed, self._ran = True, False
        start = time.perf_counter()
        yield
        seconds = round(time.perf_counter() - start, 3)
        passed = self._passed and self._ran
        found = {"test": item.nodeid, "seconds": seconds, "calls": sorted(CALLED), "passed": passed}
        self._out.write(json.dumps(found) + "\n")
        self._out.flush()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._passed = False
        if report.when == "call" and report.passed:
            self._ran = True
