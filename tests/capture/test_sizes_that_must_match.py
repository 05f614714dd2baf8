"""Operators that raise where sizes do not match take sizes that data decide to match, and check it when they run."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import kiln

W = torch.arange(12.0).reshape(4, 3)
# fmt: off
PROGRAMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mm":            lambda x, m: x[:, m] @ W,
    "linear":        lambda x, m: F.linear(x[:, m], W.t(), W[0]),
    "mv":            lambda x, m: x[:, m] @ W[:, 0],
    "addmm":         lambda x, m: torch.addmm(W[0], x[:, m], W),
    "bmm":           lambda x, m: x[:, m].reshape(2, 3, -1) @ W.expand(2, 4, 3),
    "cat":           lambda x, m: torch.cat((x[:, m], W.t())),
    "stack":         lambda x, m: torch.stack((x[:, m][:3], W.t())),
    "layer_norm":    lambda x, m: F.layer_norm(x[:, m], (4,)),
    "weights":       lambda x, m: F.layer_norm(x[:, m], (4,), W[:, 0], W[:, 1]),
    "glu":           lambda x, m: F.glu(x[:, m]) + 1,
    "cross_entropy": lambda x, m: F.cross_entropy(x[:4, :3], m.nonzero()[:, 0] % 3),
    "index_add":     lambda x, m: W.index_add(0, m.nonzero()[:, 0] % 4, W * 2),
    "mask":          lambda x, m: W[(x[0, m] > 1)],
    "add":           lambda x, m: x[:, m] + W[:, 0],
    # torch's own code asks these
    "einsum":        lambda x, m: torch.einsum("ij,jk->ik", x[:, m], W),
    "tensordot":     lambda x, m: torch.tensordot(x[:, m], W, 1),
    "bilinear":      lambda x, m: F.bilinear(x[:, m], x[:, :6], W[None, :, [0, 1, 2, 0, 1, 2]]),
    "cosine":        lambda x, m: F.cosine_similarity(x[:, m], x[:, :4]),
    "cdist":         lambda x, m: torch.cdist(x[:, m], W.t()),
    "batch_norm":    lambda x, m: F.batch_norm(x[:, m], W[:, 0], W[:, 1]),
    "prelu":         lambda x, m: F.prelu(x[:, m], W[:, 0]),
    "bce":           lambda x, m: F.binary_cross_entropy(x[:, m].sigmoid(), x[:, :4].sigmoid()),
    "probabilities": lambda x, m: F.cross_entropy(x[:, m], x[:, :4].softmax(-1)),
    "copy":          lambda x, m: x[:, :4].clone().copy_(x[:, m]),
}
# fmt: on


ERRORS = (IndexError, RuntimeError, ValueError)


def outcome(program: Callable[[Tensor, Tensor], Tensor], *arguments: Tensor) -> Tensor | list[type]:
    """The result, or by which classes the error is caught."""
    try:
        return program(*arguments)
    except ERRORS as error:
        return [kind for kind in ERRORS if isinstance(error, kind)]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_and_the_errors_of_eager(name: str, dynamic: bool | None) -> None:
    program = PROGRAMS[name]
    compiled = kiln.compile(program, fullgraph=True, dynamic=dynamic, options={"cache": False})
    x = torch.randn(6, 7)
    for places in ((0, 1, 3, 6), (1, 2, 4, 5), (0, 1), (0, 2, 3, 4, 5), (2, 3, 5, 6)):
        mask = torch.zeros(7, dtype=torch.bool)
        mask[list(places)] = True
        expected, got = outcome(program, x, mask), outcome(compiled, x, mask)
        if isinstance(expected, list):
            assert got == expected, places
        else:
            torch.testing.assert_close(got, expected)


def test_what_eager_does_not_warn_of_is_not_warned_of() -> None:
    def program(x: Tensor, m: Tensor) -> Tensor:
        return F.mse_loss(x[:, m], x[:, :4])

    x, mask = torch.randn(6, 7), torch.arange(7) % 2 == 0
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        torch.testing.assert_close(kiln.compile(program, fullgraph=True)(x, mask), program(x, mask))
        assert not warned
