"""Functions of `torch.distributed`: queries are answered with guards, collectives interpreted as functional ones.

dist.get_rank()           a constant; the guard asks again
dist.all_reduce(x)        `collective_polyfills.all_reduce`
fc.all_reduce(x, ...)     its Python code is interpreted, as if torch were tracing it
dist.barrier()            breaks the graph: it orders effects, which come after the region
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.builtins.polyfilled import interpreted
from kiln.capture.interpreter.core import HANDLERS, Args, CaptureState, Handler, Kwargs, Value, handles
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.process_group import ProcessGroupObject, asked, rank_in
from kiln.runtime import process_groups
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.process_groups import Facts

if dist.is_available():
    import torch.distributed.distributed_c10d as c10d

    import kiln.capture.interpreter.collective_polyfills as polyfills

AS_FUNCTIONAL = (
    "all_reduce", "broadcast", "all_gather_into_tensor", "all_gather", "reduce_scatter_tensor", "reduce_scatter",
    "all_to_all_single",
)  # fmt: skip
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


def source_rank(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """The rank in the group of the process that a broadcast begins at."""
    group, src, group_src = args
    given, in_group = src.constant(s), group_src.constant(s)
    facts = facts_of(s, "broadcast", group)
    if (given is None) == (in_group is None):
        raise UnsupportedCall(function="broadcast", why="it takes either `src` or `group_src`")
    if in_group is not None:
        return Constant(in_group)
    return Constant(c10d.get_group_rank(process_groups.process_group(facts[0]), given))  # type: ignore[arg-type]


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


REDUCER = "it prepares the reducer, which is written in C++"


def in_python(function: str, why: str) -> Handler:
    """Of a function that breaks the graph."""

    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        raise UnsupportedCall(function=function, why=why)

    return handler


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
        (polyfills.rank_of_source, source_rank),
        (polyfills.reduction, reduction),
        (polyfills.refuse, refuse),
        (c10d.get_world_size, SIZE),
        (c10d.get_rank, of_group("get_rank", rank_in)),
        (c10d.get_backend, of_group("get_backend", lambda facts: Constant(facts[2]))),
        (c10d.is_initialized, is_initialized),
        (c10d.barrier, in_python("barrier", "the effects in front of it come after the region")),
        (c10d._get_group_size_by_name, named_size),
        (DistributedDataParallel._pre_forward, in_python("_pre_forward", REDUCER)),
        (DistributedDataParallel._post_forward, in_python("_post_forward", REDUCER)),
        (DistributedDataParallel._inside_ddp_forward, interpreted(polyfills.inside_ddp_forward)),
    )
    for _function, _handler in QUERIES:
        handles(_function)(_handler)
    for _name in (*AS_FUNCTIONAL, *OTHER_NAMES):
        if hasattr(c10d, _name):
            handles(getattr(c10d, _name))(interpreted(getattr(polyfills, OTHER_NAMES.get(_name, _name))))
    if hasattr(torch._utils, "_maybe_view_chunk_cat"):
        handles(torch._utils._maybe_view_chunk_cat)(interpreted(polyfills.joined_chunks))
