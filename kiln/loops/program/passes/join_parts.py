"""Join parts: loops that write equal parts of one buffer become one loop over the parts, on a GPU.

    b1: f32[1, 64] in b0       = pointwise (i0: 1, i1: 64): mul(load x[i0, i1], 2.0)
    b2: f32[1, 64 at 64] in b0 = pointwise (i0: 1, i1: 64): mul(load x[i0 + 2, i1], 3.0)
    ...

    b1: f32[50, 1, 64] in b0   = pointwise (p: 50, i0: 1, i1: 64): mul(load x[i0 + 2*p, i1], p + 2.0)

That is how `cat` and `stack` are lowered, a loop per input. Numbers in which the parts differ are a multiple of `p`
where they grow by equal steps; other numbers, and loads of other buffers, are chosen by `p`, of a few parts at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import final

import torch

from kiln.graph.prims.rows import PRIMS
from kiln.loops.body.body import BodyOp, Compute, Const, Load
from kiln.loops.body.builder import BodyBuilder
from kiln.loops.body.indexing import Axis, linear_index
from kiln.loops.program.analyses import kept_buffers, memory_of, program_buffers, reads
from kiln.loops.program.nodes import Buffer, Extern, LoopNode, LoopProgram, Pointwise
from kiln.support.records import dataclass
from kiln.support.target import Target
from kiln.symbolic import Int, rel_eq, symbol

MOST_CHOSEN = 16
"""Parts among which a loop chooses: each costs a few instructions for every part."""
FEWEST_STEPS = 3
"""Parts that are worth a loop without choices."""
EXACT = 1 << 24
"""Whole numbers up to this are exact in float32."""


@final
@dataclass(frozen=True)
class JoinParts:
    """Parts of fresh memory that follow one another in the program, and that nothing else reads one by one."""

    name = "join-parts"

    def run(self, program: LoopProgram, target: Target) -> tuple[LoopProgram, int]:
        buffers = program_buffers(program)
        fresh = {out.name for node in program.nodes if isinstance(node, Extern) and node.target == "kiln.empty"
                 for out in node.outs if out is not None}  # fmt: skip
        single = {load.buffer for node in program.nodes for load in reads(node)} | kept_buffers(program) - fresh
        nodes: list[LoopNode] = []
        for base, group in groupby(program.nodes, lambda node: _base(node, single)):
            run = list(group)
            parts = [node for node in run if isinstance(node, Pointwise)]
            joins = base is not None and base in fresh and len(parts) > 1 and _are_apart(parts, base, buffers)
            nodes += _joined(parts, buffers) if joins else run
        changes = len(program.nodes) - len(nodes)
        return (replace(program, nodes=tuple(nodes)) if changes else program), changes


def _base(node: LoopNode, single: set[str]) -> str | None:
    """The buffer that `node` writes a part of; None: it may not be joined."""
    if not isinstance(node, Pointwise) or node.out.name in single or not node.axes:
        return None
    static = all(isinstance(axis.size, int) for axis in node.axes) and isinstance(node.out.spec.offset, int)
    plain = all(isinstance(op, Load | Const | Compute) for op in node.body.ops)
    return node.out.base if static and plain and not any(read.conditional for read in reads(node)) else None


def _are_apart(parts: Sequence[Pointwise], base: str, buffers: Mapping[str, Buffer]) -> bool:
    """Does none read the memory, and do they follow one another in it: along one dimension, as inputs of `cat` do?"""
    if any(memory_of(read.buffer, buffers) == base for part in parts for read in reads(part)):
        return False
    boxes = sorted((_box(part.out, buffers[base]) for part in parts), key=lambda box: box[0])
    for (start, size), (after, _) in pairwise(boxes):
        moved = [dim for dim, (at, other) in enumerate(zip(start, after, strict=True)) if at != other]
        if len(moved) != 1 or start[moved[0]] + size[moved[0]] > after[moved[0]]:
            return False
    return True


def _box(part: Buffer, base: Buffer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where a part begins along each dimension of `base`, and its sizes."""
    at = int(part.spec.offset) - int(base.spec.offset)  # type: ignore[arg-type]
    start: list[int] = []
    for stride in base.spec.strides:
        start.append(at // max(int(stride), 1))  # type: ignore[arg-type]
        at -= start[-1] * int(stride)  # type: ignore[arg-type]
    return tuple(start), tuple([int(size) for size in part.spec.sizes])  # type: ignore[arg-type]


def _joined(parts: Sequence[Pointwise], buffers: Mapping[str, Buffer]) -> Iterator[Pointwise]:
    kinds: dict[object, list[Pointwise]] = {}
    for part in parts:
        kinds.setdefault(_kind(part, buffers), []).append(part)
    for alike in kinds.values():
        alike.sort(key=lambda part: int(part.out.spec.offset))  # type: ignore[arg-type]
        rest: list[Pointwise] = []
        for run in _runs(alike, buffers, steps=True):
            if len(run) >= FEWEST_STEPS:
                yield _Join(run, buffers).node()
            else:
                rest += run
        for run in _runs(rest, buffers, steps=False):
            yield _Join(run, buffers).node() if len(run) > 1 else run[0]


def _kind(part: Pointwise, buffers: Mapping[str, Buffer]) -> object:
    """What parts of one loop have in common."""
    ops = [
        (buffers[op.buffer].spec.dtype, op.dtype, _moving(op, buffers)) if isinstance(op, Load)
        else op.dtype if isinstance(op, Const) else op
        for op in part.body.ops
    ]  # fmt: skip
    return (tuple(axis.size for axis in part.axes), part.out.spec.strides, tuple(map(repr, ops)), part.body.results)


def _moving(load: Load, buffers: Mapping[str, Buffer]) -> Int:
    """The address of a load, without the number that is added."""
    address = linear_index(buffers[load.buffer].spec, load.index)
    return address - _added(address)


def _added(address: Int) -> int:
    if isinstance(address, int):
        return address
    return next((coefficient for monomial, coefficient in address.terms if not monomial), 0)


def _numbers(part: Pointwise, buffers: Mapping[str, Buffer]) -> list[tuple[object, int | float]]:
    """The numbers of a part: where it begins, what is added in addresses, constants."""
    found: list[tuple[object, int | float]] = [("out", int(part.out.spec.offset))]  # type: ignore[arg-type]
    for op in part.body.ops:
        if isinstance(op, Load):
            found.append((op.buffer, _added(linear_index(buffers[op.buffer].spec, op.index))))
        elif isinstance(op, Const):
            found.append((repr(op.value) if isinstance(op.value, bool) or not _is_whole(op.value) else "", op.value))
    return found


def _is_whole(value: float) -> bool:
    return float(value).is_integer() and abs(value) < EXACT and repr(float(value)) != "-0.0"


def _runs(parts: Sequence[Pointwise], buffers: Mapping[str, Buffer], *, steps: bool) -> Iterator[list[Pointwise]]:
    """Parts whose offsets grow by equal steps; with `steps` all their numbers do, else a few at a time."""
    run: list[Pointwise] = []
    values: list[list[tuple[object, int | float]]] = []
    for part in parts:
        numbers = _numbers(part, buffers)
        if len(run) > 1:
            pairs = list(zip(values[0], values[1], numbers, strict=True))
            considered = pairs if steps else pairs[:1]
            fits = all(c[1] - a[1] == len(run) * (b[1] - a[1]) and a[0] == c[0] for a, b, c in considered)
        else:
            fits = not run or not steps or all(a[0] == b[0] for a, b in zip(values[0], numbers, strict=True))
        if not fits or (not steps and len(run) == MOST_CHOSEN):
            yield run
            run, values = [], []
        run, values = [*run, part], [*values, numbers]
    if run:
        yield run


@final
class _Join:
    """One loop in place of `parts`."""

    def __init__(self, parts: Sequence[Pointwise], buffers: Mapping[str, Buffer]) -> None:
        self.parts, self.buffers, self.first = parts, buffers, parts[0]
        self.axis = Axis(symbol(f"{self.first.out.name}_part"), len(parts))
        self.builder = BodyBuilder()

    def node(self) -> Pointwise:
        first, second = self.first.out.spec, self.parts[1].out.spec
        strides = (second.offset - first.offset, *first.strides)
        spec = first.with_view((self.axis.size, *first.sizes), strides, first.offset)
        positions: list[int] = []
        for place, op in enumerate(self.first.body.ops):
            positions.append(self._value(op, [part.body.ops[place] for part in self.parts], positions))
        body = self.builder.finish(*[positions[result] for result in self.first.body.results])
        return Pointwise(replace(self.first.out, spec=spec), (self.axis, *self.first.axes), body, self.first.origin)

    def _value(self, op: BodyOp, ops: Sequence[BodyOp], positions: Sequence[int]) -> int:
        if isinstance(op, Compute):
            return self.builder.pointwise(op.op, op.dtype, *[positions[operand] for operand in op.operands])
        if all(other == op for other in ops):
            return self.builder.append(op)
        assert isinstance(op, Load | Const)
        found = self._load_in_steps(ops) if isinstance(op, Load) else self._constant_in_steps(ops)
        return self._chosen(op.dtype, ops) if found is None else found

    def _load_in_steps(self, ops: Sequence[BodyOp]) -> int | None:
        loads = [op for op in ops if isinstance(op, Load)]
        if any(load.buffer != loads[0].buffer for load in loads):
            return None
        spec = self.buffers[loads[0].buffer].spec
        added = [_added(linear_index(spec, load.index)) for load in loads]
        dim = next((dim for dim in range(spec.rank) if len({repr(load.index[dim]) for load in loads}) > 1), None)
        if dim is None or not _is_even(added):
            return None
        step = loads[1].index[dim] - loads[0].index[dim]
        if any(load.index[dim] != loads[0].index[dim] + place * step for place, load in enumerate(loads)):
            return None
        index = list(loads[0].index)
        index[dim] = index[dim] + self.axis.symbol * step
        same = all(load.index[:dim] + load.index[dim + 1 :] == loads[0].index[:dim] + loads[0].index[dim + 1 :]
                   for load in loads)  # fmt: skip
        return self.builder.load(loads[0].buffer, tuple(index), loads[0].dtype) if same else None

    def _constant_in_steps(self, ops: Sequence[BodyOp]) -> int | None:
        values = [op.value for op in ops if isinstance(op, Const)]
        dtype = ops[0].dtype
        if dtype not in (torch.float32, torch.float64, torch.int64) or not all(map(_is_whole, values)):
            return None
        whole = [int(value) for value in values]
        if not _is_even(whole):
            return None
        number = self.builder.index(self.axis.symbol * (whole[1] - whole[0]) + whole[0], torch.int32)
        return self.builder.convert(number, dtype)

    def _chosen(self, dtype: torch.dtype, ops: Sequence[BodyOp]) -> int:
        """The op of each part, where that is the part."""
        found: int | None = None
        for place, op in reversed(list(enumerate(ops))):
            here = self.builder.test(rel_eq(self.axis.symbol, place))
            value = self.builder.append(replace(op, mask=here) if isinstance(op, Load) else op)
            found = value if found is None else self.builder.pointwise(PRIMS["where"], dtype, here, value, found)
        assert found is not None
        return found


def _is_even(values: Sequence[int]) -> bool:
    """Do they grow by equal steps?"""
    return all(value == values[0] + place * (values[1] - values[0]) for place, value in enumerate(values))
