"""Cases on compiles that ranks share: one compiles, the others load; who fails or never answers is named."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from unittest import mock

import torch
import torch.distributed as dist

import kiln
from kiln.pipeline import shared_compiles
from kiln.pipeline.session import CompileSession
from kiln.pipeline.shared_compiles import SharedCompiles
from kiln.support.errors import InternalFault

CASES: dict[str, Callable[[int, int], None]] = {}


def case(function: Callable[[int, int], None]) -> Callable[[int, int], None]:
    CASES[function.__name__] = function
    return function


def total(number: int) -> int:
    """The sum over all ranks."""
    counted = torch.tensor(number)
    dist.all_reduce(counted)
    return int(counted)


def reduced(x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x)
    return x @ x


@case
def one_rank_compiles(rank: int, size: int) -> None:
    compiled = kiln.compile(reduced, fullgraph=True)
    x = torch.full((3, 3), rank + 1.0)
    torch.testing.assert_close(compiled(x.clone()), reduced(x.clone()))
    report = compiled.report()
    assert total(report.compiles) == 1 and total(report.loaded) == size - 1, (report.compiles, report.loaded)


def by_rank(x: torch.Tensor) -> torch.Tensor:
    return x @ x if dist.get_rank() == 0 else x.t() @ x


@case
def programs_that_differ(rank: int, size: int) -> None:
    """Each rank gets the variant of its own rank, whoever compiled first."""
    compiled = kiln.compile(by_rank, fullgraph=True)
    x = torch.randn(3, 3)
    torch.testing.assert_close(compiled(x), by_rank(x))
    assert total(compiled.report().compiles) >= 2


def fails(x: torch.Tensor) -> torch.Tensor:
    return x @ x @ x


@case
def a_rank_that_fails(rank: int, size: int) -> None:
    """The first to compile fails: the others say so and compile for themselves."""
    compiled = kiln.compile(fails)
    failure = mock.patch.object(
        CompileSession, "_compile", side_effect=InternalFault(stage="load", problem="no memory")
    )
    if rank == 0:
        with failure, warnings.catch_warnings(action="ignore"):
            compiled(torch.ones(3, 3))
    dist.barrier()
    if rank != 0:
        compiled(torch.ones(3, 3))
    notes = "".join(compiled.report().notes)
    assert rank == 0 or ("KILN5017" in notes and "no memory" in notes and "rank 0" in notes), notes


def late(x: torch.Tensor) -> torch.Tensor:
    return x.t() @ x @ x


@case
def a_rank_that_never_answers(rank: int, size: int) -> None:
    claimed = SharedCompiles.compiled

    def silent(self: SharedCompiles, function: str, key: str, *rest: object) -> object:
        self.store.add(f"kiln/{shared_compiles.content_key(self.place, key)}/0/claims", 1)
        return claimed(self, function, key, *rest)  # type: ignore[arg-type]

    compiled = kiln.compile(late)
    with mock.patch.object(SharedCompiles, "compiled", silent), mock.patch.object(shared_compiles, "PATIENCE", 0.1):
        x = torch.randn(3, 3)
        torch.testing.assert_close(compiled(x), late(x))
    assert "KILN5016" in "".join(compiled.report().notes)


assert "cache_dir" in os.environ.get("KILN_OPTIONS", ""), "these cases share a cache"
