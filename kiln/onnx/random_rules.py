"""Random numbers as ONNX's operators: a runtime has a generator of its own and draws other ones, distributed alike.

    randn_like(x)      RandomNormalLike(zeros)
    bernoulli(x)       Cast(RandomUniformLike(zeros) < x)

Back ends do not get them (`graph/offload/split.py`).
"""

from __future__ import annotations

import torch

from kiln.onnx.call import OnnxCaller
from kiln.onnx.dtypes import ONNX_DTYPES
from kiln.onnx.library_rules import rule
from kiln.onnx.model import Attribute
from kiln.symbolic import Int


def drawn(o: OnnxCaller, op: str, dtype: torch.dtype, **more: Attribute) -> str:
    """Numbers of the sizes of the result."""
    zeros = o("Expand", o.number(0, dtype), o.ints(o.spec.sizes))
    return o(op, zeros, dtype=dtype, attrs={"dtype": ONNX_DTYPES[dtype], **more})


def wide(dtype: torch.dtype) -> torch.dtype:
    """In which numbers are drawn."""
    return torch.float64 if dtype is torch.float64 else torch.float32


@rule("uniform.default")
def uniform(o: OnnxCaller, x: str, low: float = 0, high: float = 1, *, generator: None = None) -> str:
    """Rounded to a narrower dtype, a number is not the end."""
    dtype = o.spec.dtype
    end = high if wide(dtype) is dtype else high - (high - low) * torch.finfo(dtype).eps / 4
    return o.cast(drawn(o, "RandomUniformLike", wide(dtype), low=float(low), high=float(end)), dtype)


@rule("normal_functional.default")
def normal(o: OnnxCaller, x: str, mean: float = 0, std: float = 1, *, generator: None = None) -> str:
    dtype = o.spec.dtype
    return o.cast(drawn(o, "RandomNormalLike", wide(dtype), mean=float(mean), scale=float(std)), dtype)


rule("rand.default", "rand_like.default")(lambda o, *sizes, **settings: uniform(o, ""))
rule("randn.default", "randn_like.default")(lambda o, *sizes, **settings: normal(o, ""))


@rule("randint.default")
def randint(o: OnnxCaller, high: int, sizes: object, **settings: object) -> str:
    return randint_from(o, 0, high, sizes)


@rule("randint.low")
def randint_from(o: OnnxCaller, low: int, high: int, sizes: object, **settings: object) -> str:
    if not isinstance(low, int) or not isinstance(high, int):
        raise o.refused("ends that are no fixed numbers")
    part = drawn(o, "RandomUniformLike", torch.float64)
    whole = o.cast(o("Floor", o("Mul", part, o.number(high - low, torch.float64))), torch.int64)
    return o.cast(o("Add", whole, o.number(low, torch.int64)), o.spec.dtype)


@rule("bernoulli.default", "bernoulli.p")
def bernoulli(o: OnnxCaller, x: str, p: float | None = None, *, generator: None = None) -> str:
    chance = o.cast(x, torch.float32) if p is None else o.number(p, torch.float32)
    return o.cast(o("Less", drawn(o, "RandomUniformLike", torch.float32), chance), o.spec.dtype)


@rule("multinomial.default")
def multinomial(o: OnnxCaller, x: str, count: int, replacement: bool = False, *, generator: None = None) -> str:
    if count != 1 and not replacement:
        return distinct(o, x, count)
    if not isinstance(count, int):
        raise o.refused("as many draws as a size says")
    rows = x if o.input().rank == 2 else o("Unsqueeze", x, o.ints((0,)))
    attrs: dict[str, Attribute] = {"dtype": ONNX_DTYPES[torch.int64], "sample_size": count}
    made = o("Multinomial", o("Log", rows), dtype=torch.int64, attrs=attrs)
    return made if o.input().rank == 2 else o("Squeeze", made, o.ints((0,)))


def distinct(o: OnnxCaller, x: str, count: Int) -> str:
    """The largest of log(weight) - log(-log(uniform)) are drawn without replacement (the Gumbel trick)."""
    attrs: dict[str, Attribute] = {"dtype": ONNX_DTYPES[torch.float32], "low": 1e-7, "high": 1.0}
    even = o("RandomUniformLike", x, dtype=torch.float32, attrs=attrs)
    noise = o("Neg", o("Log", o("Neg", o("Log", even))))
    found = o.many("TopK", o("Add", o("Log", o.cast(x, torch.float32)), noise), o.ints((count,)), count=2, axis=-1)
    return o("Cast", found[1], dtype=torch.int64, to=ONNX_DTYPES[torch.int64])
