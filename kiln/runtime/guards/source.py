"""Where a value came from: a path from a root of the frame, as data.

    ItemSource(DictAttrSource(LocalSource("self"), "_modules"), "layer").text()
        ->  "self.__dict__['_modules']['layer']"

A source holds no object and no `id()`, so it can be written to disk and evaluated in another process. Evaluating it
runs no Python code of the user: an attribute is found in the instance's dict, in a slot, or on the type; a property or
`__getattr__` is spelt out by its parts. `capture/interpreter` emits the bytecode that computes a source, and
`native/_frames` checks it.
"""

from __future__ import annotations

from dataclasses import field, fields
from typing import ClassVar, final

from kiln.runtime.guards.constant import Json, ObjectRef, constant_to_json, readable_constant
from kiln.support.records import dataclass

SOURCES: dict[str, type[Source]] = {}
"""Every kind of source by its tag on disk."""


@dataclass(frozen=True, slots=True)
class Source:
    """Base of all sources; concrete ones are final."""

    tag: ClassVar[str] = ""
    form: ClassVar[str] = ""
    """Its text; `{0}` is the source."""

    def __init_subclass__(cls, tag: str = "", form: str = "") -> None:
        if tag:  # `dataclass` makes a class with slots again, without these
            cls.tag, cls.form = tag, form

    def text(self) -> str:
        """Readable Python."""
        return self.form.format(self)

    def __str__(self) -> str:
        return self.text()

    @property
    def parent(self) -> Source | None:
        """The source this one is one step away from; None for a root."""
        return None

    def root(self) -> Source:
        """The first step of the path."""
        source: Source = self
        while (parent := source.parent) is not None:
            source = parent
        return source


@dataclass(frozen=True, slots=True)
class RootSource(Source):
    """A source without a parent."""


@dataclass(frozen=True, slots=True)
class StepSource(Source):
    """A source one step below `base`."""

    base: Source

    @property
    def parent(self) -> Source | None:
        return self.base


@final
@dataclass(frozen=True, slots=True)
class LocalSource(RootSource, tag="local", form="{0.name}"):
    """A local variable (argument) of the frame."""

    name: str


@final
@dataclass(frozen=True, slots=True)
class GlobalSource(RootSource, tag="global", form="globals()[{0.name!r}]"):
    """A name in the globals of the root function."""

    name: str


@final
@dataclass(frozen=True, slots=True)
class ModuleGlobalSource(RootSource, tag="module_global", form="{0.module}.{0.name}"):
    """A name in the globals of another module, given by its import name."""

    module: str
    name: str


@final
@dataclass(frozen=True, slots=True)
class CellSource(RootSource, tag="cell", form="free({0.name})"):
    """The contents of a free variable of the root function."""

    name: str


@final
@dataclass(frozen=True, slots=True)
class BuiltinSource(RootSource, tag="builtin", form="builtins.{0.name}"):
    """A name in `builtins`."""

    name: str


@final
@dataclass(frozen=True, slots=True)
class ImportSource(RootSource, tag="import", form="sys.modules[{0.module!r}]"):
    """A module in `sys.modules`."""

    module: str


@final
@dataclass(frozen=True, slots=True)
class AttrSource(StepSource, tag="attr", form="{0.base}.{0.name}"):
    """`base.name`, found without running Python code."""

    name: str


def attribute_path(base: Source | None, name: str) -> Source | None:
    """The path to an attribute of what is at `base`, which may have no path."""
    return AttrSource(base, name) if base is not None else None


@final
@dataclass(frozen=True, slots=True)
class DictAttrSource(StepSource, tag="dict_attr", form="{0.base}.__dict__[{0.name!r}]"):
    """`base.__dict__[name]`."""

    name: str


@final
@dataclass(frozen=True, slots=True)
class ItemSource(StepSource, tag="item", form="{0.base}[{0.key!r}]"):
    """`base[key]` of a list, tuple or dict; `key` is a constant."""

    key: object
    # 1, 1.0 and True are the same key of a dict but different sources.
    key_type: type = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key_type", type(self.key))


def argument_of(source: Source) -> str:
    """The name of the argument that it is, or is an item of at any depth; "" of others."""
    while isinstance(source, ItemSource):
        source = source.base
    return source.name if isinstance(source, LocalSource) else ""


@final
@dataclass(frozen=True, slots=True)
class DefaultSource(StepSource, tag="default"):
    """A default of function `base`: positional by index into `__defaults__`, keyword-only by name."""

    key: int | str

    def text(self) -> str:
        where = "__defaults__" if isinstance(self.key, int) else "__kwdefaults__"
        return f"{self.base.text()}.{where}[{self.key!r}]"


@final
@dataclass(frozen=True, slots=True)
class ClosureSource(StepSource, tag="closure", form="{0.base}.__closure__[{0.index}].cell_contents"):
    """The contents of the `index`-th cell of function `base`."""

    index: int


@final
@dataclass(frozen=True, slots=True)
class TypeSource(StepSource, tag="type", form="type({0.base})"):
    """`type(base)`."""


@final
@dataclass(frozen=True, slots=True)
class MethodFuncSource(StepSource, tag="method_func", form="{0.base}.__func__"):
    """`base.__func__` of a bound method."""


@final
@dataclass(frozen=True, slots=True)
class MethodSelfSource(StepSource, tag="method_self", form="{0.base}.__self__"):
    """`base.__self__` of a bound method."""


@final
@dataclass(frozen=True, slots=True)
class SizeSource(StepSource, tag="size", form="{0.base}.size({0.dim})"):
    """`base.size(dim)`: an integer, not an object; for shape relations."""

    dim: int


@final
@dataclass(frozen=True, slots=True)
class StrideSource(StepSource, tag="stride", form="{0.base}.stride({0.dim})"):
    """`base.stride(dim)`: an integer, not an object; for shape relations."""

    dim: int


@final
@dataclass(frozen=True, slots=True)
class OffsetSource(StepSource, tag="offset", form="{0.base}.storage_offset()"):
    """`base.storage_offset()`: an integer, not an object; for shape relations."""


@final
@dataclass(frozen=True, slots=True)
class GradSource(StepSource, tag="grad", form="{0.base}.grad"):
    """`base.grad` of a tensor."""


@final
@dataclass(frozen=True, slots=True)
class KeysSource(StepSource, tag="keys", form="list({0.base})[{0.index}]"):
    """The `index`-th key of dict `base`, or item of set `base`."""

    index: int


@final
@dataclass(frozen=True, slots=True)
class ValuesSource(StepSource, tag="values", form="list({0.base}.values())[{0.index}]"):
    """The `index`-th value of dict `base`, whose keys are objects."""

    index: int


@final
@dataclass(frozen=True, slots=True)
class ClassFieldSource(StepSource, tag="class_field", form="{0.base}.{0.name}"):
    """`base.__name__`, `__dict__`, `__mro__` and the like of class `base`: by a C descriptor of its metaclass."""

    name: str


@final
@dataclass(frozen=True, slots=True)
class MroSource(StepSource, tag="mro", form="{0.base}.__mro__[{0.index}]"):
    """The `index`-th class in the method resolution order of class `base`."""

    index: int


@final
@dataclass(frozen=True, slots=True)
class CellObjectSource(RootSource, tag="cell_object", form="cell({0.name})"):
    """The cell itself of a free variable of the root function."""

    name: str


@final
@dataclass(frozen=True, slots=True)
class CallSource(StepSource, tag="call"):
    """`base(*arguments, **keywords)`: what a C function answers, such as a setting of torch or a cached result.

    Arguments are constants and `ObjectRef`s. It is called again each time the guards are checked.
    """

    arguments: tuple[object, ...] = ()
    keywords: tuple[tuple[str, object], ...] = ()

    def text(self) -> str:
        given = [argument_text(value) for value in self.arguments]
        given += [f"{name}={argument_text(value)}" for name, value in self.keywords]
        return f"{self.base.text()}({', '.join(given)})"


CALL = ModuleGlobalSource("operator", "call")
"""What calls its first argument, for callables that are no C functions, such as `contextvars.ContextVar.get`."""


@final
@dataclass(frozen=True, slots=True)
class ArraySource(StepSource, tag="array", form="torch.from_numpy({0.base})"):
    """A tensor in the memory of the NumPy array `base`, or the number of a scalar; made at each check of the guards."""


@final
@dataclass(frozen=True, slots=True)
class AnswerSource(StepSource, tag="answer", form="{0.function.path}({0.base})"):
    """What a Python function of Kiln says of `base`, which no path leads to. It is called each time the guards are
    checked."""

    function: ObjectRef


@final
@dataclass(frozen=True, slots=True)
class FormulaSource(RootSource, tag="formula", form="{0.name}"):
    """A number that transformed code computes in front of the region; no guard asks for it."""

    name: str


def argument_text(value: object) -> str:
    return getattr(value, "path", "") or repr(getattr(value, "value", value))


_CONCRETE: tuple[type[Source], ...] = (
    *(LocalSource, GlobalSource, ModuleGlobalSource, CellSource, BuiltinSource, ImportSource),
    *(AttrSource, DictAttrSource, ItemSource, DefaultSource, ClosureSource, TypeSource),
    *(MethodFuncSource, MethodSelfSource, SizeSource, StrideSource, OffsetSource, GradSource, KeysSource),
    *(ValuesSource, MroSource, ClassFieldSource, CellObjectSource, CallSource, ArraySource, AnswerSource),
)
SOURCES.update((kind.tag, kind) for kind in _CONCRETE)
FIELDS: dict[type[Source], tuple[str, ...]] = {
    kind: tuple(field.name for field in fields(kind) if field.init) for kind in _CONCRETE
}
"""The fields written of a source, in the order of its constructor."""
BELOW = {kind: kind.form.replace("{0.base}", "{1}") for kind in _CONCRETE if kind.form}
"""The text of a source below the text of its base."""


@final
class SourceTexts:
    """The texts of many sources: that of a path is made once, not again for each step below it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Source, str]] = {}
        """By address; the source is kept so that its address is not reused."""

    def of(self, source: Source) -> str:
        known = self._known.get(id(source))
        if known is None:
            base = source.parent
            form = BELOW.get(type(source), "")
            text = form.format(source, self.of(base)) if base is not None and form else source.text()
            known = self._known[id(source)] = source, text
        return known[1]


@final
class SourceTable:
    """Sources as rows, each path written once below its parent; a source is its row's number."""

    def __init__(self) -> None:
        self.rows: list[Json] = []
        self._known: dict[int, tuple[Source, int]] = {}
        """By address; the source is kept so that its address is not reused."""
        self._numbers: dict[str, int] = {}

    def number(self, source: Source) -> int:
        known = self._known.get(id(source))
        if known is None:
            known = self._known[id(source)] = source, self._row(source)
        return known[1]

    def _row(self, source: Source) -> int:
        row: list[Json] = [source.tag]
        for name in FIELDS[type(source)]:
            value = getattr(source, name)
            row.append(self.number(value) if isinstance(value, Source) else constant_to_json(value))
        number = self._numbers.setdefault(repr(row), len(self.rows))
        if number == len(self.rows):
            self.rows.append(row)
        return number


def sources_from_rows(rows: list[Json]) -> list[Source]:
    """Inverse of `SourceTable.rows`."""
    made: list[Source] = []
    for row in rows:
        assert isinstance(row, list)
        kind = SOURCES[str(row[0])]
        if issubclass(kind, StepSource):
            values = [made[int(str(row[1]))], *(readable_constant(value) for value in row[2:])]
        else:
            values = [readable_constant(value) for value in row[1:]]
        made.append(kind(*values))
    return made
