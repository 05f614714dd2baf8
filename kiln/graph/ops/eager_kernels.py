"""Which ATen ops stay calls of eager's kernels although they have a decomposition.

    options={"random": "eager"}       aten.bernoulli.p(x, 0.9)  =>  opaque aten.bernoulli.p(x, 0.9)
    options={"numerics": "strict"}    aten.sum.dim_IntList(x, [1])  =>  aten.sum.dim_IntList(x, [1])

A call that draws random numbers is `opaque`: it keeps its place among the others, even if nobody reads its result, so
that the generator advances as in eager. In strict numerics a floating-point op is decomposed only if it is in `EXACT`.
The decomposition still gives the dtypes, sizes and strides of the results; its nodes are dead code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import wraps
from typing import cast, final

import torch

from kiln.graph.ir.node import Argument, Node
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.registry import Decomposition, Effects, MutationRule, Results
from kiln.graph.prims.meta.layout import sorted_axes
from kiln.plan.overloads import is_collective, is_random
from kiln.support.records import dataclass
from kiln.tensor.spec import Spec, TensorSpec


def _aten(*names: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in names)


ARITHMETIC = _aten(
    "add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Scalar", "rsub.Tensor", "mul.Tensor", "mul.Scalar",
    "div.Tensor", "div.Scalar", "neg.default", "abs.default", "reciprocal.default", "floor.default",
    "ceil.default", "trunc.default", "round.default", "sign.default", "sgn.default", "copysign.Tensor", "relu.default",
    "threshold_backward.default", "clamp.default", "clamp_min.default", "clamp_max.default", "maximum.default",
    "minimum.default",
    "eq.Tensor", "eq.Scalar", "ne.Tensor", "ne.Scalar", "lt.Tensor", "lt.Scalar", "le.Tensor", "le.Scalar",
    "gt.Tensor", "gt.Scalar", "ge.Tensor", "ge.Scalar",
)  # fmt: skip
"""IEEE 754 prescribes every bit of the result; not for 16-bit tensors and numbers, which eager does not round.

Eager's sqrt is that of a vector library, which is not rounded correctly.
"""

COPIES = _aten(
    "isnan.default", "isinf.default", "signbit.default", "logical_not.default", "logical_and.default",
    "logical_or.default", "logical_xor.default", "where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar",
    "masked_fill.Scalar", "masked_fill.Tensor", "tril.default", "triu.default", "_to_copy.default", "clone.default",
    "copy.default", "cat.default", "stack.default", "index.Tensor", "index_select.default", "gather.default",
    "embedding.default", "constant_pad_nd.default", "flip.default", "roll.default", "repeat.default",
    "select_scatter.default", "slice_scatter.default", "diagonal_scatter.default", "as_strided_scatter.default",
    "scatter.src", "scatter.value", "select_backward.default", "slice_backward.default", "diagonal_backward.default",
    "empty.memory_format", "empty_strided.default", "empty_like.default", "zeros.default", "zeros_like.default",
    "ones.default", "ones_like.default", "full.default", "full_like.default", "new_empty.default",
    "new_empty_strided.default", "new_zeros.default", "new_ones.default", "new_full.default", "fill.Scalar",
    "fill.Tensor", "scalar_tensor.default", "_unsafe_view.default", "_unsafe_index.Tensor",
)  # fmt: skip
"""Elements are chosen and copied."""

EXACT = ARITHMETIC | COPIES
"""Ops whose decomposition gives eager's bits on floating-point numbers."""

CALLS = _aten("_cudnn_rnn.default", "_cudnn_rnn_backward.default")
"""Their decomposition calls eager's kernel, but returns no copy of the weights. Nothing is drawn: it has no dropout."""

SCALED = _aten("add.Tensor", "sub.Tensor", "rsub.Tensor", "rsub.Scalar", "add.Scalar", "sub.Scalar")
"""With `alpha`, eager fuses the product into the addition on some processors."""

HALF_PRECISION = (torch.bfloat16, torch.float16)

FUNCTIONAL = {
    "aten.native_batch_norm.default": "aten._native_batch_norm_legit_functional.default",
    "aten._native_batch_norm_legit.default": "aten._native_batch_norm_legit_functional.default",
    "aten._batch_norm_with_update.default": "aten._batch_norm_with_update_functional.default",
}
"""Overloads that return the new contents of the arguments that others write to."""
WITHOUT_TRAINING = "aten._native_batch_norm_legit_no_training.default"
WITHOUT_STATISTICS = "aten._native_batch_norm_legit.no_stats"


@final
@dataclass(frozen=True, slots=True)
class EagerKernels:
    """`random`: those that draw random numbers. `strict`: those that may round otherwise than our own kernels."""

    random: bool = False
    strict: bool = False

    def decomposition(self, name: str, rule: Decomposition, *, in_place: bool = False) -> Decomposition:
        """`rule`, or one that records a call of overload `name`. `in_place`: for the in-place form of the overload."""
        if name in CALLS:
            return rule
        if self.random and is_random(name):
            call = recorded_call(name, rule, random=True)
            return bernoulli_in_memory_order(call) if in_place and name == "aten.bernoulli.p" else call
        if self.strict and name not in EXACT and not is_collective(name):  # a collective is a call already
            return recorded_call(name, rule)
        return arithmetic_call(name, rule) if self.strict and name in ARITHMETIC else rule

    def mutation(self, name: str, rule: MutationRule) -> MutationRule:
        """The same for ops that write to arguments without saying so."""
        functional = FUNCTIONAL.get(name) if self.strict else None
        return rule if functional is None else recorded_mutation(functional, rule)


OWN_KERNELS = EagerKernels()
"""Whatever has a decomposition is decomposed."""


def recorded_call(name: str, rule: Decomposition, *, random: bool = False) -> Decomposition:
    """Records the call unless it computes integers from integers, or takes what a plan cannot pass to ATen."""

    @wraps(rule)
    def recorded(e: Emit, *args: Argument, **kwargs: Argument) -> Results:
        results = rule(e, *args, **kwargs)
        values = flattened((*args, *kwargs.values()))
        spec = specs_of(results)
        if spec is None or not any(isinstance(value, TensorSpec) for value in specs_in(spec)):
            return results
        if any(isinstance(value, complex) for value in values):
            return results
        tensors = [*specs_in(spec), *[value.spec for value in values if isinstance(value, Node)]]
        if not random and not any(is_inexact(value) for value in tensors):
            return results
        return e.library(name, args, kwargs, spec, opaque=random)

    return recorded


def bernoulli_in_memory_order(call: Decomposition) -> Decomposition:
    """`x.bernoulli_(p)` draws in the order of memory, unlike `bernoulli(x, p)`."""

    @wraps(call)
    def recorded(e: Emit, x: Node, p: float = 0.5, **kwargs: Argument) -> Results:
        dims = sorted_axes(e.oracle, x.tensor.sizes, (x.tensor.strides,))[::-1]
        made = call(e, e.node("permute", x, dims=dims), p, **kwargs)
        assert isinstance(made, Node)
        return e.node("permute", made, dims=tuple([dims.index(dim) for dim in range(len(dims))]))

    return recorded


def arithmetic_call(name: str, rule: Decomposition) -> Decomposition:
    """The decomposition; the call where eager fuses or does not round."""
    call = recorded_call(name, rule)

    @wraps(rule)
    def recorded(e: Emit, *args: Argument, **kwargs: Argument) -> Results:
        alpha = kwargs.get("alpha", args[2] if len(args) > 2 and name in SCALED else 1)
        exact = alpha == 1 and not is_mixed((*args, *kwargs.values()))
        return rule(e, *args, **kwargs) if exact else call(e, *args, **kwargs)

    return recorded


def is_mixed(values: Sequence[Argument]) -> bool:
    """16-bit tensors with numbers, or tensors of rank 0: these are not rounded to 16 bits."""
    specs = [value.tensor for value in values if isinstance(value, Node)]
    if not any(spec.dtype in HALF_PRECISION for spec in specs):
        return False
    numbers = any(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return numbers or len({bool(spec.rank) for spec in specs}) > 1


def recorded_mutation(functional: str, rule: MutationRule) -> MutationRule:
    """Records a call of an overload that writes nothing: `functional`, whose last results are the new contents of
    arguments 3 and 4, or those without training (argument 5), or without statistics, which have no such results."""

    def recorded(e: Emit, *args: Argument) -> Effects:
        effects = rule(e, *args)
        specs = tuple([node.tensor for node in cast(Sequence[Node], effects.results)])
        if effects.writes:
            running = [cast(Node, args[number]).tensor for number in (3, 4)]
            made = e.library(functional, args, {}, (*specs, *running))
            mean, variance = cast(Sequence[Node], made[-2:])
            return Effects(made[:-2], {3: mean, 4: variance})
        if isinstance(args[3], Node):
            return Effects(e.library(WITHOUT_TRAINING, (*args[:5], *args[6:]), {}, specs))
        return Effects(e.library(WITHOUT_STATISTICS, (*args[:3], *args[5:]), {}, specs))

    return recorded


def specs_of(results: Results) -> TensorSpec | tuple[TensorSpec | None, ...] | None:
    """The specs of the results of a call; None where they are not tensors, or lists of them."""
    if isinstance(results, Node):
        return results.tensor
    if not isinstance(results, tuple):
        return None
    parts = [part.tensor if isinstance(part, Node) else None for part in results]
    return tuple(parts) if all(part is None or isinstance(part, Node) for part in results) else None


def specs_in(spec: TensorSpec | tuple[TensorSpec | None, ...]) -> Sequence[Spec | None]:
    return spec if isinstance(spec, tuple) else (spec,)


def flattened(values: Iterable[Argument]) -> list[Argument]:
    """The values in nested lists."""
    found: list[Argument] = []
    for value in values:
        if isinstance(value, list | tuple):
            found += flattened(value)
        else:
            found.append(value)
    return found


def is_inexact(spec: Spec | None) -> bool:
    return isinstance(spec, TensorSpec) and (spec.dtype.is_floating_point or spec.dtype.is_complex)
