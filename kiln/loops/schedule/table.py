"""The kernels of a program, each once: kernels that differ only in names are launches of one.

norm(x, w1 -> y)    norm(u, w2 -> v)        one kernel a0, a1 -> a2, two launches
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

from kiln.loops.ir.kernel import KernelIR
from kiln.loops.ir.rename import canonical
from kiln.loops.ir.scheduled import Launch


@final
class KernelTable:
    """Canonical kernels by key, under names that are different."""

    def __init__(self) -> None:
        self.by_key: dict[str, KernelIR] = {}
        self._names: dict[str, int] = {}

    def launch(self, kernel: KernelIR) -> Launch:
        """The launch of `kernel` on the buffers that it names."""
        made, key = canonical(kernel)
        if key not in self.by_key:
            self.by_key[key] = replace(made, name=self._fresh(kernel.name))
        args = tuple(param.name for param in kernel.params)
        return Launch(self.by_key[key], args, kernel.ints, kernel.origin)

    def _fresh(self, name: str) -> str:
        count = self._names[name] = self._names.get(name, -1) + 1
        return f"{name}_{count}" if count else name
