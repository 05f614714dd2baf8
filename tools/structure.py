"""The structure that docs/design.md sections 4 and 5 ask for: layers, import cycles, sizes, names, budgets, pass lists.

layers.toml and limits.toml hold the numbers and the exemptions. Prints one line per finding; exits 1 if there is one.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

from names import check_banned_names, check_budgets, check_class_names
from pass_lists import check_pass_lists
from source import ROOT, Limits, Module, load, modules

MAX_FILE, MAX_FUNCTION, MAX_METHODS, MAX_CLASS, MAX_NESTED = 800, 80, 20, 400, 4
MAX_CPP_FUNCTION = 100
MAX_OPTIONS, MAX_ENVIRONMENT = 30, 4
BAD_NAMES = {"utils.py", "util.py", "common.py", "misc.py", "helpers.py"}
MAY_IMPORT_LATE = {"kiln/__init__.py", "kiln/support/optional.py"}
BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match)


def imports_of(module: Module, known: set[str]) -> Iterator[tuple[str, int, bool]]:
    """(name of the imported module, line, inside a function?) for each import."""
    inside_lines = {
        line
        for node in module.nodes
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    for node in module.nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            modules = (f"{base}.{alias.name}" for alias in node.names)  # to import one of these runs the package, too
            names = [base, *(name for name in modules if name in known)]
        else:
            continue
        for name in dict.fromkeys(names):
            yield name, node.lineno, node.lineno in inside_lines


def layer_of(name: str, layers: dict[str, int]) -> tuple[str, int]:
    """The entry of layers.toml that is the longest prefix of module `name`, with its layer."""
    path = name.replace(".", "/")
    folder = max((entry for entry in layers if path == entry or path.startswith(entry + "/")), key=len)
    return folder, layers[folder]


def check_layers(found: list[Module], limits: Limits) -> Iterator[str]:
    layers = {str(folder): int(str(layer)) for folder, layer in load("layers.toml")["layers"].items()}
    known = {module.name for module in found}
    yield from (f"layers.toml: {entry} does not exist" for entry in layers if not (ROOT / entry).is_dir())
    for module in found:
        here, height = layer_of(module.name, layers)
        for name, line, inside in imports_of(module, known):
            if inside and module.file not in MAY_IMPORT_LATE:
                yield f"{module.file}:{line}: import of {name} inside a function"
            if not name.startswith("kiln") or name == "kiln":
                continue
            there, depth = layer_of(name, layers)
            if there != here and depth >= height:
                yield f"{module.file}:{line}: {here} (layer {height}) imports {there} (layer {depth})"


def check_late(found: list[Module], limits: Limits) -> Iterator[str]:
    """A function that is loaded late is also imported under TYPE_CHECKING, where the other rules see it."""
    for module in found:
        imports = [node for node in module.nodes if isinstance(node, ast.ImportFrom)]
        imported = {(node.module, alias.name) for node in imports for alias in node.names}
        for node in module.nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "late":
                named = tuple([argument.value for argument in node.args if isinstance(argument, ast.Constant)])
                if named not in imported:
                    yield f"{module.file}:{node.lineno}: late{named} has no import under TYPE_CHECKING"


def check_cycles(found: list[Module], limits: Limits) -> Iterator[str]:
    known = {module.name for module in found}
    graph = {module.name: {name for name, _, _ in imports_of(module, known) if name in known} for module in found}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> Iterator[str]:
        if name in path:
            yield "import cycle: " + " -> ".join((*path[path.index(name) :], name))
            return
        if name in done:
            return
        for other in sorted(graph[name] - {name}):
            yield from visit(other, (*path, name))
        done.add(name)

    for name in graph:
        yield from visit(name, ())


def nesting(node: ast.AST) -> int:
    """Depth of nested blocks; an `elif` is no deeper than its `if`."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        deepest = max(deepest, nesting(child) + (isinstance(child, BLOCKS) and not is_elif))
    return deepest


def check_sizes(found: list[Module], limits: Limits) -> Iterator[str]:
    tables, protocols = limits["data_tables"]["files"], limits["foreign_protocols"]["classes"]
    for module in found:
        lines = module.path.read_text().count("\n")
        if lines > MAX_FILE and module.file not in tables:
            yield f"{module.file}: {lines} lines (limit {MAX_FILE})"
        if module.path.name in BAD_NAMES:
            yield f"{module.file}: a file named {module.path.name}"
        for node in module.nodes:
            size = (getattr(node, "end_lineno", 0) or 0) - getattr(node, "lineno", 0) + 1
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if size > MAX_FUNCTION:
                    yield f"{module.file}:{node.lineno}: {node.name} has {size} lines (limit {MAX_FUNCTION})"
                if (depth := nesting(node)) > MAX_NESTED:
                    yield f"{module.file}:{node.lineno}: {node.name} nests {depth} blocks (limit {MAX_NESTED})"
            elif isinstance(node, ast.ClassDef) and f"{module.name}.{node.name}" not in protocols:
                methods = sum(isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)) for item in node.body)
                if methods > MAX_METHODS or size > MAX_CLASS:
                    yield f"{module.file}:{node.lineno}: class {node.name}: {methods} methods, {size} lines"


def check_module_state(found: list[Module], limits: Limits) -> Iterator[str]:
    """No `global` statement: module-level state lives in registered tables and context objects."""
    for module in found:
        for node in module.nodes:
            if isinstance(node, ast.Global):
                yield f"{module.file}:{node.lineno}: `global {', '.join(node.names)}`"


def check_knobs(found: list[Module], limits: Limits) -> Iterator[str]:
    names: set[str] = set()
    for module in found:
        for node in module.nodes:
            if isinstance(node, ast.ClassDef) and node.name == "Options" and module.file == "kiln/support/options.py":
                count = sum(isinstance(item, ast.AnnAssign) for item in node.body)
                if count > MAX_OPTIONS:
                    yield f"{module.file}: {count} options (limit {MAX_OPTIONS})"
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                names |= set((re.fullmatch(r"KILN_[A-Z_]+", node.value) and [node.value]) or [])
    if len(names) > MAX_ENVIRONMENT:
        yield f"{len(names)} environment variables (limit {MAX_ENVIRONMENT}): {', '.join(sorted(names))}"


def check_cpp() -> Iterator[str]:
    for path in sorted((ROOT / "csrc").rglob("*")):
        if path.suffix not in (".cpp", ".h"):
            continue
        lines = path.read_text().splitlines()
        file = path.relative_to(ROOT).as_posix()
        if len(lines) > MAX_FILE:
            yield f"{file}: {len(lines)} lines (limit {MAX_FILE})"
        start = None
        for number, line in enumerate(lines, 1):
            if re.match(r"^[A-Za-z].*\{$", line) and not re.match(
                r"^(namespace|struct|class|enum|union|extern)\b", line
            ):
                start = number
            elif line == "}" and start is not None:
                if number - start + 1 > MAX_CPP_FUNCTION:
                    yield f"{file}:{start}: function of {number - start + 1} lines (limit {MAX_CPP_FUNCTION})"
                start = None


CHECKS = (
    check_layers,
    check_late,
    check_cycles,
    check_sizes,
    check_module_state,
    check_knobs,
    check_class_names,
    check_banned_names,
    check_budgets,
    check_pass_lists,
)


def main() -> int:
    found = modules()
    limits = load("limits.toml")
    problems = [problem for check in CHECKS for problem in check(found, limits)] + list(check_cpp())
    print("\n".join(problems))
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
