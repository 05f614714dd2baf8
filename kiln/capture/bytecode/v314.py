"""Opcodes of CPython 3.14.

New against 3.13: loads that borrow their reference, constants without `co_consts`, subscripts as BINARY_OP, `with` by
LOAD_SPECIAL, NOT_TAKEN behind jumps, CALL_FUNCTION_EX with a NULL for missing keywords, strings with templates.
"""

from __future__ import annotations

from dataclasses import replace

from kiln.capture.bytecode import v313
from kiln.capture.bytecode.table import (
    BINARY_OPERATORS,
    KEYWORDS_OR_NULL,
    Decoded,
    RawInstruction,
    VersionTable,
    binary_op,
    plain,
    renamed,
)

SUBSCRIPT = len(BINARY_OPERATORS)
"""The argument of BINARY_OP behind those of 3.13."""
SPECIAL_METHODS = ("__enter__", "__exit__", "__aenter__", "__aexit__")
COMMON_CONSTANTS = (AssertionError, NotImplementedError, tuple, all, any)


def binary_op_or_subscript(raw: RawInstruction) -> Decoded:
    return ("BINARY_SUBSCR", raw.arg) if raw.arg == SUBSCRIPT else binary_op(raw)


SPELLING = replace(
    v313.SPELLING,
    names={
        **v313.SPELLING.names,
        "BINARY_SUBSCR": ("BINARY_OP", SUBSCRIPT),
    },
    keywords_or_null=True,
)

# fmt: off
TABLE = VersionTable((3, 14), {
    **v313.TABLE.rows,
    "BINARY_OP":             binary_op_or_subscript,
    "BUILD_INTERPOLATION":   plain,
    "BUILD_TEMPLATE":        plain,
    "CALL_FUNCTION_EX":      renamed("CALL_FUNCTION_EX", KEYWORDS_OR_NULL),
    "LOAD_COMMON_CONSTANT":  lambda raw: ("LOAD_CONST", COMMON_CONSTANTS[raw.arg]),
    "LOAD_SMALL_INT":        renamed("LOAD_CONST"),
    "LOAD_SPECIAL":          lambda raw: ("LOAD_SPECIAL", SPECIAL_METHODS[raw.arg]),
    "POP_ITER":              renamed("POP_TOP"),
    "WITH_EXCEPT_START":     renamed("WITH_EXCEPT_START", 1),  # `self` or NULL lies above the exit
}, SPELLING, {
    **v313.PAIRS,
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": ("LOAD_FAST", "LOAD_FAST"),
}, null_above=True, loop_end=("END_FOR", "POP_ITER"),
    same={"LOAD_FAST_BORROW": "LOAD_FAST"}, left_out=frozenset(["NOT_TAKEN"]))
# fmt: on
