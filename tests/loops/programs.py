"""Small graphs that every stage of the loop compiler is tested on.

softmax = PROGRAMS["softmax"];  graph, inputs = softmax()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph, Output, Write
from kiln.graph.ir.node import Node
from kiln.symbolic import Int, ShapeEnv
from kiln.tensor.spec import CPU, TensorSpec

F32, I64, BOOL = torch.float32, torch.int64, torch.bool
Made = tuple[Graph, list[Any]]
PROGRAMS: dict[str, Callable[[], Made]] = {}


class Env:
    """A builder and the inputs made so far; `sizes` gives symbols their hints."""

    def __init__(self) -> None:
        self.shapes = ShapeEnv()
        self.builder = Builder(self.shapes)
        self.inputs: list[Any] = []

    def size(self, hint: int) -> Int:
        return self.shapes.create_symbol(hint)

    def tensor(self, *sizes: Int, make: Callable[..., torch.Tensor] | None = None) -> Node:
        """A contiguous input of random numbers, or of `make(shape)`."""
        shape = [self.shapes.hint(size) for size in sizes]
        value = (make or torch.randn)(shape)
        strides, step = [], 1
        for size in reversed(sizes):
            strides.append(step)
            step = step * size
        spec = TensorSpec(value.dtype, sizes, tuple(reversed(strides)))
        self.inputs.append(value)
        return self.builder.input(f"x{len(self.inputs)}", spec)

    def real(self, value: torch.Tensor) -> Node:
        """An input with the layout of `value`."""
        self.inputs.append(value)
        spec = TensorSpec(value.dtype, tuple(value.shape), value.stride(), value.storage_offset())
        return self.builder.input(f"x{len(self.inputs)}", spec)

    def __getattr__(self, op: str) -> Callable[..., Node]:
        if op.startswith("_"):
            raise AttributeError(op)

        def make(*inputs: Any, **attrs: Any) -> Node:
            like = next((given.tensor.dtype for given in reversed(inputs) if isinstance(given, Node)), F32)
            nodes = [given if isinstance(given, Node) else self.const(given, like) for given in inputs]
            return self.builder.node(op.rstrip("_"), *nodes, **attrs)

        return make

    def const(self, value: Any, dtype: torch.dtype = F32) -> Node:
        return self.builder.constant(value, dtype, CPU)

    def keep(self, x: Node, *axes: int) -> Node:
        for axis in axes:
            x = self.unsqueeze(x, axis=axis)
        return x

    def mean(self, x: Node, *axes: int) -> Node:
        count = 1
        for axis in axes:
            count = count * x.tensor.sizes[axis]
        total = self.keep(self.sum(x, axes=axes), *axes)
        if isinstance(count, int):
            return self.div(total, float(count))
        attrs = {"value": count, "dtype": F32, "device": CPU}
        return self.div(total, self.builder.node("constant", **attrs))

    def mm(self, x: Node, y: Node) -> Node:
        spec = x.tensor.with_sizes((x.tensor.sizes[0], y.tensor.sizes[1]))
        return self.builder.aten("aten.mm.default", (x, y), {}, spec)

    def done(self, *outputs: Node | Output, writes: tuple[Write, ...] = ()) -> Made:
        return self.builder.finish(outputs, writes), self.inputs


def program(make: Callable[[Env], Made]) -> Callable[[Env], Made]:
    PROGRAMS[make.__name__] = lambda: make(Env())
    return make


# Pointwise.


@program
def chain(g: Env) -> Made:
    x, y = g.tensor(5, 7), g.tensor(7)
    return g.done(g.tanh(g.add(g.mul(x, 2.0), y)))


@program
def gelu(g: Env) -> Made:
    x, b = g.tensor(8, 12), g.tensor(12)
    x = g.add(x, b)
    return g.done(g.mul(g.mul(x, 0.5), g.add(g.erf(g.mul(x, 0.7071067811865476)), 1.0)))


@program
def broadcast_outer(g: Env) -> Made:
    x, y = g.tensor(5, 1), g.tensor(1, 3)
    return g.done(g.exp(g.add(x, y)), g.exp(x))


@program
def shared_two_outputs(g: Env) -> Made:
    x = g.exp(g.tensor(6, 4))
    return g.done(g.mul(x, 2.0), g.add(x, 1.0), x)


@program
def scalars_rank0(g: Env) -> Made:
    x = g.tensor()
    return g.done(g.mul(g.exp(x), 3.0))


@program
def empty_size(g: Env) -> Made:
    x = g.tensor(0, 3)
    return g.done(g.exp(x), g.sum(x, axes=(0,)))


@program
def transposed_operand(g: Env) -> Made:
    x, y = g.tensor(33, 17), g.tensor(17, 33)
    return g.done(g.add(x, g.permute(y, dims=(1, 0))))


@program
def transposed_copy(g: Env) -> Made:
    x = g.tensor(33, 17)
    return g.done(g.clone(g.permute(x, dims=(1, 0)), strides=None))


@program
def strided_input(g: Env) -> Made:
    x = g.real(torch.randn(9, 20)[1:, 3:15:2])
    return g.done(g.exp(x), g.sum(x, axes=(1,)))


@program
def channels_last(g: Env) -> Made:
    x = g.real(torch.randn(2, 3, 5, 4).to(memory_format=torch.channels_last))
    b = g.keep(g.tensor(3), 1, 2)
    return g.done(g.maximum(g.add(x, b), 0.0))


@program
def mixed_layouts(g: Env) -> Made:
    x = g.real(torch.randn(2, 3, 5, 4).to(memory_format=torch.channels_last))
    y = g.tensor(2, 3, 5, 4)
    return g.done(g.add(g.exp(x), y), g.mul(y, 2.0))


@program
def integers(g: Env) -> Made:
    x = g.tensor(11, make=lambda s: torch.randint(-9, 9, s))
    return g.done(g.floor_div(x, 3), g.remainder(x, 4), g.convert(x, dtype=F32), g.lt(x, 2))


# Views.


@program
def view_split(g: Env) -> Made:
    x = g.exp(g.tensor(6, 8))
    heads = g.permute(g.view(x, sizes=(6, 2, 4)), dims=(1, 0, 2))
    return g.done(g.clone(heads, strides=None), g.tanh(x))


@program
def view_merge(g: Env) -> Made:
    x = g.tensor(3, 4, 5)
    y = g.tensor(12, 5)
    return g.done(g.add(g.view(x, sizes=(12, 5)), y), g.view(g.exp(x), sizes=(60,)))


@program
def reshape_permuted(g: Env) -> Made:
    x = g.tensor(3, 4, 5)
    return g.done(g.reshape(g.permute(g.exp(x), dims=(1, 0, 2)), sizes=(4, 15)))


@program
def slices(g: Env) -> Made:
    x = g.tensor(9, 6)
    a = g.slice(x, axis=0, start=1, stop=9, step=3)
    b = g.select(x, axis=1, index=2)
    return g.done(g.exp(a), g.neg(b), g.flip(x, axes=(0, 1)))


@program
def diagonals(g: Env) -> Made:
    x, d = g.tensor(4, 6), g.tensor(3)
    return g.done(
        g.exp(g.diagonal(x, offset=1, axis1=0, axis2=1)),
        g.diagonal_scatter(x, d, offset=-1, axis1=0, axis2=1),
    )


@program
def windows(g: Env) -> Made:
    x = g.tensor(2, 10)
    return g.done(g.sum(g.unfold(x, axis=1, size=3, step=2), axes=(2,)))


@program
def through_storage(g: Env) -> Made:
    x = g.exp(g.tensor(4, 6))
    s = g.as_strided(x, sizes=(3, 2), strides=(2, 7), offset=1)
    return g.done(g.neg(s), g.mul(x, 2.0))


@program
def bits(g: Env) -> Made:
    x = g.tensor(4, 6)
    return g.done(g.bitwise_and(g.view_dtype(x, dtype=torch.int32), g.const(255, torch.int32)))


# Moves.


@program
def cat_output(g: Env) -> Made:
    x, y, z = g.tensor(3, 4), g.tensor(2, 4), g.tensor(0, 4)
    return g.done(g.cat(g.exp(x), z, y, axis=0))


@program
def rotary(g: Env) -> Made:
    x, c, s = g.tensor(2, 5, 8), g.tensor(5, 8), g.tensor(5, 8)
    low = g.slice(x, axis=2, start=0, stop=4, step=1)
    high = g.slice(x, axis=2, start=4, stop=8, step=1)
    turned = g.cat(g.neg(high), low, axis=2)
    return g.done(g.add(g.mul(x, c), g.mul(turned, s)))


@program
def pads(g: Env) -> Made:
    x = g.tensor(4, 5)
    return g.done(g.pad(g.exp(x), 0.5, low=(1, -1), high=(2, 3)))


@program
def gathers(g: Env) -> Made:
    x = g.tensor(4, 7)
    n = g.tensor(4, 3, make=lambda s: torch.randint(0, 7, s))
    return g.done(g.gather(g.exp(x), n, axis=1))


@program
def embedding(g: Env) -> Made:
    table = g.tensor(11, 6)
    n = g.tensor(2, 5, make=lambda s: torch.randint(-11, 11, s))
    p = g.tensor(5, 6)
    x = g.add(g.index(table, n, axes=(0,)), p)
    return g.done(g.sub(x, g.mean(x, 2)), x)


@program
def index_two(g: Env) -> Made:
    x = g.tensor(4, 5, 6)
    a = g.tensor(3, 1, make=lambda s: torch.randint(0, 4, s))
    b = g.tensor(2, make=lambda s: torch.randint(0, 6, s))
    return g.done(g.index(x, a, b, axes=(0, 2)), g.index(x, a, axes=(1,)))


@program
def scatters(g: Env) -> Made:
    x, y = g.tensor(5, 6), g.tensor(6)
    z = g.tensor(5, 2)
    one = g.select_scatter(x, y, axis=0, index=3)
    return g.done(one, g.slice_scatter(g.exp(x), z, axis=1, start=1, stop=5, step=2))


@program
def storage_scatter(g: Env) -> Made:
    x, y = g.tensor(5, 6), g.tensor(2, 3)
    return g.done(g.as_strided_scatter(g.exp(x), y, sizes=(2, 3), strides=(7, 2), offset=1))


@program
def scatter_add(g: Env) -> Made:
    x, src = g.tensor(4, 5), g.tensor(4, 5)
    n = g.tensor(4, 3, make=lambda s: torch.randint(0, 5, s))
    return g.done(g.scatter(x, n, g.exp(src), axis=1, reduce="sum"))


@program
def embedding_backward(g: Env) -> Made:
    grad = g.tensor(2, 5, 6)
    n = g.tensor(2, 5, make=lambda s: torch.randint(0, 7, s))
    zero = g.full(g.const(0.0), sizes=(7, 6))
    return g.done(g.index_put(zero, n, g.mul(grad, 2.0), axes=(0,), accumulate=True))


@program
def put_into_product(g: Env) -> Made:
    """The product is written in place if nothing else reads it, else copied."""
    x, y, rows = g.tensor(7, 3), g.tensor(3, 6), g.tensor(5, 6)
    n = g.tensor(5, make=lambda s: torch.randint(0, 7, s))
    one, other = g.mm(x, y), g.mm(x, g.exp(y))
    first = g.index_put(one, n, rows, axes=(0,), accumulate=True)
    second = g.index_put(other, n, rows, axes=(0,), accumulate=True)
    return g.done(first, second, g.neg(other))


@program
def put_last_axis(g: Env) -> Made:
    x, v = g.tensor(3, 7), g.tensor(3, 2)
    n = g.real(torch.tensor([4, -6]))
    return g.done(g.index_put(x, n, v, axes=(1,), accumulate=False))


# Reductions.


@program
def row_sums(g: Env) -> Made:
    x = g.tensor(6, 10)
    return g.done(g.sum(g.mul(x, x), axes=(1,)), g.amax(x, axes=(1,)))


@program
def column_sums(g: Env) -> Made:
    x = g.tensor(10, 6)
    return g.done(g.sum(x, axes=(0,)), g.sum(g.mul(x, x), axes=(0,)))


@program
def full_sum(g: Env) -> Made:
    x = g.tensor(64, 48, 40)
    return g.done(g.div(g.sum(g.mul(x, x), axes=(0, 1, 2)), 7.0))


@program
def full_sum_prime(g: Env) -> Made:
    x = g.tensor(100_003)
    return g.done(g.sum(x, axes=(0,)), g.amax(x, axes=(0,)))


@program
def long_columns(g: Env) -> Made:
    x = g.tensor(4096, 24)
    return g.done(g.sum(g.exp(x), axes=(0,)))


@program
def argmaxes(g: Env) -> Made:
    x = g.tensor(6, 10)
    return g.done(g.argmax(x, axes=(1,)), g.argmin(g.neg(x), axes=(0,)))


@program
def logic(g: Env) -> Made:
    x = g.tensor(6, 10)
    p = g.gt(x, 1.0)
    return g.done(g.any(p, axes=(0,)), g.all(p, axes=(0, 1)))


@program
def softmax(g: Env) -> Made:
    x = g.tensor(3, 5, 8)
    e = g.exp(g.sub(x, g.keep(g.amax(x, axes=(2,)), 2)))
    return g.done(g.div(e, g.keep(g.sum(e, axes=(2,)), 2)))


@program
def softmax_middle(g: Env) -> Made:
    x = g.tensor(3, 5, 8)
    e = g.exp(g.sub(x, g.keep(g.amax(x, axes=(1,)), 1)))
    return g.done(g.div(e, g.keep(g.sum(e, axes=(1,)), 1)))


def _norm(g: Env, x: Node, *axes: int) -> tuple[Node, Node, Node]:
    mean = g.mean(x, *axes)
    centred = g.sub(x, mean)
    variance = g.mean(g.mul(centred, centred), *axes)
    scale = g.rsqrt(g.add(variance, 1e-5))
    return g.mul(centred, scale), mean, scale


@program
def add_layer_norm(g: Env) -> Made:
    x, r, w, b = g.tensor(2, 4, 16), g.tensor(2, 4, 16), g.tensor(16), g.tensor(16)
    normal, _, _ = _norm(g, g.add(x, r), 2)
    return g.done(g.add(g.mul(normal, w), b))


@program
def layer_norm_saved(g: Env) -> Made:
    x, w, b = g.tensor(8, 16), g.tensor(16), g.tensor(16)
    normal, mean, scale = _norm(g, x, 1)
    return g.done(g.add(g.mul(normal, w), b), mean, scale)


@program
def layer_norm_backward(g: Env) -> Made:
    dy, x, w = g.tensor(64, 16), g.tensor(64, 16), g.tensor(16)
    mean, scale = g.tensor(64, 1), g.tensor(64, 1)
    normal = g.mul(g.sub(x, mean), scale)
    d = g.mul(dy, w)
    a, b = g.mean(d, 1), g.mean(g.mul(d, normal), 1)
    dx = g.mul(scale, g.sub(g.sub(d, a), g.mul(normal, b)))
    return g.done(dx, g.sum(g.mul(dy, normal), axes=(0,)), g.sum(dy, axes=(0,)))


@program
def batch_norm(g: Env) -> Made:
    x, w = g.tensor(4, 3, 5, 6), g.keep(g.tensor(3), 1, 2)
    running = g.tensor(3)
    normal, mean, _ = _norm(g, x, 0, 2, 3)
    flat = g.view(mean, sizes=(3,))
    moved = g.add(g.mul(running, 0.9), g.mul(flat, 0.1))
    out = g.maximum(g.mul(normal, w), 0.0)
    return g.done(out, writes=(Write(running, moved),))


@program
def group_norm(g: Env) -> Made:
    x, w = g.tensor(2, 6, 4, 4), g.keep(g.tensor(6), 1, 2)
    grouped = g.view(x, sizes=(2, 3, 32))
    normal, _, _ = _norm(g, grouped, 2)
    return g.done(g.mul(g.view(normal, sizes=(2, 6, 4, 4)), w))


@program
def a_scale_for_each_group(g: Env) -> Made:
    """What is repeated along a row gets a buffer where rows are many: they fill vectors then."""
    x, scale = g.tensor(40, 12), g.tensor(3, 1)
    spread = g.reshape(g.expand(scale, sizes=(3, 4)), sizes=(12,))
    return g.done(g.mul(x, g.neg(spread)))


@program
def sums_of_neighbours(g: Env) -> Made:
    """Two layers of a graph network, whose scatters share the targets: these are the same along a row of channels."""
    x, y, total = g.tensor(1100, 16), g.tensor(1100, 16), g.full(g.const(0.0), sizes=(7, 16))
    n = g.expand(g.tensor(1100, 1, make=lambda s: torch.randint(0, 7, s)), sizes=(1100, 16))
    targets = g.where(g.lt(n, 0), g.add(n, 7), n)
    return g.done(*[g.scatter(total, targets, values, axis=0, reduce="sum") for values in (x, y)])


@program
def cross_entropy(g: Env) -> Made:
    x = g.tensor(6, 11)
    n = g.tensor(6, make=lambda s: torch.randint(0, 11, s))
    top = g.keep(g.amax(x, axes=(1,)), 1)
    shifted = g.sub(x, top)
    log_sum = g.log(g.keep(g.sum(g.exp(shifted), axes=(1,)), 1))
    log_p = g.sub(shifted, log_sum)
    picked = g.gather(log_p, g.unsqueeze(n, axis=1), axis=1)
    return g.done(g.neg(g.mean(g.view(picked, sizes=(6,)), 0)), log_p)


@program
def scans(g: Env) -> Made:
    x = g.tensor(4, 9)
    return g.done(g.cumsum(g.exp(x), axis=1), g.cumsum(x, axis=0), g.cummax(x, axis=1))


@program
def normalised_cumsum(g: Env) -> Made:
    x = g.exp(g.tensor(4, 9))
    total = g.keep(g.sum(x, axes=(1,)), 1)
    return g.done(g.cumsum(g.div(x, total), axis=1))


# Libraries, writes, aliases.


@program
def mlp(g: Env) -> Made:
    x, w1, b1, w2, b2 = g.tensor(4, 8), g.tensor(16, 8), g.tensor(16), g.tensor(8, 16), g.tensor(8)
    h = g.add(g.mm(x, g.permute(w1, dims=(1, 0))), b1)
    h = g.mul(h, g.sigmoid(h))
    y = g.add(g.mm(h, g.permute(w2, dims=(1, 0))), b2)
    return g.done(g.add(x, y))


@program
def attention_like(g: Env) -> Made:
    q, k = g.tensor(2, 5, 8), g.tensor(2, 5, 8)
    a, b = (g.permute(g.view(item, sizes=(2, 5, 2, 4)), dims=(0, 2, 1, 3)) for item in (g.exp(q), k))
    a, b = (g.reshape(item, sizes=(4, 5, 4)) for item in (a, b))
    spec = a.tensor.with_sizes((4, 5, 5))
    scores = g.builder.aten("aten.bmm.default", (a, g.permute(b, dims=(0, 2, 1))), {}, spec)
    e = g.exp(g.sub(scores, g.keep(g.amax(scores, axes=(2,)), 2)))
    return g.done(g.div(e, g.keep(g.sum(e, axes=(2,)), 2)))


@program
def split_results(g: Env) -> Made:
    x = g.tensor(4, 6)
    flat = x.tensor.with_sizes((4, 2))
    whole = g.builder.aten("aten.topk.default", (g.exp(x), 2, 1), {}, (flat, flat.with_dtype(I64)))
    values = g.builder.node("item", whole, index=0)
    return g.done(g.log(values), g.builder.node("item", whole, index=1))


@program
def view_outputs(g: Env) -> Made:
    x = g.exp(g.tensor(4, 6))
    return g.done(g.permute(x, dims=(1, 0)), g.slice(x, axis=0, start=1, stop=3, step=1))


@program
def writes_swapped(g: Env) -> Made:
    x, y = g.tensor(4, 6), g.tensor(4, 6)
    return g.done(g.add(x, y), writes=(Write(x, g.exp(y)), Write(y, g.exp(x))))


# Symbolic sizes.


@program
def symbolic_norm(g: Env) -> Made:
    n, m = g.size(5), g.size(7)
    x, w = g.tensor(n, m), g.tensor(m)
    normal, _, _ = _norm(g, x, 1)
    return g.done(g.mul(normal, w), g.sum(x, axes=(0,)))


@program
def symbolic_heads(g: Env) -> Made:
    n = g.size(5)
    x = g.exp(g.tensor(2, n, 8))
    heads = g.permute(g.view(x, sizes=(2, n, 2, 4)), dims=(0, 2, 1, 3))
    return g.done(g.clone(heads, strides=None), g.reshape(heads, sizes=(4 * n, 4)))


@program
def symbolic_flat(g: Env) -> Made:
    n, m = g.size(5), g.size(3)
    x, y = g.tensor(n, m, 4), g.tensor(n, 4 * m)
    return g.done(g.add(g.view(x, sizes=(n, 4 * m)), y), g.sum(x, axes=(0, 1, 2)))


@program
def symbolic_cat(g: Env) -> Made:
    n = g.size(5)
    x, y = g.tensor(n, 4), g.tensor(3, 4)
    return g.done(g.exp(g.cat(x, y, axis=0)), g.iota(length=n, start=0, step=2, dtype=I64, device=CPU))


# Ops without loops.


@program
def exchanged_inputs(g: Env) -> Made:
    x, y = g.tensor(4, 6), g.tensor(4, 6)
    return g.done(x, writes=(Write(x, y), Write(y, x)))


@program
def cat_of_one(g: Env) -> Made:
    x, nothing = g.tensor(3, 4), g.tensor(0, 4)
    y = g.cat(nothing, g.exp(x), axis=0)
    return g.done(g.mm(y, g.permute(y, dims=(1, 0))))


@program
def copies_of_copies(g: Env) -> Made:
    x = g.tensor(4, 4)
    a = g.clone(g.pad(g.exp(x), 0.0, low=(0, 0), high=(0, 0)), strides=None)
    b = g.clone(g.mm(a, a), strides=None)
    return g.done(g.mm(b, a), g.clone(b, strides=None))


@program
def normalised_pad(g: Env) -> Made:
    x, w = g.tensor(2, 3, 4, 5), g.keep(g.tensor(3), 1, 2)
    y = g.mul(x, g.rsqrt(g.add(w, 10.0)))
    return g.done(g.pad(y, 0.0, low=(0, 0, 1, 1), high=(0, 0, 1, 2)))


@program
def long_chain(g: Env) -> Made:
    x = g.tensor(50, 50)
    for _ in range(150):
        x = g.sin(g.add(x, 1.0))
    return g.done(x)


@program
def nested_cats(g: Env) -> Made:
    x = g.tensor(4, 6)
    for _ in range(4):
        x = g.sin(g.cat(x, g.tanh(x), g.neg(x), axis=0))
    return g.done(x)


@program
def flipped_and_not(g: Env) -> Made:
    x = g.exp(g.tanh(g.tensor(30, 40)))
    return g.done(g.add(g.mul(x, 2.0), g.flip(x, axes=(1,))))


# Library calls.


@program
def complex_numbers(g: Env) -> Made:
    z = g.tensor(4, 6, make=lambda s: torch.randn(s, dtype=torch.complex64))
    w = g.mul(g.cat(z, z, axis=0), g.exp(g.permute(g.tensor(6, 8, make=z_like), dims=(1, 0))))
    return g.done(g.sum(w, axes=(1,)), w)


def z_like(shape: list[int]) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.complex64)


@program
def bits_of_a_sum(g: Env) -> Made:
    x = g.add(g.tensor(4, 6), 1.0)
    whole = g.view_dtype(x, dtype=torch.int32)
    spec = whole.tensor.with_sizes((6, 4))
    flipped = g.builder.aten("aten.clone.default", (g.permute(whole, dims=(1, 0)),), {}, spec)
    return g.done(g.bitwise_not(flipped))
