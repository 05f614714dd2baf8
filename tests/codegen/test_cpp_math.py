"""Every primitive in C++ against eager: ordinary numbers, special ones, and the accuracy of our polynomials."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Kind
from kiln.loops.codegen.cpp.dialect import CPP
from kiln.loops.ir.kernel import KernelIR
from kiln.loops.ir.parse import parse_kernel
from kiln.loops.ir.reference import apply
from kiln.support.target import host_cpu
from tests.codegen.native import call, compiled

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
    params = ", ".join(f"{one}: {name}[{size}]" for one in "xyz")
    head = f"kernel all_{name}({params} -> {', '.join(outs)}) units (i0: {size}) strip 64"
    return parse_kernel("\n".join([head, "phase ():", *lines]))


def results(kernels: list[KernelIR], inputs: list[list[torch.Tensor]], folder: Path) -> list[dict[str, torch.Tensor]]:
    """What each kernel makes of its inputs."""
    written, libraries = compiled(kernels, folder)
    found = []
    for kernel, one, given in zip(kernels, written, inputs, strict=True):
        tensors = dict(zip("xyz", given, strict=True))
        outs = {p.name: torch.zeros(given[0].shape, dtype=p.spec.dtype) for p in kernel.params if p.name not in tensors}
        status = call(kernel, one, libraries, tensors | outs, {})
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


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [F32, F64], ids=["f32", "f64"])
def test_floating_prims_on_special_values(dtype: torch.dtype, tmp_path: Path) -> None:
    x, y = special_pairs(dtype)
    x, y = torch.cat([x, torch.randn(171).to(dtype) * 3]), torch.cat([y, torch.randn(171).to(dtype)])
    (found,) = results([kernel_of(FLOAT_OPS, dtype, x.numel())], [[x, y, y]], tmp_path)
    for place, (op, count) in enumerate(FLOAT_OPS):
        want = apply(PRIMS[op], dtype, (x, y)[:count])
        close(op, found[f"r{place}"], want, dtype, x, y)


INTS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_conversions(tmp_path: Path) -> None:
    """Every pair of dtypes, on values that both can hold."""
    dtypes = [*INTS, torch.bool, F32, F64, torch.bfloat16, torch.float16]
    kernels, inputs = [], []
    for source in dtypes:
        outs = ", ".join(f"r{place}: {NAMES[one]}[50]" for place, one in enumerate(dtypes))
        lines = [f"r{place}[i0] = convert(load x[i0], {NAMES[one]})" for place, one in enumerate(dtypes)]
        head = f"kernel convert_{NAMES[source]}(x: {NAMES[source]}[50] -> {outs}) units (i0: 50) strip 32"
        kernels.append(parse_kernel("\n".join([head, "phase ():", *lines])))
        inputs.append((torch.rand(50) * 100 if source.is_floating_point else torch.randint(0, 100, (50,))).to(source))
    written, libraries = compiled(kernels, tmp_path)
    for source, kernel, one, x in zip(dtypes, kernels, written, inputs, strict=True):
        outs = {f"r{place}": torch.zeros(50, dtype=target) for place, target in enumerate(dtypes)}
        call(kernel, one, libraries, {"x": x} | outs, {})
        for place, target in enumerate(dtypes):
            assert torch.equal(outs[f"r{place}"], x.to(target)), f"{source} to {target}"


# Accuracy: worst error in units of the last place (of the exact result), and where it is measured.
ULPS: dict[str, tuple[float, Callable[[int], torch.Tensor]]] = {
    "exp": (1.0, lambda n: torch.empty(n).uniform_(-87, 88.7)),
    "exp2": (1.0, lambda n: torch.empty(n).uniform_(-126, 127.9)),
    "expm1": (1.5, lambda n: torch.cat([torch.empty(n // 2).uniform_(-18, 88), torch.randn(n // 2)])),
    "log": (
        1.0,
        lambda n: torch.cat([torch.empty(n // 2).uniform_(0.3, 3), torch.empty(n // 2).uniform_(-80, 80).exp()]),
    ),
    "log1p": (1.5, lambda n: torch.cat([torch.empty(n // 2).uniform_(-0.9, 3), torch.randn(n // 2).mul(9).exp()])),
    "log2": (0.6, lambda n: torch.empty(n).uniform_(1e-3, 9)),
    "log10": (0.6, lambda n: torch.empty(n).uniform_(1e-3, 9)),
    "sin": (1.25, lambda n: torch.cat([torch.empty(n // 2).uniform_(-7, 7), torch.randn(n // 2) * 3000])),
    "cos": (1.25, lambda n: torch.cat([torch.empty(n // 2).uniform_(-7, 7), torch.randn(n // 2) * 3000])),
    "tanh": (1.2, lambda n: torch.cat([torch.randn(n // 2), torch.randn(n // 2) * 6])),
    "sigmoid": (2.0, lambda n: torch.randn(n) * 20),
    "erf": (1.2, lambda n: torch.cat([torch.randn(n // 2), torch.randn(n // 2) * 3])),
    "atan": (1.5, lambda n: torch.cat([torch.randn(n // 2), torch.randn(n // 2) * 50])),
    "rsqrt": (1.6, lambda n: torch.rand(n) * 100 + 1e-6),
}


def ulp_error(got: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """|got - exact| in units of the last place of the float nearest to `exact`."""
    near = exact.float().abs().clamp_min(2.0**-126)
    step = torch.exp2(torch.floor(torch.log2(near.double())) - 23)
    return (got.double() - exact).abs() / step


@pytest.mark.slow
def test_worst_error_of_our_functions(tmp_path: Path) -> None:
    size = 40000
    kernels = [kernel_of([(op, 1)], F32, size) for op in ULPS]
    inputs = [[sample(size)] * 3 for _, sample in ULPS.values()]
    found = results(kernels, inputs, tmp_path)
    worst = {}
    for (op, (bound, _)), got, (x, *_) in zip(ULPS.items(), found, inputs, strict=True):
        error = ulp_error(got["r0"], apply(PRIMS[op], F64, (x.double(),)))
        worst[op] = (round(error.max().item(), 2), bound, x[error.argmax()].item())
    assert {op: one for op, one in worst.items() if not one[0] <= one[1]} == {}, worst


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
