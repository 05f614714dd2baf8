"""C++ source of a kernel: `write_cpp(canonical, mapped, target)`.

    // kernel add_norm(in0: f32[4096, 1024] ..) ...        the IR that is printed
    extern "C" void k_12ab..(void* const* tensors, const i64* ints, ..) {
      const f32* in0 = (const f32*)tensors[0];
      for (i64 i0 = begin; i0 < end; ++i0) {
        f32 sum0;
        { ... }                                             one block per phase
      }
    }

Equal kernels have equal sources and symbols: names are those of the canonical form. The source includes nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import final

import torch

from kiln.graph.prims.rows import PRIMS
from kiln.loops.body.analyses import result_dtypes
from kiln.loops.body.body import Compute
from kiln.loops.body.indexing import Axis, add_ranges
from kiln.loops.codegen.cpp.blocked_sums import loop_of_blocks, sums_in_blocks
from kiln.loops.codegen.cpp.dialect import CPP, CPP_INTEGERS
from kiln.loops.codegen.cpp.phases import CppPhaseWriter
from kiln.loops.codegen.cpp.prelude import namespace, prelude_for
from kiln.loops.codegen.cpp.reductions import accumulated_in
from kiln.loops.codegen.effects import INDEX_OPS
from kiln.loops.codegen.integers import IntPrinter
from kiln.loops.codegen.kernel_writer import Nest, Storage, indented
from kiln.loops.codegen.printed_kernel import PrintedKernel, kernel_params, kernel_symbol
from kiln.loops.kernel.analyses import phase_writes, size_arguments
from kiln.loops.kernel.cuts import lane_cuts
from kiln.loops.kernel.kernel import Accumulate, KernelIR, Local, Phase
from kiln.loops.kernel.mapped import MappedKernel, RunRows, UnitRun
from kiln.loops.kernel.text import mapped_kernel_text
from kiln.plan.plan import Kernel
from kiln.support.target import Target
from kiln.symbolic import BoundAnalysis, Int, Range, Symbol, ceil_div, is_static, product, symbol
from kiln.tensor.spec import TensorSpec, contiguous_strides

STACK_BYTES = 32 * 1024
"""Bytes of rows that live on the stack; the others live in `scratch`."""
ALIGN = 64
LONG_FLOPS, OFTEN = 8, 6
"""A function of so many operations is called, not inlined, in a kernel that uses it so often."""
LONG = frozenset(prim.name for prim in PRIMS if prim.flops >= LONG_FLOPS and prim.name in CPP.exprs)


def write_cpp(canonical: KernelIR, mapped: MappedKernel, target: Target) -> PrintedKernel:
    """The C++ source of `mapped`, which the passes made of `canonical` for `target`. Raises `UnsupportedInKernel`."""
    writer = _CppKernelWriter(mapped, mapped.lanes_on(target))
    body = "\n".join(indented(writer.lines()))
    head = "\n".join(f"// {line}" for line in mapped_kernel_text(mapped).split("\n"))
    space = namespace(writer.width)
    called = "".join([_CALLED.format(name, space) for name in called_functions(mapped.kernel)])
    used = prelude_for(called + body, writer.width)
    symbol = kernel_symbol(used, head, called + body)
    source = f"{used}\n\n{head}\n{_HEAD.format(symbol=symbol, called=called, space=space)}\n{body}\n}}\n}}\n"
    scratch = writer.scratch
    static = scratch if is_static(scratch) else 0
    made = Kernel(symbol, "cpp", source, kernel_params(canonical), len(canonical.ints), scratch_bytes=static)
    return PrintedKernel(made, canonical, scratch)


EXPORTED = 'extern "C" __attribute__((visibility("default")))'
"""What stands in front of a kernel; a static library has `static` instead."""
_HEAD = f"""\
namespace {{symbol}}_ {{{{
using namespace {{space}};
{{called}}{EXPORTED} void {{symbol}}(void* const* tensors, const i64* ints,
    const f64* floats, i64 begin, i64 end, void* scratch, i64* status) {{{{"""


_CALLED = "template <class... T> __attribute__((noinline)) static auto {0}(T... x) {{ return {1}::{0}(x...); }}\n"


def called_functions(kernel: KernelIR) -> list[str]:
    """Long functions that a kernel uses often: it calls them. Inlined, each use takes g++ about 8 ms."""
    uses = Counter(op.op.name for phase in kernel.phases for op in phase.body.ops if isinstance(op, Compute))
    return sorted(name for name, count in uses.items() if name in LONG and count >= OFTEN)


@final
class _CppKernelWriter:
    def __init__(self, mapped: MappedKernel, width: int) -> None:
        self.kernel, self.run, self.width = mapped.kernel, mapped.run, width
        self.ranges = self._ranges()
        self.ints = IntPrinter(BoundAnalysis(self.ranges), CPP_INTEGERS)
        self.scratch: Int = 0
        self.declared: list[str] = []
        self.storages: dict[str, Storage] = {}
        self.rows: dict[tuple[str, str], Storage] = {}
        self.stack_bytes = 0

    def _ranges(self) -> dict[Symbol, Range]:
        """Sizes are not negative, axes run below their sizes."""
        ranges = dict.fromkeys(size_arguments(self.kernel), Range(0))
        ranges |= {} if self.run is None else self.run.ranges
        add_ranges(ranges, self.kernel.units)
        return ranges

    def lines(self) -> list[str]:
        params = self._params()
        for local in self.kernel.locals:
            self._local(local)
        started: set[str] = set()
        body: list[str] = []
        for phase in self.kernel.phases:
            body += self._phase(phase, started)
            started |= set(phase_writes(phase))
        return [*params, *self.declared, *self._units(body)]

    def _params(self) -> list[str]:
        lines = []
        for position, param in enumerate(self.kernel.params):
            name = CPP.dtype_name(param.spec.dtype)
            const = "" if param.name in self.kernel.writes else "const "
            lines.append(f"{const}{name}* {param.name} = ({const}{name}*)tensors[{position}];")
            self.storages[param.name] = Storage(param.name, param.spec)
        for position, given in enumerate(self.kernel.ints):
            if isinstance(given, Symbol):
                lines.append(f"const i64 {given} = ints[{position}];")
        return lines

    def _local(self, local: Local) -> None:
        """A number is a variable, a row memory."""
        effect, value, phase = self._accumulation(local)
        dtype = CPP.computed(local.dtype)
        if not local.axes:
            self.storages[local.name] = Storage(local.name, TensorSpec(dtype, (), ()), number=True)
            return
        if effect is not None and effect.op not in INDEX_OPS:
            dtype = accumulated_in(effect.op, value)
        self.storages[local.name] = self._row(local.name, dtype, local.axes)
        if phase is not None and effect is not None and sums_in_blocks(effect.op, CPP.computed(value), dtype):
            blocked = loop_of_blocks(effect, phase.axes, phase.vector) is not None
            name, axes = f"{local.name}_chain", self._padded(local)
            self.rows |= {(local.name, "block"): self._row(name, torch.float32, axes)} if blocked else {}
        if effect is not None and effect.op in INDEX_OPS:
            self.rows[local.name, "best"] = self._row(f"{local.name}_best", CPP.computed(value), local.axes)

    def _padded(self, local: Local) -> tuple[Axis, ...]:
        """The axes of a row that is accessed in whole vectors."""
        (*outer, last) = local.axes
        return local.axes if outer else (Axis(last.symbol, ceil_div(last.size, self.width) * self.width),)

    def _accumulation(self, local: Local) -> tuple[Accumulate | None, torch.dtype, Phase | None]:
        """What is accumulated into a local, the dtype of its values, and the first phase that does it."""
        for phase in self.kernel.phases:
            dtypes = result_dtypes(phase.body)
            for effect in phase.effects:
                if effect.target == local.name and isinstance(effect, Accumulate):
                    return effect, dtypes[effect.result], phase
        return None, local.dtype, None

    def _row(self, name: str, dtype: torch.dtype, axes: tuple[Axis, ...]) -> Storage:
        sizes = tuple(axis.size for axis in axes)
        kind, count = CPP.dtype_name(dtype), product(sizes)
        size = count * dtype.itemsize
        if is_static(size) and self.stack_bytes + size <= STACK_BYTES:
            self.stack_bytes += size
            self.declared.append(f"alignas({ALIGN}) {kind} {name}[{size // dtype.itemsize or 1}];")
        else:
            self.declared.append(f"{kind}* {name} = ({kind}*)((u8*)scratch + {self.ints.operand(self.scratch)});")
            self.scratch = self.scratch + (size + ALIGN - 1) // ALIGN * ALIGN
        whole = len(sizes) == 1 and sizes[0] % self.width == 0
        return Storage(name, TensorSpec(dtype, sizes, contiguous_strides(sizes)), whole=whole)

    def _phase(self, phase: Phase, started: set[str]) -> list[str]:
        ranges = dict(self.ranges)
        add_ranges(ranges, phase.axes)
        lanes = () if phase.vector is None else (frozenset({phase.axes[phase.vector].symbol}),)
        is_innermost = phase.vector is not None and phase.vector == len(phase.axes) - 1
        cuts = lane_cuts(phase, phase.axes[-1].symbol) if is_innermost else ()
        nest = Nest(phase.axes, BoundAnalysis(ranges), lanes, phase.vector, cuts=cuts)
        return CppPhaseWriter(phase, nest, self.storages, self.rows, self.width, started).lines()

    def _units(self, body: list[str]) -> list[str]:
        units = self.kernel.units
        numbers = [local for local in self.kernel.locals if not local.axes]
        inner = [f"{CPP.dtype_name(CPP.computed(local.dtype))} {local.name} = 0;" for local in numbers] + body
        if self.run is not None:
            return self._runs(self.run, inner)
        if not units:
            return inner
        if len(units) == 1:
            name = units[0].symbol.name
            return [f"for (i64 {name} = begin; {name} < end; ++{name}) {{", *indented(inner), "}"]
        start, now, carry = self._odometer(units)
        head = "for (i64 unit = begin; unit < end; ++unit) {"
        return [*start, head, *indented([*now, *inner, *carry]), "}"]

    def _odometer(self, units: tuple[Axis, ...]) -> tuple[list[str], list[str], list[str]]:
        """Indices of several unit axes: divided out once, then counted up with carries."""
        start, carry = ["if (begin >= end) return;"], [f"++at_{units[0].symbol};"]
        for position, axis in enumerate(units):
            below = product(axis.size for axis in units[position + 1 :])
            text = "begin" if below == 1 else f"begin / {self.ints.operand(below)}"
            start.append(f"i64 at_{axis.symbol} = {text}{f' % {self.ints.operand(axis.size)}' if position else ''};")
        for axis in units[1:]:
            last = f"if (++at_{axis.symbol} == {self.ints.text(axis.size)}) {{"
            carry = [last, *indented([f"at_{axis.symbol} = 0;", *carry]), "}"]
        return start, [f"const i64 {axis.symbol} = at_{axis.symbol};" for axis in units], carry

    def _runs(self, run: UnitRun, inner: list[str]) -> list[str]:
        """Units in runs along the last axis: a strip is a unit, and a run many strips where nothing limits it."""
        axis, strip = run.axis, self.kernel.strip
        others = [axis for axis in self.kernel.units[:-1] if run.rows is None or axis is not run.rows.axis]
        beside = [run.rows.axis] if run.rows is not None else []
        units = (*others, *beside, Axis(_STRIP, ceil_div(axis.size, strip)))
        start, now, carry = self._odometer(units)
        now.append(f"const i64 {axis.symbol} = {strip} * {_STRIP};")
        left = f"{self.ints.text(axis.size)} - {axis.symbol}"
        if run.longest:
            now.append(f"const i64 {run.count} = min({left}, {strip});")
            head = "for (i64 unit = begin; unit < end; ++unit) {"
            return [*start, head, *indented([*now, *inner, *carry]), "}"]
        # A run ends where the row or the range ends.
        now.append(f"const i64 {run.count} = min({left}, {strip} * (end - unit));")
        skip = f"({run.count} + {strip - 1}) / {strip}"
        carry = [f"at_{_STRIP} += {skip} - 1;", *carry]
        if run.rows is None:
            carry.insert(0, f"unit += {skip};")
        else:
            now.append(self._rows(run.rows, ceil_div(axis.size, strip)))
            carry = [
                f"unit += {run.rows.rows} * ({skip});",
                f"at_{run.rows.axis.symbol} += {run.rows.rows} - 1;",
                *carry,
            ]
        return [*start, "for (i64 unit = begin; unit < end;) {", *indented([*now, *inner, *carry]), "}"]

    def _rows(self, rows: RunRows, strips: Int) -> str:
        """As many whole rows as the tile, the axis and the range have; part of a row stands alone."""
        left = f"{self.ints.text(rows.axis.size)} - {rows.axis.symbol}"
        whole = f"(end - unit) / {self.ints.operand(strips)}"
        most = f"max(1, min(min({left}, {rows.longest}), {whole}))"
        return f"const i64 {rows.rows} = {_STRIP} == 0 ? {most} : 1;"


_STRIP = symbol("strip")
