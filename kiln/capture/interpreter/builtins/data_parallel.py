"""`DistributedDataParallel` whose backward is in the same region as its forward: its reductions are steps of the graph.

    loss = ddp(x).sum()        noted: the reducer would reduce at the next backward
    loss.backward()            w.grad = all_reduce(w.grad / size), in the order in which the leaves get their gradients

The region stores gradients itself, so that the reducer's hooks do not run; it is not told of that forward. Small
reductions become one (`graph/passes/bucket_all_reduces.py`) and overlap with what is left of the backward. Where a
forward ends the region without a backward, the reducer is told of it behind the region (`runtime/data_parallel.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import field
from typing import final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from kiln.capture.interpreter.builtins.leaf_hooks import HookedBackward
from kiln.capture.interpreter.core import Args, CaptureState, Kwargs, Value
from kiln.capture.interpreter.effects import CallEffect
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.sequence import Tuple
from kiln.capture.interpreter.variables.tensor import Tensor
from kiln.native._executor import leaf_observers
from kiln.runtime import data_parallel
from kiln.runtime.guards.source import AnswerSource
from kiln.support.records import dataclass

if dist.is_available():
    import kiln.capture.interpreter.collective_polyfills as collective_polyfills


@final
@dataclass(eq=False)
class Replica:
    """A module whose forward ran in this frame. `waiting`: the effects that tell the reducer; none if it need not."""

    module: Value
    parameters: frozenset[int]
    """Those that the reducer has a hook on, by `id`."""
    waiting: list[Hashable] = field(default_factory=list)

    def own(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        return [leaf for leaf in leaves if id(leaf.original) in self.parameters]

    def why_not(self, s: CaptureState, leaves: Sequence[Tensor]) -> str:
        """Why a backward that gives these leaves gradients breaks the graph, or ""; `reduced` has more reasons."""
        if len(self.own(leaves)) < len(self.parameters):
            return "a parameter of a DistributedDataParallel module gets none"
        assert self.module.source is not None
        source = AnswerSource(self.module.source, s.reference(data_parallel.has_built_in_hook))
        hooked = s.wrap(data_parallel.has_built_in_hook(self.module.real()), source).constant(s)
        return "a DistributedDataParallel module has a built-in hook" if hooked else ""

    def reduce(self, backward: HookedBackward, leaves: Sequence[Tensor], order: Sequence[int]) -> None:
        """`order`: in which the leaves got their gradients, by `id` of the fake."""
        own = sorted(self.own(leaves), key=lambda leaf: order.index(id(leaf.fake)))
        backward.interpret(collective_polyfills.reduced, [self.module, Tuple(list(own))])
        for effect in self.waiting:
            backward.state.effects.drop(effect)
        self.waiting.clear()


@final
@dataclass(eq=False)
class Replicas:
    """The wrapped modules whose forward ran in this capture, by `id`."""

    found: dict[int, Replica] = field(default_factory=dict)

    def observers(self, leaf: torch.Tensor) -> int:
        """How many hooks on the node that accumulates its gradient a reducer may have."""
        return int(any(id(leaf) in replica.parameters for replica in self.found.values()))

    def reductions(self, leaves: Sequence[Tensor]) -> list[Replica]:
        """The modules that reduce the gradients of a backward."""
        return [replica for replica in self.found.values() if replica.waiting and replica.own(leaves)]


def forwarded(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    module, output, reduces = args
    real: DistributedDataParallel = module.real()
    observed = [id(leaf) for leaf in real._module_parameters if leaf_observers(leaf)]
    replica = s.part(Replicas).found.setdefault(id(real), Replica(module, frozenset(observed)))
    if reduces.constant(s):
        effect = CallEffect(s.wrap(data_parallel.forwarded, None), (module, output))
        s.effects.note(effect)
        replica.waiting.append(effect.key)
    return Constant(None)
