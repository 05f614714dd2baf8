"""Interpolation in primitives, at once as GPUs have it and in steps as CPUs do, beside ATen's on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import kiln
from kiln.graph.ir.graph import Graph, Output
from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.size_oracle import GuardFreeOracle
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.interpolation import (
    Resampled,
    cubic_taps,
    interpolated,
    interpolated_in_steps,
    linear_taps,
    repeats,
)
from kiln.graph.ops.interpolation_gradients import REACH, Window, collected, window_of
from kiln.graph.ops.registry import DECOMPOSITIONS
from kiln.graph.trace.constants import spec_of_real as spec_of
from kiln.symbolic import ShapeEnv
from kiln.tensor.spec import TensorSpec
from tests.graph.passes.graphs import on_cpu as moved_to_cpu
from tests.trace.harness import check, trace

TAPS = {"linear": linear_taps, "bilinear": linear_taps, "trilinear": linear_taps, "bicubic": cubic_taps}
Case = tuple[str, tuple[int, ...], dict[str, Any]]
CASES: dict[str, Case] = {
    "twice": ("bilinear", (2, 3, 4, 5), {"scale_factor": 2}),
    "corners": ("bilinear", (2, 3, 4, 5), {"size": (9, 3), "align_corners": True}),
    "smaller": ("bilinear", (1, 2, 13, 17), {"size": (5, 4)}),
    "one row": ("bilinear", (2, 3, 1, 5), {"size": (3, 1), "align_corners": True}),
    "factors": ("bilinear", (2, 1, 7, 5), {"scale_factor": (1.7, 0.6)}),
    "line": ("linear", (2, 3, 5), {"size": 11}),
    "space": ("trilinear", (1, 2, 3, 4, 5), {"scale_factor": 2}),
    "space corners": ("trilinear", (1, 2, 3, 4, 5), {"size": (2, 7, 4), "align_corners": True}),
    "cubic": ("bicubic", (2, 3, 4, 5), {"size": (9, 8)}),
    "cubic corners": ("bicubic", (2, 3, 6, 5), {"size": (5, 13), "align_corners": True}),
    "cubic factor": ("bicubic", (1, 1, 3, 2), {"scale_factor": 3.3}),
}


def by_primitives(
    x: Tensor, mode: str, spec: TensorSpec, align_corners: bool, env: ShapeEnv | None = None, rule: Any = interpolated,
    **to: Any,
) -> Tensor:  # fmt: skip
    """`interpolate` by the rule; `spec` has the sizes that it is written for."""
    expected = functional.interpolate(x, mode=mode, align_corners=align_corners, **to)
    factors = to.get("scale_factor")
    factors = factors if isinstance(factors, tuple) else (factors,) * (x.dim() - 2)
    emit = Emit(GuardFreeOracle(env))
    node = emit.input("x", spec)
    axes = [
        Resampled(before, after, align_corners, factor)
        for before, after, factor in zip(spec.sizes[2:], expected.shape[2:], factors, strict=True)
    ]
    made = rule(emit, node, axes, TAPS[mode])
    graph = Graph((node,), [each for each in emit.nodes if each is not node], (Output(made),))
    symbols = {size: value for size, value in zip(spec.sizes, x.shape, strict=True) if not isinstance(size, int)}
    [found] = interpret(graph, [x], symbols).outputs
    assert isinstance(found, Tensor)
    assert found.stride() == expected.stride() and found.dtype is expected.dtype
    return found


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", [interpolated, interpolated_in_steps])
def test_like_aten(name: str, dtype: torch.dtype, rule: Any) -> None:
    mode, sizes, to = CASES[name]
    x = torch.randn(sizes, dtype=dtype)
    corners = to.get("align_corners", False)
    expected = functional.interpolate(x, mode=mode, **to)
    found = by_primitives(x, mode, spec_of(x), rule=rule, **{"align_corners": corners, **to})
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rule", [interpolated, interpolated_in_steps])
def test_channels_last_and_half(rule: Any) -> None:
    x = torch.randn(2, 4, 5, 3).to(memory_format=torch.channels_last).bfloat16()
    expected = functional.interpolate(x.float(), size=(7, 8), mode="bilinear")
    found = by_primitives(x, "bilinear", spec_of(x), False, rule=rule, size=(7, 8))
    torch.testing.assert_close(found, expected.bfloat16(), rtol=0, atol=2**-6)


def test_symbolic_sizes() -> None:
    env = ShapeEnv()
    s = env.create_symbol(2, lo=1)
    spec = TensorSpec(torch.float32, (1, 2, s, 3), (6 * s, 3 * s, 3, 1))
    for rows in (2, 5):
        x = torch.randn(1, 2, rows, 3)
        expected = functional.interpolate(x, size=(4, 9), mode="bicubic")
        found = by_primitives(x, "bicubic", spec, False, env, size=(4, 9))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("mode", "sizes", "factors"),
    [
        ("linear", (2, 3, 3), (1.3,)),
        ("bilinear", (2, 3, 3, 4), (1.3, 1.5)),
        ("bilinear", (2, 3, 3, 4), (1.3, 1.2)),
        ("trilinear", (1, 2, 3, 3, 4), (1.3, 1.0, 2.2)),
        ("bicubic", (2, 3, 3, 4), (1.3, 1.5)),
    ],
)
def test_a_dimension_that_keeps_its_size(mode: str, sizes: tuple[int, ...], factors: tuple[float, ...]) -> None:
    """Eager's linear modes ignore its factor, cubics do not (after pytorch issue 198201)."""
    x = images(sizes) if mode == "bilinear" else torch.randn(sizes)
    x.flatten()[5] = float("inf")
    step = resize(mode, scale_factor=factors)
    torch.testing.assert_close(kiln.compile(step)(x), step(x), rtol=1e-5, atol=1e-5, equal_nan=True)


def resize(mode: str, **to: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: functional.interpolate(x.abs(), mode=mode, **to) * 2


@pytest.mark.parametrize(
    ("options", "rows", "in_steps"),
    [({}, 8, True), ({"numerics": "strict"}, 8, False), ({"disable": "resample-in-steps"}, 8, False), ({}, 9, False)],
)
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_compiled_for_a_cpu(mode: str, options: dict[str, Any], rows: int, in_steps: bool) -> None:
    """ATen's call stays where each bit counts, and for sizes that change."""
    step = resize(mode, size=(11, 20))
    compiled = kiln.compile(step, dynamic=rows == 9, options={"cache": False, **options})
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(2, 3, rows, 7, dtype=dtype)
        torch.testing.assert_close(compiled(x), step(x), rtol=1e-5, atol=1e-5)
    assert (compiled.report().library_calls == 0) is in_steps


NEAREST: dict[str, tuple[tuple[int, ...], dict[str, Any], bool]] = {
    "twice": ((2, 3, 4, 5), {"scale_factor": 2}, True),
    "three times": ((2, 3, 4, 5), {"scale_factor": 3.0}, True),
    "sizes": ((1, 2, 5, 3), {"size": (10, 9)}, True),
    "one axis": ((1, 2, 5, 3), {"size": (10, 3)}, True),
    "line": ((2, 3, 5), {"scale_factor": 2}, True),
    "space": ((1, 2, 3, 4, 5), {"scale_factor": (2, 1, 4)}, True),
    "no multiple": ((1, 2, 5, 3), {"size": (11, 3)}, False),
    "smaller": ((1, 2, 6, 4), {"scale_factor": 0.5}, False),
    "the same": ((1, 2, 6, 4), {"scale_factor": 1}, False),
    "a factor of its own": ((1, 2, 3, 3), {"scale_factor": 2.3, "recompute_scale_factor": False}, False),
}
"""Sizes, arguments, and whether no ATen call is left."""


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("name", NEAREST)
def test_the_nearest_element(name: str, mode: str) -> None:
    sizes, to, is_repeated = NEAREST[name]
    for x in (torch.randn(sizes), torch.randn(sizes, dtype=torch.bfloat16), images(sizes)):
        x.requires_grad_()
        check(lambda x: functional.interpolate(x, mode=mode, **to), [x], backward=True, rtol=1e-6, atol=1e-6)
    traced = trace(lambda x: functional.interpolate(x, mode=mode, **to), [x], backward=True)
    assert ("aten" in traced.ops) is not is_repeated, traced.ops


def images(sizes: tuple[int, ...]) -> Tensor:
    x = torch.randn(sizes)
    return x.to(memory_format=torch.channels_last) if x.dim() == 4 else x


def test_places_that_eager_rounds_to_a_neighbour() -> None:
    """In float32 41 * (1 / 41) is below 1."""
    counts = [count for count in range(2, 200) if repeats(7, 7 * count, None, 0.0) is None]
    assert counts
    for count in (*counts[:3], 3, 10):
        x = torch.arange(7.0).reshape(1, 1, 7)
        found = kiln.compile(lambda x, count=count: functional.interpolate(x, size=7 * count))(x)
        assert torch.equal(found, functional.interpolate(x, size=7 * count))


def test_symbolic_multiples() -> None:
    """One variant for all sizes, without an ATen call where the multiple is a power of two."""
    compiled = kiln.compile(lambda x: functional.interpolate(x, scale_factor=2.0) + 1, dynamic=True)
    for rows in (3, 5, 8):
        x = torch.randn(2, 3, rows, rows + 1)
        torch.testing.assert_close(compiled(x), functional.interpolate(x, scale_factor=2.0) + 1)
    report = compiled.report()
    assert report.compiles == 1 and report.kernels == 1, report


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    """As for a GPU, at places that many points share."""
    mode, sizes, to = CASES[name]
    x = torch.randn(sizes, dtype=torch.float64, requires_grad=True)
    y = functional.interpolate(x, mode=mode, **to)
    grad = torch.randn_like(y)
    [expected] = torch.autograd.grad(y, x, grad)
    taps, corners, factors = TAPS[mode], to.get("align_corners", False), to.get("scale_factor")
    factors = factors if isinstance(factors, tuple) else (factors,) * (x.dim() - 2)
    emit = Emit(GuardFreeOracle())
    made = node = emit.input("grad", spec_of(grad))
    for position, (before, after, factor) in enumerate(zip(sizes[2:], y.shape[2:], factors, strict=True)):
        axis = Resampled(before, after, corners, None if factor is None else float(factor))
        window = window_of(axis, REACH[taps])
        assert window is not None
        made = collected(emit, made, position, len(factors), axis, window, taps)
    graph = Graph((node,), [each for each in emit.nodes if each is not node], (Output(made),))
    [found] = interpret(graph, [grad], {}).outputs
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("factors", "copied"), [((1.1, 1.1), False), ((1.1, None), True)])
def test_on_a_gpu_a_dimension_that_keeps_its_size(factors: tuple[float | None, ...], copied: bool) -> None:
    """It is resampled by its factor, unless all keep theirs; the gradient is the adjoint of that."""
    wide = 64 if copied else 70
    images, tangents = on_a_gpu((1, 1, 8, 64)), on_a_gpu((1, 1, 8, wide))
    forward, backward = (DECOMPOSITIONS[f"aten.upsample_bilinear2d{name}.default"] for name in ("", "_backward"))
    x, grad = torch.randn(1, 1, 8, 64), torch.randn(1, 1, 8, wide)
    y = on_a_cpu(images, x, lambda e, node: forward(e, node, (8, wide), False, *factors))
    back = on_a_cpu(tangents, grad, lambda e, node: backward(e, node, (8, wide), (1, 1, 8, 64), False, *factors))
    assert bool(torch.equal(y, x)) == copied
    torch.testing.assert_close((y * grad).sum(), (x * back).sum(), rtol=1e-4, atol=1e-4)


def on_a_gpu(sizes: tuple[int, ...]) -> TensorSpec:
    return replace(spec_of(torch.empty(sizes)), device=torch.device("cuda", 0))


def on_a_cpu(spec: TensorSpec, x: Tensor, rule: Callable[[Emit, Any], Any]) -> Tensor:
    """What `rule` writes for a GPU, interpreted on the CPU."""
    emit = Emit(GuardFreeOracle())
    node = emit.input("x", spec)
    made = rule(emit, node)
    graph = Graph((node,), [each for each in emit.nodes if each is not node], (Output(made),))
    [found] = interpret(moved_to_cpu(graph), [x], {}).outputs
    assert isinstance(found, Tensor)
    return found


def test_points_of_an_element() -> None:
    """One more on each side where rounding may move a point past an element."""
    assert window_of(Resampled(100, 200, False, None), 1) == Window(-1, 4)
    assert window_of(Resampled(100, 300, False, None), 1) == Window(-2, 7)
    assert window_of(Resampled(1, 1000, False, None), 1) is None
    s = ShapeEnv().create_symbol(2, lo=1)
    assert window_of(Resampled(s, 200, False, None), 1) is None


ON_A_GPU: dict[str, Callable[[Tensor], Tensor]] = {
    name: (lambda x, mode=mode, to=to: functional.interpolate(x, mode=mode, **to).sin())  # type: ignore[misc]
    for name, (mode, _, to) in CASES.items()
}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", CASES)
def test_on_a_gpu(name: str) -> None:
    x = torch.randn(CASES[name][1], device="cuda", requires_grad=True)
    check(ON_A_GPU[name], [x], backward=True, rtol=1e-4, atol=1e-5)
