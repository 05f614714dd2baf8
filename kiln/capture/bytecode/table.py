"""What a version file says about each opcode: its normal name and how its argument is decoded.

CPython renames and packs opcodes in every version. A version file maps each raw opcode to a *normal* opcode
with a decoded argument, so that the interpreter has one handler per meaning:

    3.11  POP_JUMP_FORWARD_IF_FALSE 12     =>  POP_JUMP_IF_FALSE  instruction 31
    3.11  LOAD_METHOD 3                    =>  LOAD_METHOD        "append"
    3.12  LOAD_ATTR 7                      =>  LOAD_METHOD        "append"

    3.13  LOAD_FAST_LOAD_FAST 18           =>  LOAD_FAST "b", LOAD_FAST "c"

A new CPython version is a new file with a `VersionTable`, which also says how code is written in that version.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import field
from types import CodeType
from typing import Any, NamedTuple, final

from kiln.support.records import dataclass


@final
class RawInstruction(NamedTuple):
    """One instruction of a code object with its argument as stored. `unit` is its offset in code units.

    A tuple, because each instruction that is reached makes one.
    """

    opname: str
    arg: int
    unit: int
    next_unit: int
    code: CodeType


Decoded = tuple[str, Any]
Decoder = Callable[[RawInstruction], Decoded]


@final
@dataclass(frozen=True, slots=True)
class Jump:
    """The argument of a jump, in code units; `decode` makes it an instruction index."""

    unit: int


@final
@dataclass(frozen=True, slots=True)
class Spelling:
    """How the assembler writes what versions write differently."""

    names: Mapping[str, tuple[str, int | None]] = field(default_factory=dict)
    """Raw opcodes, and their arguments if they are fixed, by normal names."""
    precall: bool = False
    """A PRECALL stands in front of each CALL."""
    method_bit: bool = True
    """The argument of LOAD_ATTR has a bit that asks for a method."""
    keywords_last: bool = False
    """The names of keyword arguments are an operand of CALL_KW, not of a KW_NAMES in front of CALL."""
    tests_bool: bool = False
    """Jumps and UNARY_NOT want a bool: a TO_BOOL stands in front of them."""
    keywords_or_null: bool = False
    """CALL_FUNCTION_EX has no argument: a NULL stands for the keyword arguments where there are none."""


@final
@dataclass(frozen=True, slots=True)
class VersionTable:
    """`rows` maps raw opcode names to decoders; opcodes without a row are not supported in this version."""

    version: tuple[int, int]
    rows: Mapping[str, Decoder]
    spelling: Spelling
    pairs: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Raw opcodes that stand for two, which have four bits of the argument each."""
    null_above: bool = False
    """The NULL of a call that has no `self` lies above the callable, not below it."""
    loop_end: tuple[str, ...] = ()
    """What stands at the target of FOR_ITER to drop the iterator. FOR_ITER drops it itself, and jumps over these."""
    same: Mapping[str, str] = field(default_factory=dict)
    """Raw opcodes that are read, and assembled, as others: a borrowed reference holds in unchanged code only."""
    left_out: frozenset[str] = frozenset()
    """Raw opcodes that do nothing and are no instructions here."""


def plain(raw: RawInstruction) -> Decoded:
    """Same name, integer argument."""
    return raw.opname, raw.arg


def renamed(name: str, arg: object = None) -> Decoder:
    """Another name, and another argument if one is given."""
    if arg is None:
        return lambda raw: (name, raw.arg)
    return lambda raw: (name, arg)


def const(raw: RawInstruction) -> Decoded:
    """The argument indexes `co_consts`."""
    return raw.opname, raw.code.co_consts[raw.arg]


def name(raw: RawInstruction) -> Decoded:
    """The argument indexes `co_names`."""
    return raw.opname, raw.code.co_names[raw.arg]


def slot_name(code: CodeType, index: int) -> str:
    """The name of a fast local: arguments and locals, then cells that are no arguments, then free variables."""
    names = code.co_varnames
    if index < len(names):
        return names[index]
    cells = tuple(cell for cell in code.co_cellvars if cell not in names)
    return (names + cells + code.co_freevars)[index]


def local(raw: RawInstruction) -> Decoded:
    """The argument is a slot of the fast locals; decoded to its name."""
    return raw.opname, slot_name(raw.code, raw.arg)


def forward(name: str) -> Decoder:
    """A jump relative to the next instruction."""
    return lambda raw: (name, Jump(raw.next_unit + raw.arg))


def loop(behind: int) -> Decoder:
    """FOR_ITER, to the instruction behind those that end the loop, `behind` code units."""
    return lambda raw: ("FOR_ITER", Jump(raw.next_unit + raw.arg + behind))


def backward(name: str) -> Decoder:
    return lambda raw: (name, Jump(raw.next_unit - raw.arg))


def is_op(raw: RawInstruction) -> Decoded:
    return "IS_OP", bool(raw.arg)


def contains_op(raw: RawInstruction) -> Decoded:
    return "CONTAINS_OP", bool(raw.arg)


COMPARES: Mapping[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}

_BINARY = (
    *("add", "and_", "floordiv", "lshift", "matmul", "mul", "mod", "or_", "pow", "rshift", "sub", "truediv", "xor"),
    *("iadd", "iand", "ifloordiv", "ilshift", "imatmul", "imul", "imod", "ior", "ipow", "irshift", "isub"),
    *("itruediv", "ixor"),
)
BINARY_OPERATORS: tuple[Callable[[Any, Any], Any], ...] = tuple(getattr(operator, name) for name in _BINARY)
"""In the order of BINARY_OP's argument."""


def binary_op(raw: RawInstruction) -> Decoded:
    return "BINARY_OP", BINARY_OPERATORS[raw.arg]


KEYWORDS_OR_NULL = 2
"""The argument of CALL_FUNCTION_EX where keyword arguments or a NULL lie on top; 1: keyword arguments, 0: neither."""


def rows(decoder: Decoder, names: str) -> dict[str, Decoder]:
    """One decoder for many opcodes."""
    return dict.fromkeys(names.split(), decoder)


COMMON: Mapping[str, Decoder] = {
    **rows(
        plain,
        "NOP RESUME POP_TOP PUSH_NULL COPY SWAP UNARY_NEGATIVE UNARY_NOT UNARY_INVERT BINARY_SUBSCR STORE_SUBSCR "
        "DELETE_SUBSCR GET_ITER RETURN_VALUE BUILD_TUPLE BUILD_LIST BUILD_SET BUILD_MAP BUILD_CONST_KEY_MAP "
        "BUILD_STRING BUILD_SLICE LIST_EXTEND SET_UPDATE DICT_UPDATE DICT_MERGE LIST_APPEND SET_ADD MAP_ADD "
        "UNPACK_SEQUENCE UNPACK_EX FORMAT_VALUE CALL CALL_FUNCTION_EX MAKE_FUNCTION RAISE_VARARGS RERAISE "
        "PUSH_EXC_INFO POP_EXCEPT CHECK_EXC_MATCH WITH_EXCEPT_START "
        "BEFORE_WITH YIELD_VALUE RETURN_GENERATOR GET_YIELD_FROM_ITER "
        "LOAD_BUILD_CLASS LOAD_ASSERTION_ERROR COPY_FREE_VARS GET_LEN MATCH_MAPPING MATCH_SEQUENCE MATCH_KEYS "
        "MATCH_CLASS SETUP_ANNOTATIONS CHECK_EG_MATCH GET_AWAITABLE GET_AITER GET_ANEXT END_ASYNC_FOR "
        "BEFORE_ASYNC_WITH LOAD_LOCALS",
    ),
    **rows(const, "LOAD_CONST KW_NAMES RETURN_CONST"),
    **rows(
        name,
        "LOAD_NAME STORE_NAME DELETE_NAME STORE_GLOBAL DELETE_GLOBAL STORE_ATTR DELETE_ATTR IMPORT_NAME IMPORT_FROM",
    ),
    **rows(
        local,
        "LOAD_FAST STORE_FAST DELETE_FAST LOAD_CLOSURE LOAD_DEREF STORE_DEREF DELETE_DEREF LOAD_CLASSDEREF MAKE_CELL",
    ),
    "BINARY_OP": binary_op,
    "IS_OP": is_op,
    "CONTAINS_OP": contains_op,
    "JUMP_FORWARD": forward("JUMP"),
    "JUMP_BACKWARD": backward("JUMP"),
    "JUMP_BACKWARD_NO_INTERRUPT": backward("JUMP"),
    "SEND": forward("SEND"),
}
"""Rows of more than one version; those of opcodes that a version lacks are never asked for."""


def load_global(raw: RawInstruction) -> Decoded:
    """The low bit asks for a NULL below the value."""
    return ("LOAD_GLOBAL_CALL" if raw.arg & 1 else "LOAD_GLOBAL"), raw.code.co_names[raw.arg >> 1]
