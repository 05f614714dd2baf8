"""The boundary of docs/design.md section 1: no import of the parts of torch that Kiln replaces.

This is check (a), static; (b) and (c) run in `tests/boundary`. `[boundary]` in limits.toml names the files that may,
each with its reason.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence

from source import load, modules

FORBIDDEN = (
    "torch._dynamo", "torch._inductor", "torch._functorch", "torch._decomp", "torch._refs", "torch._prims",
    "torch._prims_common", "torch._meta_registrations", "torch._subclasses", "torch.fx.experimental",
    "torch._export", "torch.export", "torch._C._dynamo",
)  # fmt: skip
MAX_EXEMPT = 8


def forbidden(name: str) -> bool:
    return any(name == bad or name.startswith(bad + ".") for bad in FORBIDDEN)


def names_used(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of what a module imports or looks up, by strings too where it imports by name."""
    by_name = any(isinstance(node, ast.Call) and is_import(node.func) for node in nodes)
    constants = dict(named_strings(nodes))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and by_name:
            yield node.lineno, node.value
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "sys.modules":
            yield node.lineno, text_of(node.slice, constants)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "sys.modules.get":
            yield node.lineno, text_of(node.args[0], constants)
        elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[-1]) == "sys.modules":
            yield node.lineno, text_of(node.left, constants)


def text_of(node: ast.expr, constants: Mapping[str, str]) -> str:
    """The string that an expression is or names; else its source."""
    source = ast.unparse(node)
    return constants.get(source, source.strip("'"))


def named_strings(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, str]]:
    """(name, text) of `name = "text"` and `name: str = "text"`."""
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if isinstance(node.value.value, str):
                yield from ((ast.unparse(target), node.value.value) for target in targets)


def is_import(function: ast.expr) -> bool:
    """`importlib.import_module`, `import_module` or `__import__`."""
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("import_module", "__import__")


def main() -> int:
    exempt, reasons = load("limits.toml")["boundary"]["files"], load("limits.toml")["boundary"]["reasons"]
    uses = {
        module.file: [f"{module.file}:{line}: {name}" for line, name in names_used(module.nodes) if forbidden(name)]
        for module in modules()
    }
    problems = [problem for file, found in uses.items() if file not in exempt for problem in found]
    problems += [f"limits.toml: {file} needs no exemption" for file in exempt if not uses.get(file)]
    problems += [f"limits.toml: {file} is exempt without a reason" for file in exempt if not reasons.get(file)]
    if len(exempt) > MAX_EXEMPT:
        problems.append(f"limits.toml: {len(exempt)} files may cross the boundary (limit {MAX_EXEMPT})")
    print("\n".join(problems))
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
