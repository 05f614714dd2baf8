"""Hand-written plans and kernels for the tests of the runtime."""

from __future__ import annotations

from typing import Any

import torch

from kiln.plan.plan import Kernel, KernelParam, Plan, PlanInput, PlanOutput, Ref, SymbolBinding
from kiln.plan.steps import AllocateStep, AtenStep, FreeStep, LaunchStep
from kiln.symbolic import Int, symbol
from kiln.tensor.spec import TensorSpec

HEAD = """
#ifndef KILN_TEST_PRELUDE
#define KILN_TEST_PRELUDE
#include <cstdint>
#define KERNEL(symbol) extern "C" __attribute__((visibility("default"))) void symbol(void* const* t, \\
    const int64_t* n, const double* f, int64_t begin, int64_t end, void* scratch, int64_t* status)
#endif
"""
F32 = torch.float32


def spec(*sizes: Int, strides: tuple[Int, ...] | None = None, dtype: torch.dtype = F32, offset: Int = 0) -> TensorSpec:
    if strides is None:
        step: Int = 1
        made: list[Int] = []
        for size in reversed(sizes):
            made.append(step)
            step = step * (1 if size == 0 else size)
        strides = tuple(reversed(made))
    return TensorSpec(dtype, sizes, strides, offset)


def kernel(symbol: str, body: str, params: str, ints: int = 0, floats: int = 0, **more: Any) -> Kernel:
    """`params`: one of r, w, b per tensor, all float32 (upper case: int64)."""
    access = {"r": "read", "w": "write", "b": "both"}
    rows = tuple(KernelParam(F32 if param.islower() else torch.int64, access[param.lower()]) for param in params)  # type: ignore[arg-type]
    return Kernel(symbol, "cpp", HEAD + f"KERNEL({symbol}) {{ {body} }}\n", rows, ints, floats, **more)


ADD = kernel(
    "k_add",
    "auto a = (const float*)t[0]; auto b = (const float*)t[1]; auto o = (float*)t[2];"
    "for (int64_t i = begin; i < end; i++) o[i] = a[i] + b[i];",
    "rrw",
)
SCALE = kernel(
    "k_scale",
    "auto a = (const float*)t[0]; auto o = (float*)t[1];"
    "for (int64_t i = begin; i < end; i++) o[i] = a[i] * (float)f[0] + (float)n[0];",
    "rw",
    ints=1,
    floats=1,
)
ROW_SUM = kernel(
    "k_row_sum",
    "auto a = (const float*)t[0]; auto o = (float*)t[1]; auto s = (float*)scratch;"
    "for (int64_t i = begin; i < end; i++) { s[0] = 0; for (int64_t j = 0; j < n[0]; j++) s[0] += a[i * n[0] + j];"
    "  o[i] = s[0]; }",
    "rw",
    ints=1,
    scratch_bytes=64,
)
GATHER = kernel(
    "k_gather",
    "auto a = (const float*)t[0]; auto p = (const int64_t*)t[1]; auto o = (float*)t[2];"
    "for (int64_t i = begin; i < end; i++) {"
    "  if (p[i] < 0 || p[i] >= n[0]) { status[0] = 1; return; } o[i] = a[p[i]]; }",
    "rRw",
    ints=1,
)
KERNELS = (ADD, SCALE, ROW_SUM, GATHER)

s0 = symbol("s0")


def add_norm() -> Plan:
    """mm(x + y, w), with a symbolic row count."""
    rows = spec(s0, 8)
    return Plan(
        name="add_norm",
        inputs=(PlanInput("x", rows), PlanInput("y", rows), PlanInput("self.weight", spec(8, 4))),
        symbols=(SymbolBinding("s0", "size", 0, 0),),
        steps=(
            AllocateStep(3, rows),
            LaunchStep("k_add", (0, 1, 3), (), (), s0 * 8, origin="model.py:3"),
            AtenStep("aten.mm.default", (Ref(3), Ref(2)), (), (4,), (spec(s0, 4),)),
            FreeStep((3,)),
        ),
        outputs=(PlanOutput(slot=4),),
        kernels=(ADD,),
        num_slots=5,
    )


def gather(rows: int = 5) -> Plan:
    return Plan(
        name="gather",
        inputs=(PlanInput("table", spec(rows)), PlanInput("index", spec(3, dtype=torch.int64))),
        symbols=(),
        steps=(AllocateStep(2, spec(3)), LaunchStep("k_gather", (0, 1, 2), (rows,), (), 3, origin="user.py:7")),
        outputs=(PlanOutput(slot=2),),
        kernels=(GATHER,),
        num_slots=3,
    )
