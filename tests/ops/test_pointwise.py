"""Pointwise decompositions against eager."""

import operator

import pytest
import torch
import torch.nn.functional as F

from tests.trace.harness import check


def r(*shape, dtype=torch.float32, grad=False):
    return torch.randn(shape, dtype=dtype).requires_grad_(grad)


UNARY = [
    torch.sqrt, torch.rsqrt, torch.reciprocal, torch.exp, torch.exp2, torch.expm1, torch.log, torch.log2, torch.log10,
    torch.log1p, torch.sin, torch.cos, torch.tan, torch.asin, torch.acos, torch.atan, torch.sinh, torch.cosh,
    torch.tanh, torch.asinh, torch.acosh, torch.atanh, torch.sigmoid, torch.erf, torch.erfc, torch.erfinv,
    torch.lgamma, torch.neg, torch.abs, torch.floor, torch.ceil, torch.trunc, torch.round, torch.sign, torch.frac,
    torch.square, torch.deg2rad, torch.rad2deg, torch.sinc, torch.logit, torch.nan_to_num, torch.positive,
]  # fmt: skip
PREDICATES = [
    torch.isnan, torch.isinf, torch.isfinite, torch.isposinf, torch.isneginf, torch.signbit, torch.logical_not,
]  # fmt: skip
ACTIVATIONS = [
    F.relu, F.relu6, F.hardtanh, F.gelu, lambda x: F.gelu(x, approximate="tanh"), F.silu, F.elu, F.selu, F.celu,
    F.leaky_relu, F.softplus, F.hardsigmoid, F.hardswish, F.mish, F.logsigmoid, F.glu, F.hardshrink, F.softshrink,
    F.tanhshrink, F.softsign, lambda x: F.threshold(x, 0.1, 20), lambda x: F.prelu(x, x[0, 0]), torch.sigmoid,
]  # fmt: skip


@pytest.mark.parametrize("op", UNARY, ids=lambda op: op.__name__)
def test_unary(op):
    check(op, [torch.rand(3, 4) * 0.8 + 0.1])
    check(op, [(torch.rand(4, 3) * 0.8 + 0.1).t().requires_grad_()], backward=True)


@pytest.mark.parametrize("op", PREDICATES, ids=lambda op: op.__name__)
def test_predicates(op):
    check(op, [torch.tensor([1.0, 0.0, -0.0, float("nan"), float("inf"), -float("inf")])])
    if op not in (torch.isposinf,):
        check(op, [torch.tensor([1, 0, -3])])


@pytest.mark.parametrize("index", range(len(ACTIVATIONS)))
def test_activations(index):
    op = ACTIVATIONS[index]
    edge = torch.tensor([[0.0, -0.0, 0.5, -0.5, 3.0, -3.0], [30.0, -30.0, 1.0, -1.0, 6.0, 0.1]])
    check(op, [edge.requires_grad_()], backward=True)
    check(op, [r(4, 6, grad=True)], backward=True)
    check(op, [r(4, 6).bfloat16().requires_grad_()], backward=True, rtol=1e-2, atol=1e-2)


BINARY = [
    torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum, torch.fmax, torch.fmin, torch.fmod,
    torch.remainder, torch.copysign, torch.hypot, torch.floor_divide, torch.pow, torch.xlogy,
    torch.logaddexp, operator.mod, operator.floordiv, torch.heaviside, torch.nextafter,
]  # fmt: skip


@pytest.mark.parametrize("op", BINARY, ids=lambda op: op.__name__)
def test_binary(op):
    x, y = torch.rand(3, 4) + 0.5, torch.rand(4) + 0.5
    check(op, [x, y])
    check(op, [x.t().contiguous().t(), torch.rand(3, 4) + 0.5])
    if op not in (
        torch.maximum,
        torch.minimum,
        torch.fmax,
        torch.fmin,
        torch.hypot,
        torch.heaviside,
        torch.nextafter,
        torch.logaddexp,
    ):
        check(op, [x, 2])
        check(op, [torch.arange(1, 5), 1.5])
    if op not in (torch.heaviside, torch.nextafter, torch.floor_divide, operator.floordiv):
        check(op, [x.requires_grad_(), y.requires_grad_()], backward=True)


COMPARISONS = [torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge]
LOGIC = [torch.logical_and, torch.logical_or, torch.logical_xor]
BITS = [torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor, operator.and_, operator.or_, operator.xor]


@pytest.mark.parametrize("op", COMPARISONS + LOGIC, ids=lambda op: op.__name__)
def test_comparisons(op):
    check(op, [torch.tensor([1, 0, 3]), torch.tensor([1.0, 2.0, 0.0])])
    if op not in LOGIC:
        check(op, [torch.tensor([1, 0, 3]), 1])


@pytest.mark.parametrize("op", BITS, ids=lambda op: op.__name__)
def test_bits(op):
    check(op, [torch.tensor([1, 0, 3]), torch.tensor([5, 2, 7])])
    check(op, [torch.tensor([True, False]), torch.tensor([True, True])])
    check(op, [torch.tensor([1, 0, 3]), 6])


CASES = {
    "add alpha": (lambda x, y: torch.add(x, y, alpha=2), [r(3), r(3)]),
    "sub alpha": (lambda x, y: torch.sub(x, y, alpha=2), [r(3), r(3)]),
    "rsub": (lambda x: 2 - x, [r(3)]),
    "rdiv": (lambda x: 2 / x, [r(3)]),
    "add bf16 alpha": (lambda x, y: torch.add(x, y, alpha=3), [r(64).bfloat16(), r(64).bfloat16()]),
    "bool add": (torch.add, [torch.tensor([True, False]), torch.tensor([True, True])]),
    "div floor": (lambda x, y: torch.div(x, y, rounding_mode="floor"), [r(9), r(9)]),
    "div trunc": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), [r(9), r(9)]),
    "div ints": (torch.div, [torch.tensor([1, 2]), torch.tensor([3, 4])]),
    "int // int": (operator.floordiv, [torch.tensor([-7, 7]), torch.tensor([2, -2])]),
    "int % int": (operator.mod, [torch.tensor([-7, 7]), torch.tensor([2, -2])]),
    "clamp": (lambda x: torch.clamp(x, -0.5, 0.5), [r(9)]),
    "clamp int by float": (lambda x: torch.clamp(x, 0.5), [torch.arange(4)]),
    "clamp tensors": (torch.clamp, [r(9), r(9), r(9)]),
    "clamp_min": (lambda x: x.clamp_min(0), [r(9)]),
    "clamp_max": (lambda x: x.clamp_max(0), [r(9)]),
    "where": (torch.where, [torch.tensor([True, False]), r(2), r(2)]),
    "where number": (lambda c, x: torch.where(c, x, 0.0), [torch.tensor([True, False]), r(2)]),
    "where promotes": (torch.where, [torch.tensor([True, False]), torch.tensor([1, 2]), r(2)]),
    "addcmul": (lambda *a: torch.addcmul(*a, value=0.5), [r(3), r(3), r(3)]),
    "addcdiv": (lambda *a: torch.addcdiv(*a, value=0.5), [r(3), r(3), torch.rand(3) + 1]),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), [r(3), r(3)]),
    "lerp far": (lambda x, y: torch.lerp(x, y, 0.8), [r(3), r(3)]),
    "lerp tensor": (torch.lerp, [r(3), r(3), torch.rand(3)]),
    "round decimals": (lambda x: torch.round(x, decimals=2), [r(9)]),
    "round negative decimals": (lambda x: torch.round(x, decimals=-1), [r(9) * 100]),
    "shift": (lambda x: (x << 2) >> 1, [torch.arange(4)]),
    "not": (torch.bitwise_not, [torch.arange(4)]),
    "not bool": (operator.invert, [torch.tensor([True, False])]),
    "int sqrt": (torch.sqrt, [torch.arange(4)]),
    "int exp": (torch.exp, [torch.arange(4)]),
    "int floor": (torch.floor, [torch.arange(4)]),
    "rank 0 f64 beside f32": (torch.add, [r(3), torch.tensor(1.0, dtype=torch.float64)]),
    "rank 0 float beside ints": (torch.add, [torch.arange(3), torch.tensor(1.5)]),
    "number beside bool": (lambda x: x + 1, [torch.tensor([True])]),
    "atan2": (torch.atan2, [r(3), r(3)]),
    "logit eps": (lambda x: torch.logit(x, 0.1), [torch.rand(9)]),
} | {f"pow {k}": (lambda x, k=k: x**k, [torch.rand(5) + 0.5]) for k in (0, 0.5, 1, 2, 3, -0.5, -1, -2, 2.5, -3)} | {
    "2 ** x": (lambda x: 2**x, [r(3)]),
    "int ** int": (lambda x: x**3, [torch.arange(4)]),
    "int ** float": (lambda x: x**0.5, [torch.arange(4)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_cases(name):
    function, args = CASES[name]
    check(function, args)
    if all(a.dtype == torch.float32 for a in args if isinstance(a, torch.Tensor)):
        check(
            function, [a.detach().requires_grad_() if isinstance(a, torch.Tensor) else a for a in args], backward=True
        )


LAYOUTS = {
    "transposed": lambda: r(5, 4).t(),
    "channels last": lambda: r(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "sliced": lambda: r(6, 8)[::2, 1::3],
    "expanded": lambda: r(1, 4).expand(3, 4),
    "permuted": lambda: r(2, 3, 4).permute(2, 0, 1),
    "size 1": lambda: r(3, 1, 4).permute(1, 2, 0),
    "rank 0": lambda: r(),
    "empty": lambda: r(0, 3),
}


@pytest.mark.parametrize("left", LAYOUTS)
def test_layouts(left):
    x = LAYOUTS[left]()
    check(lambda x: x * 2 + x.exp(), [x])
    check(lambda x, y: x * y, [x, r(*x.shape)])
    check(lambda x: F.gelu(x) > 0, [x])
    if x.dim():
        check(lambda x, y: y - x, [x, r(x.shape[-1])])


def test_wrong_sizes_raise_as_in_eager():
    with pytest.raises(Exception, match="broadcast"):
        check(torch.add, [r(3), r(4)])
