"""Codes of errors: each belongs to one class, so that a user can look it up."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import kiln
from kiln.support.errors import InternalFault


def codes(path: Path) -> list[tuple[str, str]]:
    """(code, class) of each class in a file that has a code of its own."""
    return [
        (statement.value.value, node.name)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.Assign)
        and ast.unparse(statement.targets[0]) == "code"
        and isinstance(statement.value, ast.Constant)
    ]


def test_each_code_belongs_to_one_class() -> None:
    owners: dict[str, list[str]] = defaultdict(list)
    for path in sorted(Path(kiln.__file__).parent.rglob("*.py")):
        for code, name in codes(path):
            owners[code].append(name)
    assert len(owners) > 50
    assert {code: names for code, names in owners.items() if len(names) > 1} == {}


def test_a_reason_ends_with_one_period() -> None:
    for problem in ("it failed", "it failed."):  # messages of torch are sentences
        assert InternalFault(stage="fusion", problem=problem).render().split("\n")[1].endswith("`fusion`: it failed.")
