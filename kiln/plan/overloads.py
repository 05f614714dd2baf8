"""Overloads of torch's operators by their names.

find_overload("aten.mm.default")     torch.ops.aten.mm.default
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
