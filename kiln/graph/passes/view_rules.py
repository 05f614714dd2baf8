# ruff: noqa: E501
"""Rewrite rules for views and copies: chains become a single step, identities are removed.

%2 = permute(%1, dims=(1, 0)); %3 = permute(%2, dims=(1, 0))                  =>   %1
%2 = slice_scatter(%0, %1, <slice>); %3 = slice(%2, <slice>)                  =>   %1
%1 = clone(%0, strides=None), if %0 is contiguous                             =>   %0
"""

from __future__ import annotations

from kiln.graph.passes.patterns import Match, RewriteRule, RuleSet, attr, computed, op, var
from kiln.tensor.spec import TensorSpec

x, y, z = var("x"), var("y"), var("z")
p, q = attr("p"), attr("q")
axis, start, stop, step, index = attr("axis"), attr("start"), attr("stop"), attr("step"), attr("index")

Axes = tuple[int, ...]


def compose(inner: Axes, outer: Axes) -> Axes:
    """The permutation that does `inner`, then `outer`."""
    return tuple([inner[dim] for dim in outer])


def same_axis(match: Match) -> bool:
    return bool(match.attrs["q"] == (match.attrs["axis"],))


def is_whole(match: Match) -> bool:
    """The slice is the whole dimension."""
    spec: TensorSpec = match.nodes["x"].tensor
    axis = match.attrs["axis"]
    assert isinstance(axis, int)
    return (match.attrs["start"], match.attrs["stop"], match.attrs["step"]) == (0, spec.sizes[axis], 1)


def is_packed(match: Match) -> bool:
    """x is contiguous, so that a view can have any sizes."""
    return match.nodes["x"].tensor.is_contiguous()


SLICE = {"axis": axis, "start": start, "stop": stop, "step": step}
SELECT = {"axis": axis, "index": index}

# A replacement with other strides or offset does not apply (`can_replace`), as readers depend on them.
# fmt: off
VIEWS = RuleSet(
    #           name                     pattern                                                   replacement      only if
    RewriteRule("permute_permute",       op.permute(op.permute(x, dims=p), dims=q),                op.permute(x, dims=computed(compose, "p", "q"))),
    RewriteRule("permute_nothing",       op.permute(x, dims=p),                                    x),
    RewriteRule("view_view",             op.view(op.view(x), sizes=q),                             op.view(x, sizes=q)),
    RewriteRule("view_unsqueeze",        op.view(op.unsqueeze(x), sizes=q),                        op.view(x, sizes=q)),
    RewriteRule("view_squeeze",          op.view(op.squeeze(x), sizes=q),                          op.view(x, sizes=q)),
    RewriteRule("view_reshape",          op.view(op.reshape(x), sizes=q),                          op.reshape(x, sizes=q)),
    RewriteRule("view_nothing",          op.view(x),                                               x),
    RewriteRule("expand_expand",         op.expand(op.expand(x), sizes=q),                         op.expand(x, sizes=q)),
    RewriteRule("expand_nothing",        op.expand(x),                                             x),
    RewriteRule("squeeze_nothing",       op.squeeze(x, axes=()),                                   x),
    RewriteRule("squeeze_unsqueeze",     op.squeeze(op.unsqueeze(x, axis=axis), axes=q),           x,               same_axis),
    RewriteRule("unsqueeze_squeeze",     op.unsqueeze(op.squeeze(x, axes=q), axis=axis),           x,               same_axis),
    RewriteRule("slice_whole",           op.slice(x, **SLICE),                                     x,               is_whole),
    RewriteRule("reshape_reshape",       op.reshape(op.reshape(x), sizes=q),                       op.reshape(x, sizes=q)),
    RewriteRule("reshape_view",          op.reshape(op.view(x), sizes=q),                          op.reshape(x, sizes=q)),
    RewriteRule("reshape_packed",        op.reshape(x, sizes=q),                                   op.view(x, sizes=q), is_packed),
    RewriteRule("clone_nothing",         op.clone(x),                                              x),
    RewriteRule("clone_clone",           op.clone(op.clone(x), strides=q),                         op.clone(x, strides=q)),
    RewriteRule("reshape_clone",         op.reshape(op.clone(x), sizes=q),                         op.reshape(x, sizes=q)),
    RewriteRule("cat_one",               op.cat(x),                                                x),
    RewriteRule("flip_nothing",          op.flip(x, axes=()),                                      x),
    RewriteRule("slice_of_scatter",      op.slice(op.slice_scatter(x, y, **SLICE), **SLICE),       y),
    RewriteRule("select_of_scatter",     op.select(op.select_scatter(x, y, **SELECT), **SELECT),       y),
    RewriteRule("scatter_own_slice",     op.slice_scatter(x, op.slice(x, **SLICE), **SLICE),       x),
    RewriteRule("scatter_own_select",    op.select_scatter(x, op.select(x, **SELECT), **SELECT),       x),
    RewriteRule("slice_scatter_twice",   op.slice_scatter(op.slice_scatter(x, y, **SLICE), z, **SLICE), op.slice_scatter(x, z, **SLICE)),
    RewriteRule("select_scatter_twice",  op.select_scatter(op.select_scatter(x, y, **SELECT), z, **SELECT), op.select_scatter(x, z, **SELECT)),
)
# fmt: on
