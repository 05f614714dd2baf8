"""Every primitive in Triton: it has a form, compiles, and computes what eager does."""

from __future__ import annotations

import pytest
import torch

from kiln.build.triton_compile import compile_source
from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Kind, Prim
from kiln.loops.body.reference import apply
from kiln.loops.codegen.cpp.dialect import CPP
from kiln.loops.codegen.dialect import Dialect, UnsupportedInKernel
from kiln.loops.codegen.print_kernel import print_kernel
from kiln.loops.codegen.triton.dialect import TRITON
from kiln.loops.codegen.triton.prelude import sections
from kiln.loops.kernel.kernel import KernelIR
from tests.codegen.test_cpp_math import FLOAT_OPS, INT_OPS, INTS, NAMES, close, special_pairs
from tests.codegen_triton.check import GPU, Runner
from tests.loop_ir.parse import parse_kernel

F32, F64 = torch.float32, torch.float64
BOOL_OPS = [(name, 2) for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "eq", "ne", "lt", "le", "gt", "ge",
            "maximum", "minimum", "mul", "add")] + [("logical_not", 1), ("bitwise_not", 1)]  # fmt: skip
SHIFTS = ("shift_left", "shift_right")


def kernel_of(ops: list[tuple[str, int]], dtype: torch.dtype, size: int) -> KernelIR:
    """One kernel with a result per op."""
    name = NAMES[dtype]
    outs = [f"r{place}: {'b8' if PRIMS[op].result == 'bool' else name}[{size}]" for place, (op, _) in enumerate(ops)]
    loads = ["load x[i0]", "load y[i0]", "load z[i0]"]
    lines = [f"r{place}[i0] = {op}({', '.join(loads[:count])})" for place, (op, count) in enumerate(ops)]
    params = ", ".join(f"{letter}: {name}[{size}]" for letter in "xyz")
    return parse_kernel("\n".join([f"kernel k({params} -> {', '.join(outs)}) units (i0: {size})", "phase ():", *lines]))


def results(runner: Runner, kernel: KernelIR, inputs: list[torch.Tensor]) -> tuple[list[torch.Tensor], int]:
    given = dict(zip("xyz", inputs, strict=True))
    tensors = [given.get(param.name, torch.zeros(inputs[0].shape, dtype=param.spec.dtype)) for param in kernel.params]
    status = runner.run(kernel, tensors, {})
    outs = {param.name: tensor for param, tensor in zip(kernel.params, tensors, strict=True)}
    return [outs[f"r{place}"] for place in range(len(outs) - 3)], status


def test_the_dialect_covers_what_the_other_covers() -> None:
    assert [op.name for op in PRIMS if op.kind is Kind.POINTWISE and not TRITON.covers(op)] == []
    assert TRITON.dtypes.keys() == CPP.dtypes.keys()
    for dtype in CPP.dtypes:
        ops = [op for op in PRIMS if op.kind is Kind.POINTWISE]
        assert [op.name for op in ops if _has(CPP, op, dtype) and not _has(TRITON, op, dtype)] == [], dtype


def _has(dialect: Dialect, op: Prim, dtype: torch.dtype) -> bool:
    try:
        dialect.expr(op, dtype)
    except UnsupportedInKernel:
        return False
    return True


def test_the_prelude_is_whole() -> None:
    for section in sections().by_name.values():
        assert f"def {section.name}(" in section.text
        assert all(need in sections().by_name for need in section.needs)


@pytest.mark.parametrize("dtype", [F32, F64], ids=["f32", "f64"])
def test_floating_prims_on_special_values(dtype: torch.dtype, runner: Runner) -> None:
    x, y = special_pairs(dtype)
    ops = [op for op in FLOAT_OPS if op[0] not in ("fma",)]
    found, _ = results(runner, kernel_of(ops, dtype, x.numel()), [x, y, y])
    for (op, count), got in zip(ops, found, strict=True):
        close(op, got, apply(PRIMS[op], dtype, (x, y)[:count]), dtype, x, y)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integer_prims(dtype: torch.dtype, runner: Runner) -> None:
    info = torch.iinfo(dtype)
    x = torch.randint(max(info.min, -100), min(info.max, 100), (300,), dtype=dtype)
    y = torch.randint(max(info.min, -9), 9, (300,), dtype=dtype)
    y[y == 0] = 3
    x[:4], y[:4] = info.min, torch.tensor([1, 2, info.max, 5], dtype=dtype)
    found, status = results(runner, kernel_of(INT_OPS, dtype, 300), [x, y, y])
    assert status == 0
    for (op, count), got in zip(INT_OPS, found, strict=True):
        if op not in SHIFTS or not bool((y < 0).any()):
            close(op, got, apply(PRIMS[op], dtype, (x, y)[:count]), dtype, x, y)


def test_bools(runner: Runner) -> None:
    x, y = torch.rand(90) < 0.5, torch.rand(90) < 0.5
    found, _ = results(runner, kernel_of(BOOL_OPS, torch.bool, 90), [x, y, y])
    for (op, count), got in zip(BOOL_OPS, found, strict=True):
        assert torch.equal(got, apply(PRIMS[op], torch.bool, (x, y)[:count])), op


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32], ids=str)
def test_shifts_by_the_width_and_more(dtype: torch.dtype, runner: Runner) -> None:
    """Unsigned numbers become 0."""
    info = torch.iinfo(dtype)
    x = torch.tensor([info.max, info.min, 1, 100], dtype=dtype).repeat_interleave(4)
    y = torch.tensor([info.bits - 1, info.bits, info.bits + 1, info.max], dtype=dtype).repeat(4)
    found, _ = results(runner, kernel_of([(op, 2) for op in SHIFTS], dtype, 16), [x, y, y])
    for op, got in zip(SHIFTS, found, strict=True):
        assert torch.equal(got, apply(PRIMS[op], dtype, (x, y))), op


@pytest.mark.parametrize("op", ["floor_div", "trunc_div", "remainder", "fmod"])
def test_division_by_zero_sets_the_status(op: str, runner: Runner) -> None:
    x, y = torch.arange(20), torch.ones(20, dtype=torch.int64)
    y[17] = 0
    assert results(runner, kernel_of([(op, 2)], torch.int64, 20), [x, y, y])[1] == 2


def test_conversions(runner: Runner) -> None:
    """Every pair of dtypes, on values that both can hold."""
    dtypes = [*INTS, torch.bool, F32, F64, torch.bfloat16, torch.float16]
    for source in dtypes:
        outs = ", ".join(f"r{place}: {NAMES[dtype]}[50]" for place, dtype in enumerate(dtypes))
        lines = [f"r{place}[i0] = convert(load x[i0], {NAMES[dtype]})" for place, dtype in enumerate(dtypes)]
        kernel = parse_kernel(
            "\n".join([f"kernel k(x: {NAMES[source]}[50] -> {outs}) units (i0: 50)", "phase ():", *lines])
        )
        x = (torch.rand(50) * 100 if source.is_floating_point else torch.randint(0, 100, (50,))).to(source)
        tensors = [x, *(torch.zeros(50, dtype=target) for target in dtypes)]
        runner.run(kernel, tensors, {})
        for target, got in zip(dtypes, tensors[1:], strict=True):
            assert torch.equal(got, x.to(target)), f"{source} to {target}"


ALL = {
    "f32": (FLOAT_OPS, F32), "f64": (FLOAT_OPS, F64), "i64": (INT_OPS, torch.int64), "i32": (INT_OPS, torch.int32),
    "u8": (INT_OPS, torch.uint8), "i8": (INT_OPS, torch.int8), "b8": (BOOL_OPS, torch.bool),
    "bf16": (FLOAT_OPS, torch.bfloat16),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("name", ALL)
def test_all_prims_compile(name: str, capability: int) -> None:
    ops, dtype = ALL[name]
    for first in range(0, len(ops), 10):
        kernel = print_kernel(kernel_of(ops[first : first + 10], dtype, 4096), GPU).kernel
        assert compile_source(kernel.source, kernel.symbol, {**dict(kernel.meta), "capability": capability})["cubin"]
