"""Process groups: guarded by name, size and back end, which all ranks share.

group.size()       2
group.rank()       0, with a guard: a program that does not ask fits every rank
"""

from __future__ import annotations

from typing import cast, final

import torch.distributed as dist

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.core import NOT_RESUMABLE, Args, CallSite, CaptureState, Kwargs, Value, wraps
from kiln.capture.interpreter.variables.bound_method import NamedMethod
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.object import Object
from kiln.runtime import process_groups
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.source import CallSource, ModuleGlobalSource, Source
from kiln.runtime.process_groups import Facts

MODULE = process_groups.__name__


def asked(function: str, *arguments: object) -> Source:
    """The answer of a function of `process_groups`, asked again by guards."""
    return CallSource(ModuleGlobalSource(MODULE, function), arguments)


@final
class ProcessGroupObject(Object):
    """A process group from outside."""

    __slots__ = ()

    def group(self) -> dist.ProcessGroup:
        return cast(dist.ProcessGroup, self.real())

    def facts(self, s: CaptureState) -> Facts:
        """Name, size and back end, guarded."""
        real = self.group()
        found = process_groups.facts_of(real)
        s.guard(self.source, GuardKind.IS, s.reference(real))
        s.guard(asked("group_facts", found[0]), GuardKind.EQUALS, found)
        return found

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        if name in ("rank", "size", "name"):
            return GroupMethod(self, name)
        if name == "group_name":
            return Constant(self.facts(s)[0])
        return super().get_attr(s, name, site)


def rank_in(facts: Facts) -> Value:
    return Constant(process_groups.group_rank(facts[0]), asked("group_rank", facts[0]))


@final
class GroupMethod(NamedMethod):
    """A method that says something of its group."""

    __slots__ = ()
    owner: ProcessGroupObject

    def python_type(self) -> type:
        return type(self.owner.group().rank)

    def call(self, s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
        if args or kwargs:
            raise UnsupportedCall(function=f"ProcessGroup.{self.name}", why="it takes no arguments")
        facts = self.owner.facts(s)
        if self.name == "rank":
            return rank_in(facts)
        return Constant(facts[1] if self.name == "size" else self.owner.group().name())


if dist.is_available():

    @wraps(dist.ProcessGroup, subclasses=True)
    def wrap_group(s: CaptureState, real: object, source: Source | None) -> Value:
        return s.identities.same_object(real, source, lambda: ProcessGroupObject(type(real), source, real))
