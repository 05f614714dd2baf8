"""From loops to a kernel: `assemble(draft, opened=True)` gives the kernel, named after the buffers of the program.

The steps change a draft in order, each a module with an example:
    merge_axes    neighbouring axes become one, and parameters get views with few dimensions
    open_sizes    sizes become arguments: after merging, which compares them. On a GPU known sizes stay numbers, as
                  what divides them decides how memory is accessed, but in rows of a table (`launch_tables.py`)
    take_over     results are written over dead arguments: views tell which have equal layouts
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import final

from kiln.loops.body.analyses import accesses
from kiln.loops.body.indexing import symbols_of
from kiln.loops.fusion.kernel_draft import KernelDraft
from kiln.loops.fusion.merge_axes import merge_axes
from kiln.loops.fusion.open_sizes import open_sizes
from kiln.loops.fusion.take_over import take_over
from kiln.loops.kernel.analyses import kernel_symbols, phase_stores
from kiln.loops.kernel.kernel import KernelIR
from kiln.support.records import dataclass
from kiln.symbolic import Int, Symbol

OPEN_STEPS = (merge_axes, open_sizes, take_over)
FIXED_STEPS = (merge_axes, take_over)


@final
@dataclass(frozen=True, slots=True)
class KernelCall:
    """A kernel under the program's names, the values of its size arguments that are no symbols of the program, and
    results by the arguments that they are written over."""

    kernel: KernelIR
    sizes: Mapping[Symbol, Int]
    overwrites: Mapping[str, str]


def assemble(draft: KernelDraft, *, opened: bool) -> KernelCall:
    """The kernel, with the parameters and size arguments that its phases use, in order of appearance."""
    used = (*_parameters(draft)[0], *_parameters(draft)[1])
    draft = replace(draft, buffers={name: draft.buffers[name] for name in used})
    for step in OPEN_STEPS if opened else FIXED_STEPS:
        draft = step(draft)
    read, written = _parameters(draft)
    params = tuple(draft.views[name] for name in (*read, *written))
    kernel = KernelIR(
        draft.name, draft.units, draft.phases, draft.locals, params, frozenset(written), (), draft.grain,
        draft.strip if draft.units else 0, draft.origin,
    )  # fmt: skip
    needed = kernel_symbols(kernel) | symbols_of(*(size for param in params for size in param.spec.sizes))
    # Sizes of parameters may be in terms of blocks, which are units.
    needed -= {axis.symbol for axis in draft.units}
    ints: list[Symbol] = sorted(needed, key=lambda symbol: symbol.sort_key)
    return KernelCall(replace(kernel, ints=tuple(ints)), draft.sizes, draft.overwrites)


def _parameters(draft: KernelDraft) -> tuple[dict[str, None], dict[str, None]]:
    """Buffers that are only read, and those that are written."""
    private = {local.name for local in draft.locals}
    loaded = [access.buffer for phase in draft.phases for access in accesses(phase.body)]
    stored = [store.target for phase in draft.phases for store in phase_stores(phase)]
    written = dict.fromkeys(name for name in stored if name not in private)
    return dict.fromkeys(name for name in loaded if name not in private and name not in written), written
