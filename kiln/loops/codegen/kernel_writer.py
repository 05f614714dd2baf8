"""What all target languages share: a body becomes statements, each placed at the outermost loop that allows it.

    for i0:                                   for i0:
        for i1:                                   v1 = get(mean + i0)
            v0 = load(x + 64*i0 + i1)    =>       for i1:
            v1 = get(mean + i0)                       v0 = load(x + 64*i0 + i1)
            v2 = v0 - v1                              v2 = v0 - v1

`StatementWriter` is the handler: a value is a name (or a constant), its dtype, whether it differs between the lanes of
the vectorised loop, and its depth: the number of loops that it depends on. A target language is a subclass that says
how an access, a broadcast and a conversion are written; primitives come from the table of its `Dialect`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import final

import torch

from kiln.graph.prims.spec import TensorSpec
from kiln.graph.prims.table import Prim
from kiln.loops.codegen.dialect import Dialect, is_infix
from kiln.loops.ir.analyses import linear_index, stride_of
from kiln.loops.ir.body import Index, LoopHandler
from kiln.loops.ir.indexing import symbols_of
from kiln.loops.ir.nodes import Axis
from kiln.symbolic import BoundAnalysis, Int, Relation, Symbol, simplify_in_ranges


@final
@dataclass(frozen=True, slots=True)
class Value:
    """What the text of a value is and where it may stand. `constant`: it is known."""

    text: str
    dtype: torch.dtype
    varying: bool = False
    depth: int = 0
    constant: bool | int | float | None = None


class Way(Enum):
    """How the lanes of an access lie in memory."""

    ONE = "all lanes at one place"
    NEXT = "next to each other"
    STEP = "at equal distances"
    ANY = "anywhere"


@final
@dataclass(frozen=True, slots=True)
class Place:
    """An access: elements from the start of the buffer, and how that differs between lanes."""

    offset: Int
    way: Way
    step: Int = 0


@final
@dataclass(frozen=True, slots=True)
class Storage:
    """Where a buffer or local lives: its name in the text, the layout of its elements, their dtype there.

    `number`: it is a variable, not memory.
    """

    name: str
    spec: TensorSpec
    number: bool = False


@dataclass
class Nest:
    """The loops around a body, outermost first. `vector`: place of the vectorised one, or None."""

    axes: tuple[Axis, ...]
    vector: int | None
    bounds: BoundAnalysis
    unit_symbols: frozenset[Symbol] = frozenset()
    data: dict[Symbol, Value] = field(default_factory=dict)
    """Values of the symbols that `indirect` bound."""

    @property
    def lane_symbol(self) -> Symbol | None:
        return None if self.vector is None else self.axes[self.vector].symbol

    def depth_of(self, symbols: frozenset[Symbol]) -> int:
        """How many loops these symbols depend on."""
        depth = 0
        for place, axis in enumerate(self.axes):
            if axis.symbol in symbols:
                depth = place + 1
        return max([depth, *(self.data[one].depth for one in symbols if one in self.data)])

    def varies(self, symbols: frozenset[Symbol]) -> bool:
        """Do these symbols differ between lanes?"""
        return self.lane_symbol in symbols or any(self.data[one].varying for one in symbols if one in self.data)

    def place(self, spec: TensorSpec, index: Index) -> Place:
        """How an access of a tensor of layout `spec` lies in memory."""
        offset = simplify_in_ranges(linear_index(spec, index), self.bounds)
        symbols = symbols_of(offset)
        if not self.varies(symbols):
            return Place(offset, Way.ONE)
        lane = self.lane_symbol
        step = None if lane is None else stride_of(offset, lane)
        if step is None or self.varies(symbols_of(step)) or self.varies(symbols - {lane}):
            return Place(offset, Way.ANY)
        return Place(offset, Way.NEXT if step == 1 else Way.STEP, step)


class StatementWriter(LoopHandler[Value], ABC):
    """Writes one body into `lines[depth]`, the statements at each depth of the nest."""

    def __init__(
        self, dialect: Dialect, nest: Nest, storages: Mapping[str, Storage], unsettled: frozenset[str]
    ) -> None:
        """`unsettled`: buffers and locals that this nest writes; their loads stay innermost."""
        self.dialect, self.nest, self.storages, self.unsettled = dialect, nest, storages, unsettled
        self.lines: list[list[str]] = [[] for _ in range(len(nest.axes) + 1)]
        self._count = 0

    # What a language says.

    @abstractmethod
    def type_name(self, dtype: torch.dtype, varying: bool) -> str: ...
    @abstractmethod
    def literal(self, value: bool | int | float, dtype: torch.dtype) -> str: ...
    @abstractmethod
    def operand(self, value: Value, infix: bool) -> str:
        """A number as operand of an operation on vectors; `infix`: of an operator, which may take both."""

    @abstractmethod
    def convert(self, value: Value, dtype: torch.dtype) -> str: ...
    @abstractmethod
    def bitcast(self, value: Value, dtype: torch.dtype) -> str: ...
    @abstractmethod
    def load_text(self, storage: Storage, place: Place, mask: Value | None) -> str: ...
    @abstractmethod
    def index_text(self, expr: Int, dtype: torch.dtype) -> str: ...
    @abstractmethod
    def test_text(self, relation: Relation) -> str: ...
    @abstractmethod
    def indirect_text(self, operand: Value, size: Int, check: bool) -> str: ...
    @abstractmethod
    def random_text(self, distribution: str, seed: Value, counter: Int, dtype: torch.dtype) -> str: ...

    # What all share.

    def say(self, depth: int, line: str) -> None:
        self.lines[depth].append(line)

    def define(self, text: str, dtype: torch.dtype, varying: bool, depth: int, name: str | None = None) -> Value:
        """A statement that names the value of `text`."""
        if name is None:
            name = f"v{self._count}"
            self._count += 1
        self.say(depth, f"const {self.type_name(dtype, varying)} {name} = {text};")
        return Value(name, dtype, varying, depth)

    def constant(self, value: bool | int | float, dtype: torch.dtype) -> Value:
        return Value(self.literal(value, dtype), dtype, constant=value)

    def load(self, buffer: str, index: Index, dtype: torch.dtype, mask: Value | None = None) -> Value:
        storage = self.storages[buffer]
        place = self.nest.place(storage.spec, index)
        depth = max(self.nest.depth_of(symbols_of(place.offset)), mask.depth if mask else 0)
        if buffer in self.unsettled:
            depth = len(self.nest.axes)
        varying = place.way is not Way.ONE or (mask is not None and mask.varying)
        loaded = self.define(self.load_text(storage, place, mask), storage.spec.dtype, varying, depth)
        if self.dialect.computed(storage.spec.dtype) == self.dialect.computed(dtype):
            return Value(loaded.text, dtype, varying, depth)
        return self.define(self.convert(loaded, dtype), dtype, varying, depth)

    def index(self, expr: Int, dtype: torch.dtype) -> Value:
        expr = simplify_in_ranges(expr, self.nest.bounds)
        symbols = symbols_of(expr)
        return self.define(self.index_text(expr, dtype), dtype, self.nest.varies(symbols), self.nest.depth_of(symbols))

    def test(self, relation: Relation) -> Value:
        symbols = relation.free_symbols()
        return self.define(self.test_text(relation), torch.bool, self.nest.varies(symbols), self.nest.depth_of(symbols))

    def pointwise(self, op: Prim, dtype: torch.dtype, *operands: Value) -> Value:
        varying = any(one.varying for one in operands)
        depth = max(one.depth for one in operands)
        if op.name in self.dialect.methods:
            text = self.convert(operands[0], dtype) if op.name == "convert" else self.bitcast(operands[0], dtype)
            if text == operands[0].text:
                return Value(text, dtype, varying, depth)
            return self.define(text, dtype, varying, depth)
        template = self.dialect.expr(op, operands[-1].dtype)
        infix = is_infix(template)
        texts = [one.text if one.varying or not varying else self.operand(one, infix) for one in operands]
        lanes = "lanes" if varying else "full"
        return self.define(template.format(*texts, lanes=lanes), dtype, varying, depth)

    def indirect(self, symbol: Symbol, operand: Value, size: Int, check: bool = True) -> Value:
        depth = max(operand.depth, self.nest.depth_of(symbols_of(size)))
        text = self.indirect_text(operand, size, check)
        value = self.define(text, torch.int64, operand.varying, depth, name=symbol.name)
        self.nest.data[symbol] = value
        return value

    def random(self, distribution: str, seed: Value, counter: Int, dtype: torch.dtype) -> Value:
        symbols = symbols_of(counter)
        depth = max(seed.depth, self.nest.depth_of(symbols))
        text = self.random_text(distribution, seed, counter, dtype)
        return self.define(text, dtype, self.nest.varies(symbols), depth)


def indented(lines: Sequence[str], by: int = 1) -> list[str]:
    return ["  " * by + line if line else line for line in lines]
