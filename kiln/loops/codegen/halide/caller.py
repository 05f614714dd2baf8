"""The C++ function that calls a pipeline: it describes the tensors, and sets the units of each call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from kiln.loops.body.indexing import Axis, symbols_of
from kiln.loops.codegen.cpp.writer import EXPORTED
from kiln.loops.codegen.integers import IntPrinter, IntSyntax
from kiln.loops.kernel.analyses import size_arguments
from kiln.loops.kernel.kernel import KernelIR
from kiln.loops.program.nodes import Buffer
from kiln.support.records import dataclass
from kiln.symbolic import BoundAnalysis, Int, Range, Symbol, ceil_div, is_static, product

HEADER = """\
#ifndef KILN_HALIDE
#define KILN_HALIDE
#include <stdlib.h>
namespace kiln_halide {
typedef long long i64;
// A tensor as Halide's objects read it (HalideRuntime.h); sizes and strides count elements, innermost first.
struct Dimension { int min, extent, stride; unsigned flags; };
struct Buffer {
  unsigned long long device; const void* interface; unsigned char* host; unsigned long long flags;
  unsigned char code, bits; unsigned short lanes; int dimensions; Dimension* dim; void* padding;
};
static inline i64 smaller(i64 x, i64 y) { return x < y ? x : y; }
static inline i64 larger(i64 x, i64 y) { return x > y ? x : y; }
static inline i64 floor_div(i64 x, i64 y) { return x / y - (x % y != 0 && (x < 0) != (y < 0)); }
static inline i64 floor_mod(i64 x, i64 y) { return x - floor_div(x, y) * y; }
}
extern "C" {
__attribute__((visibility("hidden"))) void* halide_malloc(void*, size_t size) {
  return aligned_alloc(128, (size + 255) / 128 * 128);  // its vectors may read past the last element
}
__attribute__((visibility("hidden"))) void halide_free(void*, void* memory) { free(memory); }
}
#endif"""
INTEGERS = IntSyntax(smallest="smaller({0}, {1})", largest="larger({0}, {1})")
CODES = {True: 2, False: 0}
"""Of floating-point and signed types; those without a sign have 1."""
UNSIGNED = frozenset({torch.uint8, torch.bool})


@final
@dataclass(frozen=True, slots=True)
class WrittenTensor:
    """A tensor that a function writes: the offset of its first element, and a stride for each of `axes`."""

    param: Buffer
    base: Int
    axes: tuple[Axis, ...]
    strides: tuple[Int, ...]
    run: Axis | None


def caller(
    symbol: str,
    kernel: KernelIR,
    read: Sequence[str],
    sizes: Sequence[Symbol],
    outputs: Sequence[WrittenTensor],
    strips: int,
) -> str:
    """`strips`: how many strips a call computes, 0 for all that lie together."""
    counted = [*size_arguments(kernel), *[axis.symbol for axis in kernel.units]]
    ints = IntPrinter(BoundAnalysis(dict.fromkeys(counted, Range(0))), INTEGERS)
    run = kernel.units[-1] if kernel.strip else None
    units = [axis for axis in kernel.units if axis is not run]
    numbers = [axis.symbol.name for axis in units] + [size.name for size in sizes]
    places = {param.name: place for place, param in enumerate(kernel.params)}
    lines = [f"const i64 {size} = ints[{place}];" for place, size in enumerate(kernel.ints) if isinstance(size, Symbol)]
    wide = {ints.text(size) for param in kernel.params for size in param.spec.sizes if not is_static(size)}
    lines += [f"if ({size} >= (1ll << 31)) return void(status[0] = 1);  // beyond the indices" for size in sorted(wide)]
    for name in read:
        spec = kernel.params[places[name]].spec
        dims = list(zip(reversed(spec.sizes), reversed(spec.strides), strict=True))
        lines += described(f"b_{name}", spec.dtype, dims, f"tensors[{places[name]}]", ints)
    buffers = [f"&b_{name}" for name in read]
    results = [f"&out_{number}" for number in range(len(outputs))]
    call = f"{symbol}_pipeline({', '.join([*buffers, *[f'(int){name}' for name in numbers], *results])});"
    kinds = ["Buffer*"] * len(read) + ["int"] * len(numbers) + ["Buffer*"] * len(outputs)
    lines += loop(kernel, run, units, outputs, places, call, strips, ints)
    head = f'extern "C" int {symbol}_pipeline({", ".join(kinds)});'
    signature = "void* const* tensors, const i64* ints, const double*, i64 begin, i64 end, void*, i64* status"
    body = "\n".join(f"  {line}" for line in lines)
    return f"{HEADER}\nnamespace kiln_halide {{\n{head}\n{EXPORTED} void {symbol}({signature}) {{\n{body}\n}}\n}}"


def described(name: str, dtype: torch.dtype, dims: Sequence[tuple[Int, Int]], host: str, ints: IntPrinter) -> list[str]:
    texts = [f"{{0, (int)({ints.text(size)}), (int)({ints.text(stride)}), 0}}" for size, stride in dims]
    code = 1 if dtype in UNSIGNED else CODES[dtype.is_floating_point]
    return [
        f"Dimension dim_{name}[] = {{{', '.join(texts) or '{}'}}};",
        f"Buffer {name} = {{0, 0, (unsigned char*){host}, 0, {code}, {8 * dtype.itemsize}, 1, {len(dims)}, "
        f"dim_{name}, 0}};",
    ]


def loop(
    kernel: KernelIR, run: Axis | None, units: Sequence[Axis], outputs: Sequence[WrittenTensor], places: dict[str, int],
    call: str, strips: int, ints: IntPrinter,
) -> list[str]:  # fmt: skip
    """Over the units, or over runs of strips."""
    lines, across = [], [axis.size for axis in units]
    if run is not None:
        across.append(ceil_div(run.size, kernel.strip))
    for place, axis in enumerate(units):
        below = product(across[place + 1 :])
        lines.append(
            f"const i64 {axis.symbol} = unit / larger({ints.text(below)}, 1) % larger({ints.text(axis.size)}, 1);"
        )
    step = "++unit"
    if run is not None:
        most = f"{kernel.strip} * (end - unit)" if strips == 0 else f"{kernel.strip * strips}"
        lines += [
            f"const i64 first = unit % larger({ints.text(across[-1])}, 1) * {kernel.strip};",
            f"const i64 count = smaller({ints.text(run.size)} - first, {most});",
        ]
        step = f"unit += (count + {kernel.strip - 1}) / {kernel.strip}"
    for number, output in enumerate(outputs):
        dims = list(zip([axis.size for axis in output.axes], output.strides, strict=True))
        lines += described(f"out_{number}", output.param.spec.dtype, dims, "0", ints)
        base = f"{ints.text(output.base)}"
        if output.run is not None:
            place = len(output.axes) - 1
            base += f" + first * ({ints.text(output.strides[place])})"
            lines.append(f"dim_out_{number}[{place}].min = first, dim_out_{number}[{place}].extent = count;")
        width = output.param.spec.dtype.itemsize
        lines.append(f"out_{number}.host = (unsigned char*)tensors[{places[output.param.name]}] + ({base}) * {width};")
    lines += [call, f"{step};"]
    assert not symbols_of(*across) - {size for size in kernel.ints if isinstance(size, Symbol)}
    return ["for (i64 unit = begin; unit < end;) {", *[f"  {line}" for line in lines], "}"]
