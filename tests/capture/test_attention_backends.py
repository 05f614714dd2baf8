"""`torch.nn.attention.sdpa_kernel` in a compiled function: part of the graph, and undone where it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import kiln

FLAGS = ("flash", "mem_efficient", "math")


def flags() -> list[bool]:
    return [getattr(torch._C, f"_get_{name}_sdp_enabled")() for name in FLAGS]


def with_math(q: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, q, q) + 1


def with_two(q: Tensor) -> Tensor:
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]):
        y = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    return F.scaled_dot_product_attention(y, q, q)


@sdpa_kernel(SDPBackend.MATH)
def decorated(q: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, q, q)


def chosen(q: Tensor, kind: SDPBackend) -> Tensor:
    with sdpa_kernel({kind: [kind], SDPBackend.ERROR: []}[kind]):
        return F.scaled_dot_product_attention(q, q, q) * int(kind)


@pytest.mark.parametrize("backend", [None, "eager"])
@pytest.mark.parametrize("program", [with_math, with_two, decorated])
def test_in_one_graph(program: Callable[[Tensor], Tensor], backend: str | None) -> None:
    options: Any = {} if backend is None else {"backend": backend}
    compiled = kiln.compile(program, fullgraph=True, **options)
    for need in (True, False, True):
        q = torch.randn(1, 2, 8, 16, requires_grad=need)
        torch.testing.assert_close(compiled(q), program(q))
        assert flags() == [True] * 3


def attention_ops(program: Callable[[Tensor], Tensor]) -> list[str]:
    """The operators of attention that a back end of ATen graphs is given."""
    found = []

    def note(module: torch.fx.GraphModule, inputs: object) -> object:
        found.extend([str(node.target) for node in module.graph.nodes if "attention" in str(node.target)])
        return module

    kiln.compile(program, backend=kiln.backends.aot(note))(torch.randn(1, 2, 8, 16))
    return found


def test_the_back_end_is_followed() -> None:
    plain = attention_ops(lambda q: F.scaled_dot_product_attention(q, q, q))
    assert any("flash" in name for name in plain)
    assert not any("flash" in name for name in attention_ops(with_math))


def test_members_are_constants() -> None:
    compiled = kiln.compile(chosen, fullgraph=True)
    q = torch.randn(1, 2, 8, 16)
    for kind in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
        torch.testing.assert_close(compiled(q, kind), chosen(q, kind))


def test_an_error_inside_leaves_the_flags() -> None:
    def program(q: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return q + torch.ones(7)

    with pytest.raises(RuntimeError):
        kiln.compile(program)(torch.ones(3))
    assert flags() == [True] * 3
