"""Overloads of torch's operators by their names.

find_overload("aten.mm.default")     torch.ops.aten.mm.default
is_random("aten.rand.default")       True
written_arguments("aten.add_.Tensor")    {0, "self"}
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from kiln.plan.errors import UnknownOperator


@lru_cache(maxsize=4096)
def find_overload(target: str) -> Any:
    """The callable. Raises UnknownOperator where no library has registered it."""
    namespace, name, overload = target.split(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), name), overload)
    except (AttributeError, RuntimeError) as error:
        raise UnknownOperator(target=target, problem=str(error)) from error


@lru_cache(maxsize=1024)
def is_random(target: str) -> bool:
    """Whether the overload draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(find_overload(target), "tags", ())


@lru_cache(maxsize=1024)
def written_arguments(target: str) -> frozenset[int | str]:
    """The positions and names of the arguments that the overload writes to."""
    schema = getattr(find_overload(target), "_schema", None)
    if schema is None or not schema.is_mutable:
        return frozenset()
    pairs = [pair for pair in enumerate(schema.arguments) if pair[1].alias_info is not None]
    found = [(place, arg.name) for place, arg in pairs if arg.alias_info.is_write]
    return frozenset(part for pair in found for part in pair)
