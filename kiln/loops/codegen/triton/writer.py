"""Triton source of a kernel: `write_triton(canonical, mapped, target)`.

    # kernel add_norm(in0: f32[4096, 1024] ..) ...        the IR that is printed
    @triton.jit
    def k_12ab..(in0, in1, out2, n0, RBLOCK: tl.constexpr):
        i0 = tl.program_id(0)
        i1 = tl.arange(0, RBLOCK)
        ...                                               one paragraph per phase

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
from kiln.loops.kernel.facts import KernelFacts
from kiln.loops.kernel.kernel import KernelIR, Phase
from kiln.loops.kernel.mapped import MappedKernel
from kiln.loops.kernel.text import mapped_kernel_text
from kiln.plan.plan import Kernel
from kiln.support.target import Target
from kiln.symbolic import BoundAnalysis, Int, Range, Symbol, ceil_div, product


def write_triton(
    canonical: KernelIR, mapped: MappedKernel, target: Target, aligned: tuple[bool, ...] = ()
) -> PrintedKernel:
    """The Triton source of `mapped`, which the passes made of `canonical` for `target`.

    `aligned[i]`: parameter i always starts at a multiple of 16 bytes (empty: unknown). Raises `UnsupportedInKernel`.
    """
    writer = _TritonKernelWriter(mapped)
    lines = writer.lines()
    status = any(_STATUS.search(line) for line in lines)
    body = "\n".join(indented(lines, 2))
    head = "\n".join(f"# {line}" for line in mapped_kernel_text(mapped).split("\n"))
    names = [param.name for param in canonical.params]
    names += [str(size) for size in canonical.ints if isinstance(size, Symbol)]
    names += ["status"] if status else []
    names += [f"{dim.name}: tl.constexpr" for dim in writer.tiling.dims]
    text = f"{head}\n@triton.jit\ndef {{symbol}}({', '.join(names)}):\n{body}\n"
    source = f"{prelude_for(body)}\n\n\n{text}"
    meta = writer.meta(target, aligned, status)
    symbol = kernel_symbol(source, meta)
    source, params = source.replace("{symbol}", symbol), kernel_params(canonical)
    made = Kernel(symbol, "triton", source, params, len(canonical.ints), meta=meta)
    return PrintedKernel(made, canonical, grid=writer.grid)


_STATUS = re.compile(r"\bstatus\)")


@final
class _TritonKernelWriter:
    def __init__(self, mapped: MappedKernel) -> None:
        assert mapped.tiling is not None, "tiles are chosen before a kernel is printed"
        self.kernel, self.tiling = mapped.kernel, mapped.tiling
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
        ranges = dict(KernelFacts(self.kernel).ranges)
        add_ranges(ranges, (Axis(dim.symbol, dim.size) for dim in self.tiling.dims))
        return ranges

    def meta(self, target: Target, aligned: tuple[bool, ...], status: bool) -> tuple[tuple[str, Any], ...]:
        types = [parameter_type(param, param.name in self.values) for param in self.kernel.params]
        types += [int_type(self.wide)] * len(self.kernel.ints)
        types += ["*i64"] if status else []
        pointers = [position for position, kind in enumerate(types) if kind.startswith("*")]
        divisible = tuple([position for position in pointers if position < len(aligned) and aligned[position]])
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
        head, body = [*self._program(), *self._whole()], self._phases()
        dim = self.tiling.unmasked
        if dim is None:
            return [*head, *body] or ["pass"]
        block = frozenset({self.tiling.dims.index(dim)})
        whole = f"{mask_name(dim.symbol)} = tl.full({self.frame.block_shape(block)}, True, tl.int1)"
        is_full = f"if {self._numbers[dim.symbol]} < {self.ints.text(dim.size // dim.block)}:"
        return [*head, is_full, *indented([whole, *body], 2), "else:", *indented(body, 2)]

    def _program(self) -> list[str]:
        """Indices of this program's units: its number taken apart, the last block fastest."""
        if not self.counts:
            return []
        number = "tl.program_id(0)" + (".to(tl.int64)" if self.wide else "")
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
