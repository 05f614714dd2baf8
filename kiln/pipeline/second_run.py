"""Runs a call a second time, in eager, without the program noticing anything but the time.

    again = second_run(capture)                     what it takes (repeatable.py)
    trial = EagerTrial(again, function, eager)
    spans = trial.run(slots, {0}, stopwatch)        the call, and the gradients of its first result

Written tensors (the statistics of a batch norm) are put back with their version counters, the generators of random
numbers too. Gradients are computed for the leaves and for the tensors that the call gets, and dropped: these are cut
from their history, through which the engine would go on to the same leaves. No hook of the program runs. It comes
before the compiled call, when nothing that the compiled backward needs exists yet: a training step needs no more
memory than in eager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import cast, final

import torch
from torch.autograd.graph import GradientEdge, Node

from kiln.native._frames import set_enabled
from kiln.pipeline.observation import same_random_numbers
from kiln.pipeline.stopwatch import Spans, Stopwatch
from kiln.runtime.guards.tree import build_tree
from kiln.runtime.variant import SecondRun
from kiln.support.records import dataclass

MOST_WRITTEN = 16 << 20
"""Bytes of the tensors that may be copied to be put back."""
DEEPEST = 4
"""Levels of containers in which results are looked for."""


@final
@dataclass(frozen=True, slots=True)
class Results:
    """The results of a call whose gradient functions it made. `edges`: node and number of its result, by position."""

    edges: dict[int, tuple[Node, int]]
    tensors: dict[int, torch.Tensor]


@final
class NewNodes:
    """The gradient functions that a call makes in this thread, from here to `end`.

    They are known by their numbers, which each thread counts for itself: the numbers of functions that come from
    another thread mean nothing. Those of the arguments are never new.
    """

    def __init__(self, slots: Sequence[object]) -> None:
        self._given = {tensor.grad_fn for tensor in tensors_in(slots)}
        self._first = self._last = torch._C._autograd._get_sequence_nr()

    def end(self) -> None:
        self._last = torch._C._autograd._get_sequence_nr()

    def __contains__(self, node: Node) -> bool:
        return self._first <= node._sequence_nr() < self._last and node not in self._given


def fresh_results(result: object, new: NewNodes) -> Results:
    """The tensors in `result` whose gradient function is new, by position."""
    tensors = {
        position: tensor
        for position, tensor in enumerate(tensors_in(result))
        if tensor.grad_fn is not None and tensor.grad_fn in new
    }
    nodes = {position: tensor.grad_fn for position, tensor in tensors.items()}
    edges = {position: (node, tensors[position].output_nr) for position, node in nodes.items() if node is not None}
    return Results(edges, tensors)


def tensors_in(value: object, depth: int = DEEPEST) -> Iterator[torch.Tensor]:
    """In containers and attributes, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth:
        inside: Sequence[object] = ()
        if isinstance(value, (list, tuple)):
            inside = value
        elif isinstance(value, dict):
            inside = list(value.values())
        elif hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)):
            inside = list(vars(value).values())
        for item in inside:
            yield from tensors_in(item, depth - 1)


def edges_from_outside(roots: Sequence[torch.Tensor], new: NewNodes) -> list[tuple[Node, int]]:
    """Where the new gradient functions lead: leaves and the results of others."""
    pending = [root.grad_fn for root in roots if root.grad_fn is not None]
    inside, outside = set(pending), dict[tuple[Node, int], None]()
    while pending:
        for node, number in pending.pop().next_functions:
            if node is None:
                continue
            if is_leaf(node) or node not in new:
                outside[node, number] = None
            elif node not in inside:
                inside.add(node)
                pending.append(node)
    return list(outside)


def is_leaf(node: Node) -> bool:
    return hasattr(node, "variable")


def without_history(value: object, known: dict[int, object]) -> object:
    """Leaves in place of the tensors in `value` (known by `id`), which is copied where it is a plain container."""
    if type(value) is torch.Tensor and value.grad_fn is not None:
        return known.setdefault(id(value), value.detach().requires_grad_())
    if type(value) is list:
        return [without_history(item, known) for item in value]
    if type(value) is tuple:
        return tuple([without_history(item, known) for item in value])
    if type(value) is dict:
        return {key: without_history(item, known) for key, item in value.items()}
    return value


def has_room(again: SecondRun) -> bool:
    """Whether the values of eager fit twice into the free memory."""
    if again.device != "cpu":
        free, _ = torch.cuda.mem_get_info(again.device)
        unused = torch.cuda.memory_reserved(again.device) - torch.cuda.memory_allocated(again.device)
        return 2 * again.memory <= free + unused
    return 2 * again.memory <= available_memory()


def available_memory() -> int:
    """Bytes of the host that programs can get, those of the page cache among them."""
    with open("/proc/meminfo", encoding="ascii") as file:
        kilobytes = dict(line.split()[:2] for line in file)
    return int(kilobytes["MemAvailable:"]) << 10


def is_observed(again: SecondRun) -> bool:
    """Whether somebody watches the operators: a profiler, hooks on saved tensors, a capture of the stream."""
    autograd = torch._C._autograd
    return (
        autograd._profiler_enabled()
        or (again.gradients and torch.is_anomaly_enabled())
        or (again.gradients and autograd._top_saved_tensors_default_hooks(True) is not None)
        or (again.device != "cpu" and torch.cuda.is_current_stream_capturing())
    )


@final
class NotRepeated(Exception):
    """This call cannot be run twice."""


@final
class NoRoom(Exception):
    """The memory does not suffice to run this call twice now."""


@final
class EagerTrial:
    """`eager` takes the argument slots of `function`."""

    def __init__(self, again: SecondRun, function: FunctionType, eager: Callable[..., object]) -> None:
        self.again, self.function, self.eager = again, function, eager
        self._tree = build_tree((), collect=again.written, function=function) if again.written else None

    def run(self, slots: tuple[object, ...], wanted: frozenset[int], stopwatch: Stopwatch) -> Spans | None:
        """How long it takes, with the gradients of the results at the positions `wanted`; None where it fails.

        Raises `NoRoom`.
        """
        enabled, cached = set_enabled(False), torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)  # weights cast here must not stay
        try:
            if not has_room(self.again):
                raise NoRoom
            with self._put_back(slots):
                return self._time(slots, wanted, Spans(stopwatch))
        except NoRoom:
            raise
        except Exception:
            return None
        finally:
            torch.set_autocast_cache_enabled(cached)
            set_enabled(enabled)

    def _time(self, slots: tuple[object, ...], wanted: frozenset[int], spans: Spans) -> Spans:
        known: dict[int, object] = {}
        given = [without_history(slot, known) for slot in slots]
        new = NewNodes(given)
        spans.mark()
        result = self.eager(*given)
        spans.mark()
        new.end()
        if wanted:
            tensors = fresh_results(result, new).tensors
            roots = [tensors[position] for position in sorted(wanted)]
            del result, tensors
            edges = edges_from_outside(roots, new)
            leaves: list[torch.Tensor | None] = [getattr(node, "variable", None) for node, _ in edges]
            if not leaves or any(leaf is None or leaf._backward_hooks for leaf in leaves):
                raise NotRepeated
            differentiate(roots, edges, spans)
        return spans

    @contextmanager
    def _put_back(self, slots: tuple[object, ...]) -> Iterator[None]:
        """Afterwards tensors and generators are as before."""
        tensors = self._written(slots)
        versions = tuple([tensor._version for tensor in tensors])
        with torch.no_grad():
            copies = [tensor.clone() for tensor in tensors]
        try:
            with same_random_numbers([torch.empty(0, device=self.again.device)]):
                yield
        finally:
            with torch.no_grad():
                for tensor, copy in zip(tensors, copies, strict=True):
                    tensor.copy_(copy)
            torch._C._autograd._unsafe_set_version_counter(tuple(tensors), versions)

    def _written(self, slots: tuple[object, ...]) -> list[torch.Tensor]:
        if self._tree is None:
            return []
        if not self._tree.check(slots, self.function.__globals__, self.function.__closure__):
            raise NotRepeated
        found = [value for value in self._tree.bindings or () if isinstance(value, torch.Tensor)]
        if len(found) < len(self.again.written) or sum(tensor.nbytes for tensor in found) > MOST_WRITTEN:
            raise NotRepeated
        return found


def differentiate(roots: list[torch.Tensor], edges: list[tuple[Node, int]], spans: Spans) -> None:
    """The gradients at `edges`, which are dropped. `roots` are freed."""
    tangents = tuple([torch.ones_like(root) for root in roots])
    given = tuple(roots)
    roots.clear()
    inputs = cast(tuple[torch.Tensor, ...], tuple([GradientEdge(node, number) for node, number in edges]))
    spans.mark()
    torch.autograd.Variable._execution_engine.run_backward(
        given, tangents, False, False, inputs, allow_unreachable=True, accumulate_grad=False
    )
    spans.mark()


@final
class BackwardWatch:
    """Times the backward of one compiled call, by hooks on its node, and finds which results got gradients.

    It holds neither the node nor the results.
    """

    def __init__(self, result: object, new: NewNodes, spans: Spans) -> None:
        self.spans = spans
        self.wanted: frozenset[int] = frozenset()
        """The positions of the results that got gradients."""
        self.is_done = False
        self.is_usual = True
        """Whether the gradients of all inputs were computed, once, and have no history."""
        self._positions: dict[int, list[int]] = {}
        self._inputs: list[int] = []
        found = {position: region_edge(edge, new) for position, edge in fresh_results(result, new).edges.items()}
        nodes = {node for node, _ in found.values()}
        if len(nodes) == 1:
            for position, (_, number) in found.items():
                self._positions.setdefault(number, []).append(position)
            self._watch(nodes.pop())

    def _watch(self, node: Node) -> None:
        self._inputs = [number for number, (following, _) in enumerate(node.next_functions) if following is not None]
        node.register_prehook(self._start)
        node.register_hook(self._end)

    def _start(self, tangents: Sequence[torch.Tensor | None]) -> None:
        if self.is_done:
            self.is_usual = False
            return
        given = [number for number, tangent in enumerate(tangents) if tangent is not None]
        self.wanted = frozenset([position for number in given for position in self._positions.get(number, ())])
        self.spans.mark()

    def _end(self, gradients: Sequence[torch.Tensor | None], tangents: Sequence[torch.Tensor | None]) -> None:
        if self.is_done:
            return
        self.spans.mark()
        self.is_done = True
        self.is_usual = not torch.is_grad_enabled() and all(gradients[number] is not None for number in self._inputs)


def region_edge(edge: tuple[Node, int], new: NewNodes) -> tuple[Node, int]:
    """Behind the views that are made of the result of a region, and behind the node of the result, whose first edge
    goes to the region's."""
    node, number = edge
    while node.next_functions:
        following, behind = node.next_functions[0]
        if following is None or is_leaf(following) or following not in new:
            break
        if len(node.next_functions) > 1 and following.name() != node.name():
            break
        node, number = following, behind
    return node, number
