"""A compiled region whose kernels may still be at g++.

Until they are ready, transformed code holds the region itself as a constant; meanwhile guards and the file of the
variant are made.

    region = compile_region(recorder, trace, context)      code:  LOAD_CONST region
    finish_regions(function, [region])                     code:  LOAD_CONST executor
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import final

from kiln.runtime.executor import Executable
from kiln.support.errors import InternalFault
from kiln.support.records import dataclass


@final
@dataclass(frozen=True, slots=True, eq=False)
class CompiledRegion:
    """`finish` waits for the kernels and makes the executor; `write` makes the bytes that `load_region` reads.

    `write` is None where the region cannot be written.
    """

    finish: Callable[[], Executable]
    write: Callable[[], bytes] | None = None

    def __call__(self, *inputs: object) -> tuple[object, ...]:
        raise InternalFault(stage="kernels", problem="a region was called before it was finished")


def finish_regions(function: FunctionType, regions: Sequence[CompiledRegion]) -> None:
    """Replace `regions` in the code of `function`, which has not run yet, by their executors. Raises KilnError."""
    executors = {id(region): region.finish() for region in regions}
    constants = tuple([executors.get(id(constant), constant) for constant in function.__code__.co_consts])
    function.__code__ = function.__code__.replace(co_consts=constants)
