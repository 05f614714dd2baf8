"""Writing code objects with the library `bytecode`: one small vocabulary for all CPython versions.

    a = Assembler()
    a.const(len); a.op("LOAD_FAST", "x"); a.call(1); a.op("RETURN_VALUE")
    code = a.finish(like=function.__code__, arguments=("x",))

Opcodes have their normal names; the table of the running version has the spelling of those that it writes differently.

A call pushes the callable, then the arguments, then `call(count)`. With at least one argument no NULL is needed:
CPython takes (callable, first argument) for (method, self).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any, final

from bytecode import Bytecode, CompilerFlags, Instr, Label
from bytecode.instr import UNSET, CellVar, FreeVar, Intrinsic1Op, TryBegin, TryEnd

from kiln.capture.bytecode.versions import TABLE

__all__ = ["Assembler", "CellVar", "FreeVar", "Instr", "Label", "TryBegin", "TryEnd", "arguments_of", "parsed"]

SPELLING = TABLE.spelling


@final
class Assembler:
    """A list of instructions under construction."""

    def __init__(self, line: int = 1) -> None:
        self.items: list[Any] = []
        self.line = line

    def op(self, name: str, arg: Any = None) -> Assembler:
        if name in SPELLING.names:
            name, fixed = SPELLING.names[name]
            arg = arg if fixed is None else fixed
        if name == "CALL_INTRINSIC_1":
            arg = Intrinsic1Op(arg)
        if name == "LOAD_ATTR" and SPELLING.method_bit:
            arg = (False, arg)
        self.items.append(Instr(name, UNSET if arg is None else arg, lineno=self.line))
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
            self.null_for_callable()
            count = 1
        if names and SPELLING.keywords_last:
            return self.const(names).op("CALL_KW", count - 1)
        if names:
            self.op("KW_NAMES", names)
        if SPELLING.precall:
            self.op("PRECALL", count - 1)
        return self.op("CALL", count - 1)

    def call_spread(self, keywords: bool = False) -> Assembler:
        """`f(*args)`, or `f(*args, **kwargs)`, for the callable with its NULL, the tuple and the dict."""
        if not SPELLING.keywords_or_null:
            return self.op("CALL_FUNCTION_EX", int(keywords))
        return (self if keywords else self.op("PUSH_NULL")).op("CALL_FUNCTION_EX")

    def null_for_callable(self) -> Assembler:
        """Add the NULL to the callable on the stack; the arguments, or their tuple, follow."""
        self.op("PUSH_NULL")
        return self if TABLE.null_above else self.op("SWAP", 2)

    def truth(self) -> Assembler:
        """The truth value of what is on the stack, where the instruction that follows needs a bool."""
        return self.op("TO_BOOL") if SPELLING.tests_bool else self

    def jump_if(self, positive: bool, target: Label) -> None:
        """Pop a value and jump if its truth value is `positive`."""
        self.truth().op("POP_JUMP_IF_TRUE" if positive else "POP_JUMP_IF_FALSE", target)

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
    return list(_parts(Bytecode.from_code(code)))


def _parts(items: Bytecode) -> Iterator[object]:
    for item in items:
        if isinstance(item, Instr) and item.name in TABLE.left_out:
            continue
        if isinstance(item, Instr) and item.name in TABLE.same:
            yield Instr(TABLE.same[item.name], item.arg, location=item.location)
        elif isinstance(item, Instr) and item.name in TABLE.pairs:
            for name, variable in zip(TABLE.pairs[item.name], item.arg, strict=True):  # type: ignore[arg-type]
                yield Instr(name, variable, location=item.location)
        else:
            yield item


SUSPENDS: int = inspect.CO_GENERATOR | inspect.CO_COROUTINE
"""Flags of generators and coroutines."""


def arguments_of(code: CodeType) -> tuple[str, ...]:
    """The argument slots: positional, keyword-only, `*args`, `**kwargs`."""
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    count += bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[:count]
