"""The transformed code: calls the region, builds the results, makes the side effects.

    def f(self, x):                     outputs = region(x, *bindings)
        y = self.layer(x)         =>    [load what is needed by its source]
        self.calls += 1                 [effects, in order]
        return {"y": y}                 return {"y": outputs[0]}

Whatever has a source is loaded before the first effect, since effects may change what the source leads to.
"""

from __future__ import annotations

import math
import operator
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

import torch
from torch._C import TensorBase

from kiln.capture.bytecode.assemble import Assembler, FreeVar, Label, arguments_of
from kiln.capture.interpreter.breaks import UnsupportedValue
from kiln.capture.interpreter.core import CaptureState, Value
from kiln.capture.interpreter.data_values import DataValues, refuse_changed
from kiln.capture.interpreter.identities import PlainReads
from kiln.capture.interpreter.speculation import ComputedNumber
from kiln.capture.interpreter.variables.choice import ChosenResults, chosen
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.function import Cell
from kiln.capture.interpreter.variables.tensor import Tensor
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.inputs import InputRecord
from kiln.runtime.guards import source as sources
from kiln.runtime.guards.constant import ObjectRef
from kiln.runtime.guards.source import LocalSource, Source
from kiln.runtime.numbers import computed, unless_refused
from kiln.symbolic.expr import Expr, FloorDiv, Max, Min, Mod, Symbol
from kiln.symbolic.relation import Relation, RelationKind
from kiln.symbolic.values import BRANCHES, REAL_OPS, Given, Real
from kiln.tensor.spec import ScalarSpec, TensorSpec

BINDINGS = "_kiln_bindings"
"""The extra argument: the objects at the sources `collect`, which the guards found."""


@final
class CodeWriter:
    """Writes the code of one capture; values build themselves with it (`core.Codegen`)."""

    def __init__(self, state: CaptureState, code: types.CodeType) -> None:
        self.state = state
        self.code = code
        self.loads = Assembler(code.co_firstlineno)
        self.body = Assembler(code.co_firstlineno)
        self.outputs: list[FakeTensor] = []
        self.for_numbers: set[int] = set()
        """The outputs (by `id`) that the program does not see, but a number."""
        self._output_names: dict[int, str] = {}
        self.built: dict[int, str] = {}
        """The temporaries of what was built, by the `id` of the value."""
        self.sources: dict[str, str] = {}
        """The temporaries of what was loaded, by the text of its source."""
        self._kept: list[Value] = []
        self._building: set[int] = set()
        self._count = 0
        self._number_sources: dict[object, Source] | None = None
        self._offsets: dict[object, int] = {}
        self.in_front: dict[str, str] = {}
        """The temporaries of numbers that are computed in front of the region, by their names."""

    def temporary(self) -> str:
        self._count += 1
        return f"_kiln_{self._count}"

    def local_names(self) -> list[str]:
        """The variables of the transformed code: the arguments and all temporaries so far."""
        return [*arguments_of(self.code), *[f"_kiln_{n}" for n in range(1, self._count + 1)]]

    def computed_name(self, number: str) -> str:
        """The temporary of a number that is computed in front of the region."""
        if number not in self.in_front:
            self.in_front[number] = self.temporary()
        return self.in_front[number]

    def emit(self, value: object) -> None:
        """Push a value, or a constant."""
        if not isinstance(value, Value):
            self.body.const(value)
            return
        name = self.built.get(id(value))
        if name is not None:
            self.body.op("LOAD_FAST", name)
        elif value.source is not None and not isinstance(value, Cell):
            self.body.op("LOAD_FAST", self.found(value, value.source))
        elif isinstance(value, Constant):
            self.body.const(value.value)
        else:
            kind = self.state.classes.values.get(value.python_type()) if self.state.classes.made else None
            if kind is not None and not self.is_built(kind):  # its attributes may hold the value
                self.emit(kind)
                self.body.op("POP_TOP")
                self.emit(value)
                return
            if id(value) in self._building:
                raise UnsupportedValue(type=value.type_name(), why="it contains itself")
            self._building.add(id(value))
            value.emit(self)
            self._building.discard(id(value))

    def make(self, value: Value | None, function: object, *arguments: object, names: tuple[str, ...] = ()) -> None:
        """Push `function(*arguments)`, which is `value` from then on. The last arguments have `names`."""
        for part in (function, *arguments):
            self.emit(part)
        self.body.call(len(arguments), names)
        if value is not None:
            self.remember(value)

    def run(self, function: object, *arguments: object, names: tuple[str, ...] = ()) -> None:
        """Call a function that is not called for its result."""
        self.make(None, function, *arguments, names=names)
        self.body.op("POP_TOP")

    def is_built(self, value: Value) -> bool:
        """Whether a temporary holds it."""
        return id(value) in self.built

    def tensor(self, fake: FakeTensor) -> None:
        """Push an output of the region, or the tensor that it is a copy of."""
        self.for_numbers.discard(id(fake))
        name, found = self.output(fake), self.state.part(ChosenResults).by_fake.get(id(fake))
        if found is None:
            self.body.op("LOAD_FAST", name)
            return
        _, condition, *sides = found
        self.body.const(chosen)
        self.emit(condition)
        for side in sides:
            if side is None:
                self.body.op("LOAD_FAST", name)
            else:
                self.emit(side)
        self.body.call(3)

    def number(self, value: object) -> None:
        """Push a number that depends on sizes and numbers of the caller, as an expression over their sources."""
        if self._number_sources is None:
            records = self.state.recorder.inputs
            self._number_sources = number_sources(records)
            self._offsets = {record.spec.value: record.offset for record in records if record.offset}  # type: ignore[union-attr]
        if isinstance(value, Given | Symbol):
            source = self._number_sources.get(value)
            if source is None:
                self._data_number(value)
            elif value in self._offsets:
                self.body.const(operator.add).op("LOAD_FAST", self.loaded(source)).const(self._offsets[value]).call(2)
            else:
                self.body.op("LOAD_FAST", self.loaded(source))
        elif isinstance(value, Real) and value.op in BRANCHES:
            write_choice(self, value)
        elif isinstance(value, Real):
            self._apply(*checked(value.op, value.args))
        elif isinstance(value, FloorDiv | Mod):
            name = "floordiv" if isinstance(value, FloorDiv) else "mod"
            self._apply(*checked(name, (value.dividend, value.divisor)))
        elif isinstance(value, Min | Max):
            self._apply(min if isinstance(value, Min) else max, value.args)
        elif isinstance(value, Expr):
            self._sum(value)
        elif isinstance(value, Relation):
            self._apply(TRUTHS[value.kind], (value.difference, 0))
        else:
            self.body.const(value)

    def _data_number(self, value: Symbol | Given) -> None:
        """Ask a result of the region for a number."""
        found = self.state.part(DataValues).numbers.get(value)
        if found is None:
            raise UnsupportedValue(type="number", why=f"{value} depends on values of tensors")
        refuse_changed(self.state, found)
        before = len(self.outputs)
        self.emit(found.tensor)
        self.for_numbers.update(map(id, self.outputs[before:]))
        if found.dim is None:
            self.body.attr("item").call(0)
        else:
            self.body.attr("size").const(found.dim).call(1)

    def _apply(self, function: Callable[..., object], args: Iterable[object]) -> None:
        operands = list(args)
        self.body.const(function)
        for operand in operands:
            self.number(operand)
        self.body.call(len(operands))

    def _sum(self, value: Expr) -> None:
        """The terms of a polynomial, `sum((prod((a, b, 2)), ...))`."""
        self.body.const(sum)
        for monomial, coefficient in value.terms:
            factors = [*monomial, coefficient]
            self.body.const(math.prod)
            for operand in factors:
                self.number(operand)
            self.body.op("BUILD_TUPLE", len(factors)).call(1)
        self.body.op("BUILD_TUPLE", len(value.terms)).call(1)

    def output(self, fake: FakeTensor) -> str:
        name = self._output_names.get(id(fake))
        if name is None:
            name = self._output_names[id(fake)] = self.temporary()
            self.outputs.append(fake)
        return name

    def output_names(self) -> list[str]:
        return [self._output_names[id(fake)] for fake in self.outputs]

    def remember(self, value: Value) -> None:
        """Keep the value on the stack in a temporary, to load it instead of building it again."""
        name = self.temporary()
        self._kept.append(value)
        self.built[id(value)] = name
        self.body.op("COPY", 1).op("STORE_FAST", name)

    def store(self, value: Value) -> str:
        """Build `value` into a temporary."""
        known = self.built.get(id(value))
        if known is not None:
            return known
        if value.source is not None and not isinstance(value, Cell):
            return self.found(value, value.source)
        chosen_results = self.state.part(ChosenResults).by_fake
        if isinstance(value, Tensor) and not value.is_made_parameter and id(value.fake) not in chosen_results:
            return self.output(value.fake)
        self.emit(value)
        name = self.temporary()
        self.body.op("STORE_FAST", name)
        return name

    def found(self, value: Value, source: Source) -> str:
        """The temporary of a value from outside. A guard ensures that its path exists."""
        if type(source) is not LocalSource and not isinstance(value, Tensor):
            self.state.guard_type(value)
        return self.loaded(source)

    def loaded(self, source: Source) -> str:
        """The temporary of the object at `source`, loaded before all effects."""
        if type(source) is LocalSource:
            return source.name
        if type(source) is sources.FormulaSource:
            return self.computed_name(source.name)
        text = source.text()
        name = self.sources.get(text)
        if name is None:
            emit_source(self.loads, source, self)
            name = self.sources[text] = self.temporary()
            self.loads.op("STORE_FAST", name)
        return name

    def cell(self, cell: Value) -> None:
        """Push a cell, with its current contents."""
        assert isinstance(cell, Cell)
        source = cell.source
        if cell.original is None:
            self.make(cell, types.CellType)
            if cell.content is not None:
                self.emit(cell.content)
                self.body.op("COPY", 2).op("STORE_ATTR", "cell_contents")
        elif isinstance(source, sources.CellSource) and cell.name in self.code.co_freevars:
            self.body.op("LOAD_CLOSURE", FreeVar(cell.name))
        elif isinstance(source, sources.AttrSource):
            self.body.op("LOAD_FAST", self.loaded(source.base))
        elif isinstance(source, sources.ClosureSource):
            path = sources.ItemSource(sources.AttrSource(source.base, "__closure__"), source.index)
            self.body.op("LOAD_FAST", self.loaded(path))
        else:
            self.body.const(cell.original)


PARTIAL = frozenset(
    ("truediv", "floordiv", "mod", "pow", "sqrt", "exp", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan")
)
"""Operations that not all numbers have: a side of a branch that was not taken may have asked for one."""


def checked(name: str, args: Sequence[object]) -> tuple[Callable[..., object], Sequence[object]]:
    """What computes an operation on numbers behind the region, which has checked those that it uses."""
    function, constant = REAL_OPS[name], args[1] if len(args) > 1 else 0
    is_total = name not in PARTIAL or (name != "pow" and isinstance(constant, int | float) and constant != 0)
    return (function, args) if is_total else (unless_refused, (function, *args))


TRUTHS: Mapping[RelationKind, Callable[[int, int], bool]] = {"eq": operator.eq, "ne": operator.ne, "le": operator.le}
"""What compares the difference of a relation with zero."""


def write_choice(writer: CodeWriter, value: Real) -> None:
    """Push one of two numbers; the other is not computed."""
    test, left, right = value.args
    first, end = Label(), Label()
    writer.body.const(BRANCHES[value.op])
    writer.number(test)
    writer.body.call(1).jump_if(True, first)
    writer.number(right)
    writer.body.op("JUMP_FORWARD", end).label(first)
    writer.number(left)
    writer.body.label(end)


def write_number(head: Assembler, writer: CodeWriter, value: object) -> None:
    """Push a number in `head`, which runs first: what the code behind it has loaded is not there yet."""
    behind = writer.loads, writer.body, writer.sources
    writer.loads, writer.body = Assembler(writer.code.co_firstlineno), Assembler(writer.code.co_firstlineno)
    writer.sources = {}
    writer.number(value)
    head.extend(writer.loads)
    head.extend(writer.body)
    writer.loads, writer.body, writer.sources = behind


def write_computed(head: Assembler, writer: CodeWriter, number: ComputedNumber) -> None:
    """Compute a number into a temporary, None where that raises; push whether it is a number."""
    formula, name = number.formula, writer.computed_name(number.name)
    chooses = formula.op in BRANCHES
    head.const(computed).const(number.kind).const(operator.pos if chooses else REAL_OPS[formula.op])
    args = (formula,) if chooses else formula.args
    for arg in args:
        write_number(head, writer, arg)
    head.call(2 + len(args))
    head.op("COPY", 1).op("STORE_FAST", name).const(None).op("IS_OP", 1)


def number_sources(records: Iterable[InputRecord]) -> dict[object, Source]:
    """The sources of the numbers of a recording: scalar inputs, sizes and strides of tensors."""
    found: dict[object, Source] = {}
    for record in records:
        if record.given is not None:
            found[record.given] = record.source
        elif isinstance(record.spec, ScalarSpec):
            found[record.spec.value] = record.source
        elif isinstance(record.spec, TensorSpec):
            for dim, size in enumerate(record.spec.sizes):
                found.setdefault(size, sources.SizeSource(record.source, dim))
            for dim, stride in enumerate(record.spec.strides):
                found.setdefault(stride, sources.StrideSource(record.source, dim))
    return found


SourceEmitter = Callable[[Assembler, Any, CodeWriter], object]


def emit_source(a: Assembler, source: Source, writer: CodeWriter) -> None:
    """Push the object at `source`."""
    EMITTERS[type(source)](a, source, writer)


def on_base(write: Callable[[Assembler, Any], object], function: object = None) -> SourceEmitter:
    """Push `function` if given, then the object at the base of the source, then `write`."""

    def emit(a: Assembler, source: Any, writer: CodeWriter) -> None:
        if function is not None:
            a.const(function)
        emit_source(a, source.base, writer)
        write(a, source)

    return emit


def in_list(view: Callable[[Assembler], object]) -> SourceEmitter:
    """An item of `list(view(base))`. Code that loads all items of a dict makes one list."""

    def emit(a: Assembler, source: sources.KeysSource | sources.ValuesSource, writer: CodeWriter) -> None:
        known = writer.sources if a is writer.loads else {}
        text = source.text().rpartition("[")[0]
        if text not in known:
            a.const(list)
            emit_source(a, source.base, writer)
            view(a)
            a.call(1)
            known[text] = writer.temporary()
            a.op("STORE_FAST", known[text])
        a.op("LOAD_FAST", known[text]).item(source.index)

    return emit


def call_with(
    function: Callable[..., object], arguments: tuple[object, ...], keywords: tuple[tuple[str, object], ...]
) -> object:
    """Asks again what a `CallSource` names."""
    return function(*arguments, **dict(keywords))


def ask(value: object, function: Callable[[object], object]) -> object:
    """Asks again what an `AnswerSource` names."""
    return function(value)


def plain(arguments: tuple[object, ...]) -> tuple[object, ...]:
    return tuple([value.value if isinstance(value, ObjectRef) else value for value in arguments])


def past_class(name: str, write: SourceEmitter, items: Callable[[Assembler, Any], object]) -> SourceEmitter:
    """`write`; if the object at the base has a `name` of its own that is not to be run, the method of its container."""

    def emit(a: Assembler, source: Any, writer: CodeWriter) -> None:
        found = writer.state.part(PlainReads).bases.get(id(source.base))
        if found is None:
            write(a, source, writer)
            return
        if name != "__getitem__":
            a.const(list)
        a.const(getattr(found[1], name))
        emit_source(a, source.base, writer)
        items(a, source)

    return emit


EMITTERS: dict[type[Source], SourceEmitter] = {
    sources.FormulaSource: lambda a, source, writer: a.op("LOAD_FAST", writer.computed_name(source.name)),
    LocalSource: lambda a, source, writer: a.op("LOAD_FAST", source.name),
    sources.GlobalSource: lambda a, source, writer: a.global_(source.name),
    sources.ModuleGlobalSource: lambda a, source, writer: a.const(sys.modules[source.module].__dict__).item(
        source.name
    ),
    sources.CellSource: lambda a, source, writer: a.op("LOAD_DEREF", FreeVar(source.name)),
    sources.CellObjectSource: lambda a, source, writer: a.op("LOAD_CLOSURE", FreeVar(source.name)),
    sources.BuiltinSource: lambda a, source, writer: a.global_(source.name),
    sources.ImportSource: lambda a, source, writer: a.const(sys.modules[source.module]),
    sources.AttrSource: on_base(lambda a, source: a.attr(source.name)),
    sources.DictAttrSource: on_base(lambda a, source: a.attr("__dict__").item(source.name)),
    sources.ItemSource: past_class(
        "__getitem__", on_base(lambda a, source: a.item(source.key)), lambda a, source: a.const(source.key).call(2)
    ),
    sources.DefaultSource: on_base(
        lambda a, source: a.attr("__defaults__" if isinstance(source.key, int) else "__kwdefaults__").item(source.key)
    ),
    sources.ClosureSource: on_base(lambda a, source: a.attr("__closure__").item(source.index).attr("cell_contents")),
    sources.TypeSource: on_base(lambda a, source: a.call(1), type),
    sources.MethodFuncSource: on_base(lambda a, source: a.attr("__func__")),
    sources.MethodSelfSource: on_base(lambda a, source: a.attr("__self__")),
    sources.GradSource: on_base(lambda a, source: a.attr("grad")),
    sources.KeysSource: past_class(
        "__iter__", in_list(lambda a: None), lambda a, source: a.call(1).call(1).item(source.index)
    ),
    sources.ValuesSource: past_class(
        "values",
        in_list(lambda a: a.attr("values").call(0)),
        lambda a, source: a.call(1).call(1).item(source.index),
    ),
    sources.MroSource: on_base(lambda a, source: a.attr("__mro__").item(source.index)),
    sources.ArraySource: on_base(lambda a, source: a.attr("__array__").call(0).call(1), torch.from_numpy),
    sources.AnswerSource: on_base(lambda a, source: a.const(source.function.value).call(2), ask),
    sources.ClassFieldSource: on_base(lambda a, source: a.attr(source.name)),
    sources.CallSource: on_base(
        lambda a, source: a.const(plain(source.arguments)).const(source.keywords).call(3), call_with
    ),
    sources.SizeSource: on_base(lambda a, source: a.const(source.dim).call(2), TensorBase.size),
    sources.StrideSource: on_base(lambda a, source: a.const(source.dim).call(2), TensorBase.stride),
    sources.OffsetSource: on_base(lambda a, source: a.call(1), TensorBase.storage_offset),
}
"""Every kind of source has a row; a test compares this with SOURCES."""
