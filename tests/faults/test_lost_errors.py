"""Errors of eager that compiled code once did not raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import kiln
from kiln.graph.ops import DECOMPOSITIONS
from kiln.graph.ops.domains import REFUSED
from kiln.runtime.guards.source import LocalSource
from tests.faults.outcome import assert_like_eager
from tests.trace.harness import new_recorder

X = torch.arange(12.0).reshape(3, 4)
WHOLE = torch.tensor([1, 2, 3])
Case = tuple[Callable[..., Any], tuple[Any, ...]]


def at(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


# fmt: off
INDICES: dict[str, Case] = {
    "gather": (lambda x, i: x.gather(0, i), (X, at(-1, 0)[None].repeat(2, 1))),
    "index_select": (lambda x, i: x.index_select(0, i), (X, at(-1, 0))),
    "embedding": (lambda w, i: F.embedding(i, w), (X, at(-1, 0))),
    "scatter": (lambda x, i: x.scatter(0, i, 1.0), (X, at(-1, 0)[None])),
    "scatter_src": (lambda x, i, s: x.scatter(0, i, s), (X, at(-1, 0)[None], X)),
    "scatter_add": (lambda x, i, s: x.scatter_add(0, i, s), (X, at(-1, 0)[None], X)),
    "scatter_reduce": (lambda x, i, s: x.scatter_reduce(0, i, s, "amax"), (X, at(-1, 0)[None], X)),
    "index_add": (lambda x, i, s: x.index_add(0, i, s), (X, at(-1, 0), X[:2])),
    "index_copy": (lambda x, i, s: x.index_copy(0, i, s), (X, at(-1, 0), X[:2])),
    "index_fill counts from the end": (lambda x, i: x.index_fill(0, i, 2.0), (X, at(-1, 0))),
    "indexing counts from the end": (lambda x, i: x[i], (X, at(-1, -3))),
    "take counts from the end": (lambda x, i: x.take(i), (X, at(-1, -12))),
    "take": (lambda x, i: x.take(i), (X, at(-13, 0))),
    "index_put": (lambda x, i: x.index_put((i,), torch.tensor(5.0)), (X, at(-1, -4))),
    "nll_loss": (F.nll_loss, (X, at(-1, 0, 1))),
    "nll_loss above": (F.nll_loss, (X, at(4, 0, 1))),
    "nll_loss ignored": (F.nll_loss, (X, at(-100, 0, 1))),
    "nll_loss short weight": (F.nll_loss, (X, at(0, 1, 2), torch.ones(2))),
    "cross_entropy": (F.cross_entropy, (X, at(-1, 0, 1))),
    "one_hot above": (lambda t: F.one_hot(t, 3), (at(3, 0, 1),)),
    "one_hot below": (lambda t: F.one_hot(t, 3), (at(-1, 0, 1),)),
    "one_hot": (lambda t: F.one_hot(t, 3), (at(2, 0, 1),)),
    "index of an expanded tensor": (lambda x, i: x.expand(4, 3)[i] * 2, (torch.ones(3), at(5))),
    "index of an inserted dimension": (lambda x, i: x[None][i] * 2, (torch.ones(3), at(0))),
    "gather of an expanded tensor": (lambda x, i: x.expand(4, 3).gather(0, i[None]) * 2, (torch.ones(3), at(5))),
    "index of equal elements": (lambda x, i: torch.full((4,), 2.0)[i] * x, (torch.ones(1), at(5))),
    "index_select of rank 0": (lambda x, i: x.index_select(0, i), (torch.tensor(1.0), at(5))),
}
SHAPES: dict[str, Case] = {
    "index_add of fewer": (lambda x, i, s: x.index_add(0, i, s), (X, at(1, 0), X[:1])),
    "index_add of more": (lambda x, i, s: x.index_add(0, i, s), (X, at(1, 0), X[:3])),
    "index_copy of fewer": (lambda x, i, s: x.index_copy(0, i, s), (X, at(1, 0), X[:1])),
    "index_put of more": (lambda x, i, s: x.index_put((i,), s), (X, at(1, 0), X[:3])),
    "glu of an odd size": (lambda x: F.glu(x, 0), (X,)),
    "2-d index": (lambda x, i: x.index_select(0, i), (X, at(0, 1)[None])),
    "2-d index of index_add": (lambda x, i, s: x.index_add(0, i, s), (X, at(1, 0)[None], X[:2])),
    "bytes as classes of an image": (F.nll_loss, (torch.ones(2, 3, 2, 2), torch.zeros(2, 2, 2, dtype=torch.uint8))),
    "gelu of complex numbers": (lambda x: F.gelu(x, approximate="tanh"), (X.cfloat(),)),
    "a power beyond float16": (lambda x: x**1e30, (X.half(),)),
    "pooling of other ranks": (lambda x: F.avg_pool2d(x[None, None, None], 2), (X,)),
    "pooling of lower ranks": (lambda x: F.avg_pool3d(x[None], 2), (X,)),
    "maxima without channels": (lambda x: F.max_pool2d(x.new_zeros(2, 0, 6, 6), 3), (X,)),
    "means without channels": (lambda x: F.avg_pool3d(x.new_zeros(0, 6, 6, 6), 3), (X,)),
    "lines without channels": (lambda x: F.max_pool1d(x.new_zeros(2, 0, 6), 3), (X,)),
    "the sum of a conjugate of real numbers": (lambda x: torch.ops.aten._conj(x).sum(), (X,)),
    "pooling with a long window": (lambda x: F.avg_pool2d(x[None, None], [2, 1, 1], [1, 1]), (X,)),
    "pooling with long steps": (lambda x: F.max_pool2d(x[None, None], 2, [1, 1, 1]), (X,)),
    "pooling with large steps": (lambda x: F.avg_pool2d(x[None, None], 2, [1, 2**62]), (X,)),
    "view of nothing with -1": (lambda x: x.view(-1, 0), (torch.empty(0, 3),)),
    "view of nothing": (lambda x: x.view(-1), (torch.empty(0, 3),)),
    "isin of a truth": (lambda x: torch.isin(x, True), (X,)),
    "isin of a complex number": (lambda x: torch.isin(x, 1 + 0j), (X,)),
    "negative split": (lambda x: x.split(-1), (X,)),
    "overlapping copy": (lambda a: a[1:].copy_(a[:-1]), (torch.arange(5.0),)),
    "overlapping assignment": (lambda a: a.__setitem__(slice(1, None), a[:-1]), (torch.arange(5.0),)),
    "overlapping add": (lambda a: a[1:].add_(a[:-1]), (torch.arange(5.0),)),
    "the same memory": (lambda a: a.add_(a), (torch.arange(5.0),)),
    "index_add to other sizes": (lambda x, i, s: x.index_add(0, i, s), (X, at(1), X[:1, :1])),
    "index_add of a number": (lambda x, i, s: x.index_add(0, i, s), (X, at(1), torch.tensor(1.0))),
    "index_copy to other sizes": (lambda x, i, s: x.index_copy(0, i, s), (X, at(1), X[:1, :1])),
    "index_copy of a number": (lambda x, i, s: x.index_copy(0, i, s), (X, at(1), torch.tensor(1.0))),
    "2-d index of index_fill": (lambda x, i: x.index_fill(0, i, 1.0), (X, at(1, 0)[None])),
    "index_fill of two values": (lambda x, i, v: x.index_fill(0, i, v), (X, at(1, 0), X[0, :2])),
    "index_select of rank 0, dimension": (lambda x, i: x.index_select(7, i), (torch.tensor(1.0), at(0))),
    "cumsum of rank 0, dimension": (lambda x: x.cumsum(3), (torch.tensor(1.0),)),
    "scatter of nothing, dimension": (lambda x, i: x.scatter(-5, i, x), (torch.empty(0), torch.empty(0).long())),
    "gather of nothing, dimension": (lambda x, i: x.gather(-5, i), (X, torch.empty(0, 4).long())),
    "odd padding": (lambda x: F.pad(x, (1, 2, 3)), (X,)),
    "long padding": (lambda x: torch.constant_pad_nd(x, (1, 1, 1, 1, 1, 1)), (X,)),
    "layer_norm over nothing": (lambda x: torch.native_layer_norm(x, (), None, None, 1e-5), (X,)),
    "weight of layer_norm": (lambda x, w: torch.native_layer_norm(x, (4,), w, None, 1e-5), (X, X)),
    "logsumexp over nothing": (lambda x: x.logsumexp(()), (X,)),
    "view_as_complex": (torch.view_as_complex, (X,)),
    "inverse of a singular matrix": (torch.linalg.inv, (torch.zeros(2, 2),)),
    "cholesky of a negative matrix": (torch.linalg.cholesky, (-torch.eye(2),)),
    "negative repeat": (lambda x: x.repeat(2, -1), (X,)),
    "pixel_shuffle of odd channels": (lambda x: F.pixel_shuffle(x, 2), (torch.ones(1, 3, 2, 2),)),
    "pixel_unshuffle of odd sizes": (lambda x: F.pixel_unshuffle(x, 2), (torch.ones(1, 3, 3, 2),)),
    "channels_last of rank 5": (
        lambda x: x.to(torch.float64, memory_format=torch.channels_last), (torch.ones(1, 3, 3, 2, 1),)),
    "pos_weight beyond the input": (
        lambda x, y, w: F.binary_cross_entropy_with_logits(x, y, pos_weight=w), (X[:, :1], X[:, :1], torch.ones(4))),
    "norm of nothing": (lambda x: torch.linalg.vector_norm(x, -2), (torch.empty(0),)),
    "weight of group_norm": (lambda x, w: F.group_norm(x, 2, w), (torch.ones(2, 4, 3), torch.ones(3))),
    "weight of batch_norm": (
        lambda x, w: F.batch_norm(x, None, None, w, training=True), (torch.ones(2, 4, 3), torch.ones(3))),
    "addr of matrices": (lambda x, y: torch.addr(x, y, y), (X, X)),
    "broadcast of a written tensor": (lambda x, y: x.gcd_(y), (at(1, 2)[:, None], at(1, 2, 3))),
    "two halves": (lambda a: a[:2].add_(a[2:]), (torch.arange(4.0),)),
    "zero_ of an expanded tensor": (lambda x: x.expand(3, 4).zero_(), (torch.ones(1, 4),)),
}
VALUES: dict[str, Case] = {
    "where of a number too large": (lambda x: torch.where(x > 1, x, 1e300), (X,)),
    "out of another dtype": (
        lambda x, i, o: torch.gather(x, 1, i, out=o), (X, at(0)[None], torch.empty(1, 1).double())),
    "one of two outs": (
        lambda x, a, b: torch.aminmax(x, dim=0, out=(a, b)), (X, torch.empty(4), torch.empty(4).double())),
    "out that eager converts": (lambda x, o: torch.add(x, 1, out=o), (X, torch.empty(3, 4).double())),
    "masked_fill with a complex number": (
        lambda x, m, v: x.masked_fill(m, v), (WHOLE, WHOLE > 1, torch.tensor(2 + 1j))),
    "masked_fill beyond the dtype": (lambda x, m, v: x.masked_fill(m, v), (WHOLE.byte(), WHOLE > 1, torch.tensor(300))),
    "masked_fill with a long": (lambda x, m, v: x.masked_fill(m, v), (X, X > 1, torch.tensor(3))),
    "65 dimensions": (lambda x: x.amax(-1), (torch.ones((1,) * 65),)),
    "int**-1": (lambda x: x**-1, (WHOLE,)),
    "binary_cross_entropy": (F.binary_cross_entropy, (torch.tensor([0.5, 2.0]), torch.tensor([0.0, 1.0]))),
    "its target": (F.binary_cross_entropy, (torch.tensor([0.5, 0.2]), torch.tensor([0.0, 2.0]))),
    "bernoulli": (torch.bernoulli, (torch.tensor([0.5, 2.0]),)),
    "bernoulli p": (lambda x: torch.bernoulli(x, 2.0), (X,)),
    "smooth_l1": (lambda x: F.smooth_l1_loss(x, x * 2, beta=-1.0), (X,)),
    "huber": (lambda x: F.huber_loss(x, x * 2, delta=-1.0), (X,)),
    "clamp uint8": (lambda x: x.clamp(0, 300), (torch.tensor([1, 2], dtype=torch.uint8),)),
    "clamp int8": (lambda x: x.clamp(-200, 3), (torch.tensor([1, 2], dtype=torch.int8),)),
    "clamp to infinity": (lambda x: x.clamp(0, float("inf")), (X,)),
    "scatter of another dtype": (lambda x, i, s: x.scatter(0, i, s), (X, at(0, 1, 2, 0)[None], X.double())),
    "softshrink": (lambda x: F.softshrink(x, -0.5), (X,)),
    "gelu approximate": (lambda x: F.gelu(x, approximate="x"), (X,)),
    "rot90": (lambda x: torch.rot90(x, 1, (1, 1)), (X,)),
    "exponential_": (lambda x: x.exponential_(0.0), (X,)),
    "uniform_": (lambda x: x.uniform_(3.0, 1.0), (X,)),
    "normal_": (lambda x: x.normal_(0.0, -1.0), (X,)),
    "random_": (lambda x: x.random_(3, 1), (X,)),
    "randint": (lambda x: torch.randint(5, 5, (2,)) + x, (X[0, :2],)),
    "randint_like": (lambda x: torch.randint_like(x, 3, 1), (X,)),
    "rrelu": (lambda x: F.rrelu(x, 0.5, 0.1), (X,)),
    "negative class of one_hot": (F.one_hot, (at(-1, 2),)),
    "-bool": (lambda x: -x, (X > 3,)),
    "1 - bool": (lambda x: 1 - x, (X > 3,)),
    "float & float": (lambda x: x & x, (X,)),
    "var": (lambda x: x.var(), (WHOLE,)),
    "gelu": (F.gelu, (WHOLE,)),
    "mse": (lambda x: F.mse_loss(x, x), (WHOLE,)),
    "mse of a float and an int": (F.mse_loss, (X[0, :3], WHOLE)),
    "lerp": (lambda x: torch.lerp(x, x, 0.5), (WHOLE,)),
    "where": (lambda x: torch.where(x, x, x), (X,)),
    "integer division by zero": (lambda x, y: x // y, (at(1, 2), at(0, 1))),
    "fill above": (lambda x: x.fill_(300), (torch.tensor([1, 2], dtype=torch.uint8),)),
    "fill below zero wraps": (lambda x: x.fill_(-1), (torch.tensor([1, 2], dtype=torch.uint8),)),
    "masked_fill float16": (lambda x: x.masked_fill(x > 3, -1e9), (X.half(),)),
    "masked_fill with infinity": (lambda x: x.masked_fill(x > 3, -torch.inf), (X.half(),)),
    "full above": (lambda x: torch.full_like(x, 1e300), (X,)),
    "pad above": (lambda x: F.pad(x, (1, 1), value=300), (torch.tensor([1, 2], dtype=torch.uint8),)),
    "scatter above": (lambda x, i: x.scatter(0, i, 300), (torch.tensor([1, 2], dtype=torch.uint8), at(0))),
    "softshrink of infinity": (lambda x: F.softshrink(x, float("inf")), (X,)),
    "arange of bool": (lambda x: x + torch.arange(4, dtype=torch.bool), (X,)),
    "arange backwards": (lambda x: x + torch.arange(0.5, 0.0, 1.0), (X,)),
    "isin bool": (lambda x: torch.isin(x, x > 3), (X,)),
    "lerp of two dtypes": (lambda x: torch.lerp(x, x.double(), 0.5), (X,)),
    "take by int32": (lambda x, i: x.take(i), (X, at(1, 2).int())),
    "index_fill by int32": (lambda x, i: x.index_fill(0, i, 1.0), (X, at(1, 2).int())),
    "index_add of another dtype": (lambda x, i, s: x.index_add(0, i, s), (X, at(1, 0), X[:2].double())),
    "cumsum_ to another dtype": (lambda x: x.cumsum_(0, dtype=torch.float64), (X,)),
    "view_as_real": (torch.view_as_real, (X,)),
    "scatter by another reduction": (lambda x, i: x.scatter(0, i, x, reduce="sum"), (X, at(0, 1, 2, 0)[None])),
    "hardtanh of unsigned numbers": (F.hardtanh, (torch.tensor([1, 2], dtype=torch.uint8),)),
    "index_put of another dtype": (lambda x, i, v: x.index_put((i,), v), (X, at(1), X[0].double())),
    "addbmm of another dtype": (lambda x, y: torch.addbmm(x, y, y), (torch.ones(2, 2), torch.ones(2, 2, 2).double())),
    "complex norm of real numbers": (lambda x: torch.linalg.vector_norm(x, dtype=torch.complex64), (X,)),
    "batch_norm of integers": (lambda x: F.batch_norm(x, None, None, training=True), (torch.ones(2, 4).int(),)),
    "weight of layer_norm in float64": (lambda x, w: F.layer_norm(x, (4,), w), (X, X[0].double())),
    "i0_ of integers": (lambda x: x.i0_(), (WHOLE.clone(),)),
    "isinstance": (lambda x: isinstance(x, torch.Tensor, extra=1), (X,)),  # type: ignore[call-arg]
}
# fmt: on


@pytest.mark.parametrize("name", [*INDICES, *SHAPES, *VALUES])
def test_eager_raises(name: str) -> None:
    program, arguments = (INDICES | SHAPES | VALUES)[name]
    assert_like_eager(kiln.compile(program), program, *arguments)


@pytest.mark.parametrize("name", INDICES)
def test_eager_raises_with_symbolic_sizes(name: str) -> None:
    program, arguments = INDICES[name]
    assert_like_eager(kiln.compile(program, dynamic=True), program, *arguments)


DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)


def test_refused_dtypes_are_those_of_eager() -> None:
    """Of each op in the table: eager and the recorder agree for every kind of number."""
    assert set(REFUSED) <= set(DECOMPOSITIONS)
    different = []
    for name in REFUSED:
        packet, overload = name.removeprefix("aten.").split(".")
        op = getattr(getattr(torch.ops.aten, packet), overload)
        for dtype in DTYPES:
            given = [
                example(str(argument.type), dtype)
                for argument in op._schema.arguments
                if argument.default_value is None
            ]
            arguments = [value for value in given if value is not None]
            if refuses(lambda op=op, a=arguments: op(*a)) != refuses(lambda op=op, a=arguments: recorded(op, a)):
                different.append((name, dtype))
    assert {name for name, _ in different} <= UNDECIDED, different


UNDECIDED = {
    "aten.lerp.Tensor", "aten.logaddexp.default", "aten.var.correction", "aten.std.correction",
    "aten.var_mean.correction", "aten.std_mean.correction",
}  # fmt: skip
"""Complex numbers, which have no rule and run eager."""


def example(kind: str, dtype: torch.dtype) -> Any:
    values: dict[str, Any] = {"number": 1, "float": 0.5, "int": 0, "bool": False}
    return torch.ones(2, 2).to(dtype) if kind == "Tensor" else values.get(kind)


def recorded(op: Any, arguments: list[Any]) -> None:
    recorder = new_recorder()
    fakes = [
        recorder.add_tensor(argument, f"x{n}", LocalSource(f"x{n}")) if isinstance(argument, torch.Tensor) else argument
        for n, argument in enumerate(arguments)
    ]
    recorder.call(op, fakes, {})


def refuses(call: Callable[[], Any]) -> bool:
    try:
        call()
    except Exception:  # of any class: only whether there is one
        return True
    return False


INTS = torch.arange(4).reshape(2, 2)
FACTORS: dict[str, Case] = {
    "add": (lambda x, a: torch.add(x, x, alpha=a), (INTS, 0.5)),
    "a bool as alpha": (lambda x, a: torch.sub(x, x, alpha=a), (X, True)),
    "rsub": (lambda x, a: torch.rsub(x, x, alpha=a), (INTS, 1e39)),
    "add of a number": (lambda x, a: torch.add(x, 2, alpha=a), (INTS, 0.5)),
    "in place": (lambda x, a: x.add_(x, alpha=a), (INTS.to(torch.uint8), 300)),
    "addr": (lambda x, a: torch.addr(x, x[0], x[0], beta=a), (INTS, 0.5)),
    "addbmm": (lambda x, a: torch.addbmm(x, x[None], x[None], alpha=a), (X[:3, :3], 1e39)),
    "addcmul": (lambda x, a: torch.addcmul(x, x, x, value=a), (X, 1e39)),
    "addcdiv": (lambda x, a: torch.addcdiv(x, x, x, value=a), (X, 1e39)),
    "index_add": (lambda x, a: x.index_add(0, at(0, 1), x, alpha=a), (INTS.to(torch.uint8), 300)),
    "lerp": (lambda x, a: x.lerp(x, a), (X, 1e39)),
    "pow": (lambda x, a: x**a, (INTS.to(torch.uint8), 300)),
    "hardshrink": (lambda x, a: F.hardshrink(x, a), (X, 1e39)),
    "leaky_relu": (lambda x, a: F.leaky_relu(x, a), (X, 1e39)),
    "hardtanh": (lambda x, a: F.hardtanh(x, -1, a), (INTS, 1e39)),
    "threshold": (lambda x, a: F.threshold(x, a, 1), (INTS.to(torch.uint8), 1e39)),
    "elu": (lambda x, a: F.elu(x, a), (X, 1e39)),
    "clamp of flags": (lambda x, a: x.clamp(a), (X > 1, True)),
    "foreach": (lambda x, a: torch._foreach_add([x], [x], alpha=a), (INTS, 0.5)),
    "kthvalue": (lambda x, k: x.kthvalue(k, 0), (X, 9)),
    "median of nothing": (lambda x, d: x.median(d), (X[:0], 0)),
}


SYMBOLIC: dict[str, Callable[[torch.Tensor, float], object]] = {
    "clamp": lambda x, n: x.clamp(max=n),
    "full": lambda x, n: torch.full((2,), n, dtype=torch.float32),
    "fill_": lambda x, n: x.clone().fill_(n),
    "masked_fill": lambda x, n: x.masked_fill(x > 0, n),
    "where": lambda x, n: torch.where(x > 0, x, n),
    "pad": lambda x, n: F.pad(x, (1, 1), value=n),
    "scatter": lambda x, n: x.scatter(1, at(0)[None], n),
    "add": lambda x, n: torch.add(x, x, alpha=n),
    "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n),
    "celu": lambda x, n: F.celu(x, n),
    "softplus": lambda x, n: F.softplus(x, n),
    "linspace": lambda x, n: torch.linspace(0, n, 3),
    "uniform_": lambda x, n: (x * 0).uniform_(0, n) * 0,
    "in float16": lambda x, n: x.half().masked_fill(x > 0, n),
    "fill_ of integers": lambda x, n: x.int().fill_(n),
    "clamp of integers": lambda x, n: x.int().clamp(max=n),
}


@pytest.mark.parametrize("name", SYMBOLIC)
@pytest.mark.parametrize("numbers", [(0.25, 1e300, 0.5), (3, 2**40, 2)], ids=["floats", "integers"])
def test_changing_numbers_that_do_not_fit(name: str, numbers: tuple[float, ...]) -> None:
    """A number that is symbolic in the graph is compared with the range of the dtype in each call."""
    program = SYMBOLIC[name]
    compiled = kiln.compile(program, dynamic=True)
    for number in numbers:
        assert_like_eager(compiled, program, X, number)


def test_changing_numbers_that_an_operator_refuses() -> None:
    compiled = kiln.compile(torch.celu_, dynamic=True)
    for number in (1.0, 2.0, 0.0):
        assert_like_eager(compiled, torch.celu_, X.clone(), number)


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_negative_pad_that_changes_may_not_cut_off_more_than_there_is(dynamic: bool | None) -> None:
    compiled = kiln.compile(lambda x, a, b: F.pad(x, (a, -b)), dynamic=dynamic)
    for low, cut in ((1, 2), (2, 1), (0, 3), (2, 5), (-1, 3), (3, 2)):
        assert_like_eager(compiled, lambda x, a, b: F.pad(x, (a, -b)), X, low, cut)


@pytest.mark.parametrize("sizes", [(3, 0), (0, 3, 0)])
def test_reshape_of_no_elements_to_an_unknown_size(sizes: tuple[int, ...]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0], -1) * 2

    compiled = kiln.compile(program, dynamic=True)
    for size in sizes:
        assert_like_eager(compiled, program, torch.ones(size, 4))


def test_numbers_of_tensors_that_do_not_fit() -> None:
    def program(x: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(x > 0, number.item())

    compiled = kiln.compile(program)
    for number in (2.0, 1e300, float("inf")):
        assert_like_eager(compiled, program, X, torch.tensor(number, dtype=torch.float64))


@pytest.mark.parametrize("name", FACTORS)
def test_numbers_that_do_not_fit(name: str) -> None:
    program, arguments = FACTORS[name]
    assert_like_eager(kiln.compile(program), program, *arguments)


def test_inference_tensors_are_not_written_outside_of_inference_mode() -> None:
    compiled = kiln.compile(lambda x: x.add_(1))
    with torch.inference_mode():
        x = torch.ones(3)
        assert compiled(x) is x
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        compiled(x)


STEPS = [(0, 6, 2), (0, 7, 3), (0, 6, 0), (0, 6, -1), (0, -6, -1), (5, 4, 3), (0, -7, -2), (0, 0, -1), (4, 5, -2)]


@pytest.mark.parametrize("dynamic", [None, True])
def test_bounds_and_steps_of_ranges_that_change(dynamic: bool | None) -> None:
    """A step that changes may be below zero, where two numbers too many were given, or zero, which eager refuses."""

    def program(start: int, end: int, step: int) -> torch.Tensor:
        return torch.arange(start, end, step)

    compiled = kiln.compile(program, dynamic=dynamic)
    for bounds in STEPS:
        assert_like_eager(compiled, program, *bounds)
    assert not kiln.report_of(compiled).eager_reasons


def test_steps_of_ranges_that_change_are_one_variant() -> None:
    compiled = kiln.compile(lambda n, step: torch.arange(0, n, step), dynamic=True, fullgraph=True)
    for n, step in ((6, 2), (7, 1), (9, 3), (5, 1)):
        assert compiled(n, step).tolist() == list(range(0, n, step))
    assert kiln.report_of(compiled).compiles == 1


@pytest.mark.parametrize("dynamic", [None, True])
def test_numbers_of_classes_that_change(dynamic: bool | None) -> None:
    compiled = kiln.compile(F.one_hot, dynamic=dynamic)
    for classes in (3, 4, 0, -1, 1, -2):
        assert_like_eager(compiled, F.one_hot, at(0, 1), classes)
    assert_like_eager(compiled, F.one_hot, at()[:0].long(), 0)
