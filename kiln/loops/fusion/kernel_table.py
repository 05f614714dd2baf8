"""The kernels of a program, each once: kernels that differ only in names are launches of one.

norm(x, w1 -> y)    norm(u, w2 -> v)        one kernel a0, a1 -> a2, two launches
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import final

from kiln.loops.fusion.assemble import KernelCall
from kiln.loops.fusion.group_keys import Key
from kiln.loops.kernel.canonical import canonical
from kiln.loops.kernel.kernel import KernelIR
from kiln.loops.kernel.launches.program import KernelLaunch
from kiln.support.records import dataclass
from kiln.symbolic import Int, Symbol

Overwrites = Mapping[str, str]
"""Results, and the arguments that they are written over."""


@final
@dataclass(frozen=True, slots=True)
class _KnownLaunch:
    """The launch of a group; its buffers by number."""

    kernel: KernelIR
    args: tuple[int, ...]
    ints: tuple[Int, ...]
    overwrites: tuple[tuple[int, int], ...]


@final
class KernelTable:
    """Canonical kernels by key, under names that are different; launches by the keys of their groups."""

    def __init__(self) -> None:
        self.by_key: dict[str, KernelIR] = {}
        self.by_group: dict[Key, _KnownLaunch] = {}
        self._names: dict[str, int] = {}

    def launch(self, call: KernelCall) -> KernelLaunch:
        """The launch of a kernel on the buffers that it names."""
        kernel = call.kernel
        args = tuple(param.name for param in kernel.params)
        ints = tuple(call.sizes.get(size, size) if isinstance(size, Symbol) else size for size in kernel.ints)
        return KernelLaunch(self.known(kernel), args, ints, kernel.origin)

    def known(self, kernel: KernelIR) -> KernelIR:
        """The kernel of the program that is equal to `kernel`."""
        made, key = canonical(kernel)
        if key not in self.by_key:
            self.by_key[key] = replace(made, name=self._fresh(kernel.name))
        return self.by_key[key]

    def remember(self, key: Key, names: tuple[str, ...], call: KernelCall) -> tuple[KernelLaunch, Overwrites]:
        """The launch, which `find` gives for groups with this key."""
        launch, overwrites = self.launch(call), call.overwrites
        args = tuple([names.index(name) for name in launch.args])
        pairs = tuple([(names.index(result), names.index(argument)) for result, argument in overwrites.items()])
        self.by_group[key] = _KnownLaunch(launch.kernel, args, launch.ints, pairs)
        return launch, overwrites

    def find(self, key: Key, names: tuple[str, ...], origin: str) -> tuple[KernelLaunch, Overwrites] | None:
        """The launch for a group equal to one that has been launched, on the buffers `names`."""
        found = self.by_group.get(key)
        if found is None:
            return None
        launch = KernelLaunch(found.kernel, tuple([names[number] for number in found.args]), found.ints, origin)
        return launch, {names[result]: names[argument] for result, argument in found.overwrites}

    def _fresh(self, name: str) -> str:
        count = self._names[name] = self._names.get(name, -1) + 1
        return f"{name}_{count}" if count else name
