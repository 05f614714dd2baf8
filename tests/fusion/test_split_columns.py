"""Columns whose rows are no multiple of an access: the same values as of the whole, in full and wide accesses."""

from __future__ import annotations

import math

import pytest
import torch

from kiln.loops.fusion import parallel
from kiln.loops.kernel.launches.program import KernelLaunch
from kiln.loops.kernel.passes.choose_tiles import choose_tiles
from kiln.loops.kernel.tiling import VECTOR_BYTES
from kiln.loops.program.interpret import run_program
from kiln.loops.program.nodes import LoopProgram
from kiln.loops.program.passes.pipeline import run_program_passes
from kiln.loops.program.passes.split_columns import SplitColumns
from kiln.loops.program.verify import verify_program
from kiln.support.events import EventSink
from kiln.support.target import Target, cuda_gpu
from tests.fusion.check import assert_same_values, scheduled
from tests.loop_ir.parse import parse_program

GPU = Target(device="cuda", capability=(9, 0), multiprocessors=1)
H100 = cuda_gpu((9, 0), 132)


def columns(op: str, sizes: tuple[int, int, int], dtype: str = "f32", device: str = "") -> str:
    outer, length, inner = sizes
    result = "i64" if op.startswith("arg") else dtype
    return f"""
        loops columns
            x: {dtype}[{outer}, {length}, {inner}{device}] = input 0
            y: {result}[{outer}, {inner}{device}] = reduction {op} over (i2: {length}) keeping (i0: {outer}, i1: {inner}): load x[i0, i2, i1]
            return y
    """  # noqa: E501


def split(text: str) -> tuple[LoopProgram, LoopProgram]:
    program = parse_program(text)
    made, changes = SplitColumns(launch_bytes=0).run(program, GPU)
    verify_program(made)
    assert changes == 1
    return program, made


def values(kind: str, sizes: tuple[int, ...]) -> torch.Tensor:
    torch.manual_seed(0)
    if kind == "infinite":
        return torch.full(sizes, -math.inf)
    made = torch.randint(-9, 9, sizes).float()
    if kind == "NaN":
        flat = made.view(-1)
        flat[flat.numel() // 2] = flat[flat.numel() // 3] = math.nan
    return made


@pytest.mark.parametrize("kind", ["equals", "NaN", "infinite"])
@pytest.mark.parametrize("op", ["sum", "amax", "amin", "argmax", "argmin"])
def test_values(op: str, kind: str) -> None:
    """Of 4,096 rows none are left, of 1,027 some; the last of them may be the best."""
    for sizes in ((2, 4096, 33), (1, 1027, 7), (3, 4099, 35)):
        program, made = split(columns(op, sizes))
        x = values(kind, sizes)
        for last in (False, True):
            if last and kind == "equals":
                x[:, -1] = x[:, 5] = 50.0 if op.endswith("max") else -50.0
            whole, parts = run_program(program, [x])[0], run_program(made, [x])[0]
            torch.testing.assert_close(parts, whole, equal_nan=True)


def test_products_and_truth() -> None:
    for op in ("prod", "any", "all"):
        program, made = split(columns(op, (2, 2050, 9), "b8" if op != "prod" else "f32"))
        x = torch.rand(2, 2050, 9) > 0.5 if op != "prod" else 1 + torch.randn(2, 2050, 9) / 100
        torch.testing.assert_close(run_program(made, [x])[0], run_program(program, [x])[0])


def test_half_precision_is_summed_in_float32() -> None:
    program, made = split(columns("sum", (2, 4100, 33), "bf16"))
    x = torch.randn(2, 4100, 33).bfloat16()
    torch.testing.assert_close(run_program(made, [x])[0], run_program(program, [x])[0])
    assert {node.out.spec.dtype for node in made.nodes} == {torch.float32, torch.bfloat16}


def test_parts_of_parts_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fusion splits the sum over the parts again."""
    monkeypatch.setattr(parallel, "PIECE_POINTS", 1 << 12)
    program = parse_program(columns("sum", (1, 1 << 17, 7)))
    made = scheduled(SplitColumns(launch_bytes=0).run(program, H100)[0], H100)
    written = [name for step in made.steps if isinstance(step, KernelLaunch) for name in step.args[-1:]]
    assert len(written) == len(set(written)) == 3
    assert_same_values(program, {}, made)


@pytest.mark.parametrize("op", ["sum", "argmax"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(
    "sizes", [(16, 65536, 33), (64, 65536, 7), (1, 1 << 21, 35), (64, 4096, 1023), (4, 65537, 129)]
)
def test_accesses_are_wide(op: str, dtype: str, sizes: tuple[int, int, int]) -> None:
    """The first kernel, which reads the argument, reads 16 bytes at once where rows start at multiples of that."""
    program = run_program_passes(parse_program(columns(op, sizes, dtype, " @cuda:0")), H100, EventSink())
    first, *_ = [step for step in scheduled(program, H100).steps if isinstance(step, KernelLaunch)]
    (param, *_) = first.kernel.params
    rows = [stride for stride in param.spec.strides if stride != 1]
    width = 2 if dtype == "bf16" else 4
    aligned = sizes[1] * sizes[2] * width % VECTOR_BYTES == 0 or sizes[0] == 1
    assert not aligned or all(int(stride) * width % VECTOR_BYTES == 0 for stride in rows)
    tiling = choose_tiles(first.kernel, H100)
    (columns_dim,) = (dim for dim in tiling.dims if dim.unit)
    assert int(columns_dim.size) % columns_dim.block == 0 or int(columns_dim.size) > 8 * columns_dim.block


@pytest.mark.parametrize("sizes", [(64, 4096, 1024), (8, 65536, 16), (1000, 64, 32), (2, 512, 33)])
def test_rows_that_fit_stay_whole(sizes: tuple[int, int, int]) -> None:
    assert SplitColumns().run(parse_program(columns("sum", sizes)), H100)[1] == 0


def test_a_sum_that_its_column_is_divided_by_stays_whole() -> None:
    """One kernel goes through the columns twice; parts would be one more."""
    program = parse_program("""
        loops shares
            x: f32[16, 65536, 33] = input 0
            s: f32[16, 33] = reduction sum over (i2: 65536) keeping (i0: 16, i1: 33): load x[i0, i2, i1]
            y: f32[16, 65536, 33] = pointwise (i0: 16, i1: 65536, i2: 33): div(load x[i0, i1, i2], load s[i0, i2])
            return y
    """)
    assert SplitColumns().run(program, H100)[1] == 0
