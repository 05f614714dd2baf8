"""What all target languages share: a body becomes statements, each placed at the outermost loop that allows it.

    for i0:                                   for i0:
        for i1:                                   v1 = get(mean + i0)
            v0 = load(x + 64*i0 + i1)    =>       for i1:
            v1 = get(mean + i0)                       v0 = load(x + 64*i0 + i1)
            v2 = v0 - v1                              v2 = v0 - v1

`StatementWriter` is the handler: a value is a name (or a constant), its dtype, the dimensions of a block along which it
varies, and its depth: the number of loops that it depends on. In C++ a block is a vector: one dimension, the lanes of
the vectorised loop. In Triton it has one to three. A subclass per target language writes accesses, broadcasts and
conversions; primitives come from the table of its `Dialect`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import final

import torch

from kiln.graph.prims.table import Prim
from kiln.loops.body.body import Check, Index, LoopHandler
from kiln.loops.body.indexing import Axis, linear_index, stride_of, symbols_of
from kiln.loops.codegen.dialect import Dialect, is_infix
from kiln.support.records import dataclass
from kiln.symbolic import BoundAnalysis, Int, Relation, Symbol, simplify_in_ranges, substituted
from kiln.tensor.spec import TensorSpec

Dims = frozenset[int]
NUMBER: Dims = frozenset()


@final
@dataclass(frozen=True, slots=True)
class TextValue:
    """The text of a value. `dims`: dimensions of the block along which it varies (none: a scalar); `depth`: loops
    around it."""

    text: str
    dtype: torch.dtype
    dims: Dims = NUMBER
    depth: int = 0
    constant: bool | int | float | None = None

    @property
    def varying(self) -> bool:
        return bool(self.dims)


class AccessPattern(Enum):
    """How the lanes of an access are laid out in memory."""

    UNIFORM = "all lanes at one element"
    CONTIGUOUS = "next to each other"
    STRIDED = "at equal distances"
    GATHER = "anywhere"


@final
@dataclass(frozen=True, slots=True)
class Access:
    """An access: its offset in elements, and how that varies within a block."""

    offset: Int
    pattern: AccessPattern
    step: Int = 0
    dims: Dims = NUMBER


@final
@dataclass(frozen=True, slots=True)
class Storage:
    """How a buffer or local is written: its name, layout and dtype.

    `number`: it is a variable, not memory. `whole`: memory of the kernel's own that consists of whole vectors.
    """

    name: str
    spec: TensorSpec
    number: bool = False
    whole: bool = False


@dataclass
class Nest:
    """The loops around a body, outermost first, and the symbols that vary along each dimension of a block.

    `vector`: position of the vectorised loop, or None. `values`: parts of a flattened axis, as expressions over the
    symbols that the target runs over.
    """

    axes: tuple[Axis, ...]
    bounds: BoundAnalysis
    blocks: tuple[frozenset[Symbol], ...] = ()
    vector: int | None = None
    values: Mapping[Symbol, Int] = field(default_factory=dict)
    data: dict[Symbol, TextValue] = field(default_factory=dict)
    """Values of the symbols that `indirect` bound."""
    cuts: tuple[Int, ...] = ()
    """Where the vectorised loop is cut: in between tests have one answer for all lanes."""

    @property
    def lane_symbol(self) -> Symbol | None:
        return None if self.vector is None else self.axes[self.vector].symbol

    def expr(self, value: Int) -> Int:
        """`value` over the symbols that the target runs over."""
        return simplify_in_ranges(substituted(value, self.values) if self.values else value, self.bounds)

    def relation(self, relation: Relation) -> Relation | bool:
        """`relation` over these symbols, or its truth."""
        return relation.substitute(self.values) if self.values else relation

    def depth_of(self, symbols: frozenset[Symbol]) -> int:
        """How many loops these symbols depend on."""
        depth = 0
        for position, axis in enumerate(self.axes):
            if axis.symbol in symbols:
                depth = position + 1
        return max([depth, *(self.data[symbol].depth for symbol in symbols if symbol in self.data)])

    def dims_of(self, symbols: frozenset[Symbol]) -> Dims:
        """Dimensions of the block along which these symbols vary."""
        own = {position for position, block in enumerate(self.blocks) if not block.isdisjoint(symbols)}
        return NUMBER.union(own, *(self.data[symbol].dims for symbol in symbols if symbol in self.data))

    def varies(self, symbols: frozenset[Symbol]) -> bool:
        return bool(self.dims_of(symbols))

    def access(self, spec: TensorSpec, index: Index) -> Access:
        offset = self.expr(linear_index(spec, index))
        symbols = symbols_of(offset)
        dims = self.dims_of(symbols)
        if not dims:
            return Access(offset, AccessPattern.UNIFORM)
        lane = self.lane_symbol
        step = None if lane is None else stride_of(offset, lane)
        if step is None or self.varies(symbols_of(step)) or self.varies(symbols - {lane}):
            return Access(offset, AccessPattern.GATHER, dims=dims)
        return Access(offset, AccessPattern.CONTIGUOUS if step == 1 else AccessPattern.STRIDED, step, dims)


class StatementWriter(LoopHandler[TextValue], ABC):
    """Writes a body into `lines[depth]`, the statements at each depth of the nest."""

    def __init__(
        self, dialect: Dialect, nest: Nest, storages: Mapping[str, Storage], unsettled: frozenset[str]
    ) -> None:
        """`unsettled`: buffers and locals that this nest writes; their loads stay innermost."""
        self.dialect, self.nest, self.storages, self.unsettled = dialect, nest, storages, unsettled
        self.lines: list[list[str]] = [[] for _ in range(len(nest.axes) + 1)]
        self.count = 0  # of named values

    # Per language.

    @abstractmethod
    def definition(self, name: str, text: str, dtype: torch.dtype, varying: bool) -> str:
        """The statement that names `text`."""

    @abstractmethod
    def literal(self, value: bool | int | float, dtype: torch.dtype) -> str: ...
    @abstractmethod
    def operand(self, value: TextValue, infix: bool) -> str:
        """A number as operand of an operation on vectors; `infix`: of an operator, which takes both."""

    @abstractmethod
    def convert(self, value: TextValue, dtype: torch.dtype) -> str: ...
    @abstractmethod
    def bitcast(self, value: TextValue, dtype: torch.dtype) -> str: ...
    @abstractmethod
    def load_text(self, storage: Storage, access: Access, mask: TextValue | None) -> str: ...
    @abstractmethod
    def index_text(self, expr: Int, dtype: torch.dtype) -> str: ...
    @abstractmethod
    def test_text(self, relation: Relation) -> str: ...
    @abstractmethod
    def indirect_text(self, operand: TextValue, size: Int, check: Check) -> str: ...
    @abstractmethod
    def random_text(self, distribution: str, seed: TextValue, counter: Int, dtype: torch.dtype) -> str: ...

    # Shared.

    def define(self, text: str, dtype: torch.dtype, dims: Dims, depth: int, name: str | None = None) -> TextValue:
        if name is None:
            name = f"v{self.count}"
            self.count += 1
        self.lines[depth].append(self.definition(name, text, dtype, bool(dims)))
        return TextValue(name, dtype, dims, depth)

    def constant(self, value: bool | int | float, dtype: torch.dtype) -> TextValue:
        return TextValue(self.literal(value, dtype), dtype, constant=value)

    def load(self, buffer: str, index: Index, dtype: torch.dtype, mask: TextValue | None = None) -> TextValue:
        storage = self.storages[buffer]
        access = self.nest.access(storage.spec, index)
        depth = max(self.nest.depth_of(symbols_of(access.offset)), mask.depth if mask else 0)
        if buffer in self.unsettled:
            depth = len(self.nest.axes)
        dims = access.dims | mask.dims if mask is not None else access.dims
        loaded = self.define(self.load_text(storage, access, mask), storage.spec.dtype, dims, depth)
        if self.dialect.computed(storage.spec.dtype) == self.dialect.computed(dtype):
            return TextValue(loaded.text, dtype, dims, depth)
        return self.define(self.convert(loaded, dtype), dtype, dims, depth)

    def index(self, expr: Int, dtype: torch.dtype) -> TextValue:
        expr = self.nest.expr(expr)
        symbols = symbols_of(expr)
        return self.define(self.index_text(expr, dtype), dtype, self.nest.dims_of(symbols), self.nest.depth_of(symbols))

    def test(self, relation: Relation) -> TextValue:
        known = self.nest.relation(relation)
        if isinstance(known, bool):
            return self.constant(known, torch.bool)
        relation, symbols = known, known.free_symbols()
        dims, depth = self.nest.dims_of(symbols), self.nest.depth_of(symbols)
        return self.define(self.test_text(relation), torch.bool, dims, depth)

    def pointwise(self, op: Prim, dtype: torch.dtype, *operands: TextValue) -> TextValue:
        dims = NUMBER.union(*(operand.dims for operand in operands))
        depth = max(operand.depth for operand in operands)
        if op.name in self.dialect.methods:
            text = self.convert(operands[0], dtype) if op.name == "convert" else self.bitcast(operands[0], dtype)
            if text == operands[0].text:
                return TextValue(text, dtype, dims, depth)
            return self.define(text, dtype, dims, depth)
        template = self.dialect.expr(op, operands[-1].dtype)
        infix = is_infix(template)
        texts = [operand.text if operand.varying or not dims else self.operand(operand, infix) for operand in operands]
        return self.define(template.format(*texts, **self.extras(op, operands)), dtype, dims, depth)

    def extras(self, op: Prim, operands: Sequence[TextValue]) -> Mapping[str, str]:
        """What templates may use besides operands: the active lanes, for functions that report faults."""
        return {"lanes": "lanes" if any(operand.varying for operand in operands) else "full"}

    def indirect(self, symbol: Symbol, operand: TextValue, size: Int, check: Check = Check.IN_SIZE) -> TextValue:
        depth = max(operand.depth, self.nest.depth_of(symbols_of(size)))
        text = self.indirect_text(operand, size, check)
        value = self.define(text, torch.int64, operand.dims, depth, name=symbol.name)
        self.nest.data[symbol] = value
        return value

    def random(self, distribution: str, seed: TextValue, counter: Int, dtype: torch.dtype) -> TextValue:
        counter = self.nest.expr(counter)
        symbols = symbols_of(counter)
        depth = max(seed.depth, self.nest.depth_of(symbols))
        text = self.random_text(distribution, seed, counter, dtype)
        return self.define(text, dtype, self.nest.dims_of(symbols), depth)


def indented(lines: Sequence[str], by: int = 1) -> list[str]:
    return ["  " * by + line if line else line for line in lines]
