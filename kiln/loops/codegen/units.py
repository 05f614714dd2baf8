"""How many units a launch has: what executors split over threads and launchers over programs."""

from __future__ import annotations

from kiln.loops.kernel.kernel import KernelIR
from kiln.symbolic import Int, ceil_div, product


def launch_units(kernel: KernelIR) -> Int:
    """Points of the unit axes in row-major order, the last axis counted in strips if the kernel has them."""
    sizes = [axis.size for axis in kernel.units]
    if kernel.strip and sizes:
        sizes[-1] = ceil_div(sizes[-1], kernel.strip)
    return product(sizes)


def launch_grain(kernel: KernelIR) -> Int:
    """The grain of a kernel in units of its launch: strips where it has them."""
    return ceil_div(kernel.grain, kernel.strip) if kernel.strip and kernel.units else kernel.grain
