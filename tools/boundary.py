"""The boundary of docs/design.md section 1: no import of the parts of torch that Kiln replaces.

This is check (a), static; (b) and (c) run in `tests/boundary`. Exempt: `kiln/backends`, benchmarks and tests.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FORBIDDEN = (
    "torch._dynamo", "torch._inductor", "torch._functorch", "torch._decomp", "torch._refs", "torch._prims",
    "torch._prims_common", "torch._meta_registrations", "torch._subclasses", "torch.fx.experimental",
    "torch._export", "torch.export", "torch._C._dynamo",
)  # fmt: skip
EXEMPT = ("kiln/backends/", "kiln/cli/bench")


def forbidden(name: str) -> bool:
    return any(name == bad or name.startswith(bad + ".") for bad in FORBIDDEN)


def names_used(node: ast.AST) -> list[str]:
    """Dotted names that a node imports, looks up, or names in a call of import_module."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    if isinstance(node, ast.Attribute):
        return [ast.unparse(node)]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
        return [str(arg.value) for arg in node.args if isinstance(arg, ast.Constant)]
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "sys.modules":
        return [str(node.slice.value)] if isinstance(node.slice, ast.Constant) else []
    return []


def main() -> int:
    problems = []
    for path in sorted((ROOT / "kiln").rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        if place.startswith(EXEMPT):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            problems += [f"{place}:{node.lineno}: {name}" for name in names_used(node) if forbidden(name)]  # type: ignore[attr-defined]
    print("\n".join(problems))
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
