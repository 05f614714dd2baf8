"""The shape of pass lists: every entry of a `*_PASSES` tuple is a frozen dataclass with `name` and `run`, in a file of
its own, and every order constraint says why. `tools/structure.py` runs these checks.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from source import Limits, Module


@dataclass(frozen=True)
class PassList:
    """A tuple like `GRAPH_PASSES`, with the classes that it makes instances of."""

    module: Module
    name: str
    line: int
    classes: tuple[str, ...]


def check_pass_lists(found: list[Module], limits: Limits) -> Iterator[str]:
    lists = [passes for module in found for passes in pass_lists(module)]
    defined = {node.name: (module, node) for module in found for node in module.classes()}
    files: dict[str, str] = {}
    for passes in lists:
        for name in passes.classes:
            if name not in defined:
                yield f"{passes.module.file}:{passes.line}: {passes.name} holds {name}: no class"
                continue
            module, node = defined[name]
            if files.setdefault(module.file, name) != name:
                yield f"{module.file}: two passes, {files[module.file]} and {name}"
            yield from (f"{module.file}:{node.lineno}: pass {name} {fault}" for fault in faults(node))
    for module in found:
        yield from check_reasons(module)
    yield from check_reasons_exist(lists, found, limits["order_of_passes"])


def check_reasons_exist(lists: list[PassList], found: list[Module], same_order: dict[str, str]) -> Iterator[str]:
    """Each list of three or more passes has its constraints, or keeps the order of a list that has."""
    explained = {name for module in found for name in ordered(module)}
    by_name = {passes.name: passes for passes in lists}
    for passes in lists:
        if len(passes.classes) < 3 or passes.name in explained:
            continue
        where = f"{passes.module.file}:{passes.line}"
        other = by_name.get(same_order.get(passes.name, ""))
        if other is None or other.name not in explained:
            yield f"{where}: no `check_order({passes.name}, ...)` says why it has this order"
        elif [name for name in other.classes if name in passes.classes] != list(passes.classes):
            yield f"{where}: {passes.name} does not keep the order of {other.name}"


def pass_lists(module: Module) -> Iterator[PassList]:
    for node in module.tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name, value = node.target.id, node.value
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, node.value
        else:
            continue
        if name.endswith("_PASSES") and isinstance(value, ast.Tuple):
            entries = [entry for entry in value.elts if not isinstance(entry, ast.Starred)]
            classes = tuple(ast.unparse(entry.func) if isinstance(entry, ast.Call) else "?" for entry in entries)
            yield PassList(module, name, node.lineno, classes)


def faults(node: ast.ClassDef) -> Iterator[str]:
    """What keeps a class from being a pass."""
    if not any("dataclass(frozen=True" in ast.unparse(decorator) for decorator in node.decorator_list):
        yield "is no frozen dataclass"
    members = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
    members |= {
        item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }
    members |= {ast.unparse(target) for item in node.body if isinstance(item, ast.Assign) for target in item.targets}
    yield from (f"has no `{member}`" for member in ("name", "run") if member not in members)


def calls(nodes: Iterable[ast.AST], function: str) -> Iterator[ast.Call]:
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function:
            yield node


def ordered(module: Module) -> Iterator[str]:
    """Names of the lists whose order is checked."""
    return (ast.unparse(call.args[0]) for call in calls(module.nodes, "check_order") if call.args)


def check_reasons(module: Module) -> Iterator[str]:
    for check in calls(module.nodes, "check_order"):
        for call in calls(ast.walk(check), "before"):
            reasons = [word.value for word in call.keywords if word.arg == "because"]
            if not any(isinstance(reason, ast.Constant) and reason.value for reason in reasons):
                yield f"{module.file}:{call.lineno}: an order constraint without a reason"
