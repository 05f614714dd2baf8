"""Each check of tools/ finds violations in a few lines of code."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = {"classes": [], "modules": [], "functions": []}
LIMITS: dict[str, dict[str, Any]] = {
    "shared_class_names": {},
    "names_to_change": NAMES,
    "banned_names": {"wholes": "alias_bases"},
    "banned_functions": {"guess": "size_hint"},
    "order_of_passes": {},
}


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Loads a file of tools/ by name."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    yield load


def package(tool: Any, **files: str) -> list[Any]:
    """Modules of these names and texts; no file is written."""
    source = tool("source")
    return [source.Module(ROOT / "kiln" / f"{name}.py", ast.parse(text)) for name, text in files.items()]


def test_a_class_name_has_one_meaning(tool: Any) -> None:
    found = package(tool, a="class Box: ...", b="class Box: ...")
    names = tool("names")
    assert list(names.check_class_names(found, LIMITS)) == ["class Box is defined 2 times: kiln/a.py:1, kiln/b.py:1"]


def test_classes_that_share_a_name_implement_the_protocol(tool: Any) -> None:
    writer = "class Writer:\n    def write(self): ...\n"
    found = package(
        tool, a=writer, b="class Box:\n    def write(self): ...", c="class Box(Writer): ...", d="class Box: ..."
    )
    limits = {**LIMITS, "shared_class_names": {"Box": "Writer"}}
    assert list(tool("names").check_class_names(found, limits)) == ["kiln/d.py:1: Box lacks write of Writer"]


def test_banned_names(tool: Any) -> None:
    found = package(tool, wholes="def guess(): ...")
    assert list(tool("names").check_banned_names(found, LIMITS)) == [
        "kiln/wholes.py: the name 'wholes' is banned: alias_bases",
        "kiln/wholes.py:1: the name 'guess' is banned: size_hint",
    ]


def test_loops_over_one(tool: Any) -> None:
    names = tool("names")
    tree = ast.parse("for one in x: ...\n[a for a, one in x]\n[one for node in x]")
    assert names.loops_over_one(ast.walk(tree)) == 2


PASSES = """
@dataclass(frozen=True)
class A:
    name: str = "a"
    def run(self, graph): ...

@dataclass
class B:
    def run(self, graph): ...

class C: ...

TOY_PASSES = (A(), B(), D())
check_order(TOY_PASSES, before("a", "b", because=""))
OTHER_PASSES = (A(), A(), A())
"""


def test_pass_lists(tool: Any) -> None:
    assert list(tool("pass_lists").check_pass_lists(package(tool, toy=PASSES), LIMITS)) == [
        "kiln/toy.py: two passes, A and B",
        "kiln/toy.py:8: pass B is no frozen dataclass",
        "kiln/toy.py:8: pass B has no `name`",
        "kiln/toy.py:13: TOY_PASSES holds D: no class",
        "kiln/toy.py:14: an order constraint without a reason",
        "kiln/toy.py:15: no `check_order(OTHER_PASSES, ...)` says why it has this order",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "import torch._dynamo.config",
        "from torch import _inductor",
        "x = torch._subclasses.FakeTensor",
        "importlib.import_module('torch._decomp')",
        "sys.modules['torch.export']",
        "sys.modules.get('torch._dynamo')",
        "NAME = 'torch._dynamo.config'; sys.modules.get(NAME)",
        "NAME: Final = 'torch._dynamo.config'; sys.modules[NAME]",
        "'torch._dynamo' in sys.modules",
        "NAME: str = 'torch._dynamo'; NAME not in sys.modules",
    ],
)
def test_boundary(tool: Any, line: str) -> None:
    tool("source")
    boundary = tool("boundary")
    assert any(boundary.forbidden(name) for _, name in boundary.names_used(list(ast.walk(ast.parse(line)))))
