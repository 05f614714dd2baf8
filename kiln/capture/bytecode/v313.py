"""Opcodes of CPython 3.13.

New against 3.12: pairs of loads and stores in one instruction, TO_BOOL, CALL_KW, SET_FUNCTION_ATTRIBUTE, FORMAT_VALUE
in three parts, cells loaded by LOAD_FAST, the NULL of a call above the callable.
"""

from __future__ import annotations

from dataclasses import replace

from kiln.capture.bytecode import v312
from kiln.capture.bytecode.table import COMPARES, Decoded, RawInstruction, VersionTable, local, loop, plain, renamed


def compare_op(raw: RawInstruction) -> Decoded:
    """The fifth bit asks for a bool, which a jump makes of the result anyway."""
    return "COMPARE_OP", tuple(COMPARES.values())[raw.arg >> 5]


def load_fast(raw: RawInstruction) -> Decoded:
    opcode, variable = local(raw)
    is_cell = variable in raw.code.co_cellvars or variable in raw.code.co_freevars
    return ("LOAD_CLOSURE" if is_cell else opcode), variable


INTRINSICS_2 = (*v312.INTRINSICS_2, "SET_TYPEPARAM_DEFAULT")
SPELLING = replace(
    v312.SPELLING,
    names={**v312.SPELLING.names, "LOAD_CLOSURE": ("LOAD_FAST", None)},
    keywords_last=True,
    tests_bool=True,
)
PAIRS = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}

# fmt: off
TABLE = VersionTable((3, 13), {
    **v312.TABLE.rows,
    "COMPARE_OP":              compare_op,
    "FOR_ITER":                loop(2),
    "LOAD_FAST":               load_fast,
    "TO_BOOL":                 renamed("NOP"),  # what follows asks for the truth of its operand itself
    "CALL_KW":                 plain,
    "SET_FUNCTION_ATTRIBUTE":  plain,
    "CONVERT_VALUE":           plain,
    "FORMAT_SIMPLE":           plain,
    "FORMAT_WITH_SPEC":        plain,
    "CALL_INTRINSIC_2":        lambda raw: ("INTRINSIC_2", INTRINSICS_2[raw.arg]),
}, SPELLING, PAIRS, null_above=True, loop_end=("END_FOR", "POP_TOP"))
# fmt: on
