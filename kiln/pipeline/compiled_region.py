"""A region as compiling leaves it: what will run it, and what writes it to disk.

Its kernels may still be at the compiler. Until they are not, transformed code holds the region itself as a constant;
so guards and the file of the variant are made while g++ runs.

    region = compile_region(recorder, trace, context)      code:  LOAD_CONST region
    put_in(function, [region])                             code:  LOAD_CONST executor
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, final

from kiln.pipeline.stages import Executable
from kiln.support.errors import InternalFault


@final
@dataclass(frozen=True, slots=True, eq=False)
class CompiledRegion:
    """`finish` waits for the kernels and makes what runs the region; `write` makes the bytes that `load_region` reads,
    None where the region cannot be written.
    """

    finish: Callable[[], Executable]
    write: Callable[[], bytes] | None = None

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        raise InternalFault(stage="kernels", problem="a region was called before it was finished")


def put_in(function: FunctionType, regions: Sequence[CompiledRegion]) -> None:
    """Replace `regions` in the code of `function`, which nobody has run yet, by what runs them. Raises KilnError."""
    made = {id(region): region.finish() for region in regions}
    constants = tuple([made.get(id(one), one) for one in function.__code__.co_consts])
    function.__code__ = function.__code__.replace(co_consts=constants)
