"""One phase in Triton: its loops, the statements at each depth, the effects.

phase (i1: n1):                          total_parts = tl.full([XBLOCK, RBLOCK], 0.0, tl.float32)
    total[] = sum over (i1): load x[..]  for i1_start in range(0, n1, RBLOCK):
                                    =>       i1 = i1_start + tl.arange(0, RBLOCK)[None, :]
                                             has_i1 = i1 < n1
                                             v0 = tl.load(in0 + (n1*i0 + i1), mask=has_i1)
                                             total_parts = total_parts + tl.where(has_i1, v0, 0.0)
                                         total = tl.sum(total_parts, 1, keep_dims=True)

Where the size is a number, full turns have no mask: under a mask that ends at an odd element Triton loads element by
element, without prefetching. The last turn stands after the loop.

    for i1_start in range(0, 49152, RBLOCK):     has_i1 = tl.full([RBLOCK], True, tl.int1)      50257 elements by 8192
    i1 = 49152 + tl.arange(0, RBLOCK)            has_i1 = i1 < 50257
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from kiln.loops.codegen.kernel_writer import Nest, indented
from kiln.loops.codegen.triton.effects import TritonEffects
from kiln.loops.codegen.triton.statements import Frame, TritonStatements, block_index, mask_name
from kiln.loops.kernel.analyses import phase_writes
from kiln.loops.kernel.kernel import Local, Phase
from kiln.loops.kernel.tiling import BlockDim
from kiln.symbolic import Int


@final
class TritonPhaseWriter:
    """Writes one phase."""

    def __init__(self, phase: Phase, nest: Nest, frame: Frame, locals_: Mapping[str, Local], started: set[str]) -> None:
        """`started`: accumulators that earlier phases began."""
        self.nest, self.frame = nest, frame
        unsettled = frozenset(phase_writes(phase)) & frame.storages.keys()
        self.body = TritonStatements(nest, frame, unsettled)
        self.effects = TritonEffects(self.body, locals_, started)
        results = phase.body.run(self.body)
        for effect in phase.effects:
            self.effects.add(effect, results[effect.result])
        frame.named = self.body.count

    def lines(self) -> list[str]:
        return self._level(0)

    @staticmethod
    def in_one_loop(writers: Sequence[TritonPhaseWriter], dim: BlockDim | None) -> list[str]:
        """Phases that share their outermost loop, which goes over `dim`."""
        first = writers[0]
        inside = [line for writer in writers for line in writer._level(1)]
        return [
            *(line for writer in writers for line in writer._before(0)),
            *loop(dim, first.nest, 0, first.body, inside),
            *(line for writer in writers for line in writer.effects.after.get(0, [])),
        ]

    def _before(self, depth: int) -> list[str]:
        return [*self.body.lines[depth], *self.effects.before.get(depth, [])]

    def _level(self, depth: int) -> list[str]:
        lines = self._before(depth)
        if depth == len(self.nest.axes):
            return lines + self.effects.lines
        lines += loop(self._dim(depth), self.nest, depth, self.body, self._level(depth + 1))
        return lines + self.effects.after.get(depth, [])

    def _dim(self, depth: int) -> BlockDim | None:
        """The dimension that the loop at `depth` covers in blocks, or None if it goes point by point."""
        symbol = self.nest.axes[depth].symbol
        return next((dim for dim in self.frame.tiling.dims if dim.symbol is symbol), None)


def loop(dim: BlockDim | None, nest: Nest, depth: int, body: TritonStatements, inner: list[str]) -> list[str]:
    """A loop over blocks of `dim`, or over the points of a serial axis."""
    axis, frame = nest.axes[depth], body.frame
    name, number = axis.symbol.name, nest.expr(axis.size)
    size = body.ints.text(number)
    if dim is None:
        return [f"for {name} in range({size}):", *indented(inner, 2)]
    stages = f", num_stages={frame.tiling.stages}" if frame.tiling.stages > 1 else ""
    position, full = frame.tiling.dims.index(dim), None if _has_loops(inner) else _full_turns(dim, number)
    if full is None:
        turn = [*index_lines(dim, position, f"{name}_start", frame, size), *inner]
        return [f"for {name}_start in tl.range(0, {size}, {dim.name}{stages}):", *indented(turn, 2)]
    last = index_lines(dim, position, str(full), frame, size)
    whole = f"{mask_name(dim.symbol)} = tl.full({frame.block_shape(frozenset({position}))}, True, tl.int1)"
    turn = [index_lines(dim, position, f"{name}_start", frame, size)[0], whole, *inner]
    return [f"for {name}_start in tl.range(0, {full}, {dim.name}{stages}):", *indented(turn, 2), *last, *inner]


def _full_turns(dim: BlockDim, size: Int) -> int | None:
    """How many elements the full turns of a loop cover, if that is known and a partial one follows."""
    return None if dim.exact or not isinstance(size, int) else size // dim.block * dim.block


def _has_loops(lines: list[str]) -> bool:
    """Lines with loops in them are not written twice."""
    return any(line.lstrip().startswith("for ") for line in lines)


def index_lines(dim: BlockDim, position: int, start: str, frame: Frame, size: str) -> list[str]:
    """The indices of a block from `start` on, and which of its points exist."""
    counted = block_index(frame, position)
    name = dim.symbol.name
    lines = [f"{name} = {start} + {counted}" if start else f"{name} = {counted}"]
    if not dim.exact:
        lines.append(f"{mask_name(dim.symbol)} = {name} < {size}")
    return lines
