"""The verifier of kernel programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from kiln.loops.body.verify import InvalidLoops
from kiln.loops.kernel.launches.program import KernelLaunch, KernelProgram, NestedCall, distinct_kernels
from kiln.loops.kernel.launches.text import launch_text
from kiln.loops.kernel.verify import verify_kernel
from kiln.loops.program.nodes import Buffer
from kiln.symbolic import Int


def verify_kernel_program(program: KernelProgram) -> None:
    """Raise InvalidLoops unless

    L1  a launch has an argument for each parameter, and a size for each size argument, of each of its rows;
    L2  no row of a table writes memory that another row uses;
    and every kernel is right (K1 to K7).
    """
    for kernel in distinct_kernels(program):
        verify_kernel(kernel)
    buffers = {made.buffer.name: made.buffer for made in program.allocations}
    for step in program.steps:
        if isinstance(step, KernelLaunch):
            _verify_launch(step, buffers)
        for nested in step.programs if isinstance(step, NestedCall) else ():
            verify_kernel_program(nested)


def _verify_launch(launch: KernelLaunch, buffers: Mapping[str, Buffer]) -> None:
    kernel, rows = launch.kernel, launch.rows
    if len(launch.args) != rows * len(kernel.params) or len(launch.ints) != rows * len(kernel.ints):
        problem = f"{rows} rows do not have {len(launch.args)} arguments and {len(launch.ints)} sizes"
        raise InvalidLoops(rule="L1", problem=problem, excerpt=launch_text(launch))
    if rows == 1:
        return
    users = Counter(place for row in launch.each_row() for place in {_memory(arg, buffers) for arg in row.args})
    for name in launch.written():
        if users[_memory(name, buffers)] > 1:
            raise InvalidLoops(rule="L2", problem=f"several rows use {name}", excerpt=launch_text(launch))


def _memory(name: str, buffers: Mapping[str, Buffer]) -> tuple[str, Int]:
    """The buffer that has the memory of `name`, and the byte there at which a scalar starts; other views may overlap,
    and count as the whole buffer."""
    start: Int = 0
    while name in buffers and (base := buffers[name].base) is not None:
        spec = buffers[name].spec
        start = spec.offset * spec.dtype.itemsize if not spec.sizes else start
        name = base
    return name, start
