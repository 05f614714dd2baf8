"""Overloads of torch's operators by their names.

find_overload("aten.mm.default")     torch.ops.aten.mm.default
is_random("aten.rand.default")       True
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
