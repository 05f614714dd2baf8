"""Overloads of torch's operators by their names.

find_overload("aten.mm.default")     torch.ops.aten.mm.default
is_random("aten.rand.default")       True
draws("aten._scaled_dot_product_flash_attention.default", (q, k, v, 0.0), ())     False: nothing is dropped
is_collective("_c10d_functional.all_reduce.default")     True
written_arguments("aten.add_.Tensor")    {0, "self"}
number_arguments("aten.add.Tensor")      {2, "alpha"}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from kiln.plan import (
    collective_operators,
    host_operators,
    numpy_operators,
    packed_operators,
    recurrent_operators,
    sparse_operators,
    transfer_operators,
    triton_operator,
)
from kiln.plan.errors import UnknownOperator


@lru_cache(maxsize=4096)
def find_overload(target: str) -> Any:
    """The callable. Raises UnknownOperator where no library has registered it."""
    namespace, name, overload = target.split(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), name), overload)
    except (AttributeError, RuntimeError) as error:
        raise UnknownOperator(target=target, problem=str(error)) from error


OWN = (
    collective_operators.LIBRARY, host_operators.LIBRARY, numpy_operators.LIBRARY,
    packed_operators.LIBRARY, recurrent_operators.LIBRARY, sparse_operators.LIBRARY, transfer_operators.LIBRARY,
    triton_operator.LIBRARY,
)  # fmt: skip
"""Operators that Kiln registers."""
COLLECTIVES = frozenset(("c10d", "_c10d_functional", "c10d_functional", "_dtensor", collective_operators.NAMESPACE))
"""Namespaces of operators that talk to other processes."""
WAIT_TENSOR = "_c10d_functional.wait_tensor.default"


def is_collective(target: str) -> bool:
    """Whether the overload talks to other processes, which run it too, in the same order."""
    return target.partition(".")[0] in COLLECTIVES


def is_awaited(target: str) -> bool:
    """Whether what the overload returns is filled later, and must be waited for."""
    return is_collective(target) or target == transfer_operators.TRANSFER


@lru_cache(maxsize=1024)
def is_random(target: str) -> bool:
    """Whether the overload draws random numbers. A backward of attention gets the seed that its forward drew."""
    overload = find_overload(target)
    if torch.Tag.nondeterministic_seeded not in getattr(overload, "tags", ()):
        return False
    return not any(argument.name == GIVEN_SEED for argument in overload._schema.arguments)


def draws(target: str, args: Sequence[object], kwargs: Iterable[tuple[str, object]]) -> bool:
    """Whether a call of the overload draws random numbers: attention does only where it drops something."""
    if not is_random(target):
        return False
    arguments = find_overload(target)._schema.arguments
    place = next((place for place, argument in enumerate(arguments) if argument.name == DROPPED_SHARE), None)
    if place is None:
        return True
    given = args[place] if place < len(args) else dict(kwargs).get(DROPPED_SHARE, arguments[place].default_value)
    return given != 0


DROPPED_SHARE = "dropout_p"
GIVEN_SEED = "philox_seed"


@lru_cache(maxsize=1024)
def written_arguments(target: str) -> frozenset[int | str]:
    """The positions and names of the arguments that the overload writes to."""
    schema = getattr(find_overload(target), "_schema", None)
    if schema is None or not schema.is_mutable:
        return frozenset()
    pairs = [pair for pair in enumerate(schema.arguments) if pair[1].alias_info is not None]
    found = [(place, arg.name) for place, arg in pairs if arg.alias_info.is_write]
    return frozenset(part for pair in found for part in pair)


@lru_cache(maxsize=1024)
def returns_views(target: str) -> bool:
    """Whether a result of the overload may be an argument, or a view of one."""
    return any(result.alias_info is not None for result in find_overload(target)._schema.returns)


@lru_cache(maxsize=1024)
def number_arguments(target: str) -> frozenset[int | str]:
    """The positions and names of the arguments for which the overload takes a number."""
    schema = getattr(find_overload(target), "_schema", None)
    arguments = enumerate(schema.arguments) if schema is not None else ()
    pairs = [pair for pair in arguments if str(pair[1].type) in NUMBER_TYPES]
    return frozenset(part for place, arg in pairs for part in (place, arg.name))


NUMBER_TYPES = frozenset({"float", "number", "Optional[float]", "Optional[number]"})


def with_numbers(
    target: str, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[list[object], dict[str, object]]:
    """The arguments of a call, with the number in a tensor where the overload takes a number."""
    places = number_arguments(target)

    def made(place: int | str, value: object) -> object:
        return value.item() if place in places and isinstance(value, torch.Tensor) else value

    return [made(*pair) for pair in enumerate(args)], {name: made(name, value) for name, value in kwargs.items()}
