"""Ranks of one job on one machine agree who compiles a variant; the others load it from the disk cache.

    rank 0  claims "variant 3f2a, number 0"      compiles, saves, says "saved"
    rank 1  finds it claimed                     waits, loads; where the guards of that variant fail, asks for number 1

The first rank that misses claims, so that nobody waits for a rank that never comes. Whoever has a claim only compiles,
runs nothing and waits for nobody. A claim ends with "saved" or the reason why there is no variant, which every rank
reports; without a word for `PATIENCE` seconds a rank compiles for itself and says so.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, final

import torch.distributed as dist

from kiln.pipeline.variant_store import SAVED
from kiln.runtime.cache.store import content_key
from kiln.support.errors import KilnError
from kiln.support.events import EventSink

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

PATIENCE = 300.0
"""Seconds that a rank waits for another one's compile."""
MOST_VARIANTS = 16  # of one key: those whose guards do not fit the call of this rank are passed over
NOT_YET = "it runs this call eager"
Made = TypeVar("Made")


class RankTimedOut(KilnError):
    code = "KILN5016"
    what = "rank {rank} did not finish compiling `{function}` within {seconds} seconds"
    why = "this rank compiles it for itself"
    try_ = ("look at what that rank does", "KILN_LOG=warm on all ranks")


class RankFailed(KilnError):
    code = "KILN5017"
    what = "rank {rank} has no compiled variant of `{function}` to share"
    why = "{reason}"
    try_ = ("look at that rank's report", "kiln.explain on that rank")


@final
class SharedCompiles:
    """What the ranks of the default group know of each other's compiles, in the store of the group."""

    def __init__(self, store: Store, rank: int, folder: str, events: EventSink) -> None:
        self.store = store
        self.rank = rank
        self.place = f"{socket.gethostname()}:{folder}"
        self.events = events

    def compiled(
        self, function: str, key: str, load: Callable[[], Made | None], compile: Callable[[], Made | None],
        outcome: Callable[[], str],
    ) -> Made | None:  # fmt: skip
        """What `load` finds once another rank has saved it, else what `compile` makes here; `outcome` says what became
        of that."""
        for number in range(MOST_VARIANTS):
            claim = f"kiln/{content_key(self.place, key)}/{number}"
            if self.store.add(f"{claim}/claims", 1) == 1:
                self.store.set(f"{claim}/rank", str(self.rank))
                return self._compiled_here(claim, compile, outcome)
            if not self._is_saved(claim, function):
                return compile()
            if (found := load()) is not None:
                return found
        return compile()

    def _compiled_here(self, claim: str, compile: Callable[[], Made | None], outcome: Callable[[], str]) -> Made | None:
        said = "its compile was interrupted"
        try:
            made = compile()
            said = outcome() if made is not None else NOT_YET
            return made
        except KilnError as problem:
            said = f"{problem.code} {problem.reason}"
            raise
        except Exception as fault:
            said = f"{type(fault).__name__}: {fault}"
            raise
        finally:
            self.store.set(f"{claim}/outcome", said)

    def _is_saved(self, claim: str, function: str) -> bool:
        """Wait for the outcome of a claim. Polled: a store that waits serves nobody else of this process."""
        end, pause = time.monotonic() + PATIENCE, 0.001
        while not self.store.check([f"{claim}/outcome"]):
            if time.monotonic() > end:
                self._report(RankTimedOut(rank=self._owner(claim), function=function, seconds=int(PATIENCE)))
                return False
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)
        outcome = self.store.get(f"{claim}/outcome").decode()
        if outcome not in (SAVED, NOT_YET):
            self._report(RankFailed(rank=self._owner(claim), function=function, reason=outcome))
        return outcome == SAVED

    def _owner(self, claim: str) -> str:
        return self.store.get(f"{claim}/rank").decode() if self.store.check([f"{claim}/rank"]) else "?"

    def _report(self, problem: KilnError) -> None:
        self.events.emit("note", text=problem.render())


def shared_compiles(folder: str, events: EventSink) -> SharedCompiles | None:
    """None where this process is alone."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return None
    return SharedCompiles(dist.distributed_c10d._get_default_store(), dist.get_rank(), folder, events)
