"""Kernels of every shape in C++ against the interpreter; all of them are compiled by one call of g++."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from kiln.support.target import host_cpu
from tests.codegen.native import Case, check

F32 = torch.float32


def randn(*sizes: int, dtype: torch.dtype = F32) -> torch.Tensor:
    return torch.randn(*sizes).to(dtype)


def norm(columns: int) -> Case:
    text = f"""
        kernel norm{columns}(x: f32[s0, {columns}], w: f32[{columns}] -> out: f32[s0, {columns}]; s0) units (i0: s0)
            local row(i1: {columns}): f32
            local total: f32
            local square: f32
            phase (i1: {columns} vector):
                v0 = load x[i0, i1]
                row[i1] = mul(v0, f32(2.0))
                total[] = sum over (i1): mul(v0, f32(2.0))
            phase (i1: {columns} vector):
                v3 = sub(load row[i1], mul(load total[], f32({1 / columns})))
                row[i1] = v3
                square[] = sum over (i1): mul(v3, v3)
            phase (i1: {columns} vector):
                v5 = rsqrt(add(mul(load square[], f32({1 / columns})), f32(1e-05)))
                out[i0, i1] = mul(mul(load row[i1], v5), load w[i1])
    """
    return Case.of(text, {"x": randn(5, columns), "w": randn(columns), "out": randn(5, columns)}, pieces=2, s0=5)


def pointwise_cases() -> list[Case]:
    flat = """
        kernel flat(x: f32[s0], y: f32[s0] -> out: f32[s0]; s0) units (i0: s0) strip 64
            phase ():
                out[i0] = add(mul(load x[i0], load y[i0]), f32(0.5))
    """
    rows = """
        kernel rows(x: f32[s0, 40], b: f32[40], c: f32[s0] -> out: f32[s0, 40]; s0) units (i0: s0, i1: 40) strip 32
            phase ():
                out[i0, i1] = sub(add(load x[i0, i1], load b[i1]), load c[i0])
    """
    strided = """
        kernel strided(x: f32[7, 40 | 1, 7] -> out: f32[7, 40]) units (i0: 7, i1: 40) strip 32
            phase ():
                out[i0, i1] = neg(load x[i0, i1])
    """
    inner = """
        kernel inner(x: f32[3, 50] -> out: f32[3, 50]) units (i0: 3)
            phase (i1: 50 vector):
                out[i0, i1] = where(test(i1 < i0 + 20), load x[i0, i1], index(i1 + 3*i0, f32))
    """
    scalar = """
        kernel scalar(x: f32[3, 5] -> out: f32[5, 3]) units (i0: 3)
            phase (i1: 5):
                out[i1, i0] = exp(load x[i0, i1])
    """
    divided = """
        kernel divided(x: f32[4, 25] -> out: f32[100]) units (i0: 100) strip 64
            phase ():
                out[i0] = load x[i0//25, i0 % 25]
    """
    windows = """
        kernel windows(x: f32[37, 3, 2] -> out: f32[37]) units ()
            local total(i0: 37): f32
            phase (i0: 37 vector, i1: 2, i2: 3):
                total[i0] = sum over (i1, i2): load x[i0, i2, i1]
            phase (i0: 37 vector):
                out[i0] = load total[i0]
    """
    return [
        Case.of(windows, {"x": randn(37, 3, 2), "out": randn(37)}),
        Case.of(flat, {"x": randn(1000), "y": randn(1000), "out": randn(1000)}, pieces=3, s0=1000),
        Case.of(flat, {"x": randn(7), "y": randn(7), "out": randn(7)}, s0=7),
        Case.of(rows, {"x": randn(9, 40), "b": randn(40), "c": randn(9), "out": randn(9, 40)}, pieces=4, s0=9),
        Case.of(strided, {"x": randn(40, 7).t(), "out": randn(7, 40)}),
        Case.of(inner, {"x": randn(3, 50), "out": randn(3, 50)}),
        Case.of(scalar, {"x": randn(3, 5), "out": randn(5, 3)}),
        Case.of(divided, {"x": randn(4, 25), "out": randn(100)}),
    ]


def transposed_cases() -> list[Case]:
    """Permuted copies: whole, in pieces that split rows, and with a load in the original order."""
    swap = """
        kernel swap(x: f32[2, 37, s0], b: f32[37] -> out: f32[2, s0, 37]; s0) units (i0: 2, i1: s0, i2: 37) strip 16
            phase ():
                out[i0, i1, i2] = add(load x[i0, i2, i1], load b[i2])
    """
    small = """
        kernel small(x: bf16[40, 50], y: b8[40, 50] -> out: bf16[50, 40], z: b8[50, 40]) units (i0: 50, i1: 40) strip 64
            phase ():
                out[i0, i1] = neg(load x[i1, i0])
                z[i0, i1] = logical_not(load y[i1, i0])
    """
    out = """
        kernel away(x: f32[50, s0] -> out: f32[s0, 50]; s0) units (i0: 50, i1: s0) strip 16
            phase ():
                out[i1, i0] = neg(load x[i0, i1])
    """
    tensors = {"x": randn(2, 37, 50), "b": randn(37), "out": randn(2, 50, 37)}
    bits = {"y": torch.rand(40, 50) < 0.5, "z": torch.zeros(50, 40, dtype=torch.bool)}
    halves = {"x": randn(40, 50, dtype=torch.bfloat16), "out": randn(50, 40, dtype=torch.bfloat16)}
    cases = [Case.of(swap, tensors, pieces, s0=50) for pieces in (1, 3, 7, 100)]
    cases += [Case.of(out, {"x": randn(50, 40), "out": randn(40, 50)}, pieces, s0=40) for pieces in (1, 5)]
    return [*cases, Case.of(small, bits | halves)]


def cut_cases() -> list[Case]:
    """What is moved changes along the lanes: at both ends, on a diagonal, at one place, or nowhere in a row."""
    tests = {
        "padded": ("bitwise_and(test(1 <= i1), test(i1 < s1 - 2))", "load x[i0, i1 - 1] if v0"),
        "lower": ("test(i1 <= i0)", "load x[i0, i1]"),
        "upper": ("test(i0 < i1 - 3)", "load x[i0, i1]"),
        "band": ("bitwise_and(test(i0 <= i1), test(i1 < i0 + 3))", "load x[i0, i1]"),
        "diagonal": ("test(i1 == i0)", "load x[i0, i1] if v0"),
        "but_one": ("test(i1 != 7)", "load x[i0, i1]"),
        "turned": ("test(s1 - i1 < i0)", "load x[i0, s1 - i1 - 1]"),
        "last_row": ("test(i0 == s0 - 1)", "load x[i0, i1] if v0"),
        "halves": ("test(2*i1 < s1)", "load x[i0, i1]"),
    }
    dtypes = {"f32": F32, "f64": torch.float64, "bf16": torch.bfloat16, "u8": torch.uint8, "b8": torch.bool}
    cases = []
    for (name, (test, load)), (kind, dtype) in product(tests.items(), dtypes.items()):
        other = "true" if dtype == torch.bool else "3.0" if dtype.is_floating_point else "3"
        text = f"""
            kernel {name}{kind}(x: {kind}[s0, s1] -> out: {kind}[s0, s1]; s0, s1) units (i0: s0, i1: s1) strip 16
                phase ():
                    v0 = {test}
                    out[i0, i1] = where(v0, {load}, {kind}({other}))
        """
        for rows, columns in ((6, 5), (20, 75)):
            x = (randn(rows, columns) * 3).abs().to(dtype)
            cases += [Case.of(text, {"x": x, "out": x.clone()}, pieces, s0=rows, s1=columns) for pieces in (1, 7)]
    in_place = """
        kernel in_place(b: f32[40] -> x: f32[s0, 40]; s0) units (i0: s0)
            phase (i1: 40 vector):
                x[i0, i1] = where(test(i1 < i0 + 17), add(load x[i0, i1], load b[i1]), f32(0.0))
    """
    return [*cases, Case.of(in_place, {"b": randn(40), "x": randn(15, 40)}, s0=15)]


def few_rows_cases() -> list[Case]:
    """Tiles of a few numbers per lane, whole and in part, next to each other, apart and backwards."""
    cases = []
    for rows in (2, 3, 4, 5, 7):
        for dtype, name in ((F32, "f32"), (torch.float64, "f64"), (torch.bfloat16, "bf16"), (torch.bool, "b8")):
            op = "logical_not" if dtype == torch.bool else "neg"
            shapes = {"x": (60, rows), "y": (rows, 60), "z": (60, rows + 1)}
            params = ", ".join(f"{key}: {name}[{first}, {second}]" for key, (first, second) in shapes.items())
            results = params.replace("x:", "out:").replace("y:", "away:").replace("z:", "far:")
            results += f", back: {name}[60, {rows}]"
            text = f"""
                kernel few{rows}{name}({params} -> {results}) units (i1: {rows}, i0: 60) strip 16
                    phase ():
                        out[i0, i1] = {op}(load x[i0, i1])
                        away[i1, i0] = {op}(load z[i0, i1])
                        far[i0, i1] = {op}(load y[i1, i0])
                        back[i0, i1] = {op}(load x[59 - i0, i1])
            """
            tensors = {key: (randn(*shape) * 3).to(dtype) for key, shape in shapes.items()}
            tensors |= {"out": tensors["x"].clone(), "away": tensors["y"].clone(), "far": tensors["z"].clone()}
            tensors["back"] = tensors["x"].clone()
            cases += [Case.of(text, tensors, pieces) for pieces in (1, 7)]
    return cases


def tiles_of_sums_cases() -> list[Case]:
    """Rows of float64 sums, read as float32."""
    text = """
        kernel sums(x: f32[24, 5, 40] -> out: f32[24]) units ()
            local total(i0: 24, i1: 5): f32
            local top(i0: 24): f32
            phase (i0: 24, i1: 5, i2: 40 vector):
                total[i0, i1] = sum over (i2): load x[i0, i1, i2]
            phase (i0: 24 vector, i1: 5):
                top[i0] = amax over (i1): mul(load total[i0, i1], f32(0.5))
            phase (i0: 24 vector):
                out[i0] = load top[i0]
    """
    return [Case.of(text, {"x": randn(24, 5, 40), "out": randn(24)})]


def part_cases() -> list[Case]:
    """Vectors of which some lanes are active: nothing beyond them is written."""
    cases = []
    for dtype, name in ((F32, "f32"), (torch.float64, "f64"), (torch.int32, "i32"), (torch.int64, "i64"),
                        (torch.bfloat16, "bf16"), (torch.uint8, "u8"), (torch.bool, "b8")):  # fmt: skip
        text = f"""
            kernel part{name}(x: {name}[s0], y: {name}[20] -> out: {name}[20]; s0) units ()
                phase (i0: s0 vector):
                    out[i0] = {"bitwise_or" if dtype == torch.bool else "add"}(load x[i0], load y[i0])
        """
        for count in (1, 2, 3, 5, 7, 8, 15, 17):
            x, y, out = ((randn(size) * 3).abs().to(dtype) for size in (count, 20, 20))
            cases.append(Case.of(text, {"x": x, "y": y, "out": out}, s0=count))
    return cases


def backward_cases() -> list[Case]:
    results = "out: f32[3, 45], b: b8[45], c: bf16[45], d: u8[45]"
    text = f"""
        kernel back(x: f32[3, 45], y: b8[45], z: bf16[45], u: u8[45] -> {results}) units ()
            phase (i0: 3, i1: 45 vector):
                out[i0, i1] = neg(load x[i0, 44 - i1])
            phase (i1: 45 vector):
                b[i1] = logical_not(load y[44 - i1])
                c[i1] = neg(load z[44 - i1])
                d[i1] = load u[44 - i1]
    """
    tensors = {"x": randn(3, 45), "y": randn(45) > 0, "z": randn(45, dtype=torch.bfloat16)}
    tensors |= {"out": randn(3, 45), "b": tensors["y"].clone(), "c": tensors["z"].clone()}
    tensors |= {"u": torch.arange(45, dtype=torch.uint8), "d": torch.zeros(45, dtype=torch.uint8)}
    return [Case.of(text, tensors)]


def padded_cases() -> list[Case]:
    pad = """
        kernel pad(x: f32[3, 20] -> out: f32[3, 30]) units (i0: 3, i1: 30) strip 16
            phase ():
                v0 = bitwise_and(test(i1 >= 4), test(i1 < 24))
                out[i0, i1] = where(v0, load x[i0, i1 - 4] if v0, f32(7.0))
    """
    step = """
        kernel step(x: f32[60] -> out: f32[25]) units (i1: 25) strip 64
            phase ():
                v0 = test(i1 < 20)
                out[i1] = load x[3*i1] if v0
    """
    uniform = """
        kernel uniform(x: f32[3], m: b8[3] -> out: f32[3, 40]) units (i0: 3)
            phase (i1: 40 vector):
                v0 = test(i1 < 20)
                out[i0, i1] = add(load x[i0] if v0, load x[i0] if load m[i0])
    """
    counted = """
        kernel counted(x: f32[s0, 40], at: i64[s0] -> out: f32[s0, 40], low: f32[s0, 40]; s0) units (i0: s0)
            phase (i1: 40 vector):
                v0 = index(i1, i64)
                v1 = load at[i0]
                v2 = add(sub(v0, index(i0, i64)), i64(3))
                out[i0, i1] = where(eq(v1, v0), load x[i0, i1], where(lt(v1, v0), f32(2.0), f32(3.0)))
                low[i0, i1] = where(bitwise_or(ge(v2, v1), ne(v0, v1)), load x[i0, i1], f32(1.0))
    """
    scaled = """
        kernel scaled(n: i64[] -> out: b8[40], off: b8[40], low: b8[40]) units (i0: 40) strip 64
            phase ():
                v0 = index(i0, i64)
                v1 = load n[]
                out[i0] = lt(mul(v0, i64(3)), v1)
                off[i0] = ge(sub(v1, v0), i64(9))
                low[i0] = lt(sub(v0, i64(4)), v1)
    """
    flags = {name: torch.zeros(40, dtype=torch.bool) for name in ("out", "off", "low")}
    far = torch.tensor([0, 39, 7, -1, 40, 1 << 40, -(1 << 62), (1 << 63) - 1, -(1 << 63)])
    numbered = {"x": randn(9, 40), "at": far, "out": randn(9, 40), "low": randn(9, 40)}
    return [
        Case.of(counted, numbered, s0=9),
        Case.of(scaled, {"n": torch.tensor(25), **flags}),
        Case.of(pad, {"x": randn(3, 20), "out": randn(3, 30)}),
        Case.of(step, {"x": randn(60), "out": randn(25)}),
        Case.of(uniform, {"x": randn(3), "m": torch.tensor([True, False, True]), "out": randn(3, 40)}),
    ]


def reduction(op: str, x: torch.Tensor, out: torch.Tensor, dtype: str, vector: str = " vector") -> Case:
    kind = {torch.int64: "i64", torch.bool: "b8", torch.bfloat16: "bf16", torch.float64: "f64"}.get(out.dtype, "f32")
    text = f"""
        kernel {op}_{dtype}(x: {dtype}[4, 70] -> out: {kind}[4]) units (i0: 4)
            local total: {kind}
            phase (i1: 70{vector}):
                total[] = {op} over (i1): load x[i0, i1]
            phase ():
                out[i0] = load total[]
    """
    return Case.of(text, {"x": x, "out": out})


def reduction_cases() -> list[Case]:
    x = randn(4, 70)
    holes = x.clone()
    holes[1, 3] = holes[2, 69] = float("nan")
    whole = torch.randint(-9, 9, (4, 70))
    bits = whole > 8
    cases = [reduction(op, x if op == "prod" else holes, randn(4), "f32") for op in ("sum", "prod", "amax", "amin")]
    cases += [reduction(op, holes, torch.zeros(4, dtype=torch.int64), "f32") for op in ("argmax", "argmin")]
    cases += [
        reduction(op, whole, torch.zeros(4, dtype=torch.int64), "i64") for op in ("argmax", "sum", "prod", "amin")
    ]
    cases += [reduction(op, bits, torch.zeros(4, dtype=torch.bool), "b8") for op in ("any", "all")]
    cases += [reduction(op, x.double(), randn(4).double(), "f64") for op in ("sum", "amax")]
    cases += [reduction("amax", x.bfloat16(), randn(4).bfloat16(), "bf16")]
    cases += [reduction("argmin", whole, torch.zeros(4, dtype=torch.int64), "i64", "")]
    return cases


def row_cases() -> list[Case]:
    columns = """
        kernel columns(x: f32[33, s0] -> out: f32[s0]; s0) units (i0: s0) strip 32
            local total: f32
            local top: f32
            phase (i1: 33):
                total[] = sum over (i1): load x[i1, i0]
                top[] = amax over (i1): load x[i1, i0]
            phase ():
                out[i0] = sub(load total[], load top[])
    """
    where = """
        kernel where_max(x: f32[33, s0] -> out: i64[s0]; s0) units (i0: s0) strip 32
            local at: i64
            phase (i1: 33):
                at[] = argmax over (i1): load x[i1, i0]
            phase ():
                out[i0] = load at[]
    """
    kept = """
        kernel kept(x: f32[6, 5, 37] -> out: f32[6, 5], low: f32[6, 37]) units (i0: 6)
            local total(i1: 5): f32
            local least(i2: 37): f32
            phase (i1: 5, i2: 37 vector):
                v0 = load x[i0, i1, i2]
                total[i1] = sum over (i2): v0
                least[i2] = amin over (i1): v0
            phase (i1: 5):
                out[i0, i1] = load total[i1]
            phase (i2: 37 vector):
                low[i0, i2] = load least[i2]
    """
    whole = """
        kernel whole(x: f32[s0, 20] -> out: f32[]; s0) units ()
            local total: f32
            phase (i0: s0, i1: 20 vector):
                total[] = sum over (i0, i1): load x[i0, i1]
            phase ():
                out[] = load total[]
    """
    large = """
        kernel large(x: f32[3, s0] -> out: f32[3, s0]; s0) units (i0: 3)
            local row(i1: s0): f32
            phase (i1: s0 vector):
                row[i1] = exp(load x[i0, i1])
            phase (i1: s0 vector):
                out[i0, i1] = load row[-i1 + s0 - 1]
    """
    return [
        Case.of(columns, {"x": randn(33, 50), "out": randn(50)}, pieces=2, s0=50),
        Case.of(where, {"x": randn(33, 50), "out": torch.zeros(50, dtype=torch.int64)}, s0=50),
        Case.of(kept, {"x": randn(6, 5, 37), "out": randn(6, 5), "low": randn(6, 37)}),
        Case.of(whole, {"x": randn(30, 20), "out": randn(())}, s0=30),
        Case.of(large, {"x": randn(3, 100), "out": randn(3, 100)}, s0=100),
    ]


def blocked_sum_cases() -> list[Case]:
    """Blocked sums: rows of one and two axes, two loops over one row, a register with full and partial blocks."""
    narrow = """
        kernel narrow(x: f32[s0, 5] -> out: f32[5]; s0) units (i1: 5) strip 32
            local total: f32
            phase (i0: s0):
                total[] = sum over (i0): load x[i0, i1]
            phase ():
                out[i1] = load total[]
    """
    plane = """
        kernel plane(x: f32[3, 150, 3, 21] -> out: f32[3, 21]) units ()
            local total(i2: 3, i3: 21): f32
            phase (i0: 3, i1: 150, i2: 3, i3: 21 vector):
                total[i2, i3] = sum over (i0, i1): load x[i0, i1, i2, i3]
            phase (i2: 3, i3: 21 vector):
                out[i2, i3] = load total[i2, i3]
    """
    long = """
        kernel long(x: f32[3, s0] -> out: f32[3], best: f32[3]; s0) units (i0: 3)
            local total: f32
            local top: f32
            phase (i1: s0 vector):
                v0 = load x[i0, i1]
                total[] = sum over (i1): mul(v0, v0)
                top[] = amax over (i1): v0
            phase ():
                out[i0] = load total[]
                best[i0] = load top[]
    """
    fixed = """
        kernel fixed(x: f32[2, 3, 2050] -> out: f32[2]) units (i0: 2)
            local total: f32
            phase (i1: 3, i2: 2050 vector):
                total[] = sum over (i1, i2): load x[i0, i1, i2]
            phase ():
                out[i0] = load total[]
    """
    return [
        *(Case.of(narrow, {"x": randn(size, 5).abs(), "out": randn(5)}, s0=size) for size in (0, 1, 64, 200)),
        Case.of(plane, {"x": randn(3, 150, 3, 21).abs(), "out": randn(3, 21)}),
        *(Case.of(long, {"x": randn(3, n), "out": randn(3), "best": randn(3)}, s0=n) for n in (1, 100, 4096, 9001)),
        Case.of(fixed, {"x": randn(2, 3, 2050).abs(), "out": randn(2)}),
    ]


def data_cases() -> list[Case]:
    embedding = """
        kernel embedding(w: f32[10, 24], at: i64[6] -> out: f32[6, 24]) units (i0: 6)
            phase (i1: 24 vector):
                j0 = indirect(load at[i0], 10)
                out[i0, i1] = load w[j0, i1]
    """
    lanes = """
        kernel lanes(x: f32[5, 10], at: i32[5] -> out: f32[5]) units (i0: 5) strip 16
            phase ():
                j0 = indirect(convert(load at[i0], i64), 10)
                out[i0] = load x[i0, j0]
    """
    scatter = """
        kernel scatter(at: i64[40], y: f32[40, s0] -> out: f32[8, s0]; s0) units (i1: s0) strip 16
            phase (i0: 40):
                j0 = indirect(load at[i0], 8)
                out[j0, i1] sum = load y[i0, i1]
    """
    collide = """
        kernel collide(at: i64[40], y: f32[40] -> out: f32[8]) units ()
            phase (i0: 40 vector):
                j0 = indirect(load at[i0], 8)
                out[j0] amax = load y[i0]
    """
    at, wide = torch.randint(-10, 10, (6,)), torch.randint(0, 8, (40,))
    wrong = torch.tensor([0, 3, 10, 2, 1, 0])
    return [
        Case.of(embedding, {"w": randn(10, 24), "at": at, "out": randn(6, 24)}),
        Case.of(embedding, {"w": randn(10, 24), "at": wrong, "out": randn(6, 24)}),
        Case.of(lanes, {"x": randn(5, 10), "at": at[:5].int(), "out": randn(5)}),
        Case.of(lanes, {"x": randn(5, 10), "at": wrong[:5].int(), "out": randn(5)}),
        Case.of(scatter, {"at": wide, "y": randn(40, 20), "out": randn(8, 20)}, s0=20),
        Case.of(collide, {"at": wide, "y": randn(40), "out": randn(8)}),
    ]


PER_LANE = {"f32": F32, "f64": torch.float64, "i64": torch.int64, "i32": torch.int32, "u8": torch.uint8,
            "bf16": torch.bfloat16, "b8": torch.bool}  # fmt: skip


def lane_cases() -> list[Case]:
    """Each lane has its own address: gathers, and scatters in order where addresses are equal."""
    cases = []
    for name, dtype in PER_LANE.items():
        picks = f"""
            kernel picks{name}(x: {name}[3, 10], at: i64[3, 45] -> out: {name}[3, 45]) units (i0: 3)
                phase (i1: 45 vector):
                    j0 = indirect(load at[i0, i1], 10)
                    out[i0, i1] = load x[i0, j0]
        """
        masked = f"""
            kernel masked{name}(x: {name}[10], at: i64[45] -> out: {name}[45]) units (i0: 45) strip 64
                phase ():
                    j0 = indirect(load at[i0], 10)
                    out[i0] = load x[j0] if lt(load at[i0], i64(3))
        """
        writes = f"""
            kernel writes{name}(at: i64[3, 45], y: {name}[3, 45] -> out: {name}[3, 10]) units (i0: 3)
                phase (i1: 45 vector):
                    j0 = indirect(load at[i0, i1], 10)
                    out[i0, j0] = load y[i0, i1]
        """
        sums = writes.replace("writes", "sums").replace("out[i0, j0] =", "out[i0, j0] sum =")
        x, y, out = ((torch.randn(3, size) * 50).to(dtype) for size in (10, 45, 10))
        at = torch.randint(-10, 10, (3, 45))
        # In the last, partial vector, and in a lane beyond it.
        wrong, below = at.clone(), at.clone()
        wrong[1, 44], below[0, 3] = 10, -11
        cases += [Case.of(picks, {"x": x, "at": item, "out": y}) for item in (at, wrong, below)]
        cases.append(Case.of(masked, {"x": x[0], "at": at[0], "out": y[0]}))
        cases += [Case.of(writes, {"at": item, "y": y, "out": out}) for item in (at, wrong)]
        if dtype not in (torch.bool, torch.bfloat16):
            cases.append(Case.of(sums, {"at": at, "y": y, "out": out}))
    return cases


def scan_cases() -> list[Case]:
    def scan(op: str, vector: str, dtype: str = "f32") -> str:
        return f"""
            kernel {op}_scan{len(vector)}{dtype}(x: {dtype}[4, 45] -> out: {dtype}[4, 45]) units (i0: 4)
                local total: {dtype}
                phase (i1: 45{vector}):
                    total[] = {op} over (i1) to out[i0, i1]: load x[i0, i1]
        """

    across = """
        kernel across(x: f32[9, 45] -> out: f32[9, 45]) units (i1: 45) strip 32
            local total: f32
            phase (i0: 9):
                total[] = sum over (i0) to out[i0, i1]: load x[i0, i1]
    """
    x, whole = randn(4, 45), torch.randint(-5, 5, (4, 45))
    cases = [
        Case.of(scan(op, v), {"x": x, "out": randn(4, 45)}) for op in ("sum", "prod", "amax") for v in (" vector", "")
    ]
    cases += [Case.of(scan("sum", v, "i64"), {"x": whole, "out": whole.clone()}) for v in (" vector", "")]
    cases.append(Case.of(across, {"x": randn(9, 45), "out": randn(9, 45)}))
    return cases


def narrow_cases() -> list[Case]:
    def mix(dtype: str) -> str:
        return f"""
            kernel {dtype}(x: {dtype}[s0], y: f32[s0] -> out: {dtype}[s0], b: f32[s0]; s0) units (i0: s0) strip 16
                phase ():
                    v0 = convert(load x[i0], f32)
                    v1 = convert(mul(v0, load y[i0]), {dtype})
                    out[i0] = v1
                    b[i0] = sub(load y[i0], convert(v1, f32))
        """

    cases = []
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "f16")):
        tensors = {"x": randn(90, dtype=dtype), "y": randn(90), "out": randn(90, dtype=dtype), "b": randn(90)}
        cases.append(Case.of(mix(name), tensors, s0=90))
    return cases


def drawn_cases() -> list[Case]:
    """Random numbers of one element and of many: one was the contents of freed memory, most often 0."""
    dtypes = {"i64": torch.int64, "f32": F32, "f64": torch.float64}
    ops = [("random_bits", "i64"), *product(("random_uniform", "random_normal"), ("f32", "f64"))]
    cases = []
    for op, dtype in ops:
        one = f"""
            kernel one(seed: i64[] -> out: {dtype}[]) units ()
                phase ():
                    out[] = {op}(load seed[], 0, {dtype})
        """
        many = f"""
            kernel many(seed: i64[] -> out: {dtype}[s0]; s0) units (i0: s0)
                phase ():
                    out[i0] = {op}(load seed[], i0, {dtype})
        """
        seed = torch.tensor(4711)
        cases.append(Case.of(one, {"seed": seed, "out": torch.zeros((), dtype=dtypes[dtype])}))
        cases.append(Case.of(many, {"seed": seed, "out": torch.zeros(90, dtype=dtypes[dtype])}, s0=90))
    return cases


def lane_tree_cases() -> list[Case]:
    """Every type that lanes are combined in, in rows of one vector and of several; NaN in some."""
    cases = []
    for op, (name, dtype) in product(
        ("sum", "prod", "amax", "amin"),
        (("f32", F32), ("f64", torch.float64), ("i64", torch.int64), ("i32", torch.int32), ("i16", torch.int16)),
    ):
        for columns in (16, 37):
            text = f"""
                kernel tree(x: {name}[6, {columns}] -> out: {name}[6]) units (i0: 6)
                    local total: {name}
                    phase (i1: {columns} vector):
                        total[] = {op} over (i1): load x[i0, i1]
                    phase ():
                        out[i0] = load total[]
            """
            x = (torch.rand(6, columns) * 2 - 0.5).to(dtype) if dtype.is_floating_point else torch.ones(6, columns)
            x = (x + torch.arange(columns) % 2 * (torch.arange(columns) < 4)).to(dtype)
            if dtype.is_floating_point and op.startswith("a"):
                x[1, columns // 2] = x[2, 0] = x[3, -1] = float("nan")
            cases.append(Case.of(text, {"x": x, "out": torch.zeros(6, dtype=dtype)}))
    return cases


def all_cases() -> list[Case]:
    groups = [
        pointwise_cases(), transposed_cases(), padded_cases(), reduction_cases(), row_cases(), blocked_sum_cases(),
        data_cases(), lane_cases(), scan_cases(), narrow_cases(), few_rows_cases(), part_cases(), tiles_of_sums_cases(),
        backward_cases(), cut_cases(),
    ]  # fmt: skip
    return [norm(48), norm(100), norm(300), norm(1000), *(case for group in groups for case in group)]


def test_kernels_equal_the_interpreter(tmp_path: Path) -> None:
    some = (
        transposed_cases()[1:5:3],
        few_rows_cases()[:12],
        part_cases()[::3],
        row_cases()[:2],
        blocked_sum_cases(),
        padded_cases()[:1],
        data_cases()[:2],
        cut_cases()[::-7],
    )
    check(
        [
            norm(100),
            *pointwise_cases(),
            *backward_cases(),
            *tiles_of_sums_cases(),
            *drawn_cases(),
            *lane_tree_cases(),
            *(case for cases in some for case in cases),
        ],
        tmp_path,
    )


@pytest.mark.slow
@pytest.mark.parametrize("vector_bytes", [64, 32, 16])
def test_all_kernels_equal_the_interpreter(vector_bytes: int, tmp_path: Path) -> None:
    if vector_bytes > host_cpu().vector_bytes:
        pytest.skip("this machine has shorter vectors")
    check([*all_cases(), *drawn_cases(), *lane_tree_cases()], tmp_path, replace(host_cpu(), vector_bytes=vector_bytes))
