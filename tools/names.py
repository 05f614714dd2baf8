"""Names and budgets: one meaning for each class name, no banned words, ceilings for `Any` and for lines.

limits.toml holds the lists. `tools/structure.py` runs these checks.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from source import BENCH, PACKAGE, ROOT, Limits, Module

MAX_SHARED = 12
"""Class names that may be used more than once, each with the protocol that all of its classes implement."""


def check_class_names(found: list[Module], limits: Limits) -> Iterator[str]:
    """No class name is used twice, unless every class of that name implements one protocol."""
    classes: dict[str, list[tuple[Module, ast.ClassDef]]] = defaultdict(list)
    for module in found:
        for node in module.classes():
            classes[node.name].append((module, node))
    shared, waiting = limits["shared_class_names"], limits["names_to_change"]["classes"]
    if len(shared) > MAX_SHARED:
        yield f"limits.toml: {len(shared)} shared class names (limit {MAX_SHARED})"
    for name, uses in sorted(classes.items()):
        if len(uses) > 1 and name not in shared and name not in waiting:
            where = ", ".join(f"{module.file}:{node.lineno}" for module, node in uses)
            yield f"class {name} is defined {len(uses)} times: {where}"
    for name, protocol in shared.items():
        if len(classes[name]) < 2:
            yield f"limits.toml: class {name} is not shared any more"
        elif len(classes[protocol]) != 1:
            yield f"limits.toml: the classes named {name} share no protocol {protocol}"
        else:
            wanted = methods_of(classes[protocol][0][1])
            for module, node in classes[name]:
                if missing := wanted - methods_of(node) - inherited(node, classes):
                    yield f"{module.file}:{node.lineno}: {name} lacks {', '.join(sorted(missing))} of {protocol}"


def methods_of(node: ast.ClassDef) -> set[str]:
    return {item.name for item in node.body if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef))}


def inherited(node: ast.ClassDef, classes: dict[str, list[tuple[Module, ast.ClassDef]]]) -> set[str]:
    """Methods of the bases that are classes of the package."""
    names: set[str] = set()
    for base in node.bases:
        for _, parent in classes.get(ast.unparse(base).rpartition(".")[2], []):
            if parent is not node:
                names |= methods_of(parent) | inherited(parent, classes)
    return names


def check_banned_names(found: list[Module], limits: Limits) -> Iterator[str]:
    """No module, class or function has a name that limits.toml replaces by another."""
    names, functions, waiting = limits["banned_names"], limits["banned_functions"], limits["names_to_change"]
    for module in found:
        stem = module.path.stem
        if stem in names and module.file not in waiting["modules"]:
            yield f"{module.file}: the name {stem!r} is banned: {names[stem]}"
        for node in module.classes():
            if node.name in names and node.name not in waiting["classes"]:
                yield f"{module.file}:{node.lineno}: the name {node.name!r} is banned: {names[node.name]}"
        for node in module.nodes:
            if isinstance(node, ast.FunctionDef) and node.name in functions and node.name not in waiting["functions"]:
                yield f"{module.file}:{node.lineno}: the name {node.name!r} is banned: {functions[node.name]}"


def check_budgets(found: list[Module], limits: Limits) -> Iterator[str]:
    """No count is above its ceiling: lines of the package, the word `Any`, loop variables called `one`."""
    text = {module.file: module.path.read_text() for module in found}
    counts = {
        "lines": lines_of_code(),
        "any": sum(len(re.findall(r"\bAny\b", source)) for source in text.values()),
        "loops_over_one": sum(loops_over_one(module.nodes) for module in found),
    }
    for name, count in counts.items():
        ceiling = limits["budgets"][name]
        if count > ceiling:
            yield f"{name}: {count} (limits.toml allows {ceiling})"


def lines_of_code() -> int:
    """Lines of kiln/, kiln_bench/ and csrc/, tables and headers included."""
    suffixes = {".py", ".pyi", ".h", ".cpp", ".triton", ".toml"}
    files = [
        path for folder in (PACKAGE, BENCH, ROOT / "csrc") for path in folder.rglob("*") if path.suffix in suffixes
    ]
    return sum(path.read_bytes().count(b"\n") for path in files)


def loops_over_one(nodes: Iterable[ast.AST]) -> int:
    """Loops and comprehensions whose variable is called `one`, which names nothing."""
    targets = [node.target for node in nodes if isinstance(node, (ast.For, ast.comprehension))]
    return sum(any(isinstance(part, ast.Name) and part.id == "one" for part in ast.walk(target)) for target in targets)
