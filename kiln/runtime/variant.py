"""One compiled variant of a function as a file, and back to an entry of a dispatcher.

    data = write_variant(Variant(function=..., guards=..., collect=...), root, part=...)
    entry = load_variant(data, root, arguments, Makers(part=..., resume=session.dispatcher, side_exit=...))

Sections: the guards, sources and code as JSON, and a section per region. There are no addresses and no pickles: a guard
names the path of its source, code is its instructions, everything else is an import path. Loading needs no compiler,
and checks the guards before it reads anything else: the variant may not fit the call.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property, lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any, final

from kiln.native._frames import BoundCall, Entry
from kiln.runtime.bytecode_file import CodeFile, CodeReader, NotWritable, PartWriter
from kiln.runtime.cache.bundle import pack, unpack
from kiln.runtime.guards.constant import Json, NotSerialisable
from kiln.runtime.guards.guard import Guard, guards_from_json, guards_to_json
from kiln.runtime.guards.reference import resolve
from kiln.runtime.guards.source import Source, SourceTable, sources_from_rows
from kiln.runtime.guards.tree import BadGuard, TreeRows
from kiln.runtime.guards.tree_file import Misfit, read_tree, write_tree
from kiln.support.errors import KilnError
from kiln.support.records import dataclass

Fact = tuple[str, Mapping[str, Any]]
"""Kind and data of an event of the compile that the report counts."""


class NoSourceFile(KilnError):
    code = "KILN6011"
    what = "the compiled variant cannot be kept on disk: module `{module}` has no source file"
    why = "a later process could not tell whether its code has changed"
    try_ = ("put the program in a file",)


@final
@dataclass(frozen=True)
class SecondRun:
    """What it takes to run a call a second time, in eager, without a trace."""

    written: tuple[Source, ...] = ()
    """The tensors whose contents the call changes."""
    gradients: bool = False
    device: str = "cpu"
    memory: int = 0
    """Bytes of all values that eager computes, whether or not they live at the same time."""


@final
@dataclass(frozen=True)
class Variant:
    """A compiled variant, from the capture or from a file.

    `function` gets every argument slot positionally, then the tuple of objects at the sources `collect`, if there are
    any (for a variant from a file: `guards.collect()`). `modules`: those with code or classes that it was compiled from
    and that no guard covers; `facts`: events of the compile for the report.
    """

    function: FunctionType
    guards: Sequence[Guard]
    collect: Sequence[Source] = ()
    modules: Iterable[str] = ()
    facts: Sequence[Fact] = ()
    seen: Mapping[str, Any] = field(default_factory=dict)
    """Sizes of the tensors that it was compiled for, by source."""
    second_run: SecondRun | None = None
    """None: a program could tell that a call was run again, in eager."""
    same_in_eager: bool = False
    """Whether the program could not tell, but by the last bits of results, that a call was run in eager instead."""


@final
@dataclass(frozen=True)
class Makers:
    """Functions for the loader: they make callables of sections, and dispatchers."""

    part: Callable[[bytes], Callable[..., object]]
    resume: Callable[[FunctionType], object]
    side_exit: Callable[[FunctionType], object]


def write_variant(variant: Variant, tree: TreeRows, root: FunctionType, part: PartWriter) -> bytes:
    """The file of a variant of `root`; `tree` is the tree of its guards, `part` writes the regions that its code calls.

    Raises NotWritable, NoSourceFile.
    """
    table, file = SourceTable(), CodeFile(root, part)
    try:
        modules = {name: digest for name in sorted(set(variant.modules)) if (digest := module_digest(name))}
        checks = {"modules": modules, "tree": write_tree(tree, variant.guards)}
        guards = guards_to_json(variant.guards, table.number)
        collect = [table.number(source) for source in variant.collect]
        again = second_run_row(variant.second_run, table)
    except NotSerialisable as problem:
        raise NotWritable(what="a guard", reason=str(problem)) from problem
    code = {
        "name": variant.function.__name__,
        "code": file.code(variant.function.__code__),
        "codes": file.codes,
        "resumes": file.resumes,
        "parts": len(file.parts),
        "facts": [[kind, {name: plain(value) for name, value in data.items()}] for kind, data in variant.facts],
        "seen": variant.seen,
        "second_run": again,
        "same_in_eager": variant.same_in_eager,
    }
    sections = {"checks": checks, "code": code, "guards": {"sources": table.rows, "guards": guards, "collect": collect}}
    parts = {f"part/{number}": data for number, data in enumerate(file.parts)}
    return pack({**{name: json_bytes(data) for name, data in sections.items()}, **parts})


def second_run_row(again: SecondRun | None, table: SourceTable) -> Json:
    if again is None:
        return None
    return [[table.number(source) for source in again.written], again.gradients, again.device, again.memory]


def plain(value: object) -> Json:
    """Numbers and texts as they are, other values (symbolic sizes) as text."""
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def json_bytes(data: object) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()


@final
@dataclass(frozen=True, slots=True)
class FailedGuard:
    """A guard of a stored variant, and what it found in the call."""

    guard: Guard
    actual: str


def load_variant(
    data: bytes, root: FunctionType, arguments: Sequence[object], makers: Makers
) -> Entry | FailedGuard | str:
    """The entry for a call of `root` with `arguments` in slot order, or why the variant does not fit.

    `entry.info` is the `Variant`. Raises KilnError, KeyError, TypeError or ValueError for a file that is damaged or
    names what no longer exists.
    """
    sections = unpack(data)
    checks = json.loads(bytes(sections["checks"]))
    edited = [name for name, digest in checks["modules"].items() if module_digest(name) != digest]
    if edited:
        return f"module {edited[0]} was edited"
    tree = read_tree(checks["tree"], root, arguments)
    if isinstance(tree, Misfit):
        if tree.guard < 0:
            return f"it requires a path to an object, but found {tree.actual}"
        return FailedGuard(StoredGuards(bytes(sections["guards"]))[tree.guard], tree.actual)
    code = json.loads(bytes(sections["code"]))
    parts = [makers.part(bytes(sections[f"part/{number}"])) for number in range(code["parts"])]
    reader = CodeReader(root, parts, code["codes"], code["resumes"], makers.resume, makers.side_exit)
    function = FunctionType(reader.code(code["code"]), root.__globals__, code["name"], None, root.__closure__)
    facts = [(kind, fact) for kind, fact in code["facts"]]
    stored = StoredGuards(bytes(sections["guards"]))
    again = stored.second_run(code["second_run"])
    variant = Variant(function, stored, (), list(checks["modules"]), facts, code["seen"], again, code["same_in_eager"])
    run: Any = BoundCall(tree, function) if checks["tree"]["collect"] else function
    return Entry(tree, run, variant)


@final
class StoredGuards(Sequence[Guard]):
    """The guards in a file, parsed on first use: only explanations need them. Code that they name is not bound."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @cached_property
    def _sources(self) -> list[Source]:
        return sources_from_rows(self._rows["sources"])

    @cached_property
    def _rows(self) -> dict[str, list[Json]]:
        rows: dict[str, list[Json]] = json.loads(self._data)
        return rows

    def second_run(self, row: tuple[list[int], bool, str, int] | None) -> SecondRun | None:
        """What `second_run_row` wrote."""
        if row is None:
            return None
        written, gradients, device, memory = row
        return SecondRun(tuple([self._sources[number] for number in written]), gradients, device, memory)

    @cached_property
    def _content(self) -> tuple[list[Guard], list[Source]]:
        data, sources = self._rows, self._sources
        guards = guards_from_json(data["guards"], lambda number: sources[int(str(number))])
        return guards, [sources[int(str(number))] for number in data["collect"]]

    def __len__(self) -> int:
        return len(self._content[0])

    def __getitem__(self, index: Any) -> Any:
        return self._content[0][index]

    def collect(self) -> list[Source]:
        """Sources of the objects that the guards pass to the function."""
        return self._content[1]


UNREADABLE = (KilnError, NotSerialisable, BadGuard, KeyError, IndexError, TypeError, ValueError)
"""Raised for files of another version, of another program, or damaged ones."""


def module_digest(name: str) -> str:
    """Changes with the code of a module; "" for modules that the versions in the cache key cover.

    Raises NoSourceFile, NotSerialisable.
    """
    package = name.partition(".")[0]
    if package in VERSIONED or package in sys.stdlib_module_names:
        return ""
    module = resolve(f"{name}:")
    file = getattr(module, "__file__", None)
    if file is None and hasattr(module, "__path__"):  # a package without an __init__: no code
        return ""
    if file is None:
        raise NoSourceFile(module=name)
    return file_digest(file, *_stamp(file))


VERSIONED = frozenset(("torch", "kiln", "builtins"))


def _stamp(file: str) -> tuple[int, int]:
    try:
        facts = Path(file).stat()
    except OSError:
        return 0, 0
    return facts.st_mtime_ns, facts.st_size


@lru_cache(maxsize=4096)
def file_digest(file: str, modified: int, size: int) -> str:
    """The contents of a source file; of a compiled module its size and age."""
    if not file.endswith(".py"):
        return f"{size}-{modified}"
    try:
        return hashlib.blake2b(Path(file).read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return ""
