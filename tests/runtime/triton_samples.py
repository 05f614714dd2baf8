"""Hand-written plans with Triton kernels, for the null device, Triton's compiler and real devices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from kiln.plan.plan import Kernel, KernelParam, Plan, PlanInput, PlanOutput, Ref, SymbolBinding
from kiln.plan.steps import AllocateStep, AtenStep, FreeStep, LaunchStep, RandomSeedStep
from kiln.symbolic import Int, symbol
from kiln.tensor.spec import TensorSpec
from tests.runtime.samples import spec

CUDA = torch.device("cuda", 0)
BLOCK = 1024
MAJOR, MINOR = torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)
CAPABILITY = 10 * MAJOR + MINOR
HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
s0 = symbol("s0")


def triton_kernel(symbol: str, body: str, params: str, signature: tuple[str, ...], **more: Any) -> Kernel:
    """`params`: one of r, w, b per tensor (its dtype is that of the signature)."""
    access = {"r": "read", "w": "write", "b": "both"}
    dtypes = {"*fp32": torch.float32, "*bf16": torch.bfloat16, "*i64": torch.int64}
    rows = tuple(
        KernelParam(dtypes[kind], access[param])  # type: ignore[arg-type]
        for param, kind in zip(params, signature, strict=False)
    )
    floats = sum(not kind.startswith(("*", "i")) for kind in signature)
    status = more.pop("status", False)
    ints = len(signature) - len(rows) - floats - int(status)
    meta = {
        "capability": CAPABILITY,
        "constants": (("BLOCK", BLOCK),),
        "divisible": (),
        "num_stages": 1,
        "num_warps": 4,
        **more,
    }
    meta.update(signature=signature, status=status)
    return Kernel(symbol, "triton", HEAD + body, rows, ints, floats, meta=tuple(sorted(meta.items())))


SCALE = triton_kernel(
    "t_scale",
    """def t_scale(x, out, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < n
    tl.store(out + at, tl.load(x + at, keep) * factor, keep)
""",
    "rw",
    ("*fp32", "*fp32", "i32", "fp32"),
    divisible=(1,),
)
GATHER = triton_kernel(
    "t_gather",
    """def t_gather(table, index, out, rows, n, status, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < n
    row = tl.load(index + at, keep, other=0)
    bad = (row < 0) | (row >= rows)
    if tl.max(bad.to(tl.int32), 0) != 0:
        tl.store(status, 1)
    tl.store(out + at, tl.load(table + row, keep & ~bad, other=0.0), keep)
""",
    "rrw",
    ("*fp32", "*i64", "*fp32", "i64", "i32", "*i64"),
    status=True,
)
COPY_PAIR = triton_kernel(
    "t_copy_pair",
    """def t_copy_pair(pair, out, BLOCK: tl.constexpr):
    at = tl.arange(0, 2)
    tl.store(out + at, tl.load(pair + at))
""",
    "rw",
    ("*i64", "*i64"),
)


def on_cuda(one: TensorSpec, device: torch.device = CUDA) -> TensorSpec:
    return replace(one, device=device)


def blocks(elements: Int) -> Int:
    return (elements + (BLOCK - 1)) // BLOCK


def scaled_product(device: torch.device = CUDA, factor: float = 0.5) -> Plan:
    """(x * 0.5) @ w, then * 0.5 again, for s0 rows of 64."""
    rows, weight, out = on_cuda(spec(s0, 64), device), on_cuda(spec(64, 32), device), on_cuda(spec(s0, 32), device)
    scale = SCALE.symbol
    return Plan(
        name="scaled_product",
        inputs=(PlanInput("x", rows), PlanInput("w", weight)),
        symbols=(SymbolBinding("s0", "size", 0, 0),),
        steps=(
            AllocateStep(2, rows),
            LaunchStep(
                scale, (0, 2), (s0 * 64,), (factor,), blocks(s0 * 64), grid=(blocks(s0 * 64),), origin="model.py:3"
            ),
            AtenStep("aten.mm.default", (Ref(2), Ref(1)), (), (3,), (out,)),
            FreeStep((2,)),
            AllocateStep(4, out),
            LaunchStep(
                scale, (3, 4), (s0 * 32,), (factor,), blocks(s0 * 32), grid=(blocks(s0 * 32),), origin="model.py:4"
            ),
            FreeStep((3,)),
        ),
        outputs=(PlanOutput(slot=4),),
        kernels=(SCALE,),
        num_slots=5,
    )


def gather(device: torch.device = CUDA) -> Plan:
    """table[index] for 5 rows and 3 indices."""
    return Plan(
        name="gather",
        inputs=(
            PlanInput("table", on_cuda(spec(5), device)),
            PlanInput("index", on_cuda(spec(3, dtype=torch.int64), device)),
        ),
        symbols=(),
        steps=(
            AllocateStep(2, on_cuda(spec(3), device)),
            LaunchStep(GATHER.symbol, (0, 1, 2), (5, 3), (), 1, grid=(1,), origin="user.py:7"),
        ),
        outputs=(PlanOutput(slot=2),),
        kernels=(GATHER,),
        num_slots=3,
    )


def seed_pair(device: torch.device = CUDA) -> Plan:
    """The (seed, offset) of a random stream, read by a kernel."""
    return Plan(
        name="seed_pair",
        inputs=(),
        symbols=(),
        steps=(
            RandomSeedStep(0, device, 10),
            AllocateStep(1, on_cuda(spec(2, dtype=torch.int64), device)),
            LaunchStep(COPY_PAIR.symbol, (0, 1), (), (), 1, grid=(1,)),
            FreeStep((0,)),
        ),
        outputs=(PlanOutput(slot=1),),
        kernels=(COPY_PAIR,),
        num_slots=2,
    )
