"""The kinds of numbers that eager's kernels refuse, by overload: the rules themselves would compute something.

    gelu(i64[4])                 refused: a result of real numbers
    bitwise_and(f32[4], f32[4])  refused: bits of a float

The kind is that of the tensors' common dtype: `mse_loss(f32[4], i64[4])` computes in f32. Numbers that eager converts
to that dtype are refused where they do not fit:

    add(i64[4], i64[4], alpha=0.5)       refused: no factor of integers
    addcmul(f32[4], f32[4], 1e39)        refused: beyond f32

Of dtypes that few kernels take, such as `u16`, the kernel itself is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch

from kiln.graph.ir.node import Node
from kiln.graph.ops.breaks import UnsupportedOp
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.promotion import OPMATH, result_dtype
from kiln.graph.ops.sizes import is_empty
from kiln.plan.overloads import find_overload, is_random
from kiln.support.records import dataclass
from kiln.symbolic import Expr
from kiln.symbolic.values import Real
from kiln.tensor.spec import TensorSpec

OPERANDS = (Node, bool, int, float, complex)
BOOL, INTEGER, FLOAT, COMPLEX = "bool", "integer", "float", "complex"

# fmt: off
REFUSED_BY: Sequence[tuple[frozenset[str], tuple[str, ...]]] = (
    (frozenset({BOOL}), (
        "neg.default", "fmod.Tensor", "remainder.Tensor", "pow.Tensor_Tensor", "addcmul.default", "abs.default",
        "relu.default", "relu6.default", "hardtanh.default",
        "threshold.default", "trace.default", "_safe_softmax.default")),
    (frozenset({BOOL, INTEGER, COMPLEX}), ("round.decimals",)),
    (frozenset({INTEGER, FLOAT, COMPLEX}), ("_is_all_true.default", "_is_any_true.default")),
    (frozenset({BOOL, COMPLEX}), (
        "floor.default", "ceil.default", "trunc.default", "round.default", "floor_divide.default", "argmax.default",
        "argmin.default", "isin.Tensor_Tensor", "isin.Tensor_Scalar")),
    (frozenset({COMPLEX}), (
        "heaviside.default", "fmax.default", "fmin.default", "copysign.Tensor", "copysign.Scalar",
        "floor_divide.Scalar", "sign.default",
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


@dataclass(frozen=True, slots=True)
class NumberArgument:
    """A Python number among the arguments of an op, which eager converts to the dtype in which it computes."""

    name: str
    operands: int
    """How many leading arguments have a say in that dtype."""
    position: int | None = None
    """Where it stands if it is not given by name."""
    same_kind: bool = False
    """Refused is also a number of another kind: a float for integers, a bool but for flags."""


NUMBERS_OF: Sequence[tuple[tuple[str, ...], tuple[NumberArgument, ...]]] = (
    (("add.Tensor", "sub.Tensor", "rsub.Tensor"), (NumberArgument("alpha", 2, same_kind=True),)),
    (("add.Scalar", "sub.Scalar", "rsub.Scalar"), (NumberArgument("alpha", 2, 2, same_kind=True),)),
    (("addr.default",), tuple([NumberArgument(name, 3, same_kind=True) for name in ("alpha", "beta")])),
    (("addbmm.default",), (NumberArgument("alpha", 3), NumberArgument("beta", 3))),
    (("addcmul.default", "addcdiv.default"), (NumberArgument("value", 3),)),
    (("index_add.default",), (NumberArgument("alpha", 1),)),
    (("lerp.Scalar",), (NumberArgument("weight", 2, 2),)),
    (("pow.Tensor_Scalar",), (NumberArgument("exponent", 2, 1),)),
    (("hardshrink.default", "softshrink.default"), (NumberArgument("lambd", 1, 1),)),
    (("celu.default",), (NumberArgument("alpha", 1, 1),)),
    (("softplus.default",), (NumberArgument("beta", 1, 1), NumberArgument("threshold", 1, 2))),
    (("logit.default",), (NumberArgument("eps", 1, 1),)),
    (("uniform.default",), (NumberArgument("from", 1, 1), NumberArgument("to", 1, 2))),
    (("leaky_relu.default",), (NumberArgument("negative_slope", 1, 1),)),
    (("hardtanh.default",), (NumberArgument("min_val", 1, 1), NumberArgument("max_val", 1, 2))),
    (("threshold.default",), (NumberArgument("threshold", 1, 1), NumberArgument("value", 1, 2))),
    (("elu.default",), tuple([
        NumberArgument(name, 1, position) for position, name in enumerate(("alpha", "scale", "input_scale"), 1)])),
)  # fmt: skip
NUMBERS: Mapping[str, tuple[NumberArgument, ...]] = {
    f"aten.{name}": numbers for names, numbers in NUMBERS_OF for name in names
}


LEAST_INTEGER = -(2**63)


def refuse_numbers(e: Emit, name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Raise RuntimeError where eager does for a number that does not fit the dtype of the result."""
    for argument in NUMBERS.get(name, ()):
        value = kwargs.get(argument.name)
        if argument.position is not None and len(args) > argument.position:
            value = args[argument.position]
        if value is not None:
            dtype = result_dtype([arg for arg in args[: argument.operands] if isinstance(arg, OPERANDS)])
            if argument.same_kind:
                refuse_kind(argument.name, value, dtype)
            if argument.name == "alpha" and type(value) is int and value == LEAST_INTEGER:
                raise UnsupportedOp(op=name, reason="its kernel negates `alpha`, which overflows")
            e.require_fits(value, OPMATH.get(dtype, dtype))


def refuse_kind(name: str, value: object, dtype: torch.dtype) -> None:
    if isinstance(value, bool) and dtype is not torch.bool:
        raise RuntimeError(f"Boolean {name} only supported for Boolean results.")
    if kind_of(dtype) in (BOOL, INTEGER) and isinstance(value, float | complex | Real):
        raise RuntimeError(f"For integral input tensors, argument {name} must not be a floating point number.")
    if kind_of(dtype) == FLOAT and isinstance(value, complex):
        raise RuntimeError(f"For non-complex input tensors, argument {name} must not be a complex number.")


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
    if kind_of(common) not in kinds:
        return
    if is_empty(*[node.tensor for node in nodes]):
        raise UnsupportedOp(op=name, reason=f"whether it takes {common} without elements depends on its kernel")
    raise NotImplementedError(f'"{name}" not implemented for {common}')


RARE = frozenset({
    torch.uint16, torch.uint32, torch.uint64, torch.complex32, torch.float8_e5m2, torch.float8_e4m3fn,
    torch.float8_e5m2fnuz, torch.float8_e4m3fnuz, torch.float8_e8m0fnu,
})  # fmt: skip
"""Dtypes that few of eager's kernels take."""


def is_rare(value: object) -> bool:
    if isinstance(value, Node):
        return isinstance(value.spec, TensorSpec) and value.spec.dtype in RARE
    return isinstance(value, torch.dtype) and value in RARE


def refuse_rare(name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Raise NotImplementedError where eager has no kernel for these dtypes."""
    if any(map(is_rare, (*args, *kwargs.values()))) and not is_random(name):
        problem = problem_of_kernel(name, tuple(map(asked, args)), tuple([(key, asked(kwargs[key])) for key in kwargs]))
        if problem:
            raise NotImplementedError(problem)


def asked(value: object) -> object:
    """An argument for `problem_of_kernel`: of a tensor its dtype, rank and device; what is not known is 1."""
    if isinstance(value, list | tuple):
        return tuple(map(asked, value))
    if isinstance(value, Node):
        spec = value.spec
        return spec.with_sizes((2,) * spec.rank) if isinstance(spec, TensorSpec) else 1
    return 1 if isinstance(value, Expr | Real) else value


@lru_cache(maxsize=1024)
def problem_of_kernel(name: str, args: tuple[object, ...], kwargs: tuple[tuple[str, object], ...]) -> str:
    """What eager's kernel says about tensors of sizes 2; "" unless it is not implemented for them."""
    try:
        with torch.no_grad():
            find_overload(name)(*map(element, args), **{key: element(value) for key, value in kwargs})
    except NotImplementedError as problem:
        return str(problem)
    except Exception:  # for example, what is asked has other sizes than the arguments
        return ""
    return ""


def element(value: object) -> object:
    if isinstance(value, tuple):
        return list(map(element, value))
    if not isinstance(value, TensorSpec):
        return value
    return torch.zeros((2,) * value.rank, dtype=value.dtype, device=value.device)


REFUSED_IN_PLACE: Mapping[str, frozenset[str]] = {"aten.abs.default": frozenset({COMPLEX})}
"""By functional overload: kinds of numbers that only the in-place form refuses."""


def refuse_in_place(name: str, dtype: torch.dtype) -> None:
    if kind_of(dtype) in REFUSED_IN_PLACE.get(name, ()):
        raise RuntimeError(f"the in-place form of {name} is not supported for {dtype}")
