"""Rules of ATen overloads that once were wrong for unusual arguments, against eager, as graphs.

Each case is a call: its graph gives eager's result, or its rule raises where eager does, or leaves the call to eager.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.sweeps.rules import Call, findings_of

aten = torch.ops.aten
INF, NAN, LEAST = math.inf, math.nan, -(2**63)
X = torch.tensor([-8.0, 1.0, 0.0, 3.0])
P = X.sigmoid()
SQUARE = torch.arange(25.0).reshape(5, 5)
WHOLE = torch.tensor([3, -8], dtype=torch.int8)
EXPANDED = torch.ones(1).expand(3, 3)
BACKWARDS = torch.ones(2, 3, 4).permute(2, 1, 0).contiguous().permute(2, 1, 0)
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool, torch.complex64)
REAL = DTYPES[:-1]


def call(op: Any, *args: Any, **kwargs: Any) -> Call:
    return Call(op if hasattr(op, "_schema") else op.default, args, kwargs)


def likelihoods() -> list[Call]:
    """Negative log likelihood with targets and weights of other sizes and dtypes."""
    flat, image = torch.randn(3, 4), torch.randn(2, 4, 3, 3)
    classes, pixels = numbers(0, 1, 2), torch.zeros(2, 3, 3).long()
    forward, forward2d = aten.nll_loss_forward, aten.nll_loss2d_forward
    made = [call(forward, flat, classes, torch.ones(sizes), 1, -100) for sizes in (3, 4, 5, 1, (1, 4))]
    made += [call(forward2d, image, pixels, torch.ones(sizes), 1, -100) for sizes in (3, 4, 5)]
    for dtype in DTYPES:
        made += [
            call(forward, flat.to(dtype), classes, None, 1, -100),
            call(forward, flat, classes.to(dtype), None, 1, 7),
        ]
        made += [call(forward, flat, classes, torch.ones(4).to(dtype), 1, -100)]
    others = (classes[:2], classes[:, None], classes[0], pixels)
    return [*made, *[call(forward, flat, target, None, 0, -100) for target in others]]


def norms() -> list[Call]:
    """Parameters of one dtype each, or of two."""
    x, y = torch.randn(2, 3).bfloat16(), torch.randn(2, 3, 4).bfloat16()
    kinds = (None, torch.ones(3), torch.ones(3).bfloat16())
    made = []
    for weight in kinds:
        for bias in kinds:
            made += [
                call(aten.native_layer_norm, x, [3], weight, bias, 1e-5),
                call(aten.native_group_norm, y, weight, bias, 2, 3, 4, 3, 1e-5),
            ]
    return made


def empty(*sizes: int) -> torch.Tensor:
    return torch.empty(sizes)


def numbers(*values: complex, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def of_each_dtype() -> list[Call]:
    made = []
    for dtype in DTYPES:
        y = X.abs().to(dtype)
        made += [
            call(aten.trace, SQUARE.to(dtype)),
            call(aten.heaviside, y, X), call(aten.heaviside, y, y), call(aten.round.decimals, y, decimals=2),
            call(aten.ldexp.Tensor, X, y), call(aten.ldexp.Tensor, y, numbers(1, 2, -3, 0)), call(aten.dist, X, y),
            call(aten.isnan, y), call(aten.isinf, y), call(aten.linalg_vector_norm, X.bfloat16(), 2, dtype=dtype),
            call(aten.linalg_vector_norm, y, 2, dtype=torch.float32), call(aten.abs_, y.clone()),
            call(aten.masked_select, X, y), call(aten.scalar_tensor, -3e38, dtype=dtype),
            call(aten.scalar_tensor, 300, dtype=dtype), call(aten.scalar_tensor, -1, dtype=dtype),
        ]  # fmt: skip
    return made


def losses() -> list[Call]:
    made = []
    with_logits, plain = aten.binary_cross_entropy_with_logits, aten.binary_cross_entropy
    pairs = (aten.soft_margin_loss, aten.huber_loss, aten.mse_loss, aten.smooth_l1_loss)
    for first in REAL:
        for second in REAL:
            x, y = X.to(first), P.to(second)
            made += [call(with_logits, x, y, None, None, 0), call(with_logits, x, y, P, P), call(plain, P.to(first), y)]
            made += [call(loss, x, y, 0) for loss in pairs]
    for reduction in (-1, 3, LEAST):
        made += [call(loss, X, P, reduction) for loss in pairs]
        made += [call(plain, P, P, None, reduction), call(with_logits, X, P, None, None, reduction)]
    wide = torch.ones(2, 4)
    return [
        *made,
        call(with_logits, X[0], P, None, None, 0), call(with_logits, X, P[0]), call(with_logits, X, P, wide),
        call(with_logits, X, P, None, wide), call(plain, P, P, wide), call(plain, P[None], P),
        call(aten.soft_margin_loss, X[0], X[:1]), call(aten.soft_margin_loss, X[:1], X),
        call(aten.soft_margin_loss, X, X[:1], 0), call(aten.huber_loss, X, P, 1, NAN),
        call(aten.smooth_l1_loss, X, P, 1, NAN),
    ]  # fmt: skip


CALLS: dict[str, list[Call]] = {
    "dtypes": of_each_dtype(),
    "losses": losses(),
    "likelihoods": likelihoods(),
    "norms": norms(),
    "numbers that wrap around": [
        call(aten.rsub.Scalar, numbers(3, -8, dtype=torch.int32), LEAST),
        call(aten.eq.Scalar, numbers(23, 0, dtype=torch.int8), 2**62),
        call(aten.sub.Scalar, numbers(6, dtype=torch.int16), LEAST),
        call(aten.lt.Scalar, numbers(23, 255, dtype=torch.uint8), -1), call(aten.rsub.Tensor, X, P, alpha=LEAST),
    ],
    "complex numbers": [
        *[call(op, x, 0, True) for op in (aten.max.dim, aten.min.dim) for x in (numbers(1j), numbers(1j)[0])],
        call(aten.binary_cross_entropy, P, P, P + 0j),
    ],
    "pivots of other sizes": [
        call(aten.linalg_ldl_solve, torch.stack([SQUARE, SQUARE]), torch.ones(2, 5).int(), torch.ones(sizes))
        for sizes in ((5, 5), (3, 5), (2, 4, 1))
    ],
    "extreme numbers": [
        *[call(aten.arange.start_step, *ends) for ends in ((LEAST, 40, 2**62), (-(2**62), 2**62, 2**61), (40, 0, -3))],
        *[call(aten.round.decimals, X, decimals=decimals) for decimals in (38, 39, -39, 100, LEAST)],
        *[call(aten.linalg_vector_norm, X[:1], order) for order in (0, 1, 100, -100, 1e30, INF)],
        call(aten.linalg_vector_norm, X[0], 100, [0], True), call(aten.linalg_vector_norm, X[0], 100, []),
        call(aten.linalg_vector_norm, X[None], 100, [0]),
        call(aten.ldexp.Tensor, numbers(1e-38), numbers(200)),
        *[call(aten.leaky_relu_backward, X, X, slope, result) for slope in (0.5, -0.5) for result in (True, False)],
        call(aten.elu, numbers(-0.0, 0.0, 1.0, -1.0, NAN), INF), call(aten.pow.Tensor_Scalar, numbers(0j, -2 + 1j), 0),
        call(aten.isnan, numbers(complex(NAN, 0), 1j)), call(aten.isinf, numbers(complex(0, INF), 1j)),
        call(aten.std_mean.correction, SQUARE, [1], correction=NAN), call(aten.roll, X, [LEAST], [0]),
        call(aten.view, empty(0, 5), [0, 5, 2**62]), call(aten.repeat, empty(0), [1, 3, LEAST]),
        *[call(aten.linalg_vector_norm, x, NAN) for x in (empty(0), X)], call(aten.clamp_, X, NAN),
    ],
    "no elements": [
        *[call(aten.var.correction, empty(0), correction=correction) for correction in (-1, 0, 1)],
        call(aten.std_mean.correction, empty(2, 0), [1], correction=-1),
        call(aten.bmm, empty(0, 3, 4), empty(0, 4, 2).double()), call(aten.mm, empty(0, 4), empty(4, 2).double()),
        call(aten.repeat, empty(0), [-1]), call(aten.repeat, empty(0), [2, -3]), call(aten.repeat, X, [0, -3]),
        call(aten.roll, empty(0, 0), [0], [3]), call(aten.bernoulli, empty(0, 1) + 0j),
        call(aten.index_add, empty(5, 0, 5), 1, torch.zeros(10).long(), torch.ones(5, 10, 5)),
        call(aten.pixel_unshuffle, empty(0, 1, 6, 6), 3), call(aten.channel_shuffle, empty(2, 8, 5, 0), 7),
        call(aten.neg_, empty(2, 0, 1).expand(2, 0, 3)), call(aten.cat, [empty(0)], 1), call(aten.cat, [X], 1),
        *[call(aten.scatter.src, SQUARE.t(), 0, index, SQUARE) for index in (empty(5, 0).long(), empty(0))],
    ],
    "sizes": [
        call(aten.addmv, X[:2].half(), torch.ones(2, 3), torch.ones(3)),
        call(aten.addmv, X[:3], torch.ones(2, 3), torch.ones(3)),
        call(aten.addmm, X[:3], torch.ones(2, 3), torch.ones(3, 2)),
        call(aten.addmm, torch.ones(2, 2, 2), torch.ones(2, 3), torch.ones(3, 2)),
        call(aten.addbmm, torch.ones(5, 10, 1), torch.ones(3, 5, 5), torch.ones(3, 5, 10)),
        call(aten.addr, torch.tensor(-8.0).half(), numbers(6, 9), torch.ones(3).bfloat16()),
        call(aten.addr, torch.ones(7), torch.ones(2), torch.ones(3)),
        call(aten.addbmm, torch.ones(7), torch.ones(3, 5, 5), torch.ones(3, 5, 10), beta=0),
        call(aten.baddbmm, torch.ones(3, 2, 2), torch.ones(2, 2, 3), torch.ones(2, 3, 2)),
        call(aten.roll, X, [1, 2], [0]), call(aten.roll, SQUARE, [1, 2]), call(aten.roll, X, []),
        call(aten.channel_shuffle, torch.ones(2), 1), call(aten.channel_shuffle, torch.ones(2, 8, 5), 0),
        call(aten.channel_shuffle, torch.ones(2, 8, 5), 2), call(aten.logsumexp, X[:1], [], True),
    ],
    "masks": [
        call(aten.index.Tensor, X, []), call(aten.index.Tensor, SQUARE, [torch.zeros(6).bool()]),
        call(aten.index_put, SQUARE, [torch.zeros(0).bool()], torch.ones(5)),
        call(aten.index_put, SQUARE, [torch.ones(5, 1).bool()], torch.tensor(2.0)),
        call(aten.index.Tensor, X, [torch.tensor(True)]), call(aten.index.Tensor, SQUARE, [SQUARE > 3]),
        call(aten.index_put, SQUARE, [(SQUARE > 3)[0]], torch.tensor(2.0)),
        call(aten.masked_select, X[0], torch.tensor(True)), call(aten.masked_select, SQUARE, SQUARE > 3),
        call(aten.index.Tensor, SQUARE, [numbers(1), None, None]), call(aten.index.Tensor, SQUARE, [SQUARE > 3, None]),
        call(aten.index_put, SQUARE, [None, numbers(1), None], torch.ones(5)),
    ],
    "layouts": [
        call(aten.bernoulli, BACKWARDS), call(aten.bernoulli.Tensor, BACKWARDS, BACKWARDS),
        call(aten.view_copy, SQUARE.t(), [25]), call(aten.view_copy, SQUARE, [-1, 1]),
    ],
    "numbers in tensors": [
        call(aten.index_fill.int_Tensor, WHOLE, 0, numbers(0), torch.tensor(value, dtype=dtype))
        for value, dtype in ((6j, torch.complex64), (300, torch.int64), (2.5, torch.float32), (True, torch.bool))
    ],
    "draws of complex numbers": [
        call(aten.bernoulli_.float, torch.ones(3, dtype=torch.complex64), 0.5),
    ],
    "factors that are not above 0": [
        call(op, torch.randn(1, 2, 4, 4), [2, 3], *rest, factor, 0.6)
        for op, rest in ((aten.upsample_bilinear2d, (False,)), (aten.upsample_bicubic2d, (False,)))
        for factor in (-0.0, 0.0, -1.0, 0.5, None)
    ],
    "overlapping elements": [
        call(aten.triu_, EXPANDED), call(aten.masked_fill_.Scalar, EXPANDED, EXPANDED > 0, 0),
        call(aten.index_fill_.int_Scalar, EXPANDED, 0, numbers(0), 2.0), call(aten.neg_, EXPANDED),
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", CALLS)
def test_changed_arguments(kind: str) -> None:
    found = [finding for changed in CALLS[kind] for finding in findings_of(changed, lambda subject, program: None)]
    assert found == []
