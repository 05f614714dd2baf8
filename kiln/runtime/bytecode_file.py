"""Code objects as JSON and back; objects that are not plain constants are named, never pickled.

    LOAD_CONST <region>            {"part": 0}                        a section of its own
    LOAD_CONST <resume function>   {"resume": 1}
    LOAD_CONST <side exit>         {"exit": null}                     a dispatcher of the same function
    LOAD_CONST <the function>      {"root": null}                     itself, to run eager
    LOAD_CONST torch.nn.Linear     {"object": "torch.nn.modules.linear:Linear@type "}
    LOAD_CONST vars(module)        {"globals": "package.module"}      "": those of the function itself

The instructions are CPython's own, so a file fits one version of it (`MAGIC`).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast, final

from kiln.native._frames import Dispatcher
from kiln.runtime.guards.constant import Json, NotSerialisable, constant_from_json, constant_to_json
from kiln.runtime.guards.reference import load_named, named_path, resolve
from kiln.runtime.tail_calls import RESUMED, Driven
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
        if function is self.root:
            if RESUMED in function.__dict__ and not dispatcher.__dict__.get("side_exits"):
                raise NotWritable(what="its code leads back to itself", reason="it is the body of a loop")
            return {"exit": None}
        if id(dispatcher) not in self._numbers:
            name = function.__qualname__
            row: Json = {"code": self.code(function.__code__), "name": name, **self.globals(function.__globals__)}
            self._numbers[id(dispatcher)] = {"resume": len(self.resumes)}
            self.resumes.append(row)
        return self._numbers[id(dispatcher)]

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
    }


@final
class CodeReader:
    """Reads what `CodeFile` wrote. `resume` and `side_exit` make the dispatchers of resume functions and of `root`."""

    def __init__(
        self,
        root: FunctionType,
        parts: Sequence[object],
        rows: Sequence[Any],
        resume: Callable[[FunctionType], Any],
        side_exit: Callable[[FunctionType], object],
    ) -> None:
        self.root = root
        self.parts = parts
        self.side_exit = side_exit
        self.resumes: list[object] = []
        for row in rows:  # a row refers to earlier ones
            function = FunctionType(self.code(row["code"]), self.dictionary(row["globals"]))
            function.__qualname__ = row["name"]
            function.__dict__[RESUMED] = None
            self.resumes.append(resume(function))

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
    }


TEMPLATE = (lambda: None).__code__
"""Every field is replaced."""
