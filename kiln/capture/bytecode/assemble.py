"""Writing code objects with the library `bytecode`: one small vocabulary for all CPython versions.

    a = Assembler()
    a.const(len); a.op("LOAD_FAST", "x"); a.call(1); a.op("RETURN_VALUE")
    code = a.finish(like=function.__code__, arguments=("x",))

A call pushes the callable, then the arguments, then `call(count)`. With at least one argument no NULL is needed:
CPython takes (callable, first argument) for (method, self).
"""

from __future__ import annotations

import dis
import sys
from types import CodeType
from typing import Any, final

from bytecode import Bytecode, CompilerFlags, Instr, Label
from bytecode.instr import CellVar, FreeVar, Intrinsic1Op, TryBegin, TryEnd

__all__ = ["Assembler", "CellVar", "FreeVar", "Instr", "Label", "TryBegin", "TryEnd", "arguments_of", "parsed"]

OLD_CALLS = sys.version_info < (3, 12)
"""CALL is preceded by PRECALL."""
METHOD_BIT = sys.version_info >= (3, 12)
"""The argument of LOAD_ATTR has a bit that asks for a method."""


@final
class Assembler:
    """A list of instructions under construction."""

    def __init__(self, line: int = 1) -> None:
        self.items: list[Any] = []
        self.line = line

    def op(self, name: str, arg: Any = None) -> Assembler:
        if name == "LOAD_ATTR" and METHOD_BIT:
            arg = (False, arg)
        self.items.append(Instr(name, lineno=self.line) if arg is None else Instr(name, arg, lineno=self.line))
        return self

    def const(self, value: object) -> Assembler:
        self.items.append(Instr("LOAD_CONST", value, lineno=self.line))
        return self

    def super_attr(self, name: str) -> None:
        """`super(cls, self).name` for the three values on the stack, from CPython 3.12 on.

        Both arguments are named: `super()` would look for the cell `__class__`, which the transformed code may lack.
        """
        self.op("LOAD_SUPER_ATTR", (False, True, name))

    def attr(self, name: str) -> Assembler:
        return self.op("LOAD_ATTR", name)

    def item(self, key: object) -> Assembler:
        return self.const(key).op("BINARY_SUBSCR")

    def global_(self, name: str) -> None:
        self.items.append(Instr("LOAD_GLOBAL", (False, name), lineno=self.line))

    def call(self, count: int, names: tuple[str, ...] = ()) -> Assembler:
        """The last `len(names)` of the `count` arguments are keyword arguments."""
        if count == 0:
            self.op("PUSH_NULL")
            self.op("SWAP", 2)
            count = 1
        if names:
            self.op("KW_NAMES", names)
        if OLD_CALLS:
            self.op("PRECALL", count - 1)
        return self.op("CALL", count - 1)

    def jump_if(self, positive: bool, target: Label) -> None:
        """Pop a value and jump if its truth value is `positive`."""
        forward = "POP_JUMP_FORWARD_IF_TRUE" in dis.opmap
        name = f"POP_JUMP_{'FORWARD_' if forward else ''}IF_{'TRUE' if positive else 'FALSE'}"
        self.items.append(Instr(name, target, lineno=self.line))

    def list_to_tuple(self) -> None:
        if METHOD_BIT:
            self.op("CALL_INTRINSIC_1", Intrinsic1Op.INTRINSIC_LIST_TO_TUPLE)
        else:
            self.op("LIST_TO_TUPLE")

    def extend(self, other: Assembler) -> None:
        self.items.extend(other.items)

    def label(self, label: Label) -> None:
        self.items.append(label)

    def finish(
        self,
        like: CodeType,
        arguments: tuple[str, ...],
        cells: tuple[str, ...] = (),
        freevars: tuple[str, ...] = (),
        depth: int | None = None,
        flags: int = 0,
    ) -> CodeType:
        """The code object; every argument is positional. `like` gives file, first line and name."""
        made = Bytecode()
        made.name = like.co_name
        made.filename = like.co_filename
        made.first_lineno = like.co_firstlineno
        if hasattr(made, "qualname"):
            made.qualname = like.co_qualname
        made.argnames = list(arguments)
        made.argcount = len(arguments)
        made.cellvars = list(cells)
        made.freevars = list(freevars)
        made.flags = CompilerFlags(flags) | CompilerFlags.OPTIMIZED | CompilerFlags.NEWLOCALS
        if freevars:
            made.flags |= CompilerFlags.NESTED
        made.extend(self.items)
        size = depth if depth is not None else sum(1 for item in self.items if isinstance(item, Instr)) + 8
        return made.to_code(stacksize=min(size, 4096), compute_exception_stack_depths=False)


def parsed(code: CodeType) -> list[Any]:
    """The instructions of `code` with names, labels and try markers; the n-th Instr is the n-th decoded one."""
    return list(Bytecode.from_code(code))


SUSPENDS = 0x20 | 0x80
"""Flags of generators and coroutines."""


def arguments_of(code: CodeType) -> tuple[str, ...]:
    """The argument slots: positional, keyword-only, `*args`, `**kwargs`."""
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    return code.co_varnames[:count]
