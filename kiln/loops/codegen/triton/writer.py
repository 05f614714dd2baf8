"""Triton source of a kernel: `write_triton(canonical, mapped, target)`.

    # kernel add_norm(in0: f32[4096, 1024] ..) ...        the IR that is printed
    @triton.jit
    def k_12ab..(in0, in1, out2, n0, RBLOCK: tl.constexpr):
        i0 = tl.program_id(0)
        i1 = tl.arange(0, RBLOCK)
        ...                                               one paragraph per phase

Over a table of rows, a program takes the arguments of its row, which it finds by bisection, and its number there:

    def k_34cd..(in0_0, in0_1, out1_0, out1_1, n0_0, n0_1, first_1, XBLOCK: tl.constexpr):
        program_id = tl.program_id(0)
        if program_id < first_1:
            in0, out1, n0, program_of_row = in0_0, out1_0, n0_0, program_id
        else:
            in0, out1, n0, program_of_row = in0_1, out1_1, n0_1, program_id - first_1
        ...

Equal kernels have equal sources and symbols: names are those of the canonical form. The source imports nothing but
Triton. `meta`: what compiling and launching need; see `plan/plan.py`.
"""

from __future__ import annotations

import re
from typing import Any, final

from kiln.loops.body.analyses import accesses
from kiln.loops.body.indexing import Axis, add_ranges
from kiln.loops.codegen.integers import IntPrinter
from kiln.loops.codegen.kernel_writer import Nest, Storage, indented
from kiln.loops.codegen.printed_kernel import PrintedKernel, kernel_params, kernel_symbol
from kiln.loops.codegen.triton.dialect import TRITON_INTEGERS
from kiln.loops.codegen.triton.phases import TritonPhaseWriter, index_lines
from kiln.loops.codegen.triton.prelude import prelude_for
from kiln.loops.codegen.triton.signature import int_type, is_wide, parameter_type, passed_by_value
from kiln.loops.codegen.triton.statements import Frame, mask_name
from kiln.loops.kernel.analyses import phase_writes
from kiln.loops.kernel.facts import loop_ranges
from kiln.loops.kernel.kernel import KernelIR, Phase
from kiln.loops.kernel.launches.program import LONGEST_ROW
from kiln.loops.kernel.mapped import MappedKernel
from kiln.loops.kernel.text import mapped_kernel_text
from kiln.plan.plan import Kernel
from kiln.support.target import Target
from kiln.symbolic import BoundAnalysis, Int, Range, Symbol, ceil_div, product


def write_triton(
    canonical: KernelIR, mapped: MappedKernel, target: Target, aligned: tuple[bool, ...] = (), rows: int = 1
) -> PrintedKernel:
    """The Triton source of `mapped`, which the passes made of `canonical` for `target`.

    `aligned[i]`: argument i always starts at a multiple of 16 bytes, or is one (empty: unknown). `rows`: of the table
    that it runs over, whose sizes are at most `LONGEST_ROW`. Raises `UnsupportedInKernel`.
    """
    writer = _TritonKernelWriter(mapped, rows)
    lines = writer.lines()
    status = any(_STATUS.search(line) for line in lines)
    body = "\n".join(indented(lines, 2))
    head = "\n".join(f"# {line}" for line in mapped_kernel_text(mapped).split("\n"))
    names = writer.parameters()
    names += ["status"] if status else []
    names += [f"{dim.name}: tl.constexpr" for dim in writer.tiling.dims]
    text = f"{head}\n@triton.jit\ndef {{symbol}}({', '.join(names)}):\n{body}\n"
    source = f"{prelude_for(body)}\n\n\n{text}"
    meta = writer.meta(target, aligned, status)
    symbol = kernel_symbol(source, meta)
    source, params = source.replace("{symbol}", symbol), kernel_params(canonical) * rows
    made = Kernel(symbol, "triton", source, params, rows * len(canonical.ints) + rows - 1, meta=meta)
    return PrintedKernel(made, canonical, grid=writer.grid)


_STATUS = re.compile(r"\bstatus\)")


@final
class _TritonKernelWriter:
    def __init__(self, mapped: MappedKernel, rows: int) -> None:
        assert mapped.tiling is not None, "tiles are chosen before a kernel is printed"
        self.kernel, self.tiling, self.rows = mapped.kernel, mapped.tiling, rows
        ranges = self._ranges()
        self.bounds = BoundAnalysis(ranges)
        self.wide = is_wide(self.kernel, ranges)
        self.ints = IntPrinter(self.bounds, TRITON_INTEGERS)
        self.values = passed_by_value(self.kernel)
        params = self.kernel.params
        storages = {param.name: Storage(param.name, param.spec, param.name in self.values) for param in params}
        self.frame = Frame(self.tiling, storages, self.wide)
        self.locals = {local.name: local for local in self.kernel.locals}
        counts: list[tuple[Symbol, Int]] = [(axis.symbol, axis.size) for axis in self.tiling.numbers]
        counts += [(dim.symbol, ceil_div(dim.size, dim.block)) for dim in self.tiling.dims if dim.unit]
        self.counts = counts
        self.grid = (product(count for _, count in counts),)
        self._numbers: dict[Symbol, str] = {}

    def _ranges(self) -> dict[Symbol, Range]:
        ranges = loop_ranges(self.kernel, Range(0, LONGEST_ROW if self.rows > 1 else None))
        add_ranges(ranges, (Axis(dim.symbol, dim.size) for dim in self.tiling.dims))
        return ranges

    def parameters(self) -> list[str]:
        """Names of tensors, sizes and first programs, those of each row in turn."""
        tensors = [param.name for param in self.kernel.params]
        sizes = [str(size) for size in self.kernel.ints if isinstance(size, Symbol)]
        if self.rows == 1:
            return tensors + sizes
        rows = range(self.rows)
        named = [f"{name}_{row}" for names in (tensors, sizes) for row in rows for name in names]
        return named + [f"first_{row}" for row in rows[1:]]

    def meta(self, target: Target, aligned: tuple[bool, ...], status: bool) -> tuple[tuple[str, Any], ...]:
        types = [parameter_type(param, param.name in self.values) for param in self.kernel.params] * self.rows
        numbers = frozenset([position for position, kind in enumerate(types) if not kind.startswith("*")])
        types += [int_type(self.wide)] * (self.rows * len(self.kernel.ints) + self.rows - 1)
        types += ["*i64"] if status else []
        divisible = tuple([place for place, is_aligned in enumerate(aligned) if is_aligned and place not in numbers])
        major, minor = target.capability
        return (
            ("capability", 10 * major + minor),
            ("constants", tuple((dim.name, dim.block) for dim in self.tiling.dims)),
            ("divisible", divisible),
            ("enable_fp_fusion", False),  # fused operations are explicit
            ("num_stages", 1),
            ("num_warps", self.tiling.warps),
            ("signature", tuple(types)),
            ("status", status),
        )

    # Units.

    def lines(self) -> list[str]:
        head, body = [*self._row(), *self._program(), *self._whole()], self._phases()
        dim = self.tiling.unmasked
        if dim is None:
            return [*head, *body] or ["pass"]
        block = frozenset({self.tiling.dims.index(dim)})
        whole = f"{mask_name(dim.symbol)} = tl.full({self.frame.block_shape(block)}, True, tl.int1)"
        is_full = f"if {self._numbers[dim.symbol]} < {self.ints.text(dim.size // dim.block)}:"
        return [*head, is_full, *indented([whole, *body], 2), "else:", *indented(body, 2)]

    def _row(self) -> list[str]:
        """The arguments of this program's row of the table."""
        if self.rows == 1:
            return []
        names = [param.name for param in self.kernel.params] + [str(size) for size in self.kernel.ints]
        return ["program_id = tl.program_id(0)", *_bisection(range(self.rows), names)]

    def _program(self) -> list[str]:
        """Indices of this program's units: its number taken apart, the last block fastest."""
        if not self.counts:
            return []
        number = "tl.program_id(0)" if self.rows == 1 else "program_of_row"
        number += ".to(tl.int64)" if self.wide else ""
        if len(self.counts) == 1:
            return self._unit(self.counts[0][0], number)
        lines = [f"program = {number}"]
        below: Int = 1
        first = next((symbol for symbol, count in self.counts if count != 1), None)
        for symbol, count in reversed(self.counts):
            text = "program" if below == 1 else f"program // {self.ints.operand(below)}"
            text = text if symbol is first else f"{text} % {self.ints.operand(count)}"
            lines += self._unit(symbol, text if count != 1 else "0")
            below = below * count
        return lines

    def _unit(self, symbol: Symbol, number: str) -> list[str]:
        self._numbers[symbol] = number
        for position, dim in enumerate(self.tiling.dims):
            if dim.unit and dim.symbol is symbol:
                start = f"{number} * {dim.name}" if number != "0" else ""
                return index_lines(dim, position, start, self.frame, self.ints.text(dim.size))
        return [f"{symbol.name} = {number}"]

    def _whole(self) -> list[str]:
        """Indices of dimensions that a block covers."""
        lines = []
        for position, dim in enumerate(self.tiling.dims):
            if not dim.unit and not dim.looped:
                lines += index_lines(dim, position, "", self.frame, self.ints.text(dim.size))
        return lines

    def _phases(self) -> list[str]:
        lines: list[str] = []
        started: set[str] = set()
        written: set[str] = set()
        shared: list[TritonPhaseWriter] = []
        for phase in self.kernel.phases:
            is_shared = self.tiling.in_shared_loop(phase)
            if shared and not is_shared:
                lines += TritonPhaseWriter.in_one_loop(shared, self.tiling.shared)
                shared = []
            self.frame.forget(1 if is_shared and shared else 0)
            writer = TritonPhaseWriter(phase, self._nest(phase), self.frame, self.locals, started)
            if written & {load.buffer for load in accesses(phase.body)}:
                # A barrier makes what other threads of the program stored visible.
                if is_shared:
                    writer.body.lines[1].insert(0, "tl.debug_barrier()")
                else:
                    lines.append("tl.debug_barrier()")
            if is_shared:
                shared.append(writer)
            else:
                lines += writer.lines()
            started |= set(phase_writes(phase))
            written |= set(phase_writes(phase)) & self.frame.storages.keys()
        return lines + (TritonPhaseWriter.in_one_loop(shared, self.tiling.shared) if shared else [])

    def _nest(self, phase: Phase) -> Nest:
        """The loops of a phase: the shared one outermost, serial axes innermost."""
        loops: list[Axis] = []
        blocks: list[frozenset[Symbol]] = []
        for dim in self.tiling.dims:
            present = dim.unit or set(dim.axes) <= set(phase.axes)
            blocks.append(frozenset({dim.symbol}) if present else frozenset())
            if dim.looped and present:
                loops.append(Axis(dim.symbol, dim.size))
        loops.sort(key=lambda axis: self.tiling.shared is None or axis.symbol is not self.tiling.shared.symbol)
        loops += [axis for axis in phase.axes if axis.symbol in self.tiling.serial]
        return Nest(tuple(loops), self.bounds, tuple(blocks), values=self.tiling.values)


def _bisection(rows: range, names: list[str]) -> list[str]:
    """Assigns the arguments of the row whose programs `program_id` is among."""
    if len(rows) > 1:
        middle = rows[len(rows) // 2]
        below, above = _bisection(range(rows.start, middle), names), _bisection(range(middle, rows.stop), names)
        return [f"if program_id < first_{middle}:", *indented(below, 2), "else:", *indented(above, 2)]
    row = rows.start
    program = f"program_id - first_{row}" if row else "program_id"
    return [f"{', '.join(names)}, program_of_row = {', '.join(f'{name}_{row}' for name in names)}, {program}"]
