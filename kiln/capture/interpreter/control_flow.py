"""torch's control flow operators as plain Python, interpreted where they cannot be a nested graph.

    torch.cond(x.sum() > 0, double, negate, (x,))     double(x) if x.sum() > 0 else negate(x)

So a condition is speculated on or breaks the graph like any `if`, and both branches are compiled when they are taken.
(In eager mode these operators call torch.compile.) Nested graphs: `builtins/control_flow_operators.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten

Branch = Callable[..., Any]
LONGEST_UNROLLED = 64
"""A scan over more rows runs eager where it is no nested graph: the graph would grow with them."""


def cond(pred: object, true_fn: Branch, false_fn: Branch, operands: Sequence[object] = ()) -> object:
    if not isinstance(pred, (bool, int, float, Tensor)):
        raise RuntimeError(f"Expected pred to be bool or tensor, but got {pred}.")
    if isinstance(pred, Tensor) and callable(true_fn) and callable(false_fn) and not all_tensors(operands):
        raise RuntimeError(
            "Expect operands to be a tuple of possibly nested dict/list/tuple that only consists of tensor leaves."
        )
    return cond_operator(pred, true_fn, false_fn, operands)


def all_tensors(operands: object) -> bool:
    leaves = tree_flatten(operands)[0]
    return isinstance(operands, (tuple, list)) and all(isinstance(part, Tensor) for part in leaves)


def cond_operator(pred: object, true_fn: Branch, false_fn: Branch, operands: Sequence[object] = ()) -> object:
    """The operator behind `torch.cond`, which takes sizes as operands too: graphs of torch's compiler have them."""
    if isinstance(pred, (bool, int, float)):
        return true_fn(*operands) if pred else false_fn(*operands)
    if not isinstance(pred, Tensor):
        raise RuntimeError(f"Expected pred to be bool or tensor, but got {pred}.")
    if pred.numel() != 1:
        raise RuntimeError(f"Expected pred to be bool or single-element tensor, but got {pred.shape}.")
    if not callable(true_fn) or not callable(false_fn):
        raise RuntimeError("Expect both branches to be callable.")
    result = true_fn(*operands) if pred else false_fn(*operands)
    return fresh(result, operands)


def while_loop(
    cond_fn: Branch, body_fn: Branch, carried_inputs: Sequence[object], additional_inputs: Sequence[object] = ()
) -> object:
    if not callable(cond_fn) or not callable(body_fn):
        raise RuntimeError("Expect cond_fn and body_fn to be callable.")
    carried = tuple(carried_inputs)
    while cond_fn(*carried, *additional_inputs):
        carried = body_fn(*carried, *additional_inputs)
        carried = tuple(carried) if isinstance(carried, (tuple, list)) else (carried,)
    return fresh(carried, carried_inputs)


def differentiable_loop(cond_fn: Branch, body_fn: Branch, carried: Sequence[Tensor], more: Sequence[object]) -> object:
    """A loop that only counts its turns, then a scan of that many: it keeps what the gradient of each turn needs."""
    device = [*[value.device for value in carried if value.is_cuda], carried[0].device][0]  # a generator is an effect
    count = torch.zeros((), dtype=torch.int64, device=device)
    with torch.no_grad():
        counted = torch._higher_order_ops.while_loop(  # type: ignore[attr-defined]
            lambda count, *state: cond_fn(*state, *more),
            lambda count, *state: (count + 1, *body_fn(*state, *more)),
            (count, *[value.detach() for value in carried]),
        )
    turns = counted[0].clamp(min=0).item()
    return scanned(
        lambda state, _: (tuple(body_fn(*state, *more)), ()), tuple(carried), torch.arange(turns, device=device)
    )[0]


def mapped(f: Branch, xs: object, *args: object) -> object:
    """`map(f, xs, *args)`."""
    leaves = tree_flatten(xs)[0]
    if not all(isinstance(leaf, Tensor) for leaf in leaves):
        raise RuntimeError("Mapped xs can only consist of tensors.")
    lengths = [leaf.shape[0] for leaf in leaves]
    if lengths[0] == 0:
        raise RuntimeError("Leading dimensions of mapped xs cannot be 0.")
    if any(length != lengths[0] for length in lengths):
        raise RuntimeError(f"Leading dimensions of mapped xs must be consistent. Got {lengths}.")
    return scanned(lambda _, row: ((), f(row, *args)), (), xs)[1]


def map_operator(f: Branch, xs: Sequence[object], more: Sequence[object]) -> object:
    """`map` as graphs call it."""
    return scanned(lambda _, row: ((), f(*row, *more)), (), tuple(xs))[1]


def with_grad_mode(enabled: bool, f: Branch, *args: object) -> object:
    """A part of a graph of torch.export in a grad mode of its own."""
    with torch.set_grad_enabled(enabled):
        return f(*args)


def with_autocast(device: str, dtype: torch.dtype, enabled: bool, cached: bool, f: Branch, *args: object) -> object:
    """A part of a graph of torch.export under autocast."""
    with torch.autocast(device, dtype, enabled, cached):
        return f(*args)


def scan(combine_fn: Branch, init: object, xs: object, *, dim: int = 0, reverse: bool = False) -> object:
    starts, leaves = tree_flatten(init)[0], tree_flatten(xs)[0]
    if not leaves:
        return init, []
    if not callable(combine_fn):
        raise RuntimeError(f"Combine_fn must be a callable, but got {combine_fn}")
    if not starts:
        raise RuntimeError("scan() operator requires init leaves.")
    if not all(isinstance(leaf, Tensor) for leaf in starts):
        raise RuntimeError("All init leaves must be a Tensor")
    require_rows(leaves, dim, RuntimeError)
    dim = dim % leaves[0].ndim
    carry, made = scanned(combine_fn, init, moved(xs, dim, 0, reverse))
    return carry, moved_back(made, dim, reverse)


def scan_operator(
    combine_fn: Branch, init: Sequence[object], xs: Sequence[object], more: Sequence[object] = ()
) -> object:
    """The operator as graphs call it: flat arguments and results; `more` go to every turn."""

    def combine(carry: Sequence[object], row: Sequence[object]) -> tuple[object, object]:
        made = combine_fn(*carry, *row, *more)
        return tuple(made[: len(init)]), tuple(made[len(init) :])

    return tuple(tree_flatten(scanned(combine, tuple(init), tuple(xs)))[0])


def associative_scan(
    combine_fn: Branch, xs: object, dim: int, reverse: bool = False, combine_mode: str = "pointwise"
) -> object:
    """In a number of steps that grows with the logarithm of the length; row by row where that must stay free."""
    leaves, structure = tree_flatten(xs)
    if not callable(combine_fn):
        raise ValueError("Combine_fn must be callable")
    if combine_mode not in ("pointwise", "generic"):
        raise ValueError(f"Combine_mode must either 'pointwise' or 'generic', but got {combine_mode}")
    if combine_mode == "pointwise" and not all(leaf.device.type in ("cuda", "xpu") for leaf in leaves):
        raise ValueError("For combine_mode='pointwise', all input tensors need to be on CUDA or XPU")
    require_rows(leaves, dim, ValueError)
    dim = dim % leaves[0].ndim
    combine = combine_fn if combine_mode == "pointwise" else torch.vmap(combine_fn)

    def combined(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
        made = combine(tree_unflatten(left, structure), tree_unflatten(right, structure))
        return list(tree_flatten(made)[0])

    rows = tree_flatten(moved(xs, dim, 0, reverse))[0]
    made = prefixes_by_row(combine_fn, rows, structure) if is_free(rows[0]) else prefixes(combined, rows)
    return moved_back(tree_unflatten(made, structure), dim, reverse)


def is_free(rows: Tensor) -> bool:
    """Whether a program must take other numbers of rows; answered by a handler."""
    return False


def prefixes_by_row(combine_fn: Branch, rows: list[Tensor], structure: TreeSpec) -> list[Tensor]:
    """All prefixes by a scan, each from the one before it."""

    def turn(carry: object, row: object) -> tuple[object, object]:
        made = combine_fn(carry, row)
        return made, tree_map(torch.clone, made)

    first, rest = [row[0] for row in rows], [row[1:] for row in rows]
    made = scanned(turn, tree_unflatten(first, structure), tree_unflatten(rest, structure))[1]
    return [torch.cat([row[:1], later]) for row, later in zip(rows, tree_flatten(made)[0], strict=True)]


def prefixes(combine: Callable[[list[Tensor], list[Tensor]], list[Tensor]], rows: list[Tensor]) -> list[Tensor]:
    """All prefixes: those of pairs of rows first, then the ones between."""
    length = rows[0].shape[0]
    if length < 2:
        return rows
    even, odd = [row[: length - 1 : 2] for row in rows], [row[1::2] for row in rows]
    ends = prefixes(combine, combine(even, odd))
    if length == 2:
        return [torch.cat([row[:1], end]) for row, end in zip(rows, ends, strict=True)]
    count = (length - 1) // 2
    between = combine([end[:count] for end in ends], [row[2::2] for row in rows])
    made = []
    for row, end, middle in zip(rows, ends, between, strict=True):
        pairs = torch.stack([end[:count], middle], 1).flatten(0, 1)
        made.append(torch.cat([row[:1], pairs, end[count:]]))
    return made


def require_rows(leaves: list[object], dim: int, error: type[Exception]) -> None:
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if len(tensors) < len(leaves):
        raise error("All xs leaves must be a Tensor")
    if any(tensor.ndim <= dim or tensor.shape[dim] == 0 for tensor in tensors):
        raise error("All xs leaves must at least have 'dim' number of dimensions and scan dimension > 0")


def moved(xs: object, source: int, target: int, reverse: bool) -> object:
    leaves, structure = tree_flatten(xs)
    if source != target:
        leaves = [leaf.movedim(source, target) for leaf in leaves]
    return tree_unflatten([leaf.flip(0) for leaf in leaves] if reverse else leaves, structure)


def moved_back(xs: object, dim: int, reverse: bool) -> object:
    leaves, structure = tree_flatten(xs)
    if reverse:
        leaves = [leaf.flip(0) for leaf in leaves]
    return tree_unflatten([leaf.movedim(0, dim) if 0 < dim < leaf.ndim else leaf for leaf in leaves], structure)


def scanned(combine_fn: Branch, init: object, xs: object) -> tuple[object, object]:
    """A scan over the first dimension, as a nested graph where it can be one."""
    return unrolled(combine_fn, init, xs)


def unrolled(combine_fn: Branch, init: object, xs: object) -> tuple[object, object]:
    if tree_flatten(xs)[0][0].shape[0] > LONGEST_UNROLLED:
        return scanned_in_eager(combine_fn, init, xs)
    return scanned_rows(combine_fn, init, xs)


def scanned_rows(combine_fn: Branch, init: object, xs: object) -> tuple[object, object]:
    leaves, structure = tree_flatten(xs)
    carry: object = init
    rows = []
    for row in range(leaves[0].shape[0]):
        carry, made = combine_fn(carry, tree_unflatten([leaf[row] for leaf in leaves], structure))
        rows.append(made)
    flat = [tree_flatten(row)[0] for row in rows]
    stacked = [torch.stack(list(column)) for column in zip(*flat, strict=True)]
    return carry, tree_unflatten(stacked, tree_flatten(rows[0])[1])


def scanned_in_eager(combine_fn: Branch, init: object, xs: object) -> tuple[object, object]:
    return scanned_rows(combine_fn, init, xs)


scanned_in_eager._torchdynamo_disable = True  # type: ignore[attr-defined]


def auto_functionalized(names: tuple[str, ...], op: Branch, /, **kwargs: object) -> tuple[object, ...]:
    """torch's operator for one that writes to `names`: its results, then the copies that it wrote to."""
    copies = {name: tree_map(torch.clone, kwargs[name]) for name in names}
    made = op(**{**kwargs, **copies})
    results = made if isinstance(made, tuple) else (made,)
    return (*results, *[copies[name] for name in names])


def fresh(result: object, operands: Sequence[object]) -> object:
    """Results that are operands are copied, as the operators return new tensors."""
    if isinstance(result, Tensor):
        return result.clone() if any(result is operand for operand in operands) else result
    if isinstance(result, (tuple, list)):
        return type(result)([fresh(part, operands) for part in result])
    return result


OPERATORS: Mapping[int, Branch] = {
    id(torch.cond): cond,
    id(torch.ops.higher_order.cond): cond_operator,
    id(torch._higher_order_ops.while_loop): while_loop,  # type: ignore[attr-defined]
    id(torch.ops.higher_order.while_loop): while_loop,
    id(torch._higher_order_ops.map): mapped,  # type: ignore[attr-defined]
    id(torch._higher_order_ops.scan): scan,  # type: ignore[attr-defined]
    id(torch.ops.higher_order.scan): scan_operator,
    id(torch._higher_order_ops.associative_scan): associative_scan,  # type: ignore[attr-defined]
}


def plain_operator(operator: object) -> Branch | None:
    """What is called in place of an operator of torch where the graph breaks at its call."""
    return OPERATORS.get(id(operator))
