"""The kinds of numbers that eager's kernels refuse, by overload: the rules themselves would compute something.

    gelu(i64[4])                 refused: a result of real numbers
    bitwise_and(f32[4], f32[4])  refused: bits of a float

The kind is that of the tensors' common dtype: `mse_loss(f32[4], i64[4])` computes in f32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from kiln.graph.ir.node import Node
from kiln.graph.ops.promotion import result_dtype

BOOL, INTEGER, FLOAT, COMPLEX = "bool", "integer", "float", "complex"

# fmt: off
REFUSED_BY: Sequence[tuple[frozenset[str], tuple[str, ...]]] = (
    (frozenset({BOOL}), (
        "neg.default", "fmod.Tensor", "remainder.Tensor", "pow.Tensor_Tensor", "addcmul.default", "abs.default",
        "relu.default", "relu6.default", "hardtanh.default",
        "threshold.default", "trace.default", "_safe_softmax.default")),
    (frozenset({BOOL, COMPLEX}), (
        "floor.default", "ceil.default", "trunc.default", "round.default", "floor_divide.default", "argmax.default",
        "argmin.default", "isin.Tensor_Tensor", "isin.Tensor_Scalar")),
    (frozenset({COMPLEX}), (
        "fmax.default", "fmin.default", "copysign.Tensor", "copysign.Scalar", "floor_divide.Scalar", "sign.default",
        "deg2rad.default", "rad2deg.default", "isposinf.default", "isneginf.default", "xlogy.Tensor",
        "xlogy.Scalar_Other", "xlogy.Scalar_Self", "special_xlog1py.default", "special_xlog1py.other_scalar",
        "special_xlog1py.self_scalar", "logit.default", "nansum.default")),
    (frozenset({BOOL, FLOAT, COMPLEX}), (
        "bitwise_left_shift.Tensor", "bitwise_right_shift.Tensor", "__lshift__.Tensor", "__rshift__.Tensor")),
    (frozenset({FLOAT, COMPLEX}), (
        "bitwise_and.Tensor", "bitwise_and.Scalar", "bitwise_or.Tensor", "bitwise_or.Scalar", "bitwise_xor.Tensor",
        "bitwise_xor.Scalar", "__and__.Tensor", "__and__.Scalar", "__or__.Tensor", "__or__.Scalar", "__xor__.Tensor",
        "__xor__.Scalar", "bitwise_left_shift.Tensor_Scalar", "bitwise_right_shift.Tensor_Scalar",
        "__lshift__.Scalar", "__rshift__.Scalar", "bitwise_not.default")),
    (frozenset({BOOL, INTEGER}), (
        "addcdiv.default", "lerp.Scalar", "lerp.Tensor", "frac.default", "logaddexp.default", "logaddexp2.default",
        "gelu.default", "silu.default", "elu.default", "celu.default", "leaky_relu.default", "_prelu_kernel.default",
        "softplus.default", "hardsigmoid.default", "hardswish.default", "log_sigmoid_forward.default",
        "hardshrink.default", "softshrink.default", "var.correction", "std.correction", "var_mean.correction",
        "std_mean.correction", "linalg_vector_norm.default", "smooth_l1_loss.default", "huber_loss.default",
        "binary_cross_entropy.default", "binary_cross_entropy_with_logits.default", "soft_margin_loss.default",
        "rand_like.default", "randn_like.default", "norm.Scalar", "norm.ScalarOpt_dim", "dist.default",
        "uniform.default", "normal_functional.default", "native_dropout.default", "_softmax.default",
        "_log_softmax.default")),
    (frozenset({BOOL, INTEGER, COMPLEX}), (
        "nextafter.default", "hypot.default", "mish.default", "glu.default", "mse_loss.default", "exponential.default",
        "bernoulli.default")),
)
# fmt: on
REFUSED: Mapping[str, frozenset[str]] = {f"aten.{name}": kinds for kinds, names in REFUSED_BY for name in names}


def kind_of(dtype: torch.dtype) -> str:
    if dtype is torch.bool:
        return BOOL
    return COMPLEX if dtype.is_complex else FLOAT if dtype.is_floating_point else INTEGER


def refuse_dtype(name: str, args: Sequence[object], dtype: object) -> None:
    """Raise NotImplementedError where eager does; `dtype` is the argument of that name."""
    kinds, nodes = REFUSED.get(name), [arg for arg in args if type(arg) is Node]
    if kinds is None or not nodes or isinstance(dtype, torch.dtype):
        return
    common = result_dtype(nodes)
    if kind_of(common) in kinds:
        raise NotImplementedError(f'"{name}" not implemented for {common}')
