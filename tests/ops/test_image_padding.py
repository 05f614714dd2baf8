"""Padding by reflection and repetition in primitives, as GPUs have it, beside ATen's on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import kiln
from kiln.graph.ir.graph import Graph, Output
from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.node import Node
from kiln.graph.ir.size_oracle import GuardFreeOracle
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.image_padding import KINDS, is_covered, read_at_places, reflected, reflection_gradient, side_by_side
from kiln.graph.trace.constants import spec_of_real as spec_of
from kiln.symbolic import ShapeEnv
from kiln.tensor.spec import TensorSpec

CASES = [
    ((2, 3, 5), (2, 1)), ((2, 3, 5), (4, 4)), ((3, 5), (0, 3)), ((2, 3, 4, 5), (1, 2, 3, 0)),
    ((1, 1, 1, 1), (0, 0, 0, 0)), ((1, 2, 3, 4, 5), (2, 2, 1, 3, 0, 2)),
]  # fmt: skip
MODES = {"reflect": "reflection", "replicate": "replication"}


def run(emit: Emit, node: Node, made: Node, x: Tensor, symbols: dict[object, int] | None = None) -> Tensor:
    graph = Graph((node,), [each for each in emit.nodes if each is not node], (Output(made),))
    [found] = interpret(graph, [x], symbols or {}).outputs  # type: ignore[arg-type]
    assert isinstance(found, Tensor)
    return found


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("sizes", "padding"), CASES)
def test_values_like_aten(mode: str, sizes: tuple[int, ...], padding: tuple[int, ...], in_pieces: bool) -> None:
    places, pieces = KINDS[MODES[mode]]
    for x in (torch.randn(sizes), torch.randint(0, 9, sizes)):
        emit = Emit(GuardFreeOracle())
        node = emit.input("x", spec_of(x))
        made = side_by_side(emit, node, padding, pieces) if in_pieces else read_at_places(emit, node, padding, places)
        assert run(emit, node, made, x).equal(functional.pad(x, padding, mode=mode))


@pytest.mark.parametrize(("sizes", "padding"), CASES)
def test_gradients_like_aten(sizes: tuple[int, ...], padding: tuple[int, ...]) -> None:
    x = torch.randn(sizes, dtype=torch.float64, requires_grad=True)
    made = functional.pad(x, padding, mode="reflect")
    grad = torch.randn_like(made)
    [expected] = torch.autograd.grad(made, x, grad)
    emit = Emit(GuardFreeOracle())
    node = emit.input("grad", spec_of(grad))
    found = run(emit, node, reflection_gradient(emit, node, spec_of(x.detach()), padding), grad)
    torch.testing.assert_close(found, expected)


def test_symbolic_sizes() -> None:
    env = ShapeEnv()
    s = env.create_symbol(4, lo=3)
    emit = Emit(GuardFreeOracle(env))
    node = emit.input("x", TensorSpec(torch.float32, (2, s), (s, 1)))
    made = read_at_places(emit, node, (2, 1), reflected)
    for size in (3, 7):
        x = torch.randn(2, size)
        assert run(emit, node, made, x, {s: size}).equal(functional.pad(x, (2, 1), mode="reflect"))


def test_what_eager_refuses_is_left_to_its_operator() -> None:
    """More than the image has, nothing to reflect, a rank without images; on a CPU also several dimensions."""
    emit = Emit(GuardFreeOracle())

    def is_taken(sizes: tuple[int, ...], padding: tuple[int, ...], device: str = "cuda:0", count: int = 0) -> bool:
        spec = TensorSpec(torch.float32, sizes, torch.empty(sizes).stride(), 0, torch.device(device))
        return is_covered(emit, spec, count or len(padding) // 2, padding, is_reflection=True)

    assert is_taken((2, 3, 5), (4, 4)) and is_taken((2, 3, 5, 6), (4, 4, 1, 1))
    assert not is_taken((2, 3, 5), (5, 0))
    assert not is_taken((2, 3, 5), (-1, 0))
    assert not is_taken((2, 0, 5), (1, 0))
    assert not is_taken((1, 2, 3, 5), (1, 0))
    assert not is_taken((2, 3, 5), (1, 0, 2), count=1) and not is_taken((2, 3, 5), (1,), count=1)
    assert is_taken((2, 3, 5), (4, 4), "cpu") and is_taken((2, 3, 5, 6), (0, 0, 1, 1), "cpu")
    assert not is_taken((2, 3, 5, 6), (4, 4, 1, 1), "cpu")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_with_gradients(mode: str, dynamic: bool) -> None:
    compiled = kiln.compile(lambda x: functional.pad(x.sin(), (3, 1), mode=mode), dynamic=dynamic)
    for length in (9, 12):
        x, y = (torch.linspace(-1, 1, 6 * length).view(2, 3, length).requires_grad_() for _ in range(2))
        made, expected = compiled(x), functional.pad(y.sin(), (3, 1), mode=mode)
        torch.testing.assert_close(made, expected)
        assert made.stride() == expected.stride()
        for result in (made, expected):
            (result * torch.arange(length + 4)).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    with pytest.raises(RuntimeError):
        compiled(torch.ones(2, 3, 0))


@pytest.mark.parametrize("mode", MODES)
def test_a_dtype_without_a_kernel_is_refused_as_in_eager(mode: str) -> None:
    def program(x: Tensor) -> Tensor:
        return functional.pad(x > 0, (1, 1), mode=mode)

    for function in (program, kiln.compile(program)):
        with pytest.raises(NotImplementedError):
            function(torch.ones(2, 3, 4))
