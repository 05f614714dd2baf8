"""`DistributedDataParallel` whose backward is in the same region as its forward: its reductions are steps of the graph.

    loss = ddp(x).sum()        noted: the reducer would reduce at the next backward
    loss.backward()            flat = all_reduce(cat(b.grad, w.grad) / size); w.grad, b.grad = parts of flat

The region stores gradients itself, so that the reducer's hooks do not run; it is not told of that forward. Other ranks
may run the same step in eager, because the graph breaks there or a variant is missing: messages are those of the
reducer, bucket by bucket. It settles its buckets with the other ranks in its first steps, which run in eager. Where a
forward ends the region without a backward, the reducer is told of it behind the region (`runtime/data_parallel.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import field
from typing import final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from kiln.capture.interpreter.breaks import BucketsPending
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
        hooked = self.answer(s, data_parallel.has_built_in_hook).constant(s)
        return "a DistributedDataParallel module has a built-in hook" if hooked else ""

    def answer(self, s: CaptureState, function: Callable[[DistributedDataParallel], object]) -> Value:
        """What a function says of the module, asked again by guards."""
        assert self.module.source is not None
        source = AnswerSource(self.module.source, s.reference(function))
        return s.wrap(function(self.module.real()), source)

    def reduce(self, backward: HookedBackward, leaves: Sequence[Tensor]) -> None:
        s, named = backward.state, {id(leaf.original): leaf for leaf in leaves}
        parameters = self.module.real()._module_parameters
        layout = self.answer(s, data_parallel.bucket_layout).constant(s)
        buckets: list[Value] = [Tuple([named[id(parameters[place])] for place in bucket]) for bucket in layout]
        backward.interpret(collective_polyfills.reduced, [self.module, Tuple(buckets)])
        for effect in self.waiting:
            s.effects.drop(effect)
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


def buckets_pending(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    raise BucketsPending()


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
