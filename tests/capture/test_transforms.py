"""What a function transform leaves behind: no open level after a break, an error or the end of a capture."""

from __future__ import annotations

import pytest
import torch
from torch._C._functorch import get_dynamic_layer_stack_depth
from torch.func import grad, vjp, vmap

import kiln


@pytest.mark.filterwarnings("ignore")
def test_a_break_within_a_transform_is_a_break_in_front_of_it():
    def f(x):
        y = x * 2
        return vmap(lambda row: row * 2 if row.sum() > 0 else row)(y) + 1

    compiled = kiln.compile(f, backend="eager", options={"cache": False})
    with pytest.raises(RuntimeError, match="data-dependent control flow"):
        compiled(torch.randn(3, 2))
    assert get_dynamic_layer_stack_depth() == 0
    assert {stop.code for stop in compiled.report().breaks} == {"KILN1002"}


@pytest.mark.parametrize("backend", ["eager", "kiln"])
def test_an_error_closes_levels(backend):
    def f(x, i):
        return vmap(lambda row: row.gather(0, i))(x)

    compiled = kiln.compile(f, options={"cache": False}, **({"backend": "eager"} if backend == "eager" else {}))
    x = torch.randn(3, 2)
    assert torch.equal(compiled(x, torch.tensor([0, 1])), f(x, torch.tensor([0, 1])))
    with pytest.raises((RuntimeError, IndexError)):
        compiled(x, torch.tensor([0, 7]))
    assert get_dynamic_layer_stack_depth() == 0


def test_a_pullback_that_leaves_the_frame_runs_eager():
    def f(x):
        out, pull = vjp(torch.sin, x)
        return out, pull

    x = torch.randn(3)
    out, pull = kiln.compile(f, backend="eager", options={"cache": False})(x)
    torch.testing.assert_close(pull(torch.ones(3))[0], x.cos())
    torch.testing.assert_close(out, x.sin())


def test_gradients_through_a_transform():
    def f(x, w):
        return grad(lambda v: (v * w).sin().sum())(x).pow(2).sum()

    x, w = torch.randn(3), torch.randn(3, requires_grad=True)
    f(x, w).backward()
    expected, w.grad = w.grad, None
    kiln.compile(f, options={"cache": False})(x, w).backward()
    torch.testing.assert_close(w.grad, expected)
