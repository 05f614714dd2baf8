"""Samples of torch's own databases of operators, modules and optimizers, and copies of tensors to run them on.

operators()[0].sample_inputs("cpu", torch.float32)      the arguments of calls that torch tests itself with
copy_of(x.t())                                          the same numbers and strides, in memory of its own
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor

from kiln_bench.databases import database
from tests.sweeps.compare import leaves

SEED = 20240229
TORCH_SEED = 1234
"""Of the samples of torch's own tests."""
MOST_ELEMENTS = 1_000_000
MOST_SAMPLES = 200
"""Samples to generate per op; the checked ones are spread over them."""


def operators() -> list[Any]:
    """torch's database of operators."""
    found = database("common_methods_invocations").op_db
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.testing._internal") and hasattr(module, "wrapper_set_seed"):
            module.wrapper_set_seed = plainly  # type: ignore[attr-defined]
    database("common_utils").set_rng_seed = seed_of_samples  # type: ignore[attr-defined]
    return list(found)


def plainly(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """In place of `wrapper_set_seed`, whose changes of the random state break the graph around each random op."""
    return op(*args, **kwargs)


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def shuffled(ops: list[Any]) -> list[Any]:
    """In an order that is the same in each process, so that a short run is a fair sample."""
    ordered = sorted(ops, key=name_of)
    random.Random(SEED).shuffle(ordered)
    return ordered


def shard_of(ops: list[Any], shard: str, only: str) -> list[Any]:
    """The ops of a shard, or those named in `only`."""
    if only:
        names = set(only.split(","))
        return [op for op in ops if op.name in names or name_of(op) in names]
    part, parts = map(int, shard.split("/"))
    return shuffled(ops)[part % parts :: parts]


def samples_of(op: Any, device: str, dtype: torch.dtype, reference: bool = False) -> list[Any]:
    """The samples of an op; none where this machine cannot make them (a missing library)."""
    seed()
    wants = bool(op.supports_autograd and (dtype.is_floating_point or dtype.is_complex))
    try:
        source = op.reference_inputs if reference else op.sample_inputs
        found = list(itertools.islice(source(device, dtype, requires_grad=wants), MOST_SAMPLES))
    except Exception:
        return []
    return [value for value in found if elements(value) <= MOST_ELEMENTS]


def spread(found: list[Any], count: int) -> list[tuple[int, Any]]:
    """At most `count` items spread evenly over a list, with their indices; all if it is 0."""
    if not count or len(found) <= count:
        return list(enumerate(found))
    return [(n, found[n]) for n in sorted({round(i * (len(found) - 1) / max(count - 1, 1)) for i in range(count)})]


def elements(sample: Any) -> int:
    tensors = [leaf for leaf in leaves((sample.input, sample.args, sample.kwargs)) if isinstance(leaf, Tensor)]
    return max((tensor.numel() for tensor in tensors), default=0)


def summary(sample: Any) -> str:
    try:
        return str(sample.summary())[:800]
    except Exception:
        return "(no summary)"


def seed(number: int = SEED) -> None:
    seed_torch(number)
    random.seed(number)


def seed_torch(number: int) -> None:
    """`torch.manual_seed`, which without a GPU formats the stack for each kind of device: a third of some sweeps."""
    if torch.cuda.is_available():
        torch.manual_seed(number)
    else:
        torch.default_generator.manual_seed(number)


def seed_of_samples(number: int | None = None) -> None:
    """In place of `set_rng_seed`, which torch calls before each sample."""
    number = TORCH_SEED if number is None else number
    seed(number)
    numpy.random.seed(number)


def import_late_modules() -> None:
    """What torch imports at the first call of these, here before children are forked: two seconds of each child."""
    torch.testing.assert_close(torch.zeros(1), torch.zeros(1))
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled())


def random_state(device: str) -> bytes:
    state = torch.cuda.get_rng_state() if device.startswith("cuda") else torch.get_rng_state()
    return state.numpy().tobytes()


def drew_numbers(device: str) -> bool:
    """Whether random numbers were drawn since `seed()`; seeds anew."""
    state = random_state(device)
    seed()
    return state != random_state(device)


def calling(op: Callable[..., Any]) -> Callable[..., Any]:
    """A function of its own for each compile."""
    return lambda *args, **kwargs: op(*args, **kwargs)


def copy_of(value: Any) -> Any:
    """A tensor with the same strides in memory of its own; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    if value.layout != torch.strided or value.is_quantized or value.is_nested:
        return value.detach().clone().requires_grad_(value.requires_grad)
    memory = value.detach().untyped_storage().clone()
    fresh = torch.empty(0, dtype=value.dtype, device=value.device)
    fresh.set_(memory, value.storage_offset(), value.size(), value.stride())
    fresh = torch._neg_view(fresh) if value.is_neg() else fresh
    fresh = fresh.conj() if value.is_conj() else fresh
    return fresh.detach().requires_grad_(value.requires_grad)


def doubled(value: Any) -> Any:
    """In double precision, tensors and dtypes."""
    wide = dict.fromkeys((torch.float32, torch.bfloat16, torch.float16), torch.float64)
    wide |= dict.fromkeys((torch.complex64, torch.complex32), torch.complex128)
    if isinstance(value, Tensor):
        return value.detach().to(wide.get(value.dtype, value.dtype), copy=True).requires_grad_(value.requires_grad)
    return wide.get(value, value) if isinstance(value, torch.dtype) else value


def tangent_of(result: Tensor) -> Tensor:
    """Random numbers in the layout of the result, as Kiln copies tangents into it."""
    generator = torch.Generator().manual_seed(SEED + result.dim())
    narrow = {torch.float64: torch.float32, torch.complex128: torch.complex64}.get(result.dtype, result.dtype)
    numbers = torch.randn(result.shape, generator=generator, dtype=narrow)
    return torch.empty_like(result, requires_grad=False).copy_(numbers)
