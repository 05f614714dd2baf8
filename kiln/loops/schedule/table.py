"""The kernels of a program, each once: kernels that differ only in names are launches of one.

norm(x, w1 -> y)    norm(u, w2 -> v)        one kernel a0, a1 -> a2, two launches
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

from kiln.loops.ir.kernel import KernelIR
from kiln.loops.ir.rename import canonical
from kiln.loops.ir.scheduled import Launch
from kiln.loops.schedule.single import Call
from kiln.symbolic import Symbol


@final
class KernelTable:
    """Canonical kernels by key, under names that are different."""

    def __init__(self) -> None:
        self.by_key: dict[str, KernelIR] = {}
        self._names: dict[str, int] = {}

    def launch(self, call: Call) -> Launch:
        """The launch of a kernel on the buffers that it names."""
        kernel = call.kernel
        made, key = canonical(kernel)
        if key not in self.by_key:
            self.by_key[key] = replace(made, name=self._fresh(kernel.name))
        args = tuple(param.name for param in kernel.params)
        ints = tuple(call.sizes.get(one, one) if isinstance(one, Symbol) else one for one in kernel.ints)
        return Launch(self.by_key[key], args, ints, kernel.origin)

    def _fresh(self, name: str) -> str:
        count = self._names[name] = self._names.get(name, -1) + 1
        return f"{name}_{count}" if count else name
