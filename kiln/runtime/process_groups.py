"""Facts of process groups that guards ask for, and the work object of a collective that a region has run.

default_group()        ("0", 2, "gloo"): name, size and back end; None before `init_process_group`
group_facts("3")       the same of another group; None if there is none of that name
group_rank("0")        the rank of this process in it; -1 if it is not a member

A plan names its groups, and asks for the rank only where the program does, so that it fits every rank.
"""

from __future__ import annotations

from functools import lru_cache
from typing import final

import torch.distributed as dist

if dist.is_available():
    import torch.distributed.distributed_c10d as c10d

Facts = tuple[str, int, str]
ask_again = lru_cache(maxsize=0)
"""Guards call only functions of C: nothing is cached."""


def process_group(name: str) -> dist.ProcessGroup:
    return c10d._resolve_process_group(name)  # type: ignore[arg-type,attr-defined]


def facts_of(group: dist.ProcessGroup) -> Facts:
    return group.group_name, group.size(), str(dist.get_backend(group))


@ask_again
def is_initialized() -> bool:
    return dist.is_initialized()


@ask_again
def default_group() -> Facts | None:
    return facts_of(dist.GroupMember.WORLD) if dist.is_initialized() else None  # type: ignore[arg-type]


@ask_again
def group_facts(name: str) -> Facts | None:
    try:
        return facts_of(process_group(name))
    except (RuntimeError, LookupError, ValueError):
        return None


@ask_again
def group_rank(name: str) -> int:
    return process_group(name).rank()


@final
class NamedGroups:
    """`GROUPS.g3` is the group of the name "3": the path under which a guard on disk finds it."""

    def __getattr__(self, name: str) -> object:
        try:
            return process_group(name[1:])
        except (RuntimeError, LookupError, ValueError) as error:
            raise AttributeError(name) from error


GROUPS = NamedGroups()


@final
class EndedWork:
    """What `async_op=True` returns of a collective that is a step of a region, which has waited for it."""

    def wait(self, timeout: object = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def synchronize(self) -> None:
        return None

    def block_current_stream(self) -> None:
        return None
