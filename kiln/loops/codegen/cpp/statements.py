"""How C++ writes the ops of a body: loads, conversions, indices, tests.

    load x[i0, i1]               const f32v v0 = load(in0 + (64*i0 + i1), lanes);
    load mean[i0]                const f32 v1 = get(in1 + i0);
    convert(v0, i64)             const i64v v2 = __builtin_convertvector(v0, i64v);
    test(i1 <= i0)               const mask v3 = lanes32()*1 <= clamp32(-(i1 - i0));

`lanes` is `full`, or the number of active lanes of the last step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

import torch

from kiln.loops.body.body import Check, Index
from kiln.loops.body.indexing import Axis, stride_of, symbols_of
from kiln.loops.codegen.cpp.dialect import CPP, CPP_INTEGERS
from kiln.loops.codegen.cpp.index_compare import IndexCompareStatements
from kiln.loops.codegen.integers import IntPrinter
from kiln.loops.codegen.kernel_writer import NUMBER, Access, AccessPattern, Dims, Nest, Storage, TextValue
from kiln.loops.codegen.numbers import conversion_steps, float_text
from kiln.symbolic import Int, Relation, is_static, substituted
from kiln.symbolic.relation import SIGNS

_HALF_PRECISION = {torch.bfloat16: "bf16", torch.float16: "f16"}
LANES: Dims = frozenset({0})
_MAX_STEP = 1 << 20
"""Largest distance between lanes for which a lane's part of an index fits 32 bits."""


@final
class CppStatements(IndexCompareStatements):
    def __init__(self, nest: Nest, storages: Mapping[str, Storage], unsettled: frozenset[str], width: int) -> None:
        super().__init__(nest, storages, unsettled)
        self.width = width

    # Text of types and numbers.

    def definition(self, name: str, text: str, dtype: torch.dtype, varying: bool) -> str:
        return f"const {type_name(dtype, varying)} {name} = {text};"

    def literal(self, value: bool | int | float, dtype: torch.dtype) -> str:
        return literal(value, dtype)

    def ints(self) -> IntPrinter:
        return IntPrinter(self.nest.bounds, CPP_INTEGERS)

    def lane_ints(self, narrow: bool = False) -> IntPrinter:
        """Prints one value per lane; `narrow`: in lanes of 32 bits."""
        lane = self.nest.lane_symbol
        names = {} if lane is None else {lane: f"((i32){lane} + lanes32())" if narrow else f"({lane} + lanes64())"}
        return IntPrinter(self.nest.bounds, CPP_INTEGERS, names)

    # Operators.

    def operand(self, value: TextValue, infix: bool) -> str:
        """A bool is 1 as a number and -1 as a lane, so it is always broadcast."""
        return value.text if infix and value.dtype != torch.bool else f"all({value.text})"

    def convert(self, value: TextValue, dtype: torch.dtype) -> str:
        source, target = CPP.computed(value.dtype), CPP.computed(dtype)
        text = self._converted(value, source, target)
        if dtype in _HALF_PRECISION and value.dtype != dtype:
            text = f"rounded_{_HALF_PRECISION[dtype]}({text})"
        return text

    def _converted(self, value: TextValue, source: torch.dtype, target: torch.dtype) -> str:
        if source == target:
            return value.text
        if target == torch.bool:
            return f"as_mask({value.text} != 0)"
        if source == torch.bool and value.varying:
            return f"sel({value.text}, all({literal(1, target)}), all({literal(0, target)}))"
        text = value.text
        steps = conversion_steps(source, target)
        if value.varying and source.itemsize <= 2 and target.itemsize >= 4:
            text, steps = f"wide32({text})", [dtype for dtype in steps if dtype != torch.int32]
        for dtype in steps:
            name = type_name(dtype, value.varying)
            text = f"__builtin_convertvector({text}, {name})" if value.varying else f"({name}){text}"
        return text

    def bitcast(self, value: TextValue, dtype: torch.dtype) -> str:
        if torch.bool in (value.dtype, dtype):
            return self.convert(value, dtype)
        text, held = value.text, value.dtype
        if held in _HALF_PRECISION:
            text, held = f"narrow_{_HALF_PRECISION[held]}({text})", torch.uint16
        target = torch.uint16 if dtype in _HALF_PRECISION else dtype
        name = type_name(target, value.varying)
        if held != target:
            text = f"({name}){text}" if value.varying else f"__builtin_bit_cast({name}, {text})"
        return f"widen_{_HALF_PRECISION[dtype]}({text})" if dtype in _HALF_PRECISION else text

    # Memory.

    def load(self, buffer: str, index: Index, dtype: torch.dtype, mask: TextValue | None = None) -> TextValue:
        storage = self.storages[buffer]
        access = self.nest.access(storage.spec, index)
        along = self.tile_axis(access) if mask is None and buffer not in self.unsettled else None
        if along is None:
            return super().load(buffer, index, dtype, mask)
        loaded = self._load_tile(storage, access, along)
        if CPP.computed(storage.spec.dtype) == CPP.computed(dtype):
            return TextValue(loaded.text, dtype, loaded.dims, loaded.depth)
        return self.define(self.convert(loaded, dtype), dtype, loaded.dims, loaded.depth)

    def tile_axis(self, access: Access) -> Axis | None:
        """A short loop inside of the vectorised one that is contiguous where lanes are strided.

        The rest of the address is known outside of it: a tile is made in front of the loop.
        """
        if access.pattern is not AccessPattern.STRIDED or self.nest.vector is None:
            return None
        for depth, axis in enumerate(self.nest.axes):
            longest = self.nest.bounds.of(axis.size).hi
            is_short = longest is not None and longest <= self.width
            if depth > self.nest.vector and stride_of(access.offset, axis.symbol) == 1 and is_short:
                rest = symbols_of(substituted(access.offset, {axis.symbol: 0}))
                return axis if self.nest.depth_of(rest) <= depth else None
        return None

    def declare_tile(self, storage: Storage, access: Access, along: Axis) -> tuple[str, int, Int]:
        """Memory for a tile outside of the loop `along`: its name, its depth, the offset of its first row."""
        assert self.nest.vector is not None
        first = substituted(access.offset, {along.symbol: 0})
        before = max(self.nest.vector + 1, self.nest.depth_of(symbols_of(first)))
        name = f"tile{self.count}"
        self.count += 1
        self.lines[before].append(f"alignas(64) {CPP.dtype_name(storage.spec.dtype)} {name}[W * W];")
        return name, before, first

    def _load_tile(self, storage: Storage, access: Access, along: Axis) -> TextValue:
        """Rows are read in order and transposed, then each turn of the inner loop takes a vector."""
        name, before, first = self.declare_tile(storage, access, along)
        step, rows = self.ints().text(access.step), self.ints().text(along.size)
        load = "load_tile_back" if is_static(access.step) and access.step < 0 else "load_tile"
        self.lines[before].append(f"{load}({name}, {self.pointer(storage, first)}, {step}, {rows}, lanes);")
        text = f"load({name} + W*{along.symbol}, full)"
        depth = self.nest.depth_of(frozenset({along.symbol}))
        return self.define(text, storage.spec.dtype, LANES, depth)

    def pointer(self, storage: Storage, offset: Int) -> str:
        """`in0 + (64*i0 + i1)`."""
        return storage.name if offset == 0 else f"{storage.name} + {self.ints().operand(offset)}"

    def load_text(self, storage: Storage, access: Access, mask: TextValue | None) -> str:
        zero = f"{type_name(storage.spec.dtype, access.pattern is not AccessPattern.UNIFORM)}{{}}"
        if mask is not None and not mask.varying:
            return f"{mask.text} ? {self.load_text(storage, access, None)} : {zero}"
        if access.pattern is AccessPattern.GATHER:
            varying = {symbol: 0 for symbol in symbols_of(access.offset) if self.nest.varies(frozenset({symbol}))}
            start = substituted(access.offset, varying)  # the same for all lanes
            at = f"{self.pointer(storage, start)}, {self.lane_ints().text(access.offset - start)}"
            return f"gather_if({at}, {mask.text}, lanes)" if mask else f"gather({at}, lanes)"
        if storage.number:
            return storage.name
        here = self.pointer(storage, access.offset)
        if mask is not None:
            return self._masked(storage, access, here, mask)
        if access.pattern is AccessPattern.UNIFORM:
            return f"get({here})"
        if access.pattern is AccessPattern.CONTIGUOUS:
            return f"load({here}, lanes)"
        if is_static(access.step) and access.step == -1:
            return f"load_back({here}, lanes)"
        return f"load_step({here}, {self.ints().text(access.step)}, lanes)"

    def _masked(self, storage: Storage, access: Access, here: str, mask: TextValue) -> str:
        if access.pattern is AccessPattern.CONTIGUOUS:
            return f"load_if({here}, {mask.text}, lanes)"
        if access.pattern is AccessPattern.STRIDED:
            return f"gather_if({here}, lanes64() * {self.ints().operand(access.step)}, {mask.text}, lanes)"
        dtype = storage.spec.dtype
        one, zero = f"get({here})", literal(0, CPP.computed(dtype))
        read = f"any_lanes({mask.text} & active(lanes)) ? {one} : {zero}"
        return f"sel({mask.text}, all({read}), all({zero}))"

    # Indices.

    def index_text(self, expr: Int, dtype: torch.dtype) -> str:
        varying = self.nest.varies(symbols_of(expr))
        if not varying:
            return f"({type_name(dtype, False)})({self.ints().text(expr)})"
        lanes = TextValue(f"({self.lane_ints().text(expr)})", torch.int64, LANES)
        return self.convert(lanes, dtype)

    def test_text(self, relation: Relation) -> str:
        difference = relation.difference
        if not self.nest.varies(relation.free_symbols()):
            return self.ints().relation(relation)
        lane = self.nest.lane_symbol
        step = None if lane is None else stride_of(difference, lane)
        others = relation.free_symbols() - {lane}
        if step is None or not is_static(step) or abs(step) > _MAX_STEP or self.nest.varies(others):
            return f"as_mask(({self.lane_ints().text(difference)}) {SIGNS[relation.kind]} 0)"
        here = self.ints().text(-difference)
        lanes = "lanes32()" if step == 1 else f"lanes32() * {step}"
        return f"{lanes} {SIGNS[relation.kind]} clamp32({here})"

    def indirect_text(self, operand: TextValue, size: Int, check: Check) -> str:
        at, limit = self.convert(operand, torch.int64), self.ints().text(size)
        if check is Check.IN_RANGE:
            return at
        function = "within" if check is Check.IN_SIZE else "inside"
        return f"{function}({at}, {limit}, status{', lanes' if operand.varying else ''})"

    def random_text(self, distribution: str, seed: TextValue, counter: Int, dtype: torch.dtype) -> str:
        if seed.varying:
            raise CPP.unsupported("random numbers", "the seed differs between lanes")
        varying = self.nest.varies(symbols_of(counter))
        at = (self.lane_ints() if varying else self.ints()).text(counter)
        made = torch.int64 if distribution == "bits" else CPP.computed(dtype)
        text = f"random_{distribution}<{CPP.dtype_name(made)}>({seed.text}, {at})"
        return self._converted(TextValue(text, made, LANES if varying else NUMBER), made, CPP.computed(dtype))


def type_name(dtype: torch.dtype, varying: bool) -> str:
    if varying and dtype == torch.bool:
        return "mask"
    return CPP.dtype_name(CPP.computed(dtype)) + ("v" if varying else "")


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    computed = CPP.computed(dtype)
    if computed == torch.bool:
        return "true" if value else "false"
    if not computed.is_floating_point:
        number = int(value)
        # -9223372036854775808 negates a literal that does not fit.
        text = f"(-{-number - 1} - 1)" if number == -(1 << 63) else f"{number}{'u' if number >= 1 << 63 else ''}"
        return f"({CPP.dtype_name(computed)}){text if number >= 0 or text[0] == '(' else f'({text})'}"
    real, suffix = float(value), "f" if computed == torch.float32 else ""
    if math.isnan(real):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(real):
        return f"__builtin_inf{suffix}()" if real > 0 else f"(-__builtin_inf{suffix}())"
    text = f"{real!r}" if not suffix else float_text(real)
    return f"{text}{suffix}" if not text.startswith("-") else f"({text}{suffix})"
