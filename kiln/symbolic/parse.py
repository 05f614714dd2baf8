"""Reading expressions back from their text.

    parse_int("(s0 + 7)//8")  is  (symbol("s0") + 7) // 8

The text is a Python expression over names, integers, `+ - * ** // %`, `min` and `max`; anything else is refused, and so
are powers and products of a size that no printed text has.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from functools import reduce

from kiln.symbolic.expr import Int, sym_max, sym_min, symbol, terms_of

_BINARY: dict[type[ast.operator], Callable[[Int, Int], Int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[[Int, Int], Int]] = {"min": sym_min, "max": sym_max}


def parse_int(text: str) -> Int:
    """The value that prints as `text`. Raises `ValueError` for text of another grammar."""
    try:
        return read_int(ast.parse(text.strip(), mode="eval").body)
    except SyntaxError as error:
        raise ValueError(f"not an integer expression: {text!r}") from error


def read_int(node: ast.expr) -> Int:
    """The value of a parsed Python expression."""
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return value
        case ast.Name(id=name):
            return symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -read_int(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            first, second = read_int(left), read_int(right)
            if not _is_small(type(op), first, second):
                raise ValueError(f"too large an expression: {ast.unparse(node)[:80]!r}")
            return _BINARY[type(op)](first, second)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS and args:
            return reduce(_FUNCTIONS[name], map(read_int, args))
    raise ValueError(f"not an integer expression: {ast.unparse(node)!r}")


LARGEST = 1024
"""Terms of a product, factors and bits of a power."""


def _is_small(op: type[ast.operator], left: Int, right: Int) -> bool:
    """Whether the result of a product or power is of a size that expressions have."""
    if op is ast.Mult:
        return len(terms_of(left)) * len(terms_of(right)) <= LARGEST
    if op is not ast.Pow:
        return True
    if not isinstance(right, int) or right < 0:
        return False
    if isinstance(left, int):
        return left.bit_length() * right <= LARGEST
    terms = left.terms
    return len(terms) == 1 and len(terms[0][0]) * right <= LARGEST and terms[0][1].bit_length() * right <= LARGEST
