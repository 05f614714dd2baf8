"""A script: makes objects of the Halide pipelines in a C++ file, then becomes the C++ compiler that links them.

    python halide_unit.py kernels.cpp g++ -O2 kernels.cpp -shared -o kernels.so

A pipeline stands between `#if 0  // Halide` and `#endif`, as the text of a Python program over what is defined here.
It ends in `export(name, arguments, outputs)`. Nothing of Kiln or torch is imported, so that it starts fast.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import halide as hl

BLOCK = re.compile(r"^#if 0  // Halide\n(.*?)^#endif$", re.MULTILINE | re.DOTALL)
FEATURES = (
    hl.TargetFeature.NoRuntime,
    hl.TargetFeature.NoAsserts,
    hl.TargetFeature.NoBoundsQuery,
    hl.TargetFeature.StrictFloat,
    hl.TargetFeature.LargeBuffers,
)
Expr = Any
"""Objects of Halide, whose Python types are not annotated."""


def target() -> Expr:
    found = hl.get_host_target()
    for feature in FEATURES:
        found = found.with_feature(feature)
    return found


# Integers.


def floor_div(x: Expr, y: Expr) -> Expr:
    """Halide rounds quotients down."""
    return hl.i32(x) / hl.i32(y)


def floor_mod(x: Expr, y: Expr) -> Expr:
    return hl.i32(x) % hl.i32(y)


# Numbers.


def one(x: Expr) -> Expr:
    return hl.cast(x.type(), 1)


def negated(x: Expr) -> Expr:
    """Of a bool."""
    return hl.select(x, hl.cast(hl.UInt(1), 0), hl.cast(hl.UInt(1), 1))


def maximum(x: Expr, y: Expr) -> Expr:
    """NaN wins."""
    return hl.select((x > y) | (x != x), x, y)


def minimum(x: Expr, y: Expr) -> Expr:
    return hl.select((x < y) | (x != x), x, y)


def f32(x: float) -> Expr:
    return hl.cast(hl.Float(32), hl.f64(x))


def horner(x: Expr, *coefficients: float) -> Expr:
    total = f32(coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + f32(coefficient)
    return total


def power_of_two(n: Expr) -> Expr:
    """2^n as a float, for -126 <= n <= 127."""
    return hl.reinterpret(hl.Float(32), (n + 127) << 23)


def exp(x: Expr) -> Expr:
    """2^n (1 + r + r^2 P(r)) with x = n log 2 + r, as in the C++ prelude."""
    if x.type() != hl.Float(32):
        return hl.exp(x)
    c = hl.select(x > f32(89.0), f32(89.0), hl.select(x < f32(-104.0), f32(-104.0), x))
    n = hl.round(c * f32(1.44269502))
    r = (c - n * f32(float.fromhex("0x1.62e4p-1"))) - n * f32(float.fromhex("0x1.7f7d1cp-20"))
    p = horner(r, 0.0013820742, 0.00836924836, 0.041668281, 0.166665167, 0.49999994)
    whole = hl.cast(hl.Int(32), n)
    half = whole >> 1
    value = (r * r * p + r) + f32(1.0)
    return value * power_of_two(half) * power_of_two(whole - half)


def log(x: Expr) -> Expr:
    """log(1 + f) + e log 2 with x = (1 + f) 2^e, as in the C++ prelude."""
    if x.type() != hl.Float(32):
        return hl.log(x)
    tiny = x < f32(float.fromhex("0x1p-126"))
    bits = hl.reinterpret(hl.Int(32), hl.select(tiny, x * f32(float.fromhex("0x1p23")), x))
    shift = (bits - 0x3F3504F3) >> 23
    f = hl.reinterpret(hl.Float(32), bits - (shift << 23)) - f32(1.0)
    e = hl.cast(hl.Float(32), hl.select(tiny, shift - 23, shift))
    q = horner(
        f, 0.0674955621, -0.116701923, 0.118834704, -0.124062076, 0.142203629, -0.166679904, 0.200020716,
        -0.250000089, 0.333333135,
    )  # fmt: skip
    square = f * f
    r = e * f32(float.fromhex("0x1.7f7d1cp-20")) + square * f * q
    r = e * f32(float.fromhex("0x1.62e4p-1")) + (f + (r - square * f32(0.5)))
    r = hl.select(x == f32(float("inf")), x, x == f32(0.0), f32(float("-inf")), r)
    return hl.select((x < f32(0.0)) | (x != x), f32(float("nan")), r)


def signed(size: Expr, x: Expr) -> Expr:
    """`size` with the sign of x, that of zeros and NaN too."""
    sign = hl.reinterpret(hl.UInt(32), x) & hl.u32(0x80000000)
    return hl.reinterpret(hl.Float(32), hl.reinterpret(hl.UInt(32), size) | sign)


def erf(x: Expr) -> Expr:
    """x + x P(x^2) near 0, else 1 - exp(-Q(|x|)), as in the C++ prelude."""
    if x.type() != hl.Float(32):
        return hl.erf(x)
    size = hl.abs(x)
    p = horner(
        x * x, 8.00277485e-05, -0.000805080403, 0.00519246049, -0.0268557407, 0.112836257, -0.376126289, 0.128379166
    )
    a = hl.select(size < f32(4.0), size, f32(4.0))
    q = horner(
        a, 2.1092741e-05, -0.000434444606, 0.00417100918, -0.0251193512, 0.10828004, 0.633346915, 1.12951493,
        -0.00017468445,
    )  # fmt: skip
    return signed(hl.select(size > f32(0.93), f32(1.0) - exp(-q), size * p + size), x)


def tanh(x: Expr) -> Expr:
    """x + x^3 P(x^2) near 0, else 1 - 2/(exp(2|x|) + 1), as in the C++ prelude."""
    if x.type() != hl.Float(32):
        return hl.tanh(x)
    size, square = hl.abs(x), x * x
    p = horner(
        square, -0.000512176892, 0.00272287964, -0.00839966722, 0.0217273999, -0.0539445169, 0.133331448, -0.333333284
    )
    a = hl.select(size > f32(10.0), f32(10.0), size)
    far = f32(1.0) - f32(2.0) / (exp(a + a) + f32(1.0))
    return signed(hl.select(size > f32(0.85), far, size * square * p + size), x)


# Memory.


def buffer(dtype: Expr, name: str, rank: int, dense: int) -> Expr:
    """A tensor; `dense` is the dimension whose neighbours are neighbours in memory, or -1."""
    made = hl.ImageParam(dtype, rank, name)
    if rank and dense:
        made.dim(0).set_stride(hl.Expr())
    if dense > 0:
        made.dim(dense).set_stride(1)
    return made


def written(function: Expr, places: Sequence[int]) -> Expr:
    """`function` as an output; `places`: of each of its values, the dimension that is dense, or -1."""
    for number, dense in enumerate(places):
        memory = function.output_buffers()[number]
        if memory.dimensions() and dense:
            memory.dim(0).set_stride(hl.Expr())
        if dense > 0:
            memory.dim(dense).set_stride(1)
    return function


def exporter(folder: Path, objects: list[str]) -> Callable[[str, list[Expr], list[Expr]], None]:
    def export(name: str, arguments: list[Expr], outputs: list[Expr]) -> None:
        path = str(folder / f"{name}.o")
        hl.Pipeline(outputs).compile_to({hl.OutputFileType.object: path}, arguments, name, target())
        objects.append(path)

    return export


def main() -> None:
    source, *command = sys.argv[1:]
    objects: list[str] = []
    names = {name: value for name, value in globals().items() if callable(value) or name == "hl"}
    names["export"] = exporter(Path(source).parent, objects)
    for pipeline in BLOCK.findall(Path(source).read_text()):
        exec(pipeline, dict(names))
    os.execvp(command[0], [*command, *objects])


if __name__ == "__main__":
    main()
