"""Views, writes through views, inputs that share memory, results that alias inputs and each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tests.reported.registry import Compile, Programs, attempt, floats, ints, leaf, one_leaf

PROGRAMS = Programs("aliasing")
add = PROGRAMS.add

add("an input returned", lambda x: x)
add("an input returned twice", lambda x: (x, x))
add("an input returned beside a new value", lambda x: (x, x + 1, [x]))
add("a view of an input returned", lambda x: x[1:])
add("two views of an input", lambda x: (x[:2], x[1:], x.t()))
add("a view and its base changed", lambda x: (x.view(-1), x.add_(1))[0])
add("a view taken before a write to the base", lambda x: (lambda v: (x.mul_(2), v + 1, v))(x[0]))
add("a write through a view of a view", lambda x: (x.view(-1)[2:].view(-1)[1:].fill_(7), x.sum()))
add("a write through a transposed view", lambda x: (x.t()[0].add_(5), x + 0))
add("a write through an expanded result", lambda x: (x * 2).expand(2, *x.shape)[1] + 1)
add("results that share memory", lambda x: (lambda y: (y, y[0], y.t(), y.view(-1)))(x * 2))
add("results with one storage and a gradient", lambda x: (lambda y: (y, y[0], y.t()))(x * 2), one_leaf)
add("a result that is a detached result", lambda x: (lambda y: (y, y.detach()))(x * 2), one_leaf)
add("a detached input", lambda x: x.detach(), one_leaf)
add("a detached input that is written", lambda x: (x.detach().mul_(2), x * 1), lambda n: (floats(n, 3),))
add("chunks as results", lambda x: x.chunk(2), sizes=(4, 4, 7))
add("unbind as results", lambda x: (x * 1).unbind(1))
add("split and a write to a part", lambda x: (lambda p: (p[0].add_(1), p[1]))(x.split(2)), sizes=(4, 4, 8))
add("a diagonal that is written", lambda x: x.diagonal().fill_(9), lambda n: (floats(n, n),))
add("a narrow that is copied to", lambda x: x.narrow(0, 1, 2).copy_(torch.ones(2, 3)))
add("select backward in place", lambda x: (lambda y: (y[0].mul_(2), y)[1])(x.clone()), one_leaf)
add("an overlapping assignment", lambda x: x.__setitem__(slice(1, None), x[:-1].clone()) or x)
add("an assignment to itself", lambda x: x.copy_(x))
add("swap of two rows", lambda x: x.__setitem__([0, 1], x[[1, 0]]) or x)
add("unfold that is read after a write", lambda x: (lambda u: (x.add_(1), u.sum(-1)))(x.unfold(0, 2, 1)))
add("as_strided of an input", lambda x: x.as_strided((2, 2), (1, 2), 1))
add("as_strided that is written", lambda x: x.as_strided((2, 2), (3, 1), 1).add_(1))
add("as_strided of a view", lambda x: x[1:].as_strided((2,), (1,), 0) + 1)
add(
    "real and imag of a complex",
    lambda x: (torch.view_as_complex(x).real, torch.view_as_complex(x).imag + 1),
    lambda n: (floats(n, 2),),
)
add("view as another dtype", lambda x: x.view(torch.int32) + 1)
add("view as bytes", lambda x: x.view(torch.uint8))
add("view as a wider dtype", lambda x: x.view(torch.float64), lambda n: (floats(n, 4),))
add("view as another dtype that is written", lambda x: (x.view(torch.int32).zero_(), x + 1))
add("contiguous of a contiguous input", lambda x: x.contiguous())
add("contiguous of a transposed input", lambda x: x.t().contiguous())
add("to the same dtype", lambda x: x.to(torch.float32))
add("to the same dtype as a copy", lambda x: x.to(torch.float32, copy=True))
add("reshape that is a view", lambda x: x.reshape(3, -1))
add("reshape that copies", lambda x: x.t().reshape(-1))
add("flatten of one dimension", lambda x: x[:, 0].flatten())
add("expand as the same size", lambda x: x.expand(-1, -1))
add("squeeze of nothing", lambda x: x.squeeze())
add("a slice of everything", lambda x: x[:])
add("ravel", lambda x: (x.ravel(), x.t().ravel()))
add("identity by alias", lambda x: (x.alias() if hasattr(x, "alias") else x).view_as(x))
add("broadcast_tensors", lambda x, y: torch.broadcast_tensors(x, y), lambda n: (floats(n, 3), floats(3)))
add("atleast_2d", lambda x: torch.atleast_2d(x[0]), one_leaf)
add("movedim and write", lambda x: (x.movedim(0, 1)[0].zero_(), x * 1))
add("dropout in evaluation", lambda x: torch.dropout(x, 0.5, False))
add("an in-place result returned", lambda x: x.add_(1))
add("an in-place result beside its input", lambda x: (x.add_(1), x, x + 1))
add("a relu in place", lambda x: torch.relu_(x) + x)
add("in place with out", lambda x: torch.mul(x, 2, out=x))
add("out of a fresh tensor", lambda x: torch.add(x, 1, out=torch.empty(0)))
add("out with a wrong dtype", lambda x: torch.add(x, 1, out=torch.empty(4, 3, dtype=torch.int64)))
add("an in-place op that would broadcast", lambda x: x[0].add_(x))
add("an in-place op that would promote", lambda x: x.add_(1.5), lambda n: (ints(n),))
add("a bool in place plus a number", lambda x: x.add_(1), lambda n: (ints(n, low=0, high=2, dtype=torch.bool),))
add("resize of a result", lambda x: (x * 2).resize_(2, 2))
add("transpose in place", lambda x: x.t_())
add("unsqueeze in place", lambda x: (x.unsqueeze_(0), x.shape))
add("squeeze in place of a result", lambda x: (x[:1] * 2).squeeze_(0))
add("set_ to another tensor", lambda x, y: (x.set_(y), x + 1), lambda n: (floats(n), floats(n)))
add("data written", lambda x: (x.data.mul_(2), x + 1), one_leaf)
add("fill of a view of a new tensor", lambda x: (lambda z: (z[1:].fill_(2), z + x))(torch.zeros_like(x)))
add("a scatter of a slice into zeros", lambda x: torch.zeros(8, 3).__setitem__(slice(0, 2), x[:2]) or x, one_leaf)
add(
    "copy into a strided slice",
    lambda x: (lambda z: (z.__setitem__((slice(None), slice(None, None, 2)), x), z)[1])(torch.zeros(x.shape[0], 6)),
    one_leaf,
)
add("flip is a copy", lambda x: (x.flip(0), x.flip(0).flip(0)))
add("rot90", lambda x: (torch.rot90(x), torch.rot90(x, 2), torch.rot90(x, -1)))
add("roll by more than the size", lambda x: (x.roll(7, 0), x.roll(-1), x.roll((1, 2), (0, 1))))
add("tensor_split", lambda x: torch.tensor_split(x, 3), sizes=(4, 4, 7))
add("hsplit and vsplit", lambda x: (torch.hsplit(x, [1]), torch.vsplit(x, [2])))
add("a view of a view in no_grad", lambda x: (lambda v: v * 2)(x.view(-1)[1:]), one_leaf)
add("index of a view with a gradient", lambda x: x.t()[1][1:] * 2, one_leaf)


@PROGRAMS.scenario
def one_tensor_as_both_arguments(compile: Compile) -> Iterator[Any]:
    f = compile(lambda a, b: (a.add_(1), a + b, b * 2))
    x = floats(4)
    for pair in ((x, x), (floats(4), floats(4)), (x, x[:])):
        yield f(*pair), pair


@PROGRAMS.scenario
def inputs_that_overlap(compile: Compile) -> Iterator[Any]:
    f = compile(lambda a, b: (a.mul_(2), b + 1, a * b))
    for _ in range(3):
        base = floats(6)
        yield f(base[:4], base[2:]), base
    yield f(floats(4), floats(4))


@PROGRAMS.scenario
def a_base_and_its_view_as_inputs(compile: Compile) -> Iterator[Any]:
    f = compile(lambda a, v: (v.add_(1), a.sum(), v.sum()))
    for n in (4, 4, 5):
        x = floats(n, 2)
        yield f(x, x[1]), x
        yield f(x, x.view(-1)[:3]), x


@PROGRAMS.scenario
def the_same_tensor_in_a_list_twice(compile: Compile) -> Iterator[Any]:
    f = compile(lambda items: [items[0].add_(1), items[1] * 2])
    x, y = floats(3), floats(3)
    yield f([x, x]), x
    yield f([x, y]), x, y
    yield f([y, y]), y


@PROGRAMS.scenario
def a_view_that_outlives_the_call(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (x * 2)[1:])
    views = [f(floats(n, 2)) for n in (3, 3, 4)]
    yield views
    for view in views:
        view.add_(1)
    yield views


@PROGRAMS.scenario
def results_kept_over_calls(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: x.cumsum(0) + 1)
    kept = [f(torch.full((5,), float(n))) for n in range(4)]
    yield kept


@PROGRAMS.scenario
def a_written_input_with_a_gradient(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: x.mul_(2).sin())
    for _ in range(3):
        w = leaf(3)
        x = w * 3
        y = f(x)
        y.sum().backward()
        yield y, x, w.grad


@PROGRAMS.scenario
def a_written_leaf_that_requires_a_gradient(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: x.add_(1))
    yield attempt(f, leaf(3))
    yield attempt(f, floats(3))
    with torch.no_grad():
        yield attempt(f, leaf(3))


@PROGRAMS.scenario
def a_written_view_of_a_leaf(compile: Compile) -> Iterator[Any]:
    def program(x: Tensor) -> Tensor:
        x[0] = 1
        return x * 2

    f = compile(program)
    yield attempt(f, leaf(3))
    yield attempt(f, floats(3))


@PROGRAMS.scenario
def versions_of_a_written_base(compile: Compile) -> Iterator[Any]:
    f = compile(lambda v: v.add_(1))
    for _ in range(2):
        x = floats(4, 2)
        row = x[1]
        f(row)
        yield x._version, row._version, x


@PROGRAMS.scenario
def a_saved_value_changed_afterwards(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x, w: x * w)
    x, w = floats(3), leaf(3)
    y = f(x, w)
    x.add_(1)
    yield attempt(y.sum().backward)


@PROGRAMS.scenario
def a_saved_result_changed_afterwards(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: x.exp())
    x = leaf(3)
    y = f(x)
    with torch.no_grad():
        y.mul_(2)
    yield attempt(y.sum().backward)


@PROGRAMS.scenario
def writing_to_an_output_of_unbind(compile: Compile) -> Iterator[Any]:
    def program(x: Tensor) -> Tensor:
        first, *_ = x.unbind()
        first.mul_(2)
        return x.sum()

    f = compile(program)
    for x in (floats(2, 2), leaf(2, 2) * 1):
        yield attempt(f, x), x


@PROGRAMS.scenario
def a_result_written_by_the_caller(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: (x + 1, x.view(-1)))
    x = floats(2, 2)
    for _ in range(3):
        new, view = f(x)
        view.zero_()
        new.mul_(2)
        yield new, view, x


@PROGRAMS.scenario
def an_expanded_input_that_is_written(compile: Compile) -> Iterator[Any]:
    f = compile(lambda x: x.add_(1))
    yield attempt(f, floats(1).expand(4))
    yield attempt(f, floats(4))


@PROGRAMS.scenario
def a_constant_of_the_closure_is_returned(compile: Compile) -> Iterator[Any]:
    weight = floats(3)
    f = compile(lambda x: (weight, x + weight, weight[1:]))
    first = f(floats(3))
    yield first, weight
    weight.add_(1)
    yield f(floats(3)), weight, first[0] is weight


@PROGRAMS.scenario
def a_tensor_written_in_a_loop_of_calls(compile: Compile) -> Iterator[Any]:
    state = torch.zeros(4)

    def program(x: Tensor, i: int) -> Tensor:
        state[i] = x.sum()
        return state * 2

    f = compile(program)
    for i in range(4):
        yield f(floats(3), i), state
