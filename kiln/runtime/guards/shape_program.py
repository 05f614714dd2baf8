"""Compiles the text of a relation to a postfix program for the native tree.

    compile_relation("s0*2 <= s1")  ->  steps ((operand 0) (constant 2) mul (operand 1) le), names ("s0", "s1")

The grammar is that of `kiln.symbolic`: names, integers, `+ - * ** // %`, `min`, `max`, comparisons, and
`and`, `or`, `not` between them. The numbers of the operations are those of csrc/frames/shape_program.h.
"""

from __future__ import annotations

import ast
from dataclasses import field
from typing import final

from kiln.support.records import dataclass

CONSTANT, OPERAND = 0, 1
# fmt: off
BINARY: dict[type[ast.operator], int] = {ast.Add: 2, ast.Sub: 3, ast.Mult: 4, ast.FloorDiv: 5, ast.Mod: 6}
CALLS = {"min": 7, "max": 8}
COMPARE: dict[type[ast.cmpop], int] = {ast.Eq: 9, ast.NotEq: 10, ast.Lt: 11, ast.LtE: 12, ast.Gt: 13, ast.GtE: 14}
BOOLEAN: dict[type[ast.boolop], int] = {ast.And: 15, ast.Or: 16}
UNARY: dict[type[ast.unaryop], int] = {ast.Not: 17, ast.USub: 18}
# fmt: on

Step = tuple[int, int]


@final
@dataclass(slots=True)
class PostfixWriter:
    steps: list[Step] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def write(self, node: ast.expr) -> None:
        match node:
            case ast.Constant(value=bool() | int() as value):
                self.steps.append((CONSTANT, int(value)))
            case ast.Name(id=name):
                if name not in self.names:
                    self.names.append(name)
                self.steps.append((OPERAND, self.names.index(name)))
            case ast.BinOp(left=base, op=ast.Pow(), right=ast.Constant(value=int() as power)) if power >= 0:
                self._fold([base] * power or [ast.Constant(1)], BINARY[ast.Mult])
            case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
                self._fold([left, right], BINARY[type(op)])
            case ast.UnaryOp(op=op, operand=operand) if type(op) in UNARY:
                self.write(operand)
                self.steps.append((UNARY[type(op)], 0))
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in CALLS and args:
                self._fold(args, CALLS[name])
            case ast.BoolOp(op=op, values=values):
                self._fold(values, BOOLEAN[type(op)])
            case ast.Compare(left=left, ops=ops, comparators=rights) if all(type(op) in COMPARE for op in ops):
                self._chain([left, *rights], [COMPARE[type(op)] for op in ops])
            case _:
                raise ValueError(f"not a relation between integers: {ast.unparse(node)}")

    def _fold(self, operands: list[ast.expr], op: int) -> None:
        self.write(operands[0])
        for operand in operands[1:]:
            self.write(operand)
            self.steps.append((op, 0))

    def _chain(self, operands: list[ast.expr], ops: list[int]) -> None:
        for n, op in enumerate(ops):
            self.write(operands[n])
            self.write(operands[n + 1])
            self.steps.append((op, 0))
            if n:
                self.steps.append((BOOLEAN[ast.And], 0))


def compile_relation(text: str) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """The program and the names in the order of their operands. Raises `ValueError` for text of another grammar."""
    try:
        expression = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"not a relation: {text!r}") from error
    writer = PostfixWriter()
    writer.write(expression)
    return tuple(writer.steps), tuple(writer.names)
