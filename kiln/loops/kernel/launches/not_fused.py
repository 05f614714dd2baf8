"""Why loops did not become one kernel: the end of the schedule's dump, and what the report answers.

    not fused
        b3, b7: vertical: too-many-buffers: 140 > 128 buffers (slow to compile, short of registers)
        b3, b9: too-many-between: 230 > 200 kernels (the second needs them, and they are not moved)

A loop is called by the buffer that it writes, a group of loops by its last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import final

from kiln.support.records import dataclass


@final
@dataclass(frozen=True, slots=True)
class Refusal:
    """Two groups of loops, the rule that would have fused them ("": any), and the veto (see `fusion/vetoes.py`).

    `cost` is beyond `limit`, both in `unit`; a veto without a unit has no numbers to show.
    """

    first: str
    second: str
    rule: str
    veto: str
    cost: int
    limit: int
    unit: str
    reason: str

    def __str__(self) -> str:
        rule = f"{self.rule}: " if self.rule else ""
        relation = ">" if self.cost > self.limit else ">="
        numbers = f": {self.cost} {relation} {self.limit} {self.unit}" if self.unit else ""
        return f"{self.first}, {self.second}: {rule}{self.veto}{numbers} ({self.reason})"


@final
@dataclass(frozen=True, slots=True)
class NotFused:
    """All refusals of a program, and the number of the kernel that each loop is in at last.

    Texts are made when they are read.
    """

    refusals: tuple[Refusal, ...] = ()
    kernels: Mapping[str, int] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Refusal]:
        """Each once, without those of loops that came into one kernel by another way."""
        apart = (pair for pair in self.refusals if self.kernels[pair.first] != self.kernels[pair.second])
        return iter(dict.fromkeys(apart))

    def __str__(self) -> str:
        lines = [f"    {refusal}" for refusal in self]
        return "\n".join(["not fused", *lines]) if lines else ""

    def between(self, first: str, second: str) -> tuple[Refusal, ...]:
        """Why the loops that write two buffers are in different kernels."""
        return tuple(refusal for refusal in self if {refusal.first, refusal.second} == {first, second})
