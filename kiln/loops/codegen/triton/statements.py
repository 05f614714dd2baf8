"""How Triton writes the ops of a body: loads, conversions, indices, tests.

    load x[i0, i1]               v0 = tl.load(in0 + (768*i0 + i1), mask=has_i1)
    load mean[i0]                v1 = tl.load(in1 + i0)
    convert(v0, i64)             v2 = v0.to(tl.int64)
    test(i1 <= i0)               v3 = i1 <= i0

A value that varies along dimensions of the block is a block with these dimensions, of size 1 along others; one that
does not is a scalar. `has_i1`: which points of the block exist, where some may not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import final

import torch

from kiln.graph.prims.table import Prim
from kiln.loops.body.body import Check, Index
from kiln.loops.codegen.integers import IntPrinter
from kiln.loops.codegen.kernel_writer import Access, Dims, Nest, StatementWriter, Storage, TextValue
from kiln.loops.codegen.numbers import conversion_steps, float_text
from kiln.loops.codegen.triton.dialect import TRITON, TRITON_INTEGERS
from kiln.loops.kernel.kernel import Local
from kiln.loops.kernel.tiling import Tiling
from kiln.support.records import dataclass
from kiln.symbolic import Atom, Int, Relation, Symbol
from kiln.symbolic.relation import SIGNS

_HALF_PRECISION = (torch.bfloat16, torch.float16)
_PLAIN = (torch.float32, torch.int32, torch.bool)
"""Dtypes of Python's numbers in Triton."""
_TAKES_PLAIN = ("tl.where(", "tl.maximum(", "tl.minimum(")
_DIVISIONS = ("floor_div", "trunc_div", "remainder", "fmod")


@final
@dataclass(frozen=True, slots=True)
class Held:
    """The value of a local."""

    local: Local
    value: TextValue


@final
@dataclass
class Frame:
    """What all phases of a kernel share."""

    tiling: Tiling
    storages: Mapping[str, Storage]
    wide: bool
    """Indices have 64 bits."""
    held: dict[str, Held] = field(default_factory=dict)
    known: dict[str, TextValue] = field(default_factory=dict)
    """Values by their texts, so that a phase does not load or compute again what an earlier one did."""
    named: int = 0
    """Number of values that have names."""

    def forget(self, depth: int, name: str = "") -> None:
        """Forget values from inside of more than `depth` loops, and those made of the variable or buffer `name`."""
        inside = [text for text, value in self.known.items() if value.depth > depth]
        uses = [text for text in self.known if name and re.search(rf"\b{name}\b", text)]
        for text in (*inside, *uses):
            self.known.pop(text, None)

    def block_shape(self, dims: Dims) -> str:
        """`[XBLOCK, 1]`: the shape of a block that differs along `dims`."""
        return f"[{', '.join(dim.name if position in dims else '1' for position, dim in enumerate(self.tiling.dims))}]"

    def points_text(self, dims: Dims) -> list[str]:
        """The masks of `dims` that may be false somewhere."""
        return [
            mask_name(dim.symbol) for position, dim in enumerate(self.tiling.dims) if position in dims and not dim.exact
        ]


def block_index(frame: Frame, position: int) -> str:
    """`tl.arange(0, RBLOCK)[None, :]`: the numbers of the points of a block along one of its dimensions."""
    dims = frame.tiling.dims
    shape = "" if len(dims) == 1 else f"[{', '.join(':' if dim == position else 'None' for dim in range(len(dims)))}]"
    return f"tl.arange(0, {dims[position].name}){shape}{'.to(tl.int64)' if frame.wide else ''}"


def mask_name(symbol: Symbol) -> str:
    return f"has_{symbol.name}"


def mask_argument(masks: Sequence[str]) -> list[str]:
    return [f"mask={' & '.join(masks)}"] if masks else []


@final
class TritonStatements(StatementWriter):
    def __init__(self, nest: Nest, frame: Frame, unsettled: frozenset[str]) -> None:
        super().__init__(TRITON, nest, frame.storages, unsettled)
        self.frame = frame
        self.count = frame.named
        self.ints = IntPrinter(nest.bounds, TRITON_INTEGERS)

    # Text of types and numbers.

    def definition(self, name: str, text: str, dtype: torch.dtype, varying: bool) -> str:
        return f"{name} = {text}"

    def define(self, text: str, dtype: torch.dtype, dims: Dims, depth: int, name: str | None = None) -> TextValue:
        """`text` under the name that it already has, perhaps from an earlier phase, or a new one."""
        found = self.frame.known.get(text)
        if found is not None and name in (None, found.text):
            return replace(found, dtype=dtype)
        value = self.frame.known[text] = super().define(text, dtype, dims, depth, name)
        return value

    def literal(self, value: bool | int | float, dtype: torch.dtype) -> str:
        return literal(value, dtype)

    def extras(self, op: Prim, operands: Sequence[TextValue]) -> Mapping[str, str]:
        """`divisor`: that of an integer division, checked unless it is known not to be zero."""
        if op.name not in _DIVISIONS or operands[1].dtype.is_floating_point:
            return {}
        divisor = operands[1]
        if divisor.constant:
            return {"divisor": divisor.text}
        return {"divisor": f"checked({divisor.text}, {self.active(divisor.dims)}, status)"}

    def active(self, dims: Dims) -> str:
        """Which points of a block exist."""
        return " & ".join(self.frame.points_text(dims)) or "True"

    # Operators.

    def operand(self, value: TextValue, infix: bool) -> str:
        return value.text

    def pointwise(self, op: Prim, dtype: torch.dtype, *operands: TextValue) -> TextValue:
        """Constants are Python numbers in operators and scalars of their dtype in calls."""
        if op.name not in self.dialect.methods:
            template = self.dialect.expr(op, operands[-1].dtype)
            plain = "(" not in template or template.startswith(_TAKES_PLAIN)
            operands = tuple([operand if plain else _typed(operand) for operand in operands])
        return super().pointwise(op, dtype, *operands)

    def convert(self, value: TextValue, dtype: torch.dtype) -> str:
        source, target = TRITON.computed(value.dtype), TRITON.computed(dtype)
        text = _typed(value).text
        if source != target:
            text = _converted(text, source, target)
        if dtype in _HALF_PRECISION and value.dtype != dtype:
            text = f"{text}.to({TRITON.dtypes[dtype]}).to(tl.float32)"
        return text

    def bitcast(self, value: TextValue, dtype: torch.dtype) -> str:
        if torch.bool in (value.dtype, dtype):
            return self.convert(value, dtype)
        text, held = _typed(value).text, TRITON.computed(value.dtype)
        if held != value.dtype:
            text = f"{text}.to({TRITON.dtypes[value.dtype]})"
        if value.dtype != dtype:
            text = f"{text}.to({TRITON.dtype_name(dtype)}, bitcast=True)"
        return f"{text}.to(tl.float32)" if dtype in _HALF_PRECISION else text

    # Memory.

    def load(self, buffer: str, index: Index, dtype: torch.dtype, mask: TextValue | None = None) -> TextValue:
        held = self.frame.held.get(buffer)
        if held is None:
            return super().load(buffer, index, dtype, mask)
        require_own_element(held.local, index)
        value = held.value
        if mask is not None:
            zero = literal(0, value.dtype)
            depth = max(value.depth, mask.depth)
            value = self.define(f"tl.where({mask.text}, {value.text}, {zero})", dtype, value.dims | mask.dims, depth)
        if TRITON.computed(value.dtype) != TRITON.computed(dtype):
            return self.define(self.convert(value, dtype), dtype, value.dims, value.depth)
        return TextValue(value.text, dtype, value.dims, value.depth)

    def pointer(self, storage: Storage, offset: Int, dims: Dims, shape: Dims) -> str:
        """Addresses of elements; `dims`: those of the offset, `shape`: those that the block must have."""
        text = self.ints.text(offset)
        text = text if isinstance(offset, Atom) else f"({text})"
        text = storage.name if offset == 0 else f"{storage.name} + {text}"
        return text if dims == shape else f"tl.broadcast_to({text}, {self.frame.block_shape(shape)})"

    def load_text(self, storage: Storage, access: Access, mask: TextValue | None) -> str:
        if storage.number:
            return storage.name if mask is None else f"tl.where({mask.text}, {storage.name}, 0)"
        shape = access.dims | mask.dims if mask is not None else access.dims
        masks = self.frame.points_text(shape)
        if mask is not None:
            masks.append(mask.text)
        arguments = [self.pointer(storage, access.offset, access.dims, shape), *mask_argument(masks)]
        if mask is not None:
            arguments.append(f"other={'0.0' if storage.spec.dtype.is_floating_point else '0'}")
        widened = ".to(tl.float32)" if storage.spec.dtype in _HALF_PRECISION else ""
        return f"tl.load({', '.join(arguments)}){widened}"

    # Indices.

    def index_text(self, expr: Int, dtype: torch.dtype) -> str:
        if isinstance(expr, int):
            return f"tl.full([], {expr}, {TRITON.dtype_name(TRITON.computed(dtype))})"
        return f"{self.ints.operand(expr)}.to({TRITON.dtype_name(TRITON.computed(dtype))})"

    def test_text(self, relation: Relation) -> str:
        return f"{self.ints.text(relation.lhs)} {SIGNS[relation.op]} {self.ints.text(relation.rhs)}"

    def indirect_text(self, operand: TextValue, size: Int, check: Check) -> str:
        at, limit = self.convert(operand, torch.int64), self.ints.text(size)
        if check is Check.IN_RANGE:
            return at
        return f"{'within' if check is Check.IN_SIZE else 'inside'}({at}, {limit}, {self.active(operand.dims)}, status)"

    def random_text(self, distribution: str, seed: TextValue, counter: Int, dtype: torch.dtype) -> str:
        at = f"tl.full([], {counter}, tl.int64)" if isinstance(counter, int) else f"{self.ints.operand(counter)}"
        if distribution == "bits":
            return _converted(f"random_bits({seed.text}, {at})", torch.int64, TRITON.computed(dtype))
        return f"random_{distribution}({seed.text}, {at}, {TRITON.dtype_name(TRITON.computed(dtype))})"


def require_own_element(local: Local, index: Index) -> None:
    """A local is a block in registers: each point sees only its own element."""
    own = tuple(axis.symbol if axis.size != 1 else at for axis, at in zip(local.axes, index, strict=True))
    if own != index:
        raise TRITON.unsupported("a row read in another order", "registers cannot be indexed")


def _typed(value: TextValue) -> TextValue:
    if value.constant is None or value.text.startswith("tl.full"):
        return value
    kind = TRITON.dtype_name(TRITON.computed(value.dtype))
    return TextValue(f"tl.full([], {value.text}, {kind})", value.dtype, constant=value.constant)


def _converted(text: str, source: torch.dtype, target: torch.dtype) -> str:
    if source == target:
        return text
    if target == torch.bool:
        return f"{text} != 0"
    return text + "".join(f".to({TRITON.dtype_name(step)})" for step in conversion_steps(source, target))


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """A number of the type in which `dtype` is computed: a Python number if Triton gives it that type."""
    computed = TRITON.computed(dtype)
    text = _number(value, computed)
    return text if computed in _PLAIN else f"tl.full([], {text}, {TRITON.dtype_name(computed)})"


def _number(value: bool | int | float, dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return "True" if value else "False"
    if not dtype.is_floating_point:
        return str(int(value)) if value >= 0 else f"({int(value)})"
    real = float(value)
    if math.isnan(real):
        return 'float("nan")'
    if math.isinf(real):
        return 'float("inf")' if real > 0 else '(-float("inf"))'
    text = repr(real) if dtype == torch.float64 else float_text(real)
    return f"({text})" if text.startswith("-") else text
