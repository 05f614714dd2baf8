"""The mutants of a file: one condition, bound, constant, rule or call changed at a time.

    if size > 1 and last:                    =>     if size >= 1 and last:            bound
                                                    if size > 1 or last:              connective
                                                    if not (size > 1 and last):       condition
                                                    if size > 2 and last:             constant
        check(value)                         =>         pass                          statement
    Rule("mul_one", x * 1, x),               =>     (the row is removed)              row

Texts, annotations, error messages, assertions and `__repr__` are left alone. In C++ the same is done to tokens.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

COMPARISONS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"), ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}  # fmt: skip
OPERATORS = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "//"),
    ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"),
}  # fmt: skip
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
TEXT_NODES = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)
TEXT_FUNCTIONS = {"__repr__", "__str__", "text", "__doc__"}


@final
@dataclass(frozen=True, slots=True)
class Mutant:
    """`old` at bytes `start` to `end` of a file becomes `new`. `function`: the innermost one around it, as in
    `calls.py`: "Cse.run"."""

    path: str
    line: int
    function: str | None
    kind: str
    old: str
    new: str
    start: int
    end: int
    context: str

    @property
    def key(self) -> str:
        """Survives edits of other lines."""
        return f"{self.path} {self.kind} {self.context} | {shown(self.old)} => {shown(self.new)}"

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]


def shown(text: str) -> str:
    flat = re.sub(r"\s+", " ", text)
    return flat if len(flat) <= 60 else flat[:57] + "..."


def mutants_of(path: Path, root: Path) -> list[Mutant]:
    source = path.read_bytes()
    name = str(path.relative_to(root))
    find = python_mutants if path.suffix == ".py" else cpp_mutants
    found = list(find(source, name))
    return list({mutant.key: mutant for mutant in found}.values())


def python_mutants(source: bytes, path: str) -> Iterator[Mutant]:
    yield from PythonMutator(source, path).run()


@final
class PythonMutator(ast.NodeVisitor):
    """Visits what may be mutated; `_around` are the functions and classes around a node."""

    def __init__(self, source: bytes, path: str) -> None:
        self._source = source
        self._path = path
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._around: list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef] = []
        self._found: list[Mutant] = []

    def run(self) -> list[Mutant]:
        self.visit(ast.parse(self._source))
        return self._found

    # ------------------------------------------------------------------------------------------ positions

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr | ast.stmt) -> str:
        return self._source[self._start(node) : self._end(node)].decode()

    def _add(self, kind: str, start: int, end: int, new: str, line: int) -> None:
        names = ".".join([node.name for node in self._around])
        depth = max([at for at, node in enumerate(self._around, 1) if not isinstance(node, ast.ClassDef)], default=0)
        function = ".".join([node.name for node in self._around[:depth]]) or None
        row = self._source[self._starts[line - 1] : self._starts[line]].decode().strip()
        context = f"{names}: {row}"
        old = self._source[start:end].decode()
        self._found.append(Mutant(self._path, line, function, kind, old, new, start, end, context))

    def _replace(self, kind: str, node: ast.expr | ast.stmt, new: str) -> None:
        self._add(kind, self._start(node), self._end(node), new, node.lineno)

    def _between(self, kind: str, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        """Replace the operator between two expressions."""
        start, end = self._end(left), self._start(right)
        match = re.search(rf"(?<!\w){re.escape(old)}(?!\w)", self._source[start:end].decode())
        if match is not None and "#" not in self._source[start:end].decode():
            self._add(kind, start + match.start(), start + match.end(), new, left.end_lineno or left.lineno)

    # ------------------------------------------------------------------------------------------ nodes

    def _visit_scope(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        if node.name in TEXT_FUNCTIONS:
            return
        self._around.append(node)
        for statement in node.body:
            self.visit(statement)
        if not isinstance(node, ast.ClassDef):
            for default in [*node.args.defaults, *node.args.kw_defaults]:
                if default is not None:
                    self.visit(default)
        self._around.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _visit_scope

    def visit_Import(self, node: ast.Import) -> None: ...

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None: ...

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None: ...

    def visit_Raise(self, node: ast.Raise) -> None: ...

    def visit_Assert(self, node: ast.Assert) -> None: ...

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and "TypeAlias" not in self._text(node.annotation):
            self.visit(node.value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """An alias of types at module level is no computation."""
        if self._around:
            self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call) and self._around:
            self._replace("statement", node, "pass")
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in self._text(node.test):
            return
        self._condition(node.test)
        if all([isinstance(statement, ast.Raise) for statement in node.body]) and not node.orelse:
            self._replace("guard", node.test, "False")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._replace("filter", test, "True")
        self.generic_visit(node)

    def _condition(self, test: ast.expr) -> None:
        if isinstance(test, ast.UnaryOp | ast.BoolOp) or not isinstance(test, ast.Compare):
            self._replace("condition", test, f"(not ({self._text(test)}))")

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, right, op in zip(operands, operands[1:], node.ops, strict=False):
            self._between("bound", left, right, *COMPARISONS[type(op)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for value in node.values:
            neutral = "True" if isinstance(node.op, ast.And) else "False"
            self._replace("part", value, neutral)
        self._between("connective", node.values[0], node.values[1], old, new)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        swap = OPERATORS.get(type(node.op))
        texts = [side for side in (node.left, node.right) if isinstance(side, TEXT_NODES)]
        strings = [side for side in (node.left, node.right) if isinstance(getattr(side, "value", None), str)]
        if swap is not None and not texts and not strings and self._around:
            self._between("operator", node.left, node.right, *swap)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace("constant", node, str(not node.value))
        elif isinstance(node.value, int):
            self._replace("constant", node, str(node.value + 1))

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS and len(node.args) + len(node.keywords) > 0:
            self._replace("function", node.func, FUNCTIONS[node.func.id])
        if not self._around:
            for argument in node.args:
                if isinstance(argument, ast.Call) and self._source[self._end(argument) :][:1] == b",":
                    self._add("row", self._start(argument), self._end(argument) + 1, "", argument.lineno)
        self.generic_visit(node)


CPP_TOKENS = {
    " < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " == ": " != ", " != ": " == ", " && ": " || ",
    " || ": " && ", " + 1": " + 2", " - 1": " - 0", " + ": " - ", "true": "false", "false": "true", "if (": "if (!",
    " % ": " / ",
}  # fmt: skip
NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|^\s*#[^\n]*(?:\\\n[^\n]*)*', re.DOTALL | re.MULTILINE)


def cpp_mutants(source: bytes, path: str) -> Iterator[Mutant]:
    """Tokens in code as clang-format writes it: comparisons have spaces, template brackets do not."""
    text = source.decode()
    code = NOT_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    for old, new in CPP_TOKENS.items():
        pattern = rf"\b{old}\b" if old.isalpha() else re.escape(old)
        for match in re.finditer(pattern, code):
            start, end, changed = match.start(), match.end(), new
            if old == "if (":
                close = closing(code, end - 1)
                changed, end = f"if (!({text[end:close]}))", close + 1
            line = code.count("\n", 0, start) + 1
            row = text[text.rfind("\n", 0, start) + 1 : text.find("\n", end)].strip().splitlines()[0]
            first, last = len(text[:start].encode()), len(text[:end].encode())
            yield Mutant(path, line, None, "token", text[start:end], changed, first, last, row)


def closing(code: str, opening: int) -> int:
    """Where the bracket at `opening` closes."""
    depth = 0
    for place in range(opening, len(code)):
        depth += {"(": 1, ")": -1}.get(code[place], 0)
        if depth == 0:
            return place
    return len(code) - 1
