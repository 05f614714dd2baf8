"""Running a program and its schedule on the same random inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kiln.loops.fusion.schedule import schedule
from kiln.loops.kernel.kernel import KernelIR
from kiln.loops.kernel.launches.interpret import run_kernel_program
from kiln.loops.kernel.launches.program import KernelLaunch, KernelProgram
from kiln.loops.kernel.launches.verify import verify_kernel_program
from kiln.loops.program.interpret import run_program
from kiln.loops.program.nodes import Buffer, LoopProgram
from kiln.loops.program.passes.pipeline import run_program_passes
from kiln.loops.program.verify import verify_program
from kiln.support.events import EventSink
from kiln.support.target import Target
from kiln.symbolic import Symbol, evaluate
from tests.loop_ir.parse import parse_program

TARGET = Target(vector_bytes=32, threads=2)


def random_tensor(buffer: Buffer, sizes: Mapping[str, int]) -> torch.Tensor:
    """A tensor in the layout of `buffer`; integers stay small, as they may be indices."""
    spec = buffer.spec
    shape, strides = ([evaluate(item, sizes) for item in part] for part in (spec.sizes, spec.strides))
    offset = evaluate(spec.offset, sizes)
    need = offset + 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True) if size > 0)
    if spec.dtype.is_floating_point:
        storage = torch.randn(max(need, 1), dtype=torch.float64).to(spec.dtype)
    elif spec.dtype == torch.bool:
        storage = torch.rand(max(need, 1)) < 0.5
    else:
        storage = torch.randint(0, 2, (max(need, 1),)).to(spec.dtype)
    return storage.as_strided(shape, strides, offset)


def arguments(program: LoopProgram, sizes: Mapping[str, int]) -> list[Any]:
    return [sizes[given.name] if isinstance(given, Symbol) else random_tensor(given, sizes) for given in program.inputs]


def scheduled(text: str | LoopProgram, target: Target = TARGET) -> KernelProgram:
    """The schedule of a program, every kernel verified."""
    program = parse_program(text) if isinstance(text, str) else text
    verify_program(program)
    made = schedule(run_program_passes(program, target, EventSink()), target, EventSink())
    verify_kernel_program(made)
    return made


def assert_same_values(
    text: str | LoopProgram, sizes: Mapping[str, int] | None = None, made: KernelProgram | None = None
) -> KernelProgram:
    """Program and schedule give equal results and change inputs equally, on random inputs."""
    program = parse_program(text) if isinstance(text, str) else text
    made = made or scheduled(program)
    given = arguments(program, sizes or {})
    once, again = _copies(given), _copies(given)
    constants = {key: random_tensor(buffer, sizes or {}) for buffer, key in program.constants}
    expected, actual = run_program(program, once, constants), run_kernel_program(made, again, constants)
    for item, other in zip((*expected, *once), (*actual, *again), strict=True):
        _assert_close(item, other)
    return made


def _copies(values: Sequence[Any]) -> list[Any]:
    return [_copy(value) if isinstance(value, torch.Tensor) else value for value in values]


def _copy(value: torch.Tensor) -> torch.Tensor:
    """With its own storage, strides and offset kept."""
    storage = value.as_strided((value.untyped_storage().nbytes() // value.itemsize,), (1,), 0).clone()
    return storage.as_strided(value.shape, value.stride(), value.storage_offset())


def _assert_close(one: Any, other: Any) -> None:
    if not isinstance(one, torch.Tensor):
        assert one == other
        return
    assert one.stride() == other.stride()
    torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5, equal_nan=True)


def kernels(made: KernelProgram) -> list[KernelIR]:
    """The kernels of the launches, in order."""
    return [step.kernel for step in made.steps if isinstance(step, KernelLaunch)]
