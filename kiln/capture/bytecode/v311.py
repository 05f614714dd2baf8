"""Opcodes of CPython 3.11."""

from __future__ import annotations

from kiln.capture.bytecode.table import (
    COMMON,
    COMPARES,
    Decoded,
    RawInstruction,
    Spelling,
    VersionTable,
    backward,
    forward,
    load_global,
    loop,
    name,
    renamed,
)


def compare_op(raw: RawInstruction) -> Decoded:
    return "COMPARE_OP", tuple(COMPARES.values())[raw.arg]


SPELLING = Spelling(
    {
        "POP_JUMP_IF_TRUE": ("POP_JUMP_FORWARD_IF_TRUE", None),
        "POP_JUMP_IF_FALSE": ("POP_JUMP_FORWARD_IF_FALSE", None),
    },
    precall=True,
    method_bit=False,
)

# fmt: off
TABLE = VersionTable((3, 11), {
    **COMMON,
    "COMPARE_OP":                     compare_op,
    "FOR_ITER":                       loop(0),
    "LOAD_GLOBAL":                    load_global,
    "LOAD_ATTR":                      name,
    "LOAD_METHOD":                    name,
    "PRECALL":                        renamed("NOP"),
    "ASYNC_GEN_WRAP":                 renamed("ASYNC_GEN_WRAP"),
    "LIST_TO_TUPLE":                  renamed("INTRINSIC", "LIST_TO_TUPLE"),
    "PREP_RERAISE_STAR":              renamed("INTRINSIC_2", "PREP_RERAISE_STAR"),
    "PRINT_EXPR":                     renamed("INTRINSIC", "PRINT"),
    "IMPORT_STAR":                    renamed("INTRINSIC", "IMPORT_STAR"),
    "UNARY_POSITIVE":                 renamed("INTRINSIC", "UNARY_POSITIVE"),
    "JUMP_IF_TRUE_OR_POP":            forward("JUMP_IF_TRUE_OR_POP"),
    "JUMP_IF_FALSE_OR_POP":           forward("JUMP_IF_FALSE_OR_POP"),
    "POP_JUMP_FORWARD_IF_TRUE":       forward("POP_JUMP_IF_TRUE"),
    "POP_JUMP_FORWARD_IF_FALSE":      forward("POP_JUMP_IF_FALSE"),
    "POP_JUMP_FORWARD_IF_NONE":       forward("POP_JUMP_IF_NONE"),
    "POP_JUMP_FORWARD_IF_NOT_NONE":   forward("POP_JUMP_IF_NOT_NONE"),
    "POP_JUMP_BACKWARD_IF_TRUE":      backward("POP_JUMP_IF_TRUE"),
    "POP_JUMP_BACKWARD_IF_FALSE":     backward("POP_JUMP_IF_FALSE"),
    "POP_JUMP_BACKWARD_IF_NONE":      backward("POP_JUMP_IF_NONE"),
    "POP_JUMP_BACKWARD_IF_NOT_NONE":  backward("POP_JUMP_IF_NOT_NONE"),
}, SPELLING)
# fmt: on
