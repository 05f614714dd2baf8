"""Symbolic numbers that torch's C++ takes as plain doubles: `eps`, `momentum`, the `p` of dropout, margins.

    torch.layer_norm(x, (8,), w, b, eps)     =>     aten.native_layer_norm(x, (8,), w, b, eps), with a symbolic `eps`

The call is made with tags (`kiln/symbolic/tags.py`), for which the dispatch mode puts the symbolic numbers back.
Where a tag is lost, or reaches an operator that is not in `TAKES_NUMBERS`, the call is repeated with the numbers of
this call, which become part of the guards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch._ops import OpOverload

from kiln.graph.ops.breaks import UnsupportedOp
from kiln.graph.trace.log import leaves
from kiln.symbolic import ShapeEnv
from kiln.symbolic.node import Where, to_sym
from kiln.symbolic.tags import Tags, UnknownNumber, class_of, same_class
from kiln.symbolic.values import Real, has_hints, hinted_real


def _aten(*names: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in names)


ANY, POSITIVE, CHANCE = frozenset({0, 2, 4}), frozenset({2, 4}), frozenset({2})

TAKES_NUMBERS: Mapping[str, frozenset[int]] = {
    **dict.fromkeys(_aten(
        "native_layer_norm.default", "_fused_rms_norm.default", "native_group_norm.default",
        "native_batch_norm.default", "_native_batch_norm_legit.default", "_native_batch_norm_legit.no_stats",
        "_batch_norm_with_update.default", "_batch_norm_no_update.default", "cudnn_batch_norm.default",
        "nan_to_num.default", "elu.default", "scalar_tensor.default", "full.default", "fill_.Scalar",
        "clamp.default", "clamp_min.default", "clamp_max.default", "clamp_.default", "clamp_min_.default",
        "add.Scalar", "add_.Scalar", "sub.Scalar", "sub_.Scalar", "rsub.Scalar", "mul.Scalar", "mul_.Scalar",
        "div.Scalar", "div_.Scalar", "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "add_.Tensor",
        "sub_.Tensor", "mul_.Tensor", "div_.Tensor", "gt.Scalar", "lt.Scalar", "ge.Scalar", "le.Scalar",
        "constant_pad_nd.default", "where.ScalarOther", "masked_fill.Scalar", "masked_fill_.Scalar",
        "_scaled_dot_product_flash_attention_for_cpu.default", "_scaled_dot_product_flash_attention.default",
        "_scaled_dot_product_efficient_attention.default", "_scaled_dot_product_cudnn_attention.default",
        # Gradients.
        "native_batch_norm_backward.default", "cudnn_batch_norm_backward.default", "elu_backward.default",
        "huber_loss_backward.default", "smooth_l1_loss_backward.default", "logit_backward.default",
        "_cdist_backward.default", "_scaled_dot_product_flash_attention_for_cpu_backward.default",
        "_scaled_dot_product_flash_attention_backward.default", "where.Scalar", "eq.Scalar",
        "_scaled_dot_product_efficient_attention_backward.default",
        "_scaled_dot_product_cudnn_attention_backward.default",
        # Under `inference_mode` the operators that consist of others arrive, too.
        "layer_norm.default", "rms_norm.default", "group_norm.default", "batch_norm.default", "instance_norm.default",
        # Sizes are computed before; elements are found by these.
        "upsample_nearest1d.default", "upsample_nearest2d.default", "upsample_nearest3d.default",
        "_upsample_nearest_exact1d.default", "_upsample_nearest_exact2d.default", "_upsample_nearest_exact3d.default",
        "upsample_linear1d.default", "upsample_bilinear2d.default", "upsample_bicubic2d.default",
        "upsample_trilinear3d.default", "_upsample_bilinear2d_aa.default", "_upsample_bicubic2d_aa.default",
        "upsample_nearest1d_backward.default", "upsample_nearest2d_backward.default",
        "upsample_nearest3d_backward.default", "_upsample_nearest_exact1d_backward.default",
        "_upsample_nearest_exact2d_backward.default", "_upsample_nearest_exact3d_backward.default",
        "upsample_linear1d_backward.default", "upsample_bilinear2d_backward.default",
        "upsample_bicubic2d_backward.default", "upsample_trilinear3d_backward.default",
        "native_dropout_backward.default", "celu.default", "pad.default", "scaled_dot_product_attention.default",
    ), ANY),
    **dict.fromkeys(_aten(
        "normal_.default", "exponential_.default", "huber_loss.default", "smooth_l1_loss.default", "logit.default",
        "cosine_similarity.default", "_cdist_forward.default",
    ), POSITIVE),
    **dict.fromkeys(_aten(
        "native_dropout.default", "bernoulli_.float", "bernoulli.p", "dropout.default",
    ), CHANCE),
}  # fmt: skip
"""The classes of numbers (`class_of`) that an operator may take: others raise in eager. It decides nothing by a number
but what its class says, and in its gradient the number comes again as it is, or as in `derived_from`."""


TAKES_DATA = _aten(
    "batch_norm.default", "native_batch_norm.default", "_native_batch_norm_legit.default",
    "_batch_norm_with_update.default", "cudnn_batch_norm.default", "add.Scalar", "sub.Scalar", "rsub.Scalar",
    "mul.Scalar", "div.Scalar", "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor",
)  # fmt: skip
"""Those to which the class of a number makes no difference, so that data may decide it."""
DATA_NUMBER = 0.3
"""What C++ gets near of for a number that data decide."""


def takes(env: ShapeEnv, op: str, number: Real) -> bool:
    """Whether an operator may take a number that it decides nothing by."""
    if not has_hints(env, number):
        return op in TAKES_DATA
    return class_of(hinted_real(env, number)) in TAKES_NUMBERS.get(op, ())


TAKES_SYMBOLS: Mapping[str, frozenset[int]] = {
    **dict.fromkeys(_aten("celu.default", "celu_.default"), frozenset({0, 2, 3, 4})),
    "aten.softshrink.default": frozenset({1, 2, 3, 4}),
}
"""The same for operators that take symbolic numbers, and refuse some."""


def with_symbolic_numbers(
    env: ShapeEnv, tags: Tags, op: OpOverload, args: tuple[object, ...], kwargs: dict[str, object], where: Where
) -> tuple[tuple[object, ...], dict[str, object]]:
    """The arguments of an operator with symbolic numbers for tags."""
    allowed = TAKES_SYMBOLS.get(str(op))

    def put_back(value: object) -> object:
        if type(value) is torch.SymFloat:
            return value if allowed is None else in_classes(env, value, allowed)
        if type(value) is float and tags:
            found = tags.find(value)
            if found is None:
                return value
            if not takes(env, str(op), found):
                if env.tag_number is None:  # in a gradient, which cannot be recorded again
                    raise UnsupportedOp(op=str(op), reason="it takes a number that changes from call to call")
                raise UnknownNumber
            return to_sym(found, env, where)
        if type(value) is list and value and type(value[0]) is float:
            return [put_back(part) for part in value]
        return value

    return tuple([put_back(value) for value in args]), {name: put_back(value) for name, value in kwargs.items()}


def in_classes(env: ShapeEnv, value: torch.SymFloat, allowed: frozenset[int]) -> object:
    """The number if its class is one of these, which the call checks; else its value in this call, which is guarded."""
    real = value.node.value
    if isinstance(real, Real) and has_hints(env, real):
        found = class_of(hinted_real(env, real))
        if found in allowed and env.assume_number is not None and env.assume_number(same_class, real, float(found)):
            return value
        return value.node.guard_float()
    return value


def has_symbolic_numbers(values: Sequence[object]) -> bool:
    return any([type(value) is torch.SymFloat for value in leaves(list(values))])


def has_symbols_among(values: Sequence[object]) -> bool:
    return any([type(value) is torch.SymFloat or type(value) is torch.SymInt for value in leaves(list(values))])


@contextmanager
def tagging(env: ShapeEnv, tags: Tags, values: Sequence[object]) -> Iterator[None]:
    """C++ gets tags for the symbolic numbers of a call. Raises UnknownNumber if one of them is lost."""
    assume = env.assume_number

    def tag(value: object) -> float | None:
        if assume is None or not isinstance(value, Real):
            return None
        if not has_hints(env, value):
            return tags.tag(value, DATA_NUMBER)
        number = hinted_real(env, value)
        made = tags.tag(value, number)
        return made if made is not None and assume(same_class, value, float(class_of(number))) else None

    tags.begin({value for value in leaves(list(values)) if type(value) is float})
    env.tag_number, env.find_number = tag, tags.find_tag  # the latter also in the gradient
    try:
        yield
    finally:
        env.tag_number = None
        lost = tags.end()
    if lost:
        raise UnknownNumber
