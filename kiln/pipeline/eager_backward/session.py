"""The backwards inside `with kiln.compile_backward():` of this thread.

    loss.backward() --> torch's Python layer --> Interceptor.run_backward --> BackwardSession.run
                                                                         --> torch's engine, on the spliced graph

The engine of torch still runs the backward: hooks, accumulation into `.grad`, several threads and streams, and nodes
that cannot be compiled are its business. For the time of one backward a node stands in the place of each segment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Protocol, cast, final

import torch
from torch.autograd.graph import GradientEdge, Node

from kiln.native._executor import AutogradGraph
from kiln.pipeline.eager_backward.programs import CutGraph, Prepare, Programs
from kiln.pipeline.eager_backward.structure import Structure, read_structure
from kiln.pipeline.modes import unknown_mode, without_autograd_observers
from kiln.pipeline.session import CompileSession
from kiln.support.errors import KilnError, drop_tracebacks

NAME = "compile_backward"
Roots = tuple[object, ...]
Run = Callable[[Roots, object, bool, bool, Roots], object]


class Engine(Protocol):
    """Torch's engine of autograd."""

    @property
    def run_backward(self) -> Callable[..., object]: ...


class EagerBackward(KilnError):
    code = "KILN1099"
    what = "a backward inside `kiln.compile_backward()` runs in torch's engine"
    why = "{reason}"
    try_ = ("read in `report()` which backwards were compiled",)


class EagerNodes(KilnError):
    code = "KILN1100"
    what = "{count} of {total} nodes of a backward run in torch's engine, {name} first"
    why = "{reason}"
    try_ = ("compile the forward as well: hooks and `autograd.Function`s inside are traced",)


class TooManyBackwards(KilnError):
    code = "KILN1104"
    what = "backwards of {count} different graphs were compiled inside `kiln.compile_backward()`"
    why = "further ones run in torch's engine; a graph differs if an operator, a number or a size does"
    try_ = ("raise the limit: options={{'variants': {more}}}",)


@final
class BackwardSession:
    """The compiled backwards of all contexts with the same options."""

    def __init__(self, session: CompileSession) -> None:
        self.session = session
        self.programs = Programs(session.context(NAME))
        self.shapes: dict[Hashable, int] = {}
        """How many graphs of the same types of nodes were compiled."""
        self._lock = threading.RLock()
        self._resets = session.resets

    def follow_resets(self) -> None:
        """Forget everything if the session was reset."""
        with self._lock:
            if self._resets != self.session.resets:
                self._resets = self.session.resets
                self.programs.known.clear()
                self.programs.refused.clear()
                self.programs.families.clear()
                self.shapes.clear()

    def run(self, run: Run, roots: Roots, tangents: object, keep: bool, create: bool, wanted: Roots) -> object:
        """`run` is `run_backward` of torch's engine, whose arguments these are."""
        if reason := why_eager(roots, wanted, create):
            self.session.report_eager(EagerBackward(reason=reason))
            return run(roots, tangents, keep, create, wanted)
        self.follow_resets()
        tensors = cast(tuple[torch.Tensor, ...], roots), cast(tuple[torch.Tensor, ...], wanted)
        graph = AutogradGraph(*tensors)
        rows = self.rows(graph)
        if not rows:
            return run(roots, tangents, keep, create, wanted)
        try:
            spliced = graph.splice(rows)
            del rows  # the nodes hold what they need, and drop it when they are done
            edges = [
                root if edge is None else GradientEdge(cast(Node, edge[0]), edge[1])
                for root, edge in zip(roots, spliced, strict=True)
            ]
            return run(tuple(edges), tangents, keep, create, wanted)
        finally:
            graph.restore()

    def rows(self, graph: AutogradGraph) -> tuple[tuple[object, ...], ...]:
        """What `AutogradGraph.splice` takes; empty where the engine runs the graph as it is."""
        try:
            structure = read_structure(graph)
        except RuntimeError:  # freed or changed: the engine raises where eager would
            return ()
        program = self.find(graph, structure)
        if program is None:
            return ()
        return tuple(
            [
                (segment.members, segment.slots, segment.targets, Prepare(self.programs, program, number, structure))
                for number, segment in enumerate(program.segments)
            ]
        )

    def find(self, graph: AutogradGraph, structure: Structure) -> CutGraph | None:
        key = structure.key, torch.are_deterministic_algorithms_enabled()
        found = self.programs.known.get(key)
        return found if found is not None else self.make(graph, key, structure)

    def make(self, graph: AutogradGraph, key: Hashable, structure: Structure) -> CutGraph | None:
        """Compile a new backward. None where it is not worthwhile or not allowed to."""
        session, budget = self.session, self.session.budget
        with self._lock:
            if (found := self.programs.known.get(key)) is not None:
                return found
            if budget.is_spent():
                if problem := budget.news():
                    session.report_eager(problem)
                return None
            shape = tuple([type(node) for node in structure.nodes])
            limit = session.settings.options.variants
            if self.shapes.get(shape, 0) >= limit:
                session.report_eager(TooManyBackwards(count=limit, more=2 * limit))
                return None
            roots = [root for root in graph.roots if root[0] >= 0]  # where gradients come in
            before = len(self.programs.compiles)
            with without_autograd_observers(), session.events.stage("compile", function=NAME), budget.compiling():
                session.events.emit("compile", function=NAME)
                try:
                    program = self.programs.make(key, structure, roots)
                except KilnError as problem:
                    session.report_eager(problem)
                    drop_tracebacks(problem)
                    return self.programs.keep_eager(key, structure, problem.reason)
                finally:
                    if len(self.programs.compiles) > before:
                        self.shapes[shape] = self.shapes.get(shape, 0) + 1
            self.report_nodes(structure, program)
            return program

    def report_nodes(self, structure: Structure, program: CutGraph) -> None:
        """Say which nodes stay eager."""
        names = [(node.name(), reason) for node, reason in zip(structure.nodes, program.eager, strict=True) if reason]
        if names:
            name, reason = names[0]
            self.session.report_eager(
                EagerNodes(count=len(names), total=len(structure.nodes), name=name, reason=reason)
            )


def why_eager(outputs: Sequence[object], wanted: Sequence[object], create: bool) -> str:
    """Why a whole backward runs in torch's engine; "" if it does not."""
    if create:
        return "with `create_graph=True` each node makes a history of its own"
    if not all([isinstance(each, torch.Tensor) and each.requires_grad for each in (*outputs, *wanted)]):
        return "a `GradientEdge`, or a tensor without a gradient, is among its roots or inputs"
    if torch.is_anomaly_enabled():
        return "anomaly detection looks at each node"
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return "it is called under autocast"
    if mode := unknown_mode():
        return f"it is called under {mode}"
    return ""


ACTIVE = threading.local()
"""`sessions`: those whose contexts this thread is in, innermost last."""


@final
class Interceptor:
    """Torch's engine, as torch's Python layer finds it while a context is open."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.contexts = 0

    def __getattr__(self, name: str) -> object:
        found: object = getattr(self.engine, name)
        return found

    def run_backward(
        self,
        roots: Roots,
        tangents: object,
        keep: bool,
        create: bool,
        inputs: Roots = (),
        allow_unreachable: bool = False,
        accumulate_grad: bool = False,
    ) -> object:
        sessions = getattr(ACTIVE, "sessions", ())
        run = partial(self.engine.run_backward, allow_unreachable=allow_unreachable, accumulate_grad=accumulate_grad)
        if not sessions:
            return run(roots, tangents, keep, create, inputs)
        return sessions[-1].run(run, roots, tangents, keep, create, inputs)


LOCK = threading.Lock()
ENGINE = "_execution_engine"
"""Where torch's Python layer looks for it."""


def enter(session: BackwardSession) -> None:
    """From now on, backwards that this thread starts go through `session`."""
    variable = torch.autograd.Variable
    with LOCK:
        engine: object = variable._execution_engine
        interceptor = engine if isinstance(engine, Interceptor) else Interceptor(variable._execution_engine)
        interceptor.contexts += 1
        setattr(variable, ENGINE, interceptor)
    ACTIVE.sessions = [*getattr(ACTIVE, "sessions", ()), session]


def leave() -> None:
    """End the innermost context of this thread."""
    ACTIVE.sessions = ACTIVE.sessions[:-1]
    variable = torch.autograd.Variable
    with LOCK:
        interceptor: object = variable._execution_engine
        assert isinstance(interceptor, Interceptor)
        interceptor.contexts -= 1
        if not interceptor.contexts:
            setattr(variable, ENGINE, interceptor.engine)
