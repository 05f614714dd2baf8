"""Unfused functions that C++ computes element by element become ATen calls; others stay kernels."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import kiln
from kiln.loops.codegen.cpp import prelude
from kiln.loops.fusion.library_calls import SCALAR
from kiln.loops.fusion.schedule import schedule
from kiln.loops.kernel.launches.program import KernelLaunch
from kiln.support.events import EventSink
from kiln.support.target import Target
from tests.loop_ir.parse import parse_program


def steps_of(text: str, device: str = "cpu") -> list[str]:
    program = parse_program(text)
    made = schedule(program, Target(device=device), EventSink())
    return ["kernel" if isinstance(step, KernelLaunch) else step.target for step in made.steps]


def program_of(*lines: str, dtype: str = "f64", inputs: int = 1, size: int = 300) -> str:
    given = [f"    a{place}: {dtype}[{size}] = input {place}" for place in range(inputs)]
    nodes = [f"    b{place}: {dtype}[{size}] = pointwise (i0: {size}): {line}" for place, line in enumerate(lines)]
    return "\n".join(["loops graph", *given, *nodes, f"    return b{len(lines) - 1}"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (program_of("tan(load a0[i0])"), ["aten.tan.default"]),
        (program_of("exp(load a0[i0])"), ["aten.exp.default"]),
        (program_of("log1p(load a0[i0])"), ["kernel"]),
        (program_of("pow(load a0[i0], load a1[i0])", inputs=2), ["aten.pow.Tensor_Tensor"]),
        (program_of("lgamma(load a0[i0])", dtype="f32"), ["aten.lgamma.default"]),
        (program_of("exp(load a0[i0])", dtype="f32"), ["kernel"]),
        (program_of("tan(load a0[i0])", size=100), ["kernel"]),
        (program_of("sqrt(load a0[i0])"), ["aten.sqrt.default"]),
        (program_of("neg(load a0[i0])"), ["kernel"]),
        (program_of("logical_not(load a0[i0])", dtype="b8", size=100000), ["aten.logical_not.default"]),
        (program_of("logical_not(load a0[i0])", dtype="b8"), ["kernel"]),
        (program_of("add(tan(load a0[i0]), load a0[i0])"), ["kernel"]),
        (program_of("tan(load a0[i0])", "mul(load b0[i0], load b0[i0])"), ["kernel"]),
        (program_of("tan(load a0[299 - i0])"), ["kernel"]),
    ],
)
def test_which_loops_are_calls(text: str, expected: list[str]) -> None:
    assert steps_of(text) == expected


def test_calls_in_place_of_views_and_of_sizes_that_change() -> None:
    """Results of calls that are written back, viewed, or need eager's strides."""

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x.tan_()
        return x, torch.atan(y).view(-1, 2), torch.sinh(y.t())

    compiled = kiln.compile(program, dynamic=True)
    for rows in (300, 40, 500):
        x, y = torch.randn(rows, dtype=torch.float64), torch.randn(rows, 4, dtype=torch.float64)
        kept = x.clone()
        want = program(x, y)
        got = compiled(kept, y)
        assert torch.equal(kept, x)
        for value, other in zip(got, want, strict=True):
            torch.testing.assert_close(value, other)
            assert value.stride() == other.stride()


def test_the_table_names_what_the_prelude_leaves_to_libm() -> None:
    texts = [path.read_text() for path in (Path(prelude.__file__).parent / "prelude").glob("*.h")]
    f32, f64 = (
        set(re.findall(rf"^KILN_(?:{macro})\((\w+)\)", "\n".join(texts), re.MULTILINE))
        for macro in ("LIBM_F32", "LIBM_F64|OTHER_TYPES")
    )
    assert len(f64) > 12
    assert f64 <= SCALAR[torch.float64]
    # erfc is vectorised with tables only.
    assert f32 - {"erfc"} <= SCALAR[torch.float32]
