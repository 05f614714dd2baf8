"""NaN, infinities, signed zeros, denormals, and the order that functions give them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.reported.registry import Programs, leaf

PROGRAMS = Programs("special values")
add = PROGRAMS.add
NAN, INF = math.nan, math.inf
VALUES = (NAN, 1.0, -INF, -0.0, 0.0, INF, -2.5, 1e-40, 3e38, -1.0, NAN, 0.5)


def special(n: int) -> tuple[Tensor, ...]:
    return (torch.tensor((VALUES * n)[: 3 * n]).reshape(n, 3),)


def special_leaf(n: int) -> tuple[Tensor, ...]:
    return (special(n)[0].requires_grad_(),)


def normal_pair(n: int) -> tuple[Tensor, ...]:
    x, y = special_pair(n)
    return x.where(x.abs() != VALUES[7], 7.0), y.where(y.abs() > 1e-30, 0.0)


def special_pair(n: int) -> tuple[Tensor, ...]:
    x = special(n)[0]
    return x, x.flatten().roll(1).reshape(n, 3)


add("gelu of infinity", lambda x: F.gelu(x), special)
add("hardtanh of nan, backward", F.hardtanh, special_leaf, sizes=(6,))
add("fmod of denormals", torch.fmod, special_pair, sizes=(6,))
add("relu of nan", lambda x: (x.relu(), F.relu6(x), F.hardtanh(x), F.leaky_relu(x)), special, signed_zeros=False)
add("relu of nan, backward", lambda x: (x.relu(), F.leaky_relu(x)), special_leaf, signed_zeros=False)
add(
    "clamp of nan",
    lambda x: (x.clamp(-1, 1), x.clamp(min=0), x.clamp(max=0), x.clamp(2, -2)),
    special,
    signed_zeros=False,
)
add("clamp by nan", lambda x: (x.clamp(NAN, 1), x.clamp(-1, NAN), x.clamp(min=x * NAN)), special, signed_zeros=False)
add("clamp, backward at the bounds", lambda x: x.clamp(-1, 1), special_leaf, signed_zeros=False)
add(
    "maximum and fmax",
    lambda x, y: (torch.maximum(x, y), torch.fmax(x, y), torch.minimum(x, y), torch.fmin(x, y)),
    special_pair,
    signed_zeros=False,
)
add(
    "maximum of zeros",
    lambda x: (torch.maximum(x * 0, -x * 0), torch.maximum(torch.zeros(2), -torch.zeros(2))),
    signed_zeros=False,
)
add("max with nan", lambda x: (x.max(), x.max(0), x.amax(1), x.argmax(), x.argmax(1)), special, signed_zeros=False)
add("min with nan", lambda x: (x.min(), x.min(0), x.amin(1), x.argmin(), x.argmin(1)), special, signed_zeros=False)
add("aminmax with nan", lambda x: (torch.aminmax(x), torch.aminmax(x, dim=1)), special, signed_zeros=False)
add("sort with nan", lambda x: (x.sort(0), x.sort(1, descending=True), x.flatten().sort(stable=True)), special)
add("argsort with nan", lambda x: (x.argsort(1, stable=True), x.argsort(0, descending=True, stable=True)), special)
add("topk with nan", lambda x: x.flatten().topk(3).values, special)
add("cummax with nan", lambda x: (x.cummax(0), x.cummin(1)), special)
add("median with nan", lambda x: (x.median(), x.nanmedian(), x.median(0).values), special)
add(
    "quantile",
    lambda x: (x.quantile(0.3), x.quantile(torch.tensor([0.0, 1.0]), dim=1), x.nanquantile(0.5)),
)
add("nan sums", lambda x: (x.nansum(), x.nanmean(), x.nansum(0)), special)
add("sums with infinities", lambda x: (x.sum(), x.mean(1), x.prod(), x.logsumexp(1)), special)
add(
    "logsumexp of -inf",
    lambda x: (torch.full((3, 2), -INF).logsumexp(1), (x * 0 - INF).logsumexp(0), (x * 0 + INF).logsumexp(0)),
)
add("logsumexp of -inf, backward", lambda x: (x * 0 - INF).logsumexp(1), lambda n: (leaf(n, 3),))
add("logaddexp", lambda x, y: (torch.logaddexp(x, y), torch.logaddexp2(x, y)), special_pair)
add(
    "softmax of -inf rows",
    lambda x: ((x * 0 - INF).softmax(1), x.masked_fill(x > 0, -INF).softmax(0), (x * 0 - INF).log_softmax(1)),
)
add("softmax with inf", lambda x: (x.softmax(1), x.log_softmax(0)), special)
add("equality", lambda x, y: (x == y, x != y, x == x, x != x, torch.isclose(x, y, equal_nan=True)), special_pair)
add("order comparisons", lambda x, y: (x < y, x >= y, ~(x < y), torch.logical_not(x > y)), special_pair)
add(
    "isnan and its kin",
    lambda x: (x.isnan(), x.isinf(), x.isfinite(), x.isposinf(), x.isneginf(), x.signbit()),
    special,
)
add("sign of nan and zeros", lambda x: (x.sign(), x.sgn(), x.abs(), -x, x.neg().signbit()), special)
add("copysign", lambda x, y: (torch.copysign(x, y), torch.copysign(x, -0.0), torch.copysign(x, 0.0)), special_pair)
add("nan_to_num", lambda x: (x.nan_to_num(), x.nan_to_num(1, 2, 3), x.nan_to_num(nan=5.0)), special)
add(
    "minus zero plus zero",
    lambda x: (x * 0 + 0, x * 0 - 0, -(x * 0), 0 - x * 0, x * 0 + -0.0),
)
add("minus zero times numbers", lambda x: (x * -0.0, x * 0, 0 / x, -0.0 / x, x * 1, x / 1, x - x))
add("zero times infinity", lambda x: (x * 0, x - x, x / x, x * 1, x + 0), special)
add("powers", lambda x: (x**0, x**1, x**2, x**-1, x**0.5, x**-2.0, 1**x), special)
add("a power of two tensors", lambda x, y: (x**y, torch.float_power(x, y)), special_pair)
add("roots and logarithms", lambda x: (x.sqrt(), x.rsqrt(), x.log(), x.log2(), x.log1p(), x.log10()), special)
add("exponentials", lambda x: (x.exp(), x.exp2(), x.expm1(), x.sigmoid(), x.tanh(), F.softplus(x)), special)
add("trigonometry", lambda x: (x.sin(), x.cos(), x.tan(), x.atan(), x.asin(), x.acos()), special)
add("hyperbolic functions", lambda x: (x.sinh(), x.cosh(), x.asinh(), x.acosh(), x.atanh()), special)
add("atan2 in all quadrants", lambda x, y: (torch.atan2(x, y), torch.hypot(x, y)), special_pair)
add("gamma functions", lambda x: (x.lgamma(), x.digamma(), x.erf(), x.erfc(), x.erfinv()), special)
add("activations", lambda x: (F.silu(x), F.elu(x), F.selu(x), F.mish(x), F.hardswish(x), F.softsign(x)), special)
add(
    "tanh gelu and celu",
    lambda x: (F.gelu(x, approximate="tanh"), F.celu(x), F.logsigmoid(x), F.hardsigmoid(x)),
    special,
)
add("activations, backward", lambda x: (F.silu(x), F.elu(x), F.logsigmoid(x), F.softplus(x)), special_leaf)
add(
    "xlogy and entr", lambda x, y: (torch.xlogy(x, y), torch.special.entr(x), torch.special.xlog1py(x, y)), special_pair
)
add("sinc and i0", lambda x: (torch.sinc(x), torch.i0(x), torch.special.i1(x)), special)
add("floor, ceil, trunc, round", lambda x: (x.floor(), x.ceil(), x.trunc(), x.round(), x.frac()), special)
add("fmod and remainder", lambda x, y: (torch.fmod(x, y), torch.remainder(x, y), torch.floor_divide(x, y)), normal_pair)
add(
    "nextafter and ldexp",
    lambda x, y: (torch.nextafter(x, y), torch.ldexp(x, torch.tensor(3)), torch.frexp(x).exponent),
    special_pair,
)
add("heaviside", lambda x: torch.heaviside(x, torch.tensor(0.5)), special)
add("variance with infinities", lambda x: (x.var(), x.std(0), x.var(1, correction=0)), special)
add("variance of one element", lambda x: (x[:1].var(0), x[:1].std(0), x[:1].var(0, correction=0)))
add("norms with infinities", lambda x: (x.norm(), x.norm(p=1), x.norm(p=INF), x.norm(p=-INF), x.norm(p=0)), special)
add(
    "norms",
    lambda x: (x.norm(p=INF, dim=0), x.norm(p=0.5), x.norm(p=3, dim=1), torch.linalg.vector_norm(x, 4)),
    lambda n: (leaf(n, 3),),
)
add(
    "a norm at zero, backward",
    lambda x: ((x * 0).norm(), (x * 0).norm(dim=1), (x * 0).norm(p=1)),
    lambda n: (leaf(n, 3),),
)
add("square root at zero, backward", lambda x: ((x * 0).sqrt().sum(), (x * 0).abs().sum()), lambda n: (leaf(n, 3),))
add("where hides a nan", lambda x: torch.where(x > 0, x.sqrt(), 0.0), lambda n: (leaf(n, 3),))
add(
    "where hides a nan, twice",
    lambda x: torch.where(x > 0, torch.where(x > 0, x, 1.0).log(), 0.0),
    lambda n: (leaf(n, 3),),
)
add("masked_fill of nan", lambda x: x.masked_fill(x.isnan(), 0.0).sum(), special_leaf)
add(
    "max ties, backward",
    lambda x: ((x * 0).amax(1), (x * 0).max(), (x * 0).max(1).values),
    lambda n: (leaf(n, 3),),
    signed_zeros=False,
)
add("maximum ties, backward", lambda x: torch.maximum(x, x.detach()), lambda n: (leaf(n, 3),))
add("abs at zero, backward", lambda x: (x * 0).abs(), lambda n: (leaf(n, 3),))
add(
    "prod with zeros, backward",
    lambda x: ((x * torch.tensor([0.0, 1.0, 1.0])).prod(1), (x * 0).prod()),
    lambda n: (leaf(n, 3),),
    signed_zeros=False,
)
add("cumprod with zeros, backward", lambda x: (x * torch.tensor([1.0, 0.0, 1.0])).cumprod(1), lambda n: (leaf(n, 3),))
add("pow at zero, backward", lambda x: ((x * 0) ** 2, (x * 0) ** 1, (x * 0) ** 0), lambda n: (leaf(n, 3),))
add("pow of the exponent at zero, backward", lambda x: (x * 0 + 0) ** x, lambda n: (leaf(n, 3),))
add(
    "denormals",
    lambda x: (x * 1e-42, x * 1e-42 * 1e10, (x * 1e-42) > 0),
)
add("large numbers", lambda x: (x * 3e38 * 2, (x * 3e38).mean(), (x.abs() * 1e20) ** 2))
add("std of large offsets", lambda x: ((x + 1e4).var(), (x.double() + 1e8).std(0)))
add("any and all of nan", lambda x: (x.any(), x.all(), x.any(0), x.count_nonzero(), x.nonzero()), special)
add(
    "unique of numbers with repeats",
    lambda x: (x.sign().unique(), x.sign().unique(return_inverse=True, return_counts=True)),
)
add(
    "isin and searchsorted",
    lambda x: (
        torch.isin(x.round(), torch.tensor([1.0, 0.0])),
        torch.searchsorted(torch.arange(4.0), x),
        torch.bucketize(x, torch.arange(4.0), right=True),
    ),
)
add(
    "searchsorted of nan",
    lambda x: (
        torch.searchsorted(torch.tensor([-1.0, 0, 1]), x),
        torch.bucketize(x, torch.tensor([-1.0, 0, 1]), right=True),
    ),
    special,
)
