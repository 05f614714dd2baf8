"""Mutation and aliasing: what is written, what is seen through views, what outputs share, as in eager."""

import pytest
import torch

from kiln.graph.ops.breaks import TraceBreak
from tests.trace.harness import check, trace


def r(*shape):
    return torch.randn(shape)


def through(view):
    """Write through a view of a copy, then read the copy and another view made before."""

    def function(x):
        base = x.clone()
        other = base.view(-1) if base.is_contiguous() else base
        part = view(base)
        part.mul_(2)
        part.add_(1)
        return base, part, other * 1

    return function


VIEWS = {
    "itself": lambda x: x,
    "select": lambda x: x[1],
    "negative select": lambda x: x[:, -1],
    "slice": lambda x: x[1:3],
    "step": lambda x: x[:, ::2],
    "transpose": lambda x: x.t(),
    "transpose of slice": lambda x: x[1:].t(),
    "slice of transpose": lambda x: x.t()[1:, 2:],
    "view": lambda x: x.view(-1),
    "view then slice": lambda x: x.view(2, 2, 6)[:, 1],
    "slice then view": lambda x: x[1:3].view(-1)[3:],
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x[None].squeeze(0),
    "diagonal": lambda x: x.diagonal(),
    "expand to itself": lambda x: x.expand(4, 6),
    "detach": lambda x: x.detach(),
    "narrow": lambda x: x.narrow(1, 2, 3),
    "as_strided": lambda x: x.as_strided((2, 3), (6, 2), 1),
    "as_strided of view": lambda x: x[1].as_strided((2, 3), (6, 2), 1),
    "split": lambda x: x.split(3, 1)[1],
    "unbind": lambda x: x.unbind(0)[2],
    "int view": lambda x: x.view(torch.int32).view(torch.float32),
    "permute": lambda x: x.view(2, 2, 6).permute(2, 0, 1),
    "movedim": lambda x: x.view(2, 2, 6).movedim(0, 2)[1],
    "unflatten": lambda x: x.unflatten(0, (2, 2))[1],
    "alias": lambda x: torch.ops.aten.alias(x),
    "squeeze many": lambda x: x[None, :, None].squeeze((0, 2)),
    "T": lambda x: x.T[2],
}


@pytest.mark.parametrize("name", VIEWS)
def test_writes_through_views_of_fresh_tensors(name):
    check(through(VIEWS[name]), [r(4, 6)])


@pytest.mark.parametrize("name", VIEWS)
def test_writes_through_views_of_inputs(name):
    def function(x):
        part = VIEWS[name](x)
        part.mul_(2)
        return x + 1

    check(function, [r(4, 6)])


@pytest.mark.parametrize(
    "name", ["transpose", "slice of transpose", "view", "select", "diagonal", "itself", "as_strided"]
)
def test_writes_to_inputs_of_other_layouts(name):
    def function(x):
        part = VIEWS[name](x)
        part.mul_(2)
        return x.clone(), part.exp()

    if name != "view":
        check(function, [r(6, 4).t()])
    if name not in ("view", "as_strided"):
        check(function, [r(8, 12)[::2, ::2]])
    if name != "as_strided":  # it would write to what the input does not show
        check(function, [r(7, 6)[2:6]])


def test_a_stale_view_sees_the_write():
    def function(x):
        a, b = x[0], x[1]
        row = b * 1
        x.mul_(2)
        a.add_(1)
        return a, b, row, x.sum()

    check(function, [r(3, 4)])


def test_a_chain_of_aliases():
    def function(x):
        y = x.clone()
        v = y.t()
        w = v[1:]
        z = w.view(w.shape)
        y.zero_()
        z.fill_(3)
        v[0, 0] = 7
        return y, v, w, z

    check(function, [r(4, 4)])


def test_copies_fills_and_conversions():
    def function(x, y):
        a = torch.empty_like(x)
        a.copy_(y)
        a[0].copy_(torch.ones(()))
        b = torch.zeros(3, 4, dtype=torch.int64)
        b.copy_(x)
        b[1] = 5
        c = torch.zeros(3, 4)
        c[:, 1:3] = y[:, :2]
        c.expand(2, 3, 4)
        return a, b, c, a.fill_(torch.tensor(2.0))

    check(function, [r(3, 4), r(3, 4)])


def test_in_place_ops_convert_to_their_own_dtype():
    check(lambda x, y: x.add_(y), [r(3), torch.arange(3)])
    check(lambda x: x.clone().half().mul_(2.5), [r(3)])
    check(lambda x: x.clone().sub_(1), [torch.arange(3)])
    with pytest.raises(RuntimeError, match="can't be cast"):
        check(lambda x, y: x.add_(y), [torch.arange(3), r(3)])
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        check(lambda x, y: x.add_(y), [r(1), r(3)])
    with pytest.raises(RuntimeError, match="single memory location"):
        check(lambda x: x.expand(3, 4).add_(1), [r(4)])
    with pytest.raises(RuntimeError, match="single memory location"):
        check(lambda x: x.expand(3, 4).copy_(torch.ones(3, 4)), [r(4)])
    check(lambda x: ((y := x * 1)[None].expand(3, 4).fill_(2), y), [r(4)])
    with pytest.raises(TraceBreak, match="part of an expanded tensor"):
        check(lambda x: x.expand(3, 4)[1].fill_(2), [r(4)])


METADATA = {
    "t_": lambda x: x.t_(),
    "transpose_": lambda x: x.transpose_(0, 1),
    "unsqueeze_": lambda x: x.unsqueeze_(1),
    "squeeze_": lambda x: x.unsqueeze_(0).squeeze_(),
    "squeeze_ dim": lambda x: x.unsqueeze_(0).squeeze_(0),
    "swapdims_": lambda x: x.swapdims_(0, 1),
    "as_strided_": lambda x: x.as_strided_((2, 3), (6, 1), 1),
    "detach_": lambda x: x.detach_(),
}


@pytest.mark.parametrize("name", METADATA)
def test_metadata_changes(name):
    def function(x):
        y = x * 1
        z = y.view(y.shape)
        METADATA[name](y)
        w = y * 2
        y.add_(1)
        return y, w, z

    check(function, [r(4, 6)])


OUT = {
    "add": lambda x, y, out: torch.add(x, y, out=out),
    "mul view": lambda x, y, out: torch.mul(x, y, out=out.t()),
    "mm": lambda x, y, out: torch.mm(x, y.t(), out=out),
    "where": lambda x, y, out: torch.where(x > 0, x, y, out=out),
    "cat": lambda x, y, out: torch.cat([x[:2], y[:2]], out=out),
    "sum": lambda x, y, out: torch.sum(x, 0, out=out[0]),
    "clamp": lambda x, y, out: torch.clamp(x, 0, 1, out=out),
    "max": lambda x, y, out: torch.max(x, y, out=out),
    "arange": lambda x, y, out: torch.arange(4, out=out[0]),
}


@pytest.mark.parametrize("name", OUT)
def test_out(name):
    def function(x, y, out):
        result = OUT[name](x, y, out)
        return result * 1, out

    check(function, [r(4, 4), r(4, 4), torch.zeros(4, 4)])
    check(lambda x, y: function(x, y, torch.ones(4, 4)), [r(4, 4), r(4, 4)])


INPLACE = {
    "add_": lambda x: x.add_(2, alpha=3),
    "relu_": torch.relu_,
    "clamp_": lambda x: x.clamp_(0, 1),
    "zero_": lambda x: x.zero_(),
    "sqrt_": lambda x: x.abs_().sqrt_(),
    "pow_": lambda x: x.pow_(2),
    "masked_fill_": lambda x: x.masked_fill_(x > 0, 0),
    "index_put_": lambda x: x.__setitem__(torch.tensor([0, 2]), 1.0),
    "scatter_": lambda x: x.scatter_(1, torch.tensor([[0, 1]]), 3.0),
    "tril_": lambda x: x.tril_(),
    "index_add_": lambda x: x.index_add_(0, torch.tensor([0, 0]), torch.ones(2, 4)),
    "addcmul_": lambda x: x.addcmul_(x, x),
    "lerp_": lambda x: x.lerp_(x * 2, 0.5),
    "mask set": lambda x: x.__setitem__(x > 0, 0.0),
    "erf_": lambda x: x.erf_(),
    "logical_not_": lambda x: x.logical_not_(),
    "eq_": lambda x: x.eq_(1),
    "addmm_": lambda x: x.addmm_(torch.ones(3, 2), torch.ones(2, 4)),
    "fill_diagonal_": lambda x: x.fill_diagonal_(1),
    "cumsum_": lambda x: x.cumsum_(0),
    "silu_": lambda x: torch.nn.functional.silu(x, inplace=True),
    "hardtanh_": lambda x: torch.nn.functional.relu6(x, inplace=True),
    "neg_": lambda x: x.neg_(),
    "dropout_": lambda x: torch.nn.functional.dropout(x, 0.5, True, True),
    "bernoulli_": lambda x: x.bernoulli_(0.5),
    "random_": lambda x: x.random_(0, 5),
    "floor_divide_": lambda x: x.floor_divide_(2),
    "where set": lambda x: x[0].copy_(x[1]),
    "index_fill_": lambda x: x.index_fill_(0, torch.tensor([1]), 2.0),
    "swap rows": lambda x: x.__setitem__(slice(0, 2), x[[1, 0]]),
}


@pytest.mark.parametrize("name", INPLACE)
def test_in_place(name):
    def function(x):
        INPLACE[name](x)
        return x * 1

    check(function, [r(3, 4)])


AUTOGRAD = {
    "in place on a result": lambda x: (x * 2).add_(1).mul_(3),
    "in place through a view": lambda x: through(lambda y: y[1])(x * 2)[0],
    "view after write": lambda x: (x * 1)[1:].mul_(2).sum(0),
    "write of a view": lambda x: torch.zeros(4, 6).copy_(x),
    "slice assignment": lambda x: _assigned(x),
    "detached write": lambda x: _detached(x),
    "index_put": lambda x: (x * 1).index_put_((torch.tensor([0, 1]),), x[2:4]),
    "metadata": lambda x: (x * 2).t_().exp(),
    "relu_": lambda x: torch.relu_(x * 1),
    "saved output": lambda x: x.exp().mul(2),
}


def _assigned(x):
    y = torch.zeros(4, 6)
    y[1:3] = x[1:3] * 2
    y[:, 0] += x[:, 1]
    return y


def _detached(x):
    y = x * 2
    with torch.no_grad():
        y[0].mul_(3)
    return y * x


@pytest.mark.parametrize("name", AUTOGRAD)
def test_autograd_through_mutation(name):
    check(AUTOGRAD[name], [r(4, 6).requires_grad_()], backward=True)


def test_eager_errors_of_autograd_are_kept():
    x = r(3).requires_grad_()
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        check(lambda x: x.add_(1), [x])

    def stale(x):
        y = x.exp()
        y.add_(1)
        return y

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        check(stale, [x], backward=True)


# Aliases of outputs.


def aliases(function, *args):
    return [
        (output.alias.of, output.alias.index, output.alias.view and str(output.alias.view)) if output.alias else None
        for output in trace(function, args).trace.graph.outputs
    ]


def test_outputs_that_share_memory_say_with_what():
    x = r(3, 4)
    assert aliases(lambda x: x, x) == [("input", 0, None)]
    assert aliases(lambda x: x.t(), x) == [("input", 0, "f32[4, 3 | 1, 4]")]
    assert aliases(lambda x: x.detach(), x) == [("input", 0, "f32[3, 4]")]
    assert aliases(lambda x: x.contiguous(), x) == [("input", 0, None)]
    assert aliases(lambda x: x.clone(), x) == [None]
    assert aliases(lambda x: x + 0, x) == [None]
    assert aliases(lambda x: (y := x + 1, y), x) == [None, ("output", 0, None)]
    assert aliases(lambda x: (y := x + 1, y[1:]), x) == [None, ("output", 0, "f32[2, 4 at 4]")]
    assert aliases(lambda x: [x.mul_(2), x[0]], x) == [("input", 0, None), ("input", 0, "f32[4]")]
    assert aliases(lambda x: x.flatten(), x.t()) == [None]
    assert aliases(lambda x: x.reshape(12), x) == [("input", 0, "f32[12]")]


def test_a_copy_is_no_alias_of_what_it_copied():
    traced = check(lambda x: torch.empty(3, 4).copy_(x), [r(3, 4)])
    assert traced.ops[-1] == "clone"
    check(lambda x: (x.dropout(0.0, False) if hasattr(x, "dropout") else x.clone(), x), [r(3, 4)])


def test_the_same_tensor_twice_is_one_input():
    x = r(3)
    traced = trace(lambda x, y: x.add_(1) + y, [x, x])
    assert len(traced.trace.graph.inputs) == 1


def test_inputs_that_overlap():
    """Writes to one input are seen by another that shares its memory."""
    base = r(4, 6)

    def function(x, y):
        x.mul_(2)
        return y + 1

    check(function, [base, base[1]])
    check(function, [base[1], base])
    check(function, [base[:2], base[2:]])
    check(function, [base, base.t()])
    check(function, [base.view(24), base])


def test_what_was_written_through_a_view_keeps_the_order_of_its_dimensions():
    def function(x):
        part = (x * 1).diagonal().fill_(5)
        return part.abs(), part + 1

    check(function, [torch.randn(2, 5, 3)])


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("first", [0, 2])
def test_a_part_that_begins_or_ends_with_the_whole(order: tuple[int, int], first: int) -> None:
    """In either order of arguments the part is a view of the whole."""
    base = torch.arange(8.0)
    parts = (base[first : first + 6], base)

    def program(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return b * 2

    given = [parts[place] for place in order]
    assert "copy" not in " ".join(trace(program, given).ops)
