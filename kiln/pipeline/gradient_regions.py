"""The gradients of a region as regions of their own, which create_graph=True runs.

    calls of the region, then torch.autograd.grad, on fakes   -->  region(x, weight, tangent, saved) -> (gradient of x,)

Gradients that are differentiated come from the eager replay of the region. The second time that inputs and tangents
have the same layouts, the replay is recorded with its backward and compiled. What the forward has saved is read, not
computed again. The result has a backward, and a replay, of its own, so that third derivatives are compiled in the same
way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, final

import torch

from kiln.pipeline.context import CompileContext
from kiln.pipeline.modes import unknown_mode, without_autograd_observers
from kiln.plan.region import RegionSpec
from kiln.runtime.autograd import GradientRun, Mask, Tensors
from kiln.runtime.eager_replay import EagerReplay

if TYPE_CHECKING:
    from kiln.graph.passes.known_values import Definitions

MOST_LAYOUTS = 256
"""That a region remembers; at more, those without a compiled gradient are forgotten."""


@final
class GradientRegions:
    """Those of one region by the layouts of inputs and tangents; None where they were seen once, or stay eager."""

    def __init__(
        self, replay: EagerReplay, spec: RegionSpec, context: CompileContext, define: Callable[[], Definitions] | None
    ) -> None:
        self.replay, self.spec, self.context, self.define = replay, spec, context, define
        self.known: dict[Hashable, GradientRun | None] = {}
        self.compiles = 0

    def find(
        self, inputs: Sequence[object], saved: Sequence[object], tangents: Tensors, mask: Mask
    ) -> GradientRun | None:
        """Takes inputs, tangents and saved values, and returns the gradients, with a history; None where the replay
        makes them."""
        context, values = self.context, (*inputs, *tangents)
        if context.compile_gradients is None or unknown_mode() or self.replay.stays_eager:
            return None
        strides = tuple([value.stride() for value in saved if isinstance(value, torch.Tensor)])
        key = mask, torch.are_deterministic_algorithms_enabled(), strides, *map(layout, values)
        if len(self.known) >= MOST_LAYOUTS and key not in self.known:
            self.known = {layouts: run for layouts, run in self.known.items() if run is not None}
        seen, run = key in self.known, self.known.setdefault(key, None)
        if seen and run is None and self.compiles < context.options.variants:
            self.compiles += 1
            with context.counting(), without_autograd_observers(), context.events.stage("compile"):
                try:
                    parts = self.replay, self.spec, context, values, mask, saved, self.define
                    with torch.no_grad():  # a thread of its own would wait for that of the device, which is this one
                        run = context.compile_gradients(*parts)
                except Exception as fault:
                    context.report_failure(fault)
            self.known[key] = run
        return run


def layout(value: object) -> Hashable:
    """What a compiled gradient takes as given."""
    if not isinstance(value, torch.Tensor):
        return type(value), value
    keys = torch._C._dispatch_keys(value).raw_repr()
    return type(value), keys, value.dtype, value.device, value.shape, value.stride(), value.requires_grad
