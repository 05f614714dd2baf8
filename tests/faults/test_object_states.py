"""What can be observed of results beside their values, compared with eager, without the cycle collector.

Which objects die and when; whether results are arguments, views or each other; versions, leaves and histories.
"""

from __future__ import annotations

import contextlib
import gc
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln

Compile = Callable[..., Any]
Program = Callable[[Compile], Iterator[Any]]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    """Adds a generator that compiles what it wants and yields what is to be observed."""
    PROGRAMS[function.__name__] = function
    return function


def numbers(*sizes: int) -> Tensor:
    return torch.arange(1.0, 1 + torch.Size(sizes).numel()).reshape(sizes)


def leaf(*sizes: int) -> Tensor:
    return numbers(*sizes).requires_grad_()


def memories(*tensors: Any) -> list[int]:
    """The number of each tensor's memory: equal ones are aliases."""
    known: dict[int, int] = {}
    return [known.setdefault(tensor.untyped_storage().data_ptr(), len(known)) for tensor in tensors]


def facts(*tensors: Tensor) -> list[Any]:
    states = [
        (x.requires_grad, x.grad_fn is None, x._version, x.is_leaf, x._is_view(), x.storage_offset()) for x in tensors
    ]
    return [states, memories(*tensors), [[x is y for y in tensors] for x in tensors]]


@program
def new_result(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: x * 2)
    x = numbers(4)
    y = f(x)
    yield facts(x, y)
    w = weakref.ref(x)
    v = weakref.ref(y)
    del x
    yield (w() is None)
    del y
    yield (v() is None)


@program
def new_result_with_history(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: x * 2)
    x = leaf(4)
    y = f(x)
    yield facts(x, y)
    w = weakref.ref(x)
    del x
    yield (w() is None)
    v = weakref.ref(y)
    del y
    yield (v() is None, w() is None)


@program
def returns_input(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: x)
    x = numbers(4)
    y = f(x)
    yield (y is x, facts(x, y))


@program
def returns_input_twice(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (x, x + 1, x))
    x = numbers(4)
    a, b, d = f(x)
    yield (a is x, a is d, facts(a, b, d))


@program
def same_twice(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (lambda y: (y, y, [y], {"k": y}))(x * 2))
    x = numbers(4)
    a, b, l, d = f(x)
    yield (a is b, l[0] is a, d["k"] is a, facts(a, b))


@program
def views(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (lambda y: (y, y[0], y.t(), y[1:]))(x * 2))
    r = f(numbers(3, 4))
    yield facts(*r)
    r[0].add_(1)
    yield ([q._version for q in r], [q.tolist() for q in r])
    r[1].zero_()
    yield ([q._version for q in r], [q.tolist() for q in r])


@program
def views_grad(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (lambda y: (y, y[0], y.t(), y[1:]))(x * 2))
    x = leaf(3, 4)
    r = f(x)
    yield facts(*r)
    (r[0].sum() + r[1].sum() * 2).backward()
    yield x.grad


@program
def views_inplace_grad(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (lambda y: (y, y[0]))(x * 2))
    x = leaf(3, 4)
    y, v = f(x)
    v.mul_(3)
    yield (y._version, v._version, y.grad_fn is None)
    y.sum().backward()
    yield x.grad


@program
def view_of_input(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (x[1:], x.view(-1), x.t()))
    x = numbers(3, 4)
    r = f(x)
    yield (facts(x, *r), [q._base is x for q in r])
    r[0].add_(1)
    yield (x._version, x)


@program
def view_of_leaf(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (x[1:], x.t()))
    x = leaf(3, 4)
    r = f(x)
    yield (facts(x, *r), [q._base is x for q in r])
    r[0].sum().backward()
    yield x.grad


@program
def mutate(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: x.add_(1))
    x = numbers(4)
    y = f(x)
    yield (y is x, facts(x, y))
    w = weakref.ref(x)
    del x
    yield (w() is None)
    del y
    yield (w() is None)


@program
def mutate_twice(compile: Compile) -> Iterator[Any]:

    def g(x: Any) -> Any:
        x.add_(1)
        x.mul_(2)
        return x + 1

    f = compile(g)
    x = numbers(4)
    y = f(x)
    yield facts(x, y)
    f(x)
    yield x._version


@program
def written_through_data(compile: Compile) -> Iterator[Any]:
    f = compile(lambda w, v: (w.data.mul_(2), v.add_(1), w * 1)[2])
    w, x, v = leaf(3), leaf(3), numbers(3)
    loss = (w * x).sum()
    for _ in range(2):
        yield facts(f(w, v), w, v)
    loss.backward()
    yield x.grad
    f = compile(lambda w: (w.data[1:].zero_(), w[0].detach().add_(1)))
    f(w)
    yield facts(w)


@program
def written_views(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x, y: (x[0].add_(1), y.mul_(2))[0] * 1)
    x = numbers(3, 2)
    y = x[1:]
    for _ in range(2):
        yield facts(f(x, y), x, y)


@program
def mutate_none(compile: Compile) -> Iterator[Any]:

    def g(x: Any) -> Any:
        x.add_(1)

    f = compile(g)
    x = numbers(4)
    yield (f(x), x, x._version)


@program
def mutate_view_arg(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: x.add_(1))
    b = numbers(3, 4)
    x = b[1]
    y = f(x)
    yield (facts(b, x, y), y is x, b)


@program
def mutate_grad(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: x.mul_(2))
    l = leaf(4)
    x = l * 1
    y = f(x)
    yield (facts(x, y), y is x)
    y.sum().backward()
    yield l.grad


@program
def mutate_slice(compile: Compile) -> Iterator[Any]:

    def g(x: Any) -> Any:
        x[1:] = 0
        return x[0]

    f = compile(g)
    x = numbers(4)
    y = f(x)
    yield (facts(x, y), x)


@program
def mutate_nograd_leaf(compile: Compile) -> Iterator[Any]:

    def g(x: Any) -> Any:
        with torch.no_grad():
            x.mul_(2)
        return x * 3

    f = compile(g)
    x = leaf(4)
    y = f(x)
    yield facts(x, y)
    y.sum().backward()
    yield x.grad


@program
def detach(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (lambda y: (y, y.detach(), y.data))(x * 2))
    x = leaf(4)
    r = f(x)
    yield facts(*r)
    r[1].add_(1)
    yield [q._version for q in r]


@program
def detach_input(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: x.detach())
    x = leaf(4)
    y = f(x)
    yield (facts(x, y), y is x)


@program
def detach_(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (x * 2).detach_())
    x = leaf(4)
    y = f(x)
    yield facts(x, y)


@program
def requires_grad_(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (x * 2).detach().requires_grad_())
    x = numbers(4)
    y = f(x)
    yield facts(x, y)
    (y * 2).sum().backward()
    yield y.grad


@program
def requires_grad_input(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: x.requires_grad_() * 2)
    x = numbers(4)
    y = f(x)
    yield facts(x, y)


@program
def contiguous(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (x.contiguous(), x.t().contiguous(), x.reshape(x.shape), x.to(x.dtype), x.float(), x.clone()))
    x = numbers(3, 4)
    r = f(x)
    yield facts(x, *r)


@program
def noop_ops(compile: Compile) -> Iterator[Any]:
    f = compile(
        lambda x: (
            x.expand(3, 4),
            x.reshape(12),
            x.squeeze(),
            x.flatten(0, 0),
            x.view_as(x),
            x.to("cpu"),
            x.type_as(x),
            x[:],
            x[...],
            x.narrow(0, 0, 3),
            x.requires_grad_(False),
            torch.as_tensor(x),
            torch.atleast_1d(x),
            x.real,
            x.conj(),
            x.resolve_conj(),
            x.positive(),
            torch.broadcast_to(x, (3, 4)),
        )
    )
    x = numbers(3, 4)
    r = f(x)
    yield facts(x, *r)


@program
def noop_grad(compile: Compile) -> Iterator[Any]:
    f = compile(
        lambda x: (
            x.expand(3, 4),
            x.reshape(12),
            x.view_as(x),
            x.to("cpu"),
            x[:],
            torch.nn.functional.dropout(x, 0.5, False),
            torch.nn.Identity()(x),
            +x,
            x.contiguous(),
        )
    )
    x = leaf(3, 4)
    r = f(x)
    yield facts(x, *r)


@program
def dropout_eval(compile: Compile) -> Iterator[Any]:
    m = nn.Dropout(0.5).eval()
    f = compile(m)
    x = numbers(4)
    y = f(x)
    yield (y is x, facts(x, y))


@program
def split(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (x * 2).split(1))
    r = f(numbers(3, 4))
    yield facts(*r)
    r = f(leaf(3, 4))
    yield facts(*r)


@program
def unbind_input(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: x.unbind(0))
    x = numbers(3, 4)
    r = f(x)
    yield facts(x, *r)


@program
def module_params(compile: Compile) -> Iterator[Any]:
    m = nn.Linear(4, 4)
    f = compile(m)
    y = f(numbers(2, 4))
    yield facts(y)
    y.sum().backward()
    g = weakref.ref(m.weight.grad)
    m.zero_grad()
    yield (g() is None)
    w = weakref.ref(m.weight)
    m.weight = nn.Parameter(torch.ones(4, 4))
    del y
    yield (w() is None)


@program
def returns_param(compile: Compile) -> Iterator[Any]:
    m = nn.Linear(4, 4)
    f = compile(lambda x: (m.weight, m.weight.t(), m.weight.detach(), m.bias))
    r = f(numbers(1))
    yield (r[0] is m.weight, r[3] is m.bias, facts(*r), r[1]._base is m.weight)


@program
def buffers(compile: Compile) -> Iterator[Any]:
    m = nn.BatchNorm1d(4)
    f = compile(m)
    b = m.running_mean
    f(numbers(3, 4))
    yield (m.running_mean is b, b._version, m.num_batches_tracked._version, facts(b))


@program
def attribute(compile: Compile) -> Iterator[Any]:

    class M(nn.Module):
        def forward(s: Any, x: Any) -> Any:
            s.last = x * 2
            s.inp = x
            return s.last + 1

    m = M()
    f = compile(m)
    x = numbers(4)
    y = f(x)
    yield (m.inp is x, facts(m.last, y))
    w = weakref.ref(m.last)
    f(numbers(4))
    yield (w() is None)
    v = weakref.ref(x)
    del x
    yield (v() is None)


@program
def closure_kept(compile: Compile) -> Iterator[Any]:

    def g(x: Any) -> Any:
        y = x * 2
        return lambda: y

    f = compile(g)
    h = f(numbers(4))
    yield h()
    w = weakref.ref(h())
    del h
    yield (w() is None)


@program
def backward_frees(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x, w: (x @ w).sin())
    x = leaf(4, 4)
    w = leaf(4, 4)
    y = f(x, w)
    z = y.sum()
    gf = y.grad_fn
    z.backward()
    try:
        z.backward()
        yield "no error"
    except RuntimeError:
        yield "twice"
    a, b = (weakref.ref(x), weakref.ref(w))
    del x, w, y, z, gf
    yield (a() is None, b() is None)


@program
def grads_identity(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: x * 2)
    x = leaf(4)
    f(x).sum().backward()
    g = x.grad
    f(x).sum().backward()
    yield (x.grad is g, g)


@program
def grads_fresh(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x, y: x + y)
    x, y = (leaf(4), leaf(4))
    f(x, y).sum().backward()
    yield (x.grad is y.grad, x.grad.data_ptr() == y.grad.data_ptr(), memories(x.grad, y.grad))


@program
def grads_direct(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x, y: x + y)
    x, y = (leaf(4), leaf(4))
    g = torch.ones(4)
    f(x, y).backward(g)
    yield (memories(x.grad, y.grad, g), x.grad.add_(1), y.grad, g)


@program
def grad_input_kept(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: x.relu())
    x = leaf(4)
    y = f(x)
    g = torch.ones(4)
    wg = weakref.ref(g)
    y.backward(g)
    del g
    yield (wg() is None, x.grad)


@program
def retain(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: x * x)
    x = leaf(4)
    y = f(x)
    y.retain_grad()
    y.sum().backward(retain_graph=True)
    yield (y.grad, x.grad)
    y.sum().backward()
    yield x.grad


@program
def nograd(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (x * 2, x[1:], x))
    x = leaf(4)
    with torch.no_grad():
        r = f(x)
    yield (facts(x, *r), r[2] is x)


@program
def out_kw(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x, o: torch.add(x, 1, out=o))
    o = torch.empty(4)
    y = f(numbers(4), o)
    yield (y is o, facts(o, y))


@program
def set_data(compile: Compile) -> Iterator[Any]:

    def g(x: Any) -> Any:
        x.data = x.data * 2
        return x + 1

    f = compile(g)
    x = leaf(4)
    y = f(x)
    yield (facts(x, y), x.tolist())


@program
def dict_in_out(compile: Compile) -> Iterator[Any]:
    f = compile(lambda d: {**d, "y": d["x"] * 2})
    d = {"x": numbers(4)}
    r = f(d)
    yield (r["x"] is d["x"], r is d, facts(*r.values()))


@program
def container_identity(compile: Compile) -> Iterator[Any]:
    f = compile(lambda l: (l, l[0]))
    l = [numbers(4)]
    a, b = f(l)
    yield (a is l, b is l[0])


@program
def cat_views(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (lambda y: (y[:2], y[2:]))(torch.cat([x, x])))
    r = f(numbers(2, 2))
    yield facts(*r)
    a = weakref.ref(r[0])
    r = r[1]
    yield (a() is None, r)


@program
def chunk_write(compile: Compile) -> Iterator[Any]:

    def g(x: Any) -> Any:
        a, b = x.chunk(2)
        a.add_(b)
        return a

    f = compile(g)
    x = numbers(4)
    y = f(x)
    yield (facts(x, y), x)


@program
def exception_frees(compile: Compile) -> Iterator[Any]:

    def g(x: Any) -> Any:
        raise ValueError(f"of {x.shape}")

    f = compile(g)
    x = numbers(4)
    with contextlib.suppress(ValueError):
        f(x)
    w = weakref.ref(x)
    del x
    yield (w() is None)


@program
def custom_function(compile: Compile) -> Iterator[Any]:

    class F(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.saved_tensors[0]

    f = compile(lambda x: F.apply(x))
    x = leaf(4)
    y = f(x)
    yield facts(x, y)
    y.sum().backward()
    w = weakref.ref(x)
    del x, y
    yield (w() is None)


@program
def break_inside(compile: Compile) -> Iterator[Any]:

    def g(x: Any) -> Any:
        y = x * 2
        kiln.graph_break() if hasattr(kiln, "graph_break") else time.sleep(0)
        z = y + 1
        return (y, z, x)

    f = compile(g)
    x = numbers(4)
    r = f(x)
    yield (facts(*r), r[2] is x)
    w = [weakref.ref(q) for q in r]
    del r, x
    yield [q() is None for q in w]


@program
def break_grad(compile: Compile) -> Iterator[Any]:

    def g(x: Any) -> Any:
        y = x * 2
        time.sleep(0)
        z = y[0] + 1
        return (y, z)

    f = compile(g)
    x = leaf(4, 4)
    r = f(x)
    yield facts(*r)
    r[1].sum().backward()
    yield x.grad
    w = [weakref.ref(q) for q in (*r, x)]
    del r, x
    yield [q() is None for q in w]


@program
def expanded_out(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (x * 2)[None].expand(3, 4))
    y = f(numbers(4))
    yield (facts(y), y.stride())


@program
def inplace_on_view_of_input_grad(compile: Compile) -> Iterator[Any]:

    def g(x: Any) -> Any:
        y = x * 1
        y[0].mul_(3)
        return y

    f = compile(g)
    x = leaf(3, 4)
    y = f(x)
    yield facts(y)
    y.sum().backward()
    yield x.grad


@program
def version_after_no_change(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x, y: x + y)
    x, y = (numbers(4), numbers(4))
    for _ in range(3):
        f(x, y)
    yield (x._version, y._version)


@program
def chained(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: x.sin())
    x = leaf(4)
    a = f(x)
    b = f(a)
    d = f(b)
    ws = [weakref.ref(a), weakref.ref(b)]
    del a, b
    yield [w() is None for w in ws]
    d.sum().backward()
    yield x.grad.shape


NO_HISTORY = "one of several results without a history is the base of the others: no tensor object stands behind them"
DIFFERENT = {
    "detach": "`.data` has a version of its own in eager, here that of the tensor",
    "split": NO_HISTORY,
    "cat_views": NO_HISTORY,
    "expanded_out": NO_HISTORY,
    "custom_function": "arguments of the call that compiles stay until the cycle collector runs",
}
"""Programs that differ from eager, and why; all others agree."""


def observed(function: Program, compile: Compile) -> list[Any]:
    """What the program yields, and its error."""
    seen: list[Any] = []
    try:
        for value in function(compile):
            seen.append(plain(value))
    except Exception as error:
        seen.append((type(error).__name__, str(error)))
    return seen


def plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def cases() -> Iterator[Any]:
    for number, name in enumerate(PROGRAMS):
        marks = [pytest.mark.slow] if number % 3 else []
        if name in DIFFERENT:
            marks = [pytest.mark.slow, pytest.mark.xfail(reason=DIFFERENT[name], strict=True)]
        yield pytest.param(name, marks=marks)


@pytest.mark.filterwarnings("ignore:.*runs eager")
@pytest.mark.parametrize("name", list(cases()))
def test_like_eager(name: str, no_collection: None) -> None:
    expected = observed(PROGRAMS[name], lambda function: function)
    assert observed(PROGRAMS[name], kiln.compile) == expected
