"""Whether the speculations of a variant hold for the inputs of a call; transformed code asks before its region runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from kiln.support.records import dataclass


@final
@dataclass(frozen=True, slots=True)
class SpeculationPlan:
    """Computes truth values from inputs. `write` gives the bytes from which another process can load it."""

    run: Callable[..., Sequence[object]]
    write: Callable[[], bytes] | None = None


@final
@dataclass(frozen=True, slots=True)
class SpeculationCheck:
    """Whether all speculations hold for the inputs of a call."""

    plan: SpeculationPlan
    expected: tuple[bool, ...]

    def __call__(self, *inputs: object) -> bool:
        try:
            found = self.plan.run(*inputs)
        except (RuntimeError, IndexError):
            # A condition that is reached only if earlier ones hold may be invalid to compute.
            return False
        return all(bool(truth) is expected for truth, expected in zip(found, self.expected, strict=True))
