"""`torch.func` and `torch.vmap`."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)

from .table import Table

TABLE = Table()


def vector(*shape: int) -> Any:
    def calls() -> list[tuple[torch.Tensor, ...]]:
        torch.manual_seed(0)
        return [(torch.randn(*shape),) for _ in range(2)]

    return calls


def pair(first: tuple[int, ...], second: tuple[int, ...]) -> Any:
    def calls() -> list[tuple[torch.Tensor, ...]]:
        torch.manual_seed(0)
        return [(torch.randn(*first), torch.randn(*second)) for _ in range(2)]

    return calls


@TABLE.add(vector(4, 3))
def vmap_sum(x):
    return vmap(lambda row: row.sum() * row)(x)


@TABLE.add(pair((4, 3), (3, 5)))
def vmap_product(x, y):
    return vmap(torch.mv, in_dims=(None, 1), out_dims=1)(x, y)


@TABLE.add(pair((4, 3), (5, 3)))
def vmap_nested(x, y):
    return vmap(lambda a: vmap(lambda b: (a * b).sum())(y))(x)


@TABLE.add(vector(4, 3))
def vmap_dict(x):
    return vmap(lambda d: {"a": d["x"] * 2, "b": d["x"].max()})({"x": x})


@TABLE.add(vector(4, 3))
def vmap_chunked(x):
    return vmap(lambda row: row.softmax(0), chunk_size=2)(x)


@TABLE.add(vector(4, 3))
def vmap_random(x):
    return vmap(lambda row: row + torch.rand(3), randomness="different")(x) >= x


@TABLE.add(vector(3))
def grad_of_sum(x):
    return grad(lambda v: (v.sin() * v).sum())(x)


@TABLE.add(vector(3))
def grad_with_closure(x):
    w = x * 2
    return grad(lambda v: (v * w).pow(2).sum())(x)


@TABLE.add(pair((3,), (3,)))
def grad_argnums(x, y):
    return grad(lambda a, b: (a * b.exp()).sum(), argnums=(0, 1))(x, y)


@TABLE.add(vector(3))
def grad_has_aux(x):
    g, aux = grad(lambda v: ((v * v).sum(), v + 1), has_aux=True)(x)
    return g + aux


@TABLE.add(vector(3))
def value_and_grad(x):
    return grad_and_value(lambda v: (v**3).sum())(x)


@TABLE.add(vector(3))
def grad_twice(x):
    return grad(lambda v: grad(lambda u: (u**4).sum())(v).sum())(x)


@TABLE.add(pair((5, 3), (3,)))
def per_sample_gradients(x, w):
    return vmap(grad(lambda weight, row: (weight * row).sum().tanh()), in_dims=(None, 0))(w, x)


@TABLE.add(vector(3))
def vjp_of(x):
    out, pull = vjp(lambda v: v.sin() * 2, x)
    return out, pull(torch.ones_like(out))[0]


@TABLE.add(pair((3,), (3,)))
def jvp_of(x, t):
    return jvp(lambda v: v.sin() * v, (x,), (t,))


@TABLE.add(vector(3))
def jacrev_of(x):
    return jacrev(lambda v: v.sin() * v.sum())(x)


@TABLE.add(vector(3))
def jacfwd_of(x):
    return jacfwd(lambda v: v.sin() * v.sum())(x)


@TABLE.add(vector(3))
def hessian_of(x):
    return hessian(lambda v: v.sin().sum() * v.prod())(x)


@TABLE.add(pair((3,), (3,)))
def linearize_of(x, t):
    out, push = linearize(lambda v: v.sin() * v, x)
    return out + push(t)


@TABLE.add(pair((3,), (3,)))
def hessian_vector_product(x, t):
    return jvp(grad(lambda v: v.sin().sum() * v.prod()), (x,), (t,))[1]


MODEL = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))


@TABLE.add(vector(5, 3))
def functional_call_of_module(x):
    state = dict(MODEL.named_parameters())
    doubled = {name: value * 2 for name, value in state.items()}
    return functional_call(MODEL, doubled, (x,))


@TABLE.add(vector(5, 3))
def grad_of_module(x):
    state = {name: value.detach() for name, value in MODEL.named_parameters()}
    return grad(lambda p: functional_call(MODEL, p, (x,)).pow(2).mean())(state)


@TABLE.add(vector(5, 3))
def per_sample_gradients_of_module(x):
    state = {name: value.detach() for name, value in MODEL.named_parameters()}

    def loss(p, row):
        return functional_call(MODEL, p, (row[None],)).pow(2).sum()

    return vmap(grad(loss), in_dims=(None, 0))(state, x)


MODELS = [torch.nn.Linear(3, 2) for _ in range(3)]
STACKED, _ = stack_module_state(MODELS)  # type: ignore[arg-type]
STACKED = {name: value.detach() for name, value in STACKED.items()}
BASE = torch.nn.Linear(3, 2)


@TABLE.add(vector(5, 3))
def ensemble(x):
    return vmap(lambda p, v: functional_call(BASE, p, (v,)), in_dims=(0, None))(STACKED, x)


@TABLE.add(vector(4, 3))
def vmap_batch_norm(x):
    return vmap(lambda row: torch.nn.functional.layer_norm(row, (3,)))(x)


@TABLE.add(vector(4, 3))
def vmap_where(x):
    return vmap(lambda row: torch.where(row > 0, row, row.exp()))(x)


@TABLE.add(pair((4, 3), (4,)))
def vmap_in_place(x, y):
    def f(row, value):
        out = torch.zeros(3) + row
        out.add_(value)
        return out

    return vmap(f)(x, y)


@TABLE.add(lambda: [(torch.randn(4, 3), torch.tensor([0, 1, 2, 1]))] * 2)
def vmap_index(x, i):
    return vmap(lambda row, k: row[k])(x, i)


@TABLE.add(vector(3))
def autograd_jacobian(x):
    return torch.autograd.functional.jacobian(lambda v: v.sin() * v.sum(), x)


@TABLE.add(vector(3))
def autograd_hessian(x):
    return torch.autograd.functional.hessian(lambda v: v.sin().sum() * v.prod(), x)


@TABLE.add(vector(3))
def inner_autograd_grad(x):
    y = x.detach().clone().requires_grad_()
    z = (y**3).sum()
    (g,) = torch.autograd.grad(z, y, create_graph=True)
    return g * 2


@TABLE.add(vector(3))
def dual_numbers(x):
    import torch.autograd.forward_ad as fwAD

    with fwAD.dual_level():
        dual = fwAD.make_dual(x, torch.ones_like(x))
        return fwAD.unpack_dual(dual.sin() * dual).tangent


@TABLE.add(vector(3, 4))
def jvp_of_module(x):
    lin = MODEL
    return jvp(lambda v: lin(v), (x[:, :3],), (torch.ones(3, 3),))[1]


@TABLE.add(vector(3))
def functionalized(x):
    def f(v):
        w = v.clone()
        w.add_(1)
        return w * 2

    return torch.func.functionalize(f)(x)


@TABLE.add(lambda: [(torch.tensor([True, False, True, True]),), (torch.tensor([True, True, False, True]),)])
def mask_indexed_by_tensors(allowed):
    """The mode under which transformers makes masks."""

    def mask(query, key):
        return (query >= key) & allowed[key] & allowed.new_ones((), dtype=torch.bool)

    places = torch.arange(4)
    with TransformGetItemToIndex():
        return torch.vmap(torch.vmap(mask, in_dims=(None, 0)), in_dims=(0, None))(places, places)


@TABLE.add(lambda: [(torch.randn(3),)] * 2)
def factories_under_a_device(x):
    with torch.device("cpu"):
        return x + torch.zeros(3) + torch.arange(3)


@TABLE.add(lambda: [(torch.randn(3, 2),)] * 2)
def calls_methods_of_the_class(x):
    return torch.Tensor.new_ones(x, (2,), dtype=torch.int32), torch.Tensor.sum(x, dim=1)
