"""Ops with a `dim` argument on tensors of rank 0, which eager treats as one dimension of size 1."""

import pytest
import torch

from tests.trace.harness import check


def g():
    return torch.randn(()).requires_grad_()


def at(*sizes):
    return torch.zeros(sizes, dtype=torch.int64)


CASES = {
    "gather": (lambda x, i: x.gather(0, i), [g(), at()]),
    "gather one": (lambda x, i: x.gather(0, i), [g(), at(1)]),
    "index_select": (lambda x, i: x.index_select(0, i), [g(), at(1)]),
    "scatter": (lambda x, i, y: x.scatter(0, i, y), [g(), at(), g()]),
    "scatter value": (lambda x, i: x.scatter(-1, i, 2.0), [g(), at(1)]),
    "scatter_add": (lambda x, i, y: x.scatter_add(0, i, y), [g(), at(), g()]),
    "scatter_reduce": (lambda x, i, y: x.scatter_reduce(0, i, y, "amax"), [torch.randn(()), at(), torch.randn(())]),
    "index_add": (lambda x, i, y: x.index_add(0, i, y), [g(), at(1), g()]),
    "index_copy": (lambda x, i, y: x.index_copy(0, i, y), [g(), at(1), g()]),
    "index_fill": (lambda x, i: x.index_fill(0, i, 3.0), [g(), at(2)]),
    "max": (lambda x: x.max(0), [g()]),
    "median": (lambda x: x.median(0), [g()]),
    "topk": (lambda x: x.topk(1), [g()]),
    "cummax": (lambda x: x.cummax(0), [g()]),
    "log_softmax": (lambda x: x.log_softmax(0), [torch.randn((), dtype=torch.bfloat16)]),
}


@pytest.mark.parametrize("name", CASES)
def test_rank_zero(name):
    function, args = CASES[name]
    check(function, args, backward=any(arg.requires_grad for arg in args))
