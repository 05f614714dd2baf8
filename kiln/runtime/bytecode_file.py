"""Code objects as JSON and back; objects that are not plain constants are named, never pickled.

    LOAD_CONST <region>            {"part": 0}                        a section of its own
    LOAD_CONST <resume function>   {"resume": 1}                      where it enters which code
    LOAD_CONST <side exit>         {"exit": null}                     a dispatcher of the same function
    LOAD_CONST <the function>      {"root": null}                     itself, to run eager
    LOAD_CONST FallbackErrors(f)   {"errors": ["kiln.runtime...:f", true]}   counts anew
    LOAD_CONST torch.nn.Linear     {"object": "torch.nn.modules.linear:Linear@type "}
    LOAD_CONST vars(module)        {"globals": "package.module"}      "": those of the function itself

The instructions are CPython's own, so a file fits one version of it (`MAGIC`).
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable, Sequence
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, cast, final

from kiln.capture.bytecode.resume import CLASS_CELL, Entry, InnerCall, ResumeOrigin, origin_of, resume_function
from kiln.native._frames import Dispatcher, Driven
from kiln.runtime.checked_region import FallbackErrors
from kiln.runtime.guards.constant import Json, NotSerialisable, constant_from_json, constant_to_json
from kiln.runtime.guards.reference import load_named, named_path, resolve
from kiln.support.errors import KilnError

MAGIC = importlib.util.MAGIC_NUMBER.hex()

NUMBERS = ("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_nlocals", "co_stacksize", "co_flags",
           "co_firstlineno")  # fmt: skip
NAMES = ("co_names", "co_varnames", "co_freevars", "co_cellvars")
TEXTS = ("co_filename", "co_name", "co_qualname")
BYTES = ("co_code", "co_linetable", "co_exceptiontable")


class NotWritable(KilnError):
    code = "KILN6010"
    what = "the compiled variant cannot be kept on disk: {what}"
    why = "{reason}"
    try_ = ("define the object at the top of a module, under its own name",)


PartWriter = Callable[[object], "bytes | None"]
"""The section of an object that the compiler can write; None for any other object."""


@final
class CodeFile:
    """Writes transformed code and the resume functions that it calls."""

    def __init__(self, root: FunctionType, part: PartWriter) -> None:
        self.root = root
        self.part = part
        self.parts: list[bytes] = []
        self.resumes: list[Json] = []
        """Rows of resume functions, each after those that it calls."""
        self.codes: list[Json] = []
        """Rows of the codes that they enter, apart from those of `root`."""
        self._code_numbers: dict[CodeType, Json] = dict(zip(codes_of(root), itertools.count(), strict=False))
        self._numbers: dict[int, dict[str, Json]] = {}

    def code(self, code: CodeType) -> dict[str, Json]:
        """Raises NotWritable."""
        row: dict[str, Json] = {name: getattr(code, name) for name in (*NUMBERS, *TEXTS)}
        row.update((name, list(getattr(code, name))) for name in NAMES)
        row.update((name, getattr(code, name).hex()) for name in BYTES)
        row["co_consts"] = [self.constant(value) for value in code.co_consts]
        return row

    def constant(self, value: object) -> Json:
        if value is self.root:
            return {"root": None}
        for kind, write in self.WRITERS.items():
            if isinstance(value, kind):
                return write(self, value)
        try:
            return constant_to_json(value)
        except NotSerialisable:
            path = named_path(value)
        if path:
            return {"object": path}
        if id(value) in self._numbers:
            return self._numbers[id(value)]
        data = self.part(value)
        if data is None:
            raise NotWritable(what=f"its code holds {value!r:.80}", reason="it cannot be imported")
        row: dict[str, Json] = {"part": len(self.parts)}
        self.parts.append(data)
        return self._numbers.setdefault(id(value), row)

    def resume(self, dispatcher: Dispatcher) -> Json:
        function: Any = dispatcher.function
        origin = origin_of(function)
        if function is self.root and (origin is None or dispatcher.__dict__.get("side_exits")):
            return {"exit": None}
        if id(dispatcher) not in self._numbers:
            assert origin is not None
            row: Json = {
                "code": self.original_code(origin.code),
                "entry": entry_row(origin.entry),
                "inner": self.inner(origin.inner),
                "name": function.__qualname__,
                "closure": self.closure(function),
                **self.globals(function.__globals__),
            }
            self._numbers[id(dispatcher)] = {"resume": len(self.resumes)}
            self.resumes.append(row)
        return self._numbers[id(dispatcher)]

    def inner(self, call: InnerCall | None) -> Json:
        """The row of the call of the callee's resume function, with which a resume function begins."""
        if call is None:
            return None
        return {
            "function": self.constant(call.function),
            "arguments": list(call.arguments),
            "at": call.at,
            "keep": call.keep,
            "instead": call.instead,
        }

    def original_code(self, code: CodeType) -> Json:
        """Its number among the codes of `root` and those in the file."""
        number = self._code_numbers.get(code)
        if number is None:
            number = self._code_numbers[code] = len(codes_of(self.root)) + len(self.codes)
            self.codes.append(self.code(code))
        return number

    def closure(self, function: FunctionType) -> Json:
        """The path of the class in its class cell; None without one."""
        if not function.__closure__:
            return None
        cls = function.__closure__[0].cell_contents
        if named_path(cls) and class_cell(cls) is function.__closure__[0]:
            return named_path(cls)
        raise NotWritable(what="its code calls `super()`", reason=f"in a method of {cls!r}, which cannot be imported")

    def globals(self, dictionary: dict[str, object]) -> dict[str, Json]:
        if dictionary is self.root.__globals__:
            return {"globals": ""}
        name = dictionary.get("__name__")
        if isinstance(name, str) and getattr(sys.modules.get(name), "__dict__", None) is dictionary:
            return {"globals": name}
        raise NotWritable(what="its code holds a dict", reason="it is not the namespace of a module")

    def module(self, module: ModuleType) -> Json:
        if sys.modules.get(module.__name__) is not module:
            raise NotWritable(what=f"its code holds {module!r:.80}", reason="it cannot be imported")
        return {"module": module.__name__}

    WRITERS: dict[type, Callable[[CodeFile, Any], Json]] = {
        CodeType: lambda self, value: {"code": self.code(value)},
        Dispatcher: resume,
        Driven: lambda self, value: {"driven": self.resume(value.function)},
        dict: globals,
        ModuleType: module,
        FallbackErrors: lambda self, value: {"errors": [named_path(value.includes), value.is_exact]},
    }


def entry_row(entry: Entry) -> Json:
    return {
        "target": entry.target,
        "locals": list(entry.locals),
        "cells": list(entry.cells),
        "stack": list(entry.stack),
        "extra": list(entry.extra),
        "first": entry.first,
        "handled": list(entry.handled),
    }


def codes_of(root: FunctionType) -> list[CodeType]:
    """The code of the program that it runs, then, for a resume function, of the calls that it is in."""
    origin = origin_of(root)
    if origin is None:
        return [root.__code__]
    if origin.inner is None:
        return [origin.code]
    return [origin.code, *codes_of(origin.inner.function.function.function)]


def class_cell(cls: object) -> CellType | None:
    """The cell from which the methods of a class read it for `super()`."""
    for method in vars(cls).values() if isinstance(cls, type) else ():
        code = getattr(method, "__code__", None)
        if isinstance(code, CodeType) and CLASS_CELL in code.co_freevars:
            cell: CellType = method.__closure__[code.co_freevars.index(CLASS_CELL)]
            return cell
    return None


@final
class CodeReader:
    """Reads what `CodeFile` wrote. `resume` and `side_exit` make the dispatchers of resume functions and of `root`."""

    def __init__(
        self,
        root: FunctionType,
        parts: Sequence[object],
        codes: Sequence[Any],
        rows: Sequence[Any],
        resume: Callable[[FunctionType], Any],
        side_exit: Callable[[FunctionType], object],
    ) -> None:
        self.root = root
        self.parts = parts
        self.side_exit = side_exit
        self.resumes: list[object] = []
        self.codes = [*codes_of(root), *map(self.code, codes)]
        for row in rows:  # a row refers to earlier ones
            self.resumes.append(resume(self.resume_function(row)))

    def resume_function(self, row: dict[str, Any]) -> FunctionType:
        part, call, inner = row["entry"], row["inner"], None
        locals_, cells, stack, extra = (tuple(part[name]) for name in ("locals", "cells", "stack", "extra"))
        entry = Entry(part["target"], locals_, cells, stack, extra, part["first"], tuple(part["handled"]))
        if call:
            function = self.constant(call["function"])
            inner = InnerCall(function, tuple(call["arguments"]), call["at"], call["keep"], call["instead"])
        cell = class_cell(load_named(row["closure"])) if row["closure"] else None
        closure = (cell,) if cell is not None else None
        origin = ResumeOrigin(self.codes[row["code"]], entry, inner)
        return resume_function(origin, self.dictionary(row["globals"]), closure, row["name"])

    def code(self, row: dict[str, Any]) -> CodeType:
        fields: dict[str, Any] = {name: row[name] for name in (*NUMBERS, *TEXTS)}
        fields.update((name, tuple(row[name])) for name in NAMES)
        fields.update((name, bytes.fromhex(row[name])) for name in BYTES)
        fields["co_consts"] = tuple(self.constant(value) for value in row["co_consts"])
        return TEMPLATE.replace(**fields)

    def constant(self, data: Any) -> object:
        if not isinstance(data, dict):
            return constant_from_json(data)
        ((kind, content),) = data.items()
        return self.READERS[kind](self, content)

    def dictionary(self, name: str) -> dict[str, object]:
        return vars(resolve(f"{name}:")) if name else self.root.__globals__

    READERS: dict[str, Callable[[CodeReader, Any], object]] = {
        "code": code,
        "part": lambda self, number: self.parts[number],
        "exit": lambda self, content: self.side_exit(self.root),
        "root": lambda self, content: self.root,
        "resume": lambda self, number: self.resumes[number],
        "driven": lambda self, row: Driven(cast("Callable[..., object]", self.constant(row))),
        "globals": dictionary,
        "module": lambda self, name: resolve(f"{name}:"),
        "object": lambda self, path: load_named(path),
        "errors": lambda self, row: FallbackErrors(cast("Callable[[BaseException], bool]", load_named(row[0])), row[1]),
    }


TEMPLATE = (lambda: None).__code__
"""Every field is replaced."""
