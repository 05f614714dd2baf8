"""Every primitive in C++ against eager: ordinary numbers, special ones, and the accuracy of our polynomials."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mpmath
import pytest
import torch

from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Kind
from kiln.loops.body.reference import apply
from kiln.loops.codegen.cpp.dialect import CPP
from kiln.loops.kernel.kernel import KernelIR
from kiln.support.target import Target, host_cpu
from tests.codegen.native import call, compiled
from tests.loop_ir.parse import parse_kernel

F32, F64 = torch.float32, torch.float64
NAMES = {F32: "f32", F64: "f64", torch.int64: "i64", torch.int32: "i32", torch.uint8: "u8", torch.int8: "i8",
         torch.bool: "b8", torch.bfloat16: "bf16", torch.float16: "f16", torch.int16: "i16"}  # fmt: skip


def test_the_dialect_covers_every_pointwise_prim() -> None:
    assert [op.name for op in PRIMS if op.kind is Kind.POINTWISE and not CPP.covers(op)] == []


def kernel_of(ops: list[tuple[str, int]], dtype: torch.dtype, size: int) -> KernelIR:
    """One kernel with a result per op, so that one small compile covers many."""
    name = NAMES[dtype]
    outs = [f"r{place}: {'b8' if PRIMS[op].result == 'bool' else name}[{size}]" for place, (op, _) in enumerate(ops)]
    loads = ["load x[i0]", "load y[i0]", "load z[i0]"]
    lines = [f"r{place}[i0] = {op}({', '.join(loads[:count])})" for place, (op, count) in enumerate(ops)]
    params = ", ".join(f"{letter}: {name}[{size}]" for letter in "xyz")
    head = f"kernel all_{name}({params} -> {', '.join(outs)}) units (i0: {size}) strip 64"
    return parse_kernel("\n".join([head, "phase ():", *lines]))


def results(
    kernels: list[KernelIR], inputs: list[list[torch.Tensor]], folder: Path, target: Target | None = None
) -> list[dict[str, torch.Tensor]]:
    """The results of each kernel on its inputs."""
    written, libraries = compiled(kernels, folder, target)
    found = []
    for kernel, printed, given in zip(kernels, written, inputs, strict=True):
        tensors = dict(zip("xyz", given, strict=True))
        outs = {p.name: torch.zeros(given[0].shape, dtype=p.spec.dtype) for p in kernel.params if p.name not in tensors}
        status = call(kernel, printed, libraries, tensors | outs, {})
        found.append(outs | {"status": torch.tensor(status)})
    return found


UNARY = [op.name for op in PRIMS if op.kind is Kind.POINTWISE and op.inputs == 1]
BINARY = [op.name for op in PRIMS if op.kind is Kind.POINTWISE and op.inputs == 2]
LOGIC = ("logical_not", "bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right")
SKIPPED = ("convert", "bitcast")
FLOAT_OPS = [(name, 1) for name in UNARY if name not in LOGIC + SKIPPED] + [
    (name, 2) for name in BINARY if name not in LOGIC + SKIPPED
]
FLOATING_ONLY = {op.name for op in PRIMS if op.floating}
INT_OPS = [
    (name, count)
    for names, count in ((UNARY, 1), (BINARY, 2))
    for name in names
    if name not in FLOATING_ONLY and name not in SKIPPED and name not in ("logical_not", "pow")
]

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -3.0, 1e-45, -1e-39, 1e-20, 3.4e38, -3.4e38, 1e10, -1e10, 88.5, -104.5,
           math.inf, -math.inf, math.nan, 1.5, 2.5, -2.5, 0.49999997, 20001.0, 1e5, 7.9, 100.0, -17.5]  # fmt: skip


def special_pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    one = torch.tensor(SPECIAL, dtype=F64).to(dtype)
    x, y = torch.meshgrid(one, one, indexing="ij")
    return x.reshape(-1).clone(), y.reshape(-1).clone()


def close(op: str, got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype, x: torch.Tensor, y: torch.Tensor) -> None:
    if not want.dtype.is_floating_point:
        bad = got != want
    else:
        tiny, rtol = (1e-37, 3e-6) if dtype == F32 else (1e-290, 1e-13)
        # The reference of fma rounds twice; digamma and lgamma lose digits near their zeros in eager, too.
        loose = {"digamma": 2e-4, "lgamma": 2e-5, "erfinv": 2e-5, "hypot": 1e-5, "pow": 1e-5}.get(op, rtol)
        bad = ~torch.isclose(got, want, rtol=loose if dtype == F32 else 1e-9, atol=tiny, equal_nan=True)
        if op in ("remainder", "fmod", "floor_div"):
            # Eager loses the remainder of a large quotient; ours is exact.
            bad &= (x / y).abs() < 1e6
        zeros = (want == 0) & (got == 0) & (want.signbit() != got.signbit())
        bad |= zeros & (op not in ("sign", "maximum", "minimum", "fmax", "fmin", "remainder", "floor_div"))
    assert not bad.any(), f"{op} {dtype}: x {x[bad][:4]}, y {y[bad][:4]}: {got[bad][:4]}, eager {want[bad][:4]}"


def with_lanes(vector_bytes: int) -> Target:
    """This machine with shorter vectors, which take other branches of the prelude."""
    if vector_bytes > host_cpu().vector_bytes:
        pytest.skip("this machine has shorter vectors")
    return replace(host_cpu(), vector_bytes=vector_bytes)


@pytest.mark.parametrize(("dtype", "vector_bytes"), [(F32, 64), (F32, 32), (F64, 64)], ids=["f32", "f32-short", "f64"])
def test_floating_prims_on_special_values(dtype: torch.dtype, vector_bytes: int, tmp_path: Path) -> None:
    x, y = special_pairs(dtype)
    x, y = torch.cat([x, torch.randn(171).to(dtype) * 3]), torch.cat([y, torch.randn(171).to(dtype)])
    kernel = kernel_of(FLOAT_OPS, dtype, x.numel())
    (found,) = results([kernel], [[x, y, y]], tmp_path, with_lanes(vector_bytes))
    for place, (op, count) in enumerate(FLOAT_OPS):
        want = apply(PRIMS[op], dtype, (x, y)[:count])
        close(op, found[f"r{place}"], want, dtype, x, y)


INTS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


DIVISIONS = [(name, 2) for name in ("floor_div", "trunc_div", "remainder", "fmod")]


@pytest.mark.parametrize("vector_bytes", [64, 32])
def test_integer_division_over_the_whole_range(vector_bytes: int, tmp_path: Path) -> None:
    """Numbers of all magnitudes, and quotients on both sides of integers; the reference is Python's."""
    kernels, inputs = [], []
    for dtype in INTS:
        info, size = torch.iinfo(dtype), 4000
        bits = torch.randint(0, info.bits, (2, size))
        x, y = (torch.randint(info.min, info.max, (2, size)) >> bits).clamp(info.min, info.max).to(dtype)
        y[y == 0] = 1
        near = (y[::2].long() * torch.randint(-50, 50, (size // 2,)) + torch.randint(-1, 2, (size // 2,))).to(dtype)
        # Vectors with a number of more than 51 bits take another branch; some vectors have one.
        x[::2], x[:1024], y[:1024] = near, x[:1024] % 100, y[:1024] % 9 + 1
        kernels.append(kernel_of(DIVISIONS, dtype, size))
        inputs.append([x, y, y])
    all_found = results(kernels, inputs, tmp_path, with_lanes(vector_bytes))
    for dtype, found, (x, y, _) in zip(INTS, all_found, inputs, strict=True):
        pairs = list(zip(x.tolist(), y.tolist(), strict=True))
        floor, rest = [a // b for a, b in pairs], [a % b for a, b in pairs]
        trunc = [(abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1) for a, b in pairs]
        left = [a - b * q for (a, b), q in zip(pairs, trunc, strict=True)]
        for place, want in enumerate((floor, trunc, rest, left)):
            wide = torch.tensor([result - (1 << 64) if result >= 1 << 63 else result for result in want])
            bad = found[f"r{place}"] != wide.to(dtype)
            assert not bad.any(), f"{DIVISIONS[place][0]} {dtype}: {x[bad][:4]} by {y[bad][:4]}"


def test_integer_prims(tmp_path: Path) -> None:
    kernels, inputs = [], []
    for dtype in INTS:
        info = torch.iinfo(dtype)
        x = torch.randint(max(info.min, -100), min(info.max, 100), (300,), dtype=dtype)
        y = torch.randint(max(info.min, -9), 9, (300,), dtype=dtype)
        y[y == 0] = 3
        x[:4], y[:4] = info.min, torch.tensor([1, 2, info.max, 5], dtype=dtype)
        kernels.append(kernel_of(INT_OPS, dtype, 300))
        inputs.append([x, y, y])
    for dtype, found, (x, y, _) in zip(INTS, results(kernels, inputs, tmp_path), inputs, strict=True):
        for place, (op, count) in enumerate(INT_OPS):
            if op in ("shift_left", "shift_right") and bool((y < 0).any()):
                continue
            close(op, found[f"r{place}"], apply(PRIMS[op], dtype, (x, y)[:count]), dtype, x, y)
        assert found["status"] == 0


def test_division_by_zero_sets_the_status(tmp_path: Path) -> None:
    x = torch.arange(20)
    ops = [(name, 2) for name in ("floor_div", "trunc_div", "remainder", "fmod")]
    kernels = [kernel_of([op], torch.int64, 20) for op in ops]
    y = torch.ones(20, dtype=torch.int64)
    y[17] = 0
    for found in results(kernels, [[x, y, y]] * 4, tmp_path):
        assert found["status"] == 2


def test_three_operands_and_bools(tmp_path: Path) -> None:
    pairs = ["bitwise_and", "bitwise_or", "bitwise_xor", "eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum"]
    pairs += ["mul", "add"]
    logic = [*((name, 2) for name in pairs), ("logical_not", 1), ("bitwise_not", 1)]
    x, y = torch.rand(90) < 0.5, torch.rand(90) < 0.5
    floats = [torch.randn(90) for _ in range(3)]
    kernels = [kernel_of(logic, torch.bool, 90), kernel_of([("fma", 3)], F32, 90)]
    found = results(kernels, [[x, y, y], floats], tmp_path)
    for place, (op, count) in enumerate(logic):
        assert torch.equal(found[0][f"r{place}"], apply(PRIMS[op], torch.bool, (x, y)[:count])), op
    assert torch.equal(found[1]["r0"], apply(PRIMS["fma"], F32, tuple(floats)))


@pytest.mark.parametrize("vector_bytes", [64, 32, 16])
def test_narrow_floats_round_as_eager_does(vector_bytes: int, tmp_path: Path) -> None:
    """All kinds of f32, to f16 and bf16 in vectors and one by one, and all f16 back."""
    if vector_bytes > host_cpu().vector_bytes:
        pytest.skip("this machine has shorter vectors")
    x = torch.cat([torch.tensor(SPECIAL), torch.randn(1000), torch.randn(2000) * 1e-5, torch.randn(1000) * 1e-7,
                   torch.tensor([65504.0, 65519.9, 65520.0, 65536.0, 6.1e-5, 5.96e-8, 2.98e-8, 2.99e-8])])  # fmt: skip
    every = torch.arange(65536).to(torch.uint16).view(torch.float16)
    target = replace(host_cpu(), vector_bytes=vector_bytes)
    size = x.numel()
    for lanes in (" strip 64", ""):
        narrow = f"""
            kernel narrow(x: f32[{size}] -> a: f16[{size}], b: bf16[{size}]) units (i0: {size}){lanes}
            phase ():
                a[i0] = convert(load x[i0], f16)
                b[i0] = convert(load x[i0], bf16)
        """
        wide = f"kernel wide(x: f16[65536] -> a: f32[65536]) units (i0: 65536){lanes}\nphase ():\na[i0] = load x[i0]"
        kernels = [parse_kernel(narrow), parse_kernel(wide.replace("load x[i0]", "convert(load x[i0], f32)"))]
        written, libraries = compiled(kernels, tmp_path, target)
        outs = {"a": torch.zeros_like(x).half(), "b": torch.zeros_like(x).bfloat16()}
        call(kernels[0], written[0], libraries, {"x": x} | outs, {})
        for got, want in ((outs["a"], x.half()), (outs["b"], x.bfloat16())):
            assert torch.equal(got.nan_to_num(7.0), want.nan_to_num(7.0))
        back = torch.zeros(65536)
        call(kernels[1], written[1], libraries, {"x": every, "a": back}, {})
        assert torch.equal(back.nan_to_num(7.0), every.float().nan_to_num(7.0))


def test_conversions(tmp_path: Path) -> None:
    """Every pair of dtypes, on values that both can hold."""
    dtypes = [*INTS, torch.bool, F32, F64, torch.bfloat16, torch.float16]
    kernels, inputs = [], []
    for source in dtypes:
        outs = ", ".join(f"r{place}: {NAMES[dtype]}[50]" for place, dtype in enumerate(dtypes))
        lines = [f"r{place}[i0] = convert(load x[i0], {NAMES[dtype]})" for place, dtype in enumerate(dtypes)]
        head = f"kernel convert_{NAMES[source]}(x: {NAMES[source]}[50] -> {outs}) units (i0: 50) strip 32"
        kernels.append(parse_kernel("\n".join([head, "phase ():", *lines])))
        inputs.append((torch.rand(50) * 100 if source.is_floating_point else torch.randint(0, 100, (50,))).to(source))
    written, libraries = compiled(kernels, tmp_path)
    for source, kernel, printed, x in zip(dtypes, kernels, written, inputs, strict=True):
        outs = {f"r{place}": torch.zeros(50, dtype=target) for place, target in enumerate(dtypes)}
        call(kernel, printed, libraries, {"x": x} | outs, {})
        for place, target in enumerate(dtypes):
            assert torch.equal(outs[f"r{place}"], x.to(target)), f"{source} to {target}"


# Accuracy: worst error in units of the last place (of the exact result), and where it is measured. Eager's own is
# between 0.5 and 1; the contract is the larger of twice that and 4.
def normal(scale: float) -> Callable[[int], torch.Tensor]:
    return lambda n: torch.randn(n) * scale


def uniform(low: float, high: float) -> Callable[[int], torch.Tensor]:
    return lambda n: torch.empty(n).uniform_(low, high)


def powers(low: float, high: float, sign: bool = False) -> Callable[[int], torch.Tensor]:
    """All sizes between two powers of two alike."""

    def sample(n: int) -> torch.Tensor:
        x = torch.exp2(torch.empty(n, dtype=F64).uniform_(low, high)).float()
        return x * torch.randn(n).sign() if sign else x

    return sample


def both(one: Callable[[int], torch.Tensor], other: Callable[[int], torch.Tensor]) -> Callable[[int], torch.Tensor]:
    return lambda n: torch.cat([one(n // 2), other(n - n // 2)])


ULPS: dict[str, tuple[float, Callable[[int], torch.Tensor]]] = {
    "exp": (1.0, uniform(-87, 88.7)),
    "exp2": (1.0, uniform(-126, 127.9)),
    "expm1": (1.5, both(uniform(-18, 88), normal(1))),
    "log": (1.25, both(uniform(0.3, 3), powers(-149, 128))),
    "log1p": (1.5, both(uniform(-0.9, 3), powers(-30, 120))),
    "log2": (1.25, both(uniform(0.3, 3), powers(-149, 128))),
    "log10": (1.5, both(uniform(0.3, 3), powers(-149, 128))),
    "sin": (1.75, both(uniform(-7, 7), normal(3000))),
    "cos": (1.75, both(uniform(-7, 7), normal(3000))),
    "tan": (3.5, both(uniform(-7, 7), normal(3000))),
    "asin": (2.0, both(uniform(-1, 1), powers(-126, 0, sign=True))),
    "acos": (1.75, both(uniform(-1, 1), powers(-30, 0, sign=True))),
    "atan": (1.5, both(normal(1), normal(50))),
    "sinh": (2.0, both(normal(1), uniform(-89, 89))),
    "cosh": (2.0, both(normal(1), uniform(-89, 89))),
    "tanh": (1.4, both(normal(1), powers(-126, 4, sign=True))),
    "asinh": (3.0, both(normal(1), powers(-126, 127, sign=True))),
    "acosh": (3.0, both(uniform(1, 3), powers(0, 127))),
    "atanh": (3.0, both(uniform(-1, 1), powers(-126, 0, sign=True))),
    "sigmoid": (2.0, normal(20)),
    "erf": (1.2, both(normal(1), normal(3))),
    "erfc": (4.0, both(uniform(-4, 4), uniform(0, 9.2))),
    "erfinv": (4.0, both(uniform(-1, 1), lambda n: 1 - powers(-23, 0)(n))),
    "rsqrt": (1.6, lambda n: torch.rand(n) * 100 + 1e-6),
}


def ulp_error(got: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """|got - exact| in units of the last place of the float nearest to `exact`."""
    near = exact.float().abs().clamp_min(2.0**-126)
    step = torch.exp2(torch.floor(torch.log2(near.double())) - 23)
    return (got.double() - exact).abs() / step


@pytest.mark.parametrize("vector_bytes", [64, 32])
def test_worst_error_of_our_functions(vector_bytes: int, tmp_path: Path) -> None:
    size = 40000
    kernels = [kernel_of([(op, 1)], F32, size) for op in ULPS]
    inputs = [[sample(size)] * 3 for _, sample in ULPS.values()]
    found = results(kernels, inputs, tmp_path, with_lanes(vector_bytes))
    worst = {}
    for (op, (bound, _)), got, (x, *_) in zip(ULPS.items(), found, inputs, strict=True):
        error = ulp_error(got["r0"], apply(PRIMS[op], F64, (x.double(),)))
        worst[op] = (round(error.max().item(), 2), bound, x[error.argmax()].item())
    assert {op: item for op, item in worst.items() if not item[0] <= item[1]} == {}, worst


DOUBLE_ULPS: dict[str, tuple[float, Callable[[int], torch.Tensor]]] = {
    "exp": (1.5, uniform(-745, 709.7)),
    "expm1": (2.0, both(uniform(-40, 709), normal(1))),
    "log": (1.5, both(uniform(0.3, 3), powers(-149, 128))),
    "log1p": (2.0, both(uniform(-0.9, 3), powers(-60, 120))),
    "sin": (2.0, both(uniform(-7, 7), normal(3000))),
    "cos": (2.0, both(uniform(-7, 7), normal(3000))),
    "tanh": (3.0, both(normal(1), powers(-126, 4, sign=True))),
    "erf": (2.0, both(normal(1), normal(3))),
}


@pytest.mark.parametrize("vector_bytes", [64, 32, 16])
def test_worst_error_of_our_functions_of_doubles(vector_bytes: int, tmp_path: Path) -> None:
    size = 2000
    kernels = [kernel_of([(op, 1)], F64, size) for op in DOUBLE_ULPS]
    inputs = [sample(size).double() * (1 + 2.0**-30) for _, sample in DOUBLE_ULPS.values()]
    found = results(kernels, [[x, x, x] for x in inputs], tmp_path, with_lanes(vector_bytes))
    worst = {}
    with mpmath.workdps(40):
        for (op, (bound, _)), got, x in zip(DOUBLE_ULPS.items(), found, inputs, strict=True):
            exact = [getattr(mpmath, op)(mpmath.mpf(number)) for number in x.tolist()]
            errors = [
                float(abs(mpmath.mpf(ours) - true) / math.ulp(max(abs(float(true)), 2.0**-1022)))
                for ours, true in zip(got["r0"].tolist(), exact, strict=True)
            ]
            worst[op] = (round(max(errors), 2), bound, x[errors.index(max(errors))].item())
    assert {op: item for op, item in worst.items() if not item[0] <= item[1]} == {}, worst


@pytest.mark.parametrize("vector_bytes", [64, 32, 16])
def test_functions_of_doubles_beside_divisions_of_integers(vector_bytes: int, tmp_path: Path) -> None:
    """Both need the nearest whole number."""
    kernel = parse_kernel("""
        kernel both(x: f64[40], n: i64[40] -> y: f64[40], m: i64[40]) units (i0: 40) strip 64
        phase ():
            y[i0] = exp(load x[i0])
            m[i0] = floor_div(load n[i0], i64(7))
    """)
    written, libraries = compiled([kernel], tmp_path, with_lanes(vector_bytes))
    given = {"x": torch.randn(40, dtype=F64), "n": torch.arange(40), "y": torch.zeros(40, dtype=F64)}
    given["m"] = torch.zeros(40, dtype=torch.int64)
    call(kernel, written[0], libraries, given, {})
    torch.testing.assert_close(given["y"], given["x"].exp())
    assert torch.equal(given["m"], given["n"] // 7)


@pytest.mark.parametrize("vector_bytes", [64, 32])
def test_worst_error_of_functions_of_two_numbers(vector_bytes: int, tmp_path: Path) -> None:
    size = 40000
    x = powers(-149, 128, sign=True)(size)
    base, exponent = powers(-140, 127)(size), torch.randn(size) * 20
    base[::2], exponent[1::2] = torch.empty(size // 2).uniform_(0.1, 4), torch.randn(size // 2)
    near = x * torch.exp2(torch.empty(size).uniform_(-20, 20))
    cases = {"pow": (2.0, base, exponent), "atan2": (2.0, x, near), "hypot": (1.5, x, near), "fmod": (0.0, near, x)}
    kernels = [kernel_of([(op, 2)], F32, size) for op in cases]
    found = results(kernels, [[a, b, b] for _, a, b in cases.values()], tmp_path, with_lanes(vector_bytes))
    for (op, (bound, a, b)), got in zip(cases.items(), found, strict=True):
        exact = apply(PRIMS[op], F64, (a.double(), b.double()))
        real = exact.float().isfinite() & (exact.abs() > 2.0**-126) if op != "fmod" else a.isfinite()
        error = torch.where(real, ulp_error(got["r0"], exact), 0.0)
        worst = error.argmax()
        assert error[worst] <= bound, f"{op}({a[worst]}, {b[worst]}): {error[worst]} ulp"


EDGES = [2.0**-149, 3.0 * 2.0**-149, 2.0**-127, 2.0**-126 * (1 - 2.0**-24), 2.0**-126, 2.0**-24, 0.0625, 0.75,
         1 - 2.0**-24, 1 + 2.0**-23, 1.5, 4.0, 9.01, 10.06, 12.5, 87.34, 88.722, 88.73, 89.4, 103.9, 2.0**22 - 1,
         2.0**22, 2.0**24, 1e10, 1e20, 2.0**127, 1.7014119e38, 3.4028234e38]  # fmt: skip


@pytest.mark.parametrize("vector_bytes", [64, 32])
def test_ends_of_ranges(vector_bytes: int, tmp_path: Path) -> None:
    """Subnormal and largest numbers, and both sides of each switch between formulas: 4 ulp, equal zeros,
    infinities and NaN."""
    x = torch.tensor(EDGES, dtype=F64).float()
    x = torch.cat([x, -x, torch.pi * torch.arange(1, 40000, 97), torch.pi / 2 * torch.arange(1, 80000, 94)])
    # Eager flushes a subnormal sigmoid too; the reciprocal root is undefined at most of these.
    functions = [op for op in ULPS if op not in ("rsqrt", "sigmoid")]
    kernel = kernel_of([(op, 1) for op in functions], F32, x.numel())
    (found,) = results([kernel], [[x, x, x]], tmp_path, with_lanes(vector_bytes))
    for place, op in enumerate(functions):
        got, exact = found[f"r{place}"], apply(PRIMS[op], F64, (x.double(),))
        want = exact.float()
        usual = want.isfinite() & got.isfinite()
        same = torch.isclose(got, want, rtol=0.0, atol=0.0, equal_nan=True)
        bad = torch.where(usual, ulp_error(got, exact) > 4.0, ~same)
        assert not bad.any(), f"{op}: {x[bad][:4]} gives {got[bad][:4]}, exactly {exact[bad][:4]}"


def test_one_plus_erf_is_one_function(tmp_path: Path) -> None:
    """As exact as eager's sum in absolute terms, and 0 where that is 0."""
    x = torch.cat([torch.tensor(SPECIAL), torch.linspace(-7, 7, 3000)])
    size = x.numel()
    text = f"kernel k(x: f32[{size}] -> out: f32[{size}]) units (i0: {size}) strip 64\nphase ():\n"
    kernel = parse_kernel(text + "out[i0] = add(erf(load x[i0]), f32(1.0))")
    (written,), libraries = compiled([kernel], tmp_path)
    assert "erf_plus_one(v0)" in written.kernel.source
    out = torch.zeros(size)
    call(kernel, written, libraries, {"x": x, "out": out}, {})
    exact = torch.special.erfc(-x.double())
    assert (out.double() - exact).abs().nan_to_num(0.0).max() < 2e-7
    assert torch.equal(out.isnan(), x.isnan())
    assert (out[x < -6.1] == 0).all()
