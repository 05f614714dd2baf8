"""Adaptive averages in primitives, as GPUs have them, beside ATen's on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from kiln.graph.ir.graph import Graph, Output
from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.node import Node
from kiln.graph.ir.size_oracle import GuardFreeOracle
from kiln.graph.ops.adaptive_pools import Windows, average, average_gradient, known_windows
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.registry import DECOMPOSITIONS
from kiln.graph.trace.constants import spec_of_real as spec_of
from kiln.symbolic import ShapeEnv
from kiln.tensor.spec import TensorSpec

CASES = [
    ((2, 3, 6, 8), (3, 2)), ((2, 3, 7, 5), (3, 2)), ((3, 4, 9), (4, 9)), ((1, 2, 3, 4), (5, 7)), ((2, 1, 8, 7), (1, 1)),
    ((1, 2, 4, 6, 5), (2, 3, 2)), ((1, 2, 5, 3, 4), (2, 4, 3)),
]  # fmt: skip


def run(emit: Emit, given: Node, made: Node, x: Tensor) -> Tensor:
    graph = Graph((given,), [each for each in emit.nodes if each is not given], (Output(made),))
    [found] = interpret(graph, [x]).outputs
    assert isinstance(found, Tensor)
    return found


def windows_of(sizes: tuple[int, ...], counts: tuple[int, ...]) -> list[Windows]:
    return [Windows(size, count) for size, count in zip(sizes[-len(counts) :], counts, strict=True)]


@pytest.mark.parametrize(("sizes", "counts"), CASES)
def test_values_and_gradients_like_aten(sizes: tuple[int, ...], counts: tuple[int, ...]) -> None:
    x = torch.randn(sizes, dtype=torch.float64, requires_grad=True)
    pool = torch.nn.functional.adaptive_avg_pool2d if len(counts) == 2 else torch.nn.functional.adaptive_avg_pool3d
    expected = pool(x, counts)
    windows, emit = windows_of(sizes, counts), Emit(GuardFreeOracle())
    node = emit.input("x", spec_of(x.detach()))
    torch.testing.assert_close(run(emit, node, average(emit, node, windows), x.detach()), expected.detach())
    grad = torch.randn_like(expected)
    [wanted] = torch.autograd.grad(expected, x, grad)
    emit = Emit(GuardFreeOracle())
    node = emit.input("grad", spec_of(grad))
    torch.testing.assert_close(run(emit, node, average_gradient(emit, node, windows), grad), wanted)


def test_half_precision_is_added_up_in_float32() -> None:
    x = torch.rand(1, 1, 64, 64, dtype=torch.bfloat16)
    emit = Emit(GuardFreeOracle())
    node = emit.input("x", spec_of(x))
    found = run(emit, node, average(emit, node, windows_of((64, 64), (3, 3))), x)
    exact = torch.nn.functional.adaptive_avg_pool2d(x.double(), 3)
    torch.testing.assert_close(found, exact.bfloat16(), rtol=2**-8, atol=0)


def test_what_is_left_to_aten() -> None:
    """The CPU, sizes that change, ranks without images, nothing to average."""
    gpu, size = torch.device("cuda", 0), ShapeEnv().create_symbol(4, lo=2)

    def is_known(
        *sizes: object, device: torch.device = gpu, dtype: torch.dtype = torch.float32, counts: Sequence[int] = (2, 2)
    ) -> bool:
        strides = torch.empty([each if isinstance(each, int) else 4 for each in sizes]).stride()
        return known_windows(TensorSpec(dtype, sizes, strides, 0, device), counts) is not None  # type: ignore[arg-type]

    assert is_known(2, 3, 4, 5) and is_known(3, 4, 5)
    assert not is_known(2, 3, 4, 5, device=torch.device("cpu"))
    assert not is_known(2, 3, size, 5)
    assert not is_known(4, 5) and not is_known(2, 3, 0, 5)
    assert not is_known(2, 3, 4, 5, dtype=torch.int32)
    assert not is_known(2, 3, 4, 5, counts=(0, 2))


def test_windows() -> None:
    """No element is read that is in no window: a longer one would be masked, with equal values."""
    assert Windows(7, 3).lengths() == [3, 3, 3] and Windows(7, 3).are_equal
    assert Windows(8, 3).lengths() == [3, 4, 3] and Windows(8, 3).longest == 4 and not Windows(8, 3).are_equal


def test_images_and_volumes_have_rules() -> None:
    for name in ("_adaptive_avg_pool2d", "_adaptive_avg_pool3d"):
        assert {f"aten.{name}.default", f"aten.{name}_backward.default"} <= set(DECOMPOSITIONS)
