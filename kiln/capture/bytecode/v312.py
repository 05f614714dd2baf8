"""Opcodes of CPython 3.12.

New against 3.11: LOAD_ATTR carries the method bit, LOAD_SUPER_ATTR, BINARY_SLICE and STORE_SLICE, RETURN_CONST,
CALL_INTRINSIC_1/2, END_FOR after FOR_ITER, comprehensions inlined with LOAD_FAST_AND_CLEAR.
"""

from __future__ import annotations

from kiln.capture.bytecode.table import (
    COMMON,
    COMPARES,
    Decoded,
    RawInstruction,
    Spelling,
    VersionTable,
    forward,
    load_global,
    local,
    loop,
    name,
    plain,
)

INTRINSICS_1 = (
    *("INVALID", "PRINT", "IMPORT_STAR", "STOPITERATION_ERROR", "ASYNC_GEN_WRAP", "UNARY_POSITIVE"),
    *("LIST_TO_TUPLE", "TYPEVAR", "PARAMSPEC", "TYPEVARTUPLE", "SUBSCRIPT_GENERIC", "TYPEALIAS"),
)
INTRINSICS_2 = (
    *("INVALID", "PREP_RERAISE_STAR", "TYPEVAR_WITH_BOUND", "TYPEVAR_WITH_CONSTRAINTS"),
    "SET_FUNCTION_TYPE_PARAMS",
)


def compare_op(raw: RawInstruction) -> Decoded:
    """The low four bits are a mask for the specialising interpreter."""
    return "COMPARE_OP", tuple(COMPARES.values())[raw.arg >> 4]


def load_attr(raw: RawInstruction) -> Decoded:
    return ("LOAD_METHOD" if raw.arg & 1 else "LOAD_ATTR"), raw.code.co_names[raw.arg >> 1]


def load_super_attr(raw: RawInstruction) -> Decoded:
    """Bit 0: as a method; bit 1: `super()` was written with two arguments (the stack is the same)."""
    return ("LOAD_SUPER_METHOD" if raw.arg & 1 else "LOAD_SUPER_ATTR"), raw.code.co_names[raw.arg >> 2]


def intrinsic_1(raw: RawInstruction) -> Decoded:
    return "INTRINSIC", INTRINSICS_1[raw.arg]


def intrinsic_2(raw: RawInstruction) -> Decoded:
    return "INTRINSIC_2", INTRINSICS_2[raw.arg]


def store_fast(raw: RawInstruction) -> Decoded:
    opcode, variable = local(raw)
    return ("STORE_FAST_OR_CELL" if variable in raw.code.co_cellvars else opcode), variable


SPELLING = Spelling({"LIST_TO_TUPLE": ("CALL_INTRINSIC_1", INTRINSICS_1.index("LIST_TO_TUPLE"))})

# fmt: off
TABLE = VersionTable((3, 12), {
    **COMMON,
    "COMPARE_OP":                compare_op,
    "FOR_ITER":                  loop(1),
    "LOAD_GLOBAL":               load_global,
    "LOAD_ATTR":                 load_attr,
    "LOAD_SUPER_ATTR":           load_super_attr,
    "LOAD_FAST_CHECK":           lambda raw: ("LOAD_FAST", local(raw)[1]),
    "LOAD_FAST_AND_CLEAR":       local,
    "STORE_FAST":                store_fast,
    "LOAD_FROM_DICT_OR_DEREF":   local,
    "LOAD_FROM_DICT_OR_GLOBALS": name,
    "BINARY_SLICE":              plain,
    "STORE_SLICE":               plain,
    "END_FOR":                   plain,
    "END_SEND":                  plain,
    "CLEANUP_THROW":             plain,
    "RETURN_CONST":              lambda raw: ("RETURN_CONST", raw.code.co_consts[raw.arg]),
    "CALL_INTRINSIC_1":          intrinsic_1,
    "CALL_INTRINSIC_2":          intrinsic_2,
    "POP_JUMP_IF_TRUE":          forward("POP_JUMP_IF_TRUE"),
    "POP_JUMP_IF_FALSE":         forward("POP_JUMP_IF_FALSE"),
    "POP_JUMP_IF_NONE":          forward("POP_JUMP_IF_NONE"),
    "POP_JUMP_IF_NOT_NONE":      forward("POP_JUMP_IF_NOT_NONE"),
}, SPELLING, loop_end=("END_FOR",))
# fmt: on
