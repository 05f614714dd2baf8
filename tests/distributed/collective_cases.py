"""Cases on collectives: compiled programs equal eager on every rank, in one graph where `whole` says so."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc

import kiln
from tests.distributed.ranks import device_type, exact

CASES: dict[str, Callable[[int, int], None]] = {}


def case(function: Callable[[int, int], None]) -> Callable[[int, int], None]:
    CASES[function.__name__] = function
    return function


def same(program: Callable[..., Any], *args: object, whole: bool = True, runs: int = 2) -> None:
    """Results and changed arguments of compiled code equal eager's, in the first call and later ones."""
    compiled = kiln.compile(program, fullgraph=whole)
    for _ in range(runs):
        mine, theirs = [[arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args] for _ in range(2)]
        try:
            expected = program(*theirs)
        except ValueError as error:  # NCCL takes no tensor with gaps
            with pytest.raises(type(error)):
                compiled(*mine)
            continue
        found = compiled(*mine)
        torch.testing.assert_close(found, plain(expected), **exact())
        torch.testing.assert_close(mine, theirs, **exact())


def plain(value: Any) -> Any:
    """Functional collectives of eager return tensors that wait at their first use."""
    if isinstance(value, (tuple, list)):
        return type(value)([plain(part) for part in value])
    return value.wait() if isinstance(value, fc.AsyncCollectiveTensor) else value


def numbers(rank: int, *sizes: int) -> torch.Tensor:
    return torch.randn(*sizes) + rank


@case
def all_reduce(rank: int, size: int) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y.abs() + x

    same(program, numbers(rank, 4, 3))


@case
def all_reduce_of_an_argument(rank: int, size: int) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
        return x[1:]

    same(program, numbers(rank, 5))


@case
def asynchronous(rank: int, size: int) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x @ x
        work = dist.all_reduce(y, async_op=True)
        z = x @ w
        assert work.wait()
        return y @ z, z

    same(program, numbers(rank, 4, 4), numbers(rank, 4, 4))


@case
def a_work_object_leaves(rank: int, size: int) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return x, dist.all_reduce(x, async_op=True)

    x, y = numbers(rank, 3), numbers(rank, 3)
    y.copy_(x)
    expected, work = program(x)
    work.wait()
    found, made = kiln.compile(program)(y)
    assert made.wait() and made.is_completed()
    torch.testing.assert_close(found, expected, **exact())


@case
def broadcast(rank: int, size: int) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        dist.broadcast(x, src=size - 1)
        return x[0]

    same(program, numbers(rank, 4))


@case
def all_gather(rank: int, size: int) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = [torch.empty_like(x) for _ in range(size)]
        dist.all_gather(parts, x)
        flat = x.new_empty(size * 3, 2)
        dist.all_gather_into_tensor(flat, x)
        return parts[0], parts[-1], flat

    same(program, numbers(rank, 3, 2))


@case
def reduce_scatter(rank: int, size: int) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        whole, parts = x.new_empty(3, 2), x.new_empty(3, 2)
        dist.reduce_scatter_tensor(whole, x)
        dist.reduce_scatter(parts, list(x.chunk(size)))
        return whole, parts

    same(program, numbers(rank, 3 * size, 2))


@case
def all_to_all_single(rank: int, size: int) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x)
        return out

    same(program, numbers(rank, 2 * size, 3))


@case
def unequal_parts(rank: int, size: int) -> None:
    rows = [1 if rank == 0 else 2] * size
    received = [1] + [2] * (size - 1)

    def program(x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(sum(received), 3)
        dist.all_to_all_single(out, x, received, rows)
        return out

    same(program, numbers(rank, sum(rows), 3))


@case
def ranks_and_sizes(rank: int, size: int) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        assert dist.is_initialized()
        if dist.get_rank() == 0:
            x = x * dist.get_world_size()
        return x + dist.group.WORLD.rank() + dist.group.WORLD.size() + (dist.get_backend() == "gloo")

    same(program, numbers(rank, 3))


@case
def groups(rank: int, size: int) -> None:
    group = dist.new_group(list(range(size)))

    def program(x: torch.Tensor, group: Any) -> torch.Tensor:
        y = x @ x
        dist.all_reduce(y, group=group)
        return y[dist.get_rank(group)]

    compiled = kiln.compile(program, fullgraph=True)
    x = numbers(rank, size, size)
    for given in (group, None, dist.group.WORLD, group):
        torch.testing.assert_close(compiled(x, given), program(x, given), **exact())


@case
def functional(rank: int, size: int) -> None:
    def program(x: torch.Tensor) -> tuple[Any, ...]:
        group = dist.group.WORLD
        return (
            fc.all_reduce(x, "sum", group) @ x.t(),
            fc.all_gather_tensor(x, 0, group),
            fc.all_gather_tensor(x, 1, group),
            fc.reduce_scatter_tensor(x, "sum", 0, group),
            fc.broadcast(x, 0, group),
            fc.all_to_all_single(x, None, None, group),
            fc.all_reduce_coalesced([x, x[1:]], "sum", group),
        )

    same(program, numbers(rank, 2 * size, 4))


@case
def functional_gradients(rank: int, size: int) -> None:
    x = numbers(rank, 2 * size, 4)

    def program(x: torch.Tensor) -> torch.Tensor:
        group = dist.group.WORLD
        y = fc.all_gather_tensor_autograd(x, 0, group)
        z = fc.reduce_scatter_tensor_autograd(y @ y.t() @ y, "sum", 0, group)
        return z @ fc.all_reduce(x, "sum", group).t()

    results = []
    for function in (program, kiln.compile(program, fullgraph=True)):
        leaf = x.clone().requires_grad_()
        function(leaf).sum().backward()
        results.append(leaf.grad)
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-4)


@case
def in_training(rank: int, size: int) -> None:
    """Gradients pass by an in-place collective, as in eager; those of the region are reduced in the same graph."""
    w = torch.randn(4, 4)

    def step(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        (grad,) = torch.autograd.grad((x @ w).relu().sum(), w)
        dist.all_reduce(grad)
        return w.detach() - 0.1 * grad / dist.get_world_size()

    leaf = w.requires_grad_()
    x = numbers(rank, 2, 4)
    torch.testing.assert_close(kiln.compile(step, fullgraph=True)(leaf, x), step(leaf, x))


@case
def unused_results(rank: int, size: int) -> None:
    """All ranks call what no rank reads, in the same order."""

    def program(x: torch.Tensor) -> torch.Tensor:
        y, z = x @ x, x @ x.t()
        dist.all_reduce(y)
        dist.all_reduce(z)
        dist.broadcast(y, 0)
        return x @ x

    same(program, numbers(rank, 3, 3))


@case
def breaks(rank: int, size: int) -> None:
    """What has no functional form runs eager between two regions."""

    def program(x: torch.Tensor) -> Any:
        y = x @ x
        dist.all_reduce(y)
        y = y @ x
        dist.barrier()
        said = [rank]
        dist.broadcast_object_list(said, 0)
        everything = [None] * size
        dist.all_gather_object(everything, rank)
        gathered = [None] * size if rank == 0 else None
        dist.gather_object((rank, y.shape[0]), gathered, 0)
        given = [None]
        dist.scatter_object_list(given, list(range(size)) if rank == 0 else None, 0)
        return y @ x, said, everything, gathered, given

    same(program, numbers(rank, 3, 3), whole=False)


@case
def what_is_done_in_front_of_a_barrier(rank: int, size: int) -> None:
    """Other ranks see it behind the barrier, in a loop too."""
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder, 0)

    def program(x: torch.Tensor, name: str) -> torch.Tensor:
        for turn in range(3):
            y = x * 2
            if rank == 0:
                Path(folder[0], f"{name}{turn}").write_text(str(turn))
            dist.all_reduce(y)
            dist.barrier()
            x = y + int(Path(folder[0], f"{name}{turn}").read_text())
            dist.barrier(async_op=True).wait()
        return x

    compiled = kiln.compile(program)
    x = numbers(rank, 3, 3)
    for name in "ab":
        torch.testing.assert_close(compiled(x, name), program(x, f"eager_{name}"), **exact())


@case
def a_break_on_one_rank(rank: int, size: int) -> None:
    """As where one rank logs: the messages of the others are those of eager, one by one."""

    def program(x: torch.Tensor) -> torch.Tensor:
        y, z = x * 2, x @ x
        dist.all_reduce(y)
        if rank == 0:
            time.sleep(0)  # breaks the graph
        dist.all_reduce(z)
        return y @ z

    same(program, numbers(rank, 3, 3), whole=rank != 0)


@case
def strided_and_complex(rank: int, size: int) -> None:
    def program(x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, u, w, v = x.clone(), x.t() * 2, z * 2, z @ z
        dist.all_reduce(y)
        dist.all_reduce(u)
        dist.broadcast(x.t(), 0)
        dist.all_reduce(w)
        dist.broadcast(v, 0)
        return y, u @ x, w, v * w

    complex_numbers = torch.complex(numbers(rank, 3, 3), numbers(rank, 3, 3))
    same(program, numbers(rank, 3, 3), complex_numbers)


@case
def with_gaps(rank: int, size: int) -> None:
    """Gloo reduces the memory of such a tensor as if it had none: eager does."""

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y[:, :2])
        return y

    same(program, numbers(rank, 3, 3), whole=False)


@case
def symbolic_sizes(rank: int, size: int) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(size * x.shape[0], 2)
        dist.all_gather_into_tensor(out, x)
        dist.all_reduce(x)
        return out @ x.t()

    compiled = kiln.compile(program, fullgraph=True)
    for rows in (2, 3, 4, 5):
        x = numbers(rank, rows, 2)
        torch.testing.assert_close(compiled(x.clone()), program(x.clone()))
    assert compiled.report().compiles <= 2


@case
def errors(rank: int, size: int) -> None:
    def no_tensor(x: torch.Tensor) -> None:
        dist.all_reduce([x])

    def other_dtype(x: torch.Tensor) -> None:
        dist.all_gather_into_tensor(torch.empty(3 * size, dtype=torch.int64), x)

    def too_few(x: torch.Tensor) -> None:
        dist.all_gather([x], x)

    def no_group(x: torch.Tensor) -> None:
        dist.all_reduce(x, group="none")

    for program in (no_tensor, other_dtype, too_few, no_group):
        kinds = []
        for function in (program, kiln.compile(program)):
            try:
                function(torch.ones(3))
                kinds.append("")
            except Exception as error:
                kinds.append(type(error).__name__)
        assert kinds[0] == kinds[1], (program.__name__, kinds)
        assert kinds[0] or device_type() == "cuda", program.__name__  # NCCL does not count the tensors


@case
def messages(rank: int, size: int) -> None:
    """Round a ring: sent and received, one after the other, asynchronous and in a batch."""
    after, before = (rank + 1) % size, (rank - 1) % size

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, z, u = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
        if rank % 2 == 0:
            dist.send(x @ x, after)
            assert dist.recv(y, before) == before
        else:
            assert dist.recv(y, src=before) == before
            dist.send(x @ x, dst=after)
        works = [dist.isend(y + 1, after, tag=3), dist.irecv(z, before, tag=3)]
        w = y @ x
        for work in works:
            work.wait()
        operations = [dist.P2POp(dist.isend, w, after), dist.P2POp(dist.irecv, u, before)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return y @ z, u

    same(program, numbers(rank, 3, 3))


@case
def messages_under_way(rank: int, size: int) -> None:
    """A region does not wait for a message at its end: the other rank may need what comes after it.

    Not with NCCL, where messages of two ranks wait for each other in the order of the calls.
    """
    if device_type() == "cuda":
        return

    def program(x: torch.Tensor) -> torch.Tensor:
        y, z = x @ x, torch.empty_like(x)
        if rank == 0:
            work = dist.irecv(z, 1)
            dist.send(x, 1, tag=1)
            time.sleep(0)  # breaks the graph
            dist.send(y, 1)
            work.wait()
        elif rank == 1:
            dist.recv(z, 0, tag=1)
            time.sleep(0)  # breaks the graph
            dist.recv(z, 0)
            dist.send(z @ y, 0)
        return z + 1

    same(program, numbers(rank, 3, 3), whole=False)


@case
def to_and_from_one_rank(rank: int, size: int) -> None:
    root = size - 1

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, z = x @ x, torch.empty_like(x)
        dist.reduce(y, root, op=dist.ReduceOp.MAX)
        parts = [torch.empty_like(x) for _ in range(size)] if rank == root else None
        dist.gather(x * 2, parts, dst=root)
        dist.scatter(z, [part + 1 for part in parts] if parts else None, src=root)
        return y if rank == root else x, z @ x

    same(program, numbers(rank, 3, 3))


@case
def lists_to_all(rank: int, size: int) -> None:
    if dist.get_backend() == "gloo" and torch.__version__.startswith("2.11."):
        return  # it has no such collective

    def program(x: torch.Tensor) -> torch.Tensor:
        taken = [torch.empty_like(x) for _ in range(size)]
        dist.all_to_all(taken, [x + n for n in range(size)])
        return sum(taken) @ x  # type: ignore[operator]

    same(program, numbers(rank, 3, 3))
