"""Tensors that the compiler makes for itself name their device: the default device is the program's."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "kiln"
FACTORIES = frozenset(
    [
        "arange",
        "as_tensor",
        "empty",
        "empty_strided",
        "eye",
        "full",
        "linspace",
        "ones",
        "rand",
        "randint",
        "randn",
        "randperm",
        "scalar_tensor",
        "tensor",
        "zeros",
    ]
)
OWN_PROCESS = ("cli",)
"""Folders whose code runs in processes of its own, without a program's settings."""


def unnamed(tree: ast.Module) -> Iterator[int]:
    """The lines of calls `torch.zeros(...)` without `device`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        of_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
        named = any(keyword.arg in ("device", None) for keyword in node.keywords)
        if of_torch and node.func.attr in FACTORIES and not named:
            yield node.lineno


def test_an_unnamed_device_is_found() -> None:
    assert list(unnamed(ast.parse("x = torch.zeros(2)\ny = torch.zeros(2, device='cpu')\nz = e.zeros(2)"))) == [1]


def test_factories_name_their_device() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in OWN_PROCESS
        for line in unnamed(ast.parse(path.read_text()))
    ]
    assert found == []
