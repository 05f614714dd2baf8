"""The package as parsed modules, and the two files of limits: what the checks in this folder read."""

from __future__ import annotations

import ast
import dataclasses
import tomllib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE, BENCH = ROOT / "kiln", ROOT / "kiln_bench"
Limits = dict[str, dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Module:
    """One file of the package."""

    path: Path
    tree: ast.Module

    @property
    def file(self) -> str:
        """kiln/graph/ir/node.py"""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def name(self) -> str:
        """kiln.graph.ir.node"""
        parts = list(self.path.relative_to(ROOT).with_suffix("").parts)
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the tree."""
        return tuple(ast.walk(self.tree))

    def classes(self) -> Iterator[ast.ClassDef]:
        return (node for node in self.nodes if isinstance(node, ast.ClassDef))


def modules() -> list[Module]:
    paths = [path for package in (PACKAGE, BENCH) for path in sorted(package.rglob("*.py"))]
    return [Module(path, ast.parse(path.read_text())) for path in paths]


def load(name: str) -> Limits:
    """layers.toml or limits.toml."""
    return tomllib.loads((ROOT / name).read_text())
