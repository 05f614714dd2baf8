"""Functions of `torch.distributed`: queries are answered with guards, collectives interpreted as functional ones.

dist.get_rank()           a constant; the guard asks again
dist.all_reduce(x)        `collective_polyfills.all_reduce`
fc.all_reduce(x, ...)     its Python code is interpreted, as if torch were tracing it
dist.isend(x, 1)          `collective_polyfills.isend`; breaks the graph if nothing waits before it ends
dist.barrier()            breaks the graph: it orders effects, which come after the region
ddp(x)                    its module's forward (`data_parallel.py`)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from dataclasses import field
from typing import final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from kiln.capture.interpreter.breaks import PastStep, UnsupportedCall
from kiln.capture.interpreter.builtins.data_parallel import buckets_pending, forwarded
from kiln.capture.interpreter.builtins.polyfilled import interpreted
from kiln.capture.interpreter.core import HANDLERS, Args, CaptureState, Handler, Kwargs, Value, handles
from kiln.capture.interpreter.data_values import past_step
from kiln.capture.interpreter.frame import running_frame
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.process_group import ProcessGroupObject, asked, rank_in
from kiln.runtime import process_groups
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.process_groups import Facts
from kiln.support.records import dataclass

if dist.is_available():
    import torch.distributed.distributed_c10d as c10d

    import kiln.capture.interpreter.collective_polyfills as polyfills

AS_FUNCTIONAL = (
    "all_reduce", "broadcast", "all_gather_into_tensor", "all_gather", "reduce_scatter_tensor", "reduce_scatter",
    "all_to_all_single", "all_to_all", "reduce", "gather", "scatter",
)  # fmt: skip
MESSAGES = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
OTHER_NAMES = {
    "all_gather_single": "all_gather_into_tensor",
    "_all_gather_base": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
}


def facts_of(s: CaptureState, function: str, group: Value | None) -> Facts:
    """Of a group among the arguments; None is the default group."""
    if isinstance(group, ProcessGroupObject):
        facts = group.facts(s)
        if process_groups.group_rank(facts[0]) < 0:
            raise UnsupportedCall(function=function, why="this process is not in the group")
        return facts
    if group is not None and not (group.is_constant and group.constant(s) is None):
        raise UnsupportedCall(function=function, why="this process is not in the group")
    found = process_groups.default_group()
    if found is None:
        raise UnsupportedCall(function=function, why="there is no default process group")
    s.guard(asked("default_group"), GuardKind.EQUALS, found)
    return found


def of_group(function: str, answer: Callable[[Facts], Value]) -> Handler:
    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        return answer(facts_of(s, function, args[0] if args else kwargs.get("group")))

    return handler


def rank_of(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """The rank in a group, or with the last argument among all, from either of the two."""
    group, rank, group_rank = args[:3]
    given, in_group = [value.constant(s) for value in (rank, group_rank)]
    wants_global = len(args) > 3 and args[3].constant(s)
    function = "a collective"
    facts = facts_of(s, function, group)
    if (given is None) == (in_group is None):
        raise UnsupportedCall(function=function, why="it takes either a rank among all or one in its group")
    process_group = process_groups.process_group(facts[0])
    try:
        if in_group is None:
            in_group = c10d.get_group_rank(process_group, given)  # type: ignore[arg-type]
        return Constant(c10d.get_global_rank(process_group, in_group) if wants_global else in_group)
    except ValueError as error:
        raise UnsupportedCall(function=function, why=str(error)) from error


@final
@dataclass(frozen=True, slots=True)
class Begun:
    """What a call of the program has begun, and why the graph breaks in front of that call if nothing ends it."""

    what: Value
    call: PastStep
    function: str
    why: str


@final
@dataclass(eq=False)
class Unfinished:
    """What has begun and not ended yet; `call`: the latest call that begins something.

    A region that ended with a message would wait for it, and the other rank may wait for what this rank does next.
    """

    call: PastStep | None = None
    begun: list[Begun] = field(default_factory=list)

    def begin(self, what: Value, function: str, why: str) -> None:
        assert self.call is not None
        self.begun.append(Begun(what, self.call, function, why))

    def end(self, what: Value) -> bool:
        """Whether it had begun."""
        before = len(self.begun)
        self.begun = [row for row in self.begun if row.what is not what]
        return len(self.begun) < before


def beginning(polyfill: object) -> Handler:
    """Of a function that begins something."""

    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        s.part(Unfinished).call = past_step(running_frame(s))
        return s.wrap(polyfill, None).call(s, args, kwargs)

    return handler


def started(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    s.part(Unfinished).begin(args[0], "isend or irecv", "its `wait` is not called before the graph ends")
    return Constant(None)


def ended(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    s.part(Unfinished).end(args[0])
    return Constant(None)


def unfinished(s: CaptureState) -> UnsupportedCall | None:
    """The break in front of the first call whose work is under way where the region ends."""
    for row in s.part(Unfinished).begun:
        return UnsupportedCall(function=row.function, why=row.why).before(row.call)
    return None


def is_coalesced(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    group, tensor = args
    real = process_groups.process_group(facts_of(s, "batch_isend_irecv", group)[0])
    device = tensor.get_attr(s, "device").constant(s)
    return Constant(type(real) is dist.ProcessGroup and real._get_backend(device).supports_coalescing)


REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


def reduction(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    op, function = args
    real = op.real()
    name = getattr(real, "name", "")
    if name not in REDUCTIONS or real != getattr(dist.ReduceOp, name):
        raise UnsupportedCall(function=function.constant(s), why="its reduction has no functional form")
    s.guard(op.source, GuardKind.IS, s.reference(real))
    return Constant(name.lower())


def refuse(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    function, why = [arg.constant(s) for arg in args]
    raise UnsupportedCall(function=function, why=why)


def barrier(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    raise UnsupportedCall(function="barrier", why="the effects in front of it come after the region")


def is_initialized(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return Constant(process_groups.is_initialized(), asked("is_initialized"))


def named_size(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """The size of the group of a name."""
    if isinstance(args[0], ProcessGroupObject):
        return Constant(args[0].facts(s)[1])
    found = process_groups.group_facts(name := args[0].constant(s))
    if found is None:
        raise UnsupportedCall(function="_get_group_size_by_name", why=f"there is no process group {name}")
    s.guard(asked("group_facts", name), GuardKind.EQUALS, found)
    return Constant(found[1])


FUNCTIONAL = "torch.distributed._functional_collectives"
OF_FUNCTIONAL = {
    "_resolve_group": "resolve_group",
    "_resolve_group_name": "resolve_group",
    "_group_or_group_name": "name_of_group",
    "_are_we_tracing": "are_we_tracing",
}
"""Functions of torch's functional collectives -> polyfills. The program may import them late."""


DEPRECATED = (
    "all_gather_tensor",
    "all_gather_tensor_autograd",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_autograd",
)
"""Functions that warn, then call one whose name ends in `_single`."""


def register_functional() -> None:
    """Fill the table of handlers, once the program has imported the module."""
    module = sys.modules.get(FUNCTIONAL)
    if module is not None and getattr(module, "_are_we_tracing", None) not in HANDLERS:
        for name, polyfill in OF_FUNCTIONAL.items():
            if (function := getattr(module, name, None)) is not None:
                handles(function)(interpreted(getattr(polyfills, polyfill)))
        for name in DEPRECATED:
            if (newer := getattr(module, name.replace("_tensor", "_single"), None)) is not None:
                handles(getattr(module, name))(interpreted(newer))


handles(dist.is_available)(lambda s, args, kwargs: Constant(dist.is_available()))
if dist.is_available():
    SIZE = of_group("get_world_size", lambda facts: Constant(facts[1]))
    QUERIES: tuple[tuple[Hashable, Handler], ...] = (
        (polyfills.group_name, of_group("the collective", lambda facts: Constant(facts[0]))),
        (polyfills.group_size, SIZE),
        (polyfills.rank_of, rank_of),
        (polyfills.started, started),
        (polyfills.ended, ended),
        (polyfills.is_coalesced, is_coalesced),
        (c10d._canonicalize_group_rank, interpreted(polyfills.canonical_rank)),
        (polyfills.reduction, reduction),
        (polyfills.refuse, refuse),
        (c10d.get_world_size, SIZE),
        (c10d.get_rank, of_group("get_rank", rank_in)),
        (c10d.get_backend, of_group("get_backend", lambda facts: Constant(facts[2]))),
        (c10d.is_initialized, is_initialized),
        (c10d.barrier, barrier),
        (c10d._get_group_size_by_name, named_size),
        (DistributedDataParallel._pre_forward, interpreted(polyfills.pre_forward)),
        (DistributedDataParallel._post_forward, interpreted(polyfills.post_forward)),
        (polyfills.forwarded, forwarded),
        (polyfills.buckets_pending, buckets_pending),
        (DistributedDataParallel._inside_ddp_forward, interpreted(polyfills.inside_ddp_forward)),
    )
    for _function, _handler in QUERIES:
        handles(_function)(_handler)
    for _name in (*AS_FUNCTIONAL, *OTHER_NAMES):
        if hasattr(c10d, _name):
            handles(getattr(c10d, _name))(interpreted(getattr(polyfills, OTHER_NAMES.get(_name, _name))))
    for _name in MESSAGES:
        handles(getattr(c10d, _name))(beginning(getattr(polyfills, _name)))
    if hasattr(torch._utils, "_maybe_view_chunk_cat"):
        handles(torch._utils._maybe_view_chunk_cat)(interpreted(polyfills.joined_chunks))
