"""Cases on DTensors: what computes on them is one region, and equals eager with its gradients and placements."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F

import kiln
from tests.distributed.ranks import device_type

CASES: dict[str, Callable[[int, int], None]] = {}
Program = Callable[..., Any]


def case(function: Callable[[int, int], None]) -> Callable[[int, int], None]:
    CASES[function.__name__] = function
    return function


def mesh(size: int) -> DeviceMesh:
    return init_device_mesh(device_type(), (size,))


def found(value: Any) -> Any:
    """A result as plain tensors, with the placements of a DTensor."""
    if isinstance(value, (tuple, list)):
        return [found(part) for part in value]
    if isinstance(value, DTensor):
        return {str(value.placements): [value.detach().to_local(), value.detach().full_tensor()]}
    return value.detach() if isinstance(value, torch.Tensor) else value


def leaves(args: Sequence[Any], needs_grad: bool) -> list[Any]:
    return [arg.detach().clone().requires_grad_(needs_grad) if isinstance(arg, torch.Tensor) else arg for arg in args]


def same(program: Program, *args: Any, grads: bool = True, whole: bool = True) -> Any:
    """Results, changed arguments and gradients of two calls equal eager's; the report."""
    compiled = kiln.compile(program, fullgraph=whole)
    for needs_grad in [False, True][: 1 + grads] * 2:
        outcomes = []
        for function in (program, compiled):
            given = leaves(args, needs_grad)
            result = function(*given)
            if needs_grad:
                results = result if isinstance(result, tuple) else (result,)
                total = sum(
                    part.to_local().square().sum() if isinstance(part, DTensor) else part.square().sum()
                    for part in results
                )
                total.backward()
            outcomes.append(
                [found(result), found(given), found([arg.grad for arg in given if isinstance(arg, torch.Tensor)])]
            )
        torch.testing.assert_close(outcomes[1], outcomes[0], rtol=1e-5, atol=1e-5)
    return compiled.report()


@case
def operators(rank: int, size: int) -> None:
    """Products, pointwise operators, reductions and views, on sharded, replicated and partial tensors."""
    at = mesh(size)
    x = distribute_tensor(torch.randn(4, 6), at, [Shard(0)])
    w = distribute_tensor(torch.randn(6, 8), at, [Shard(1)])
    v = distribute_tensor(torch.randn(6, 8), at, [Replicate()])

    def program(x: DTensor, w: DTensor, v: DTensor) -> tuple[DTensor, ...]:
        y = (x @ v).relu() + 1
        z = x.t() @ y * w
        return y.softmax(-1), z.sum(0), y.view(2, 2, 8).transpose(0, 1), F.layer_norm(y, (8,))

    same(program, x, w, v)


@case
def in_and_out(rank: int, size: int) -> None:
    """Plain tensors become DTensors, move and come back."""
    at = mesh(size)

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
        whole = DTensor.from_local(x, at, [Shard(0)]).redistribute(at, [Replicate()])
        moved = whole.redistribute(placements=[Shard(-1)])
        partial = DTensor.from_local(y, at, [Partial()], run_check=False)
        assert moved.placements == (Shard(1),) and moved.device_mesh.ndim == 1 and isinstance(moved, DTensor)
        return whole.to_local() * 2, moved, partial.full_tensor(), partial.redistribute(placements=(Shard(0),))

    same(program, torch.randn(2, 4) + rank, torch.randn(4, 4) + rank)


@case
def other_placements(rank: int, size: int) -> None:
    """A variant for each placement, none for another tensor with the same one."""
    at = mesh(size)
    compiled = kiln.compile(lambda x: x.sum(0) * 2, fullgraph=True)
    x = torch.randn(4, 4)
    for placement in (Shard(0), Shard(1), Replicate(), Shard(0), Shard(1)):
        y = distribute_tensor(x, at, [placement])
        torch.testing.assert_close(compiled(y).full_tensor(), x.sum(0) * 2)
    assert compiled.report().compiles == 3, compiled.report().compiles


@case
def without_gradients(rank: int, size: int) -> None:
    """Results that need no gradient, of arguments that do."""
    x = distribute_tensor(torch.randn(4, 4), mesh(size), [Shard(0)]).requires_grad_()

    def program(x: DTensor) -> tuple[Any, ...]:
        return x.detach() * 2, torch.zeros_like(x), x.shape, x.to_local().shape

    assert found(kiln.compile(program, fullgraph=True)(x))[2:] == found(program(x))[2:]
    torch.testing.assert_close(found(kiln.compile(program)(x))[:2], found(program(x))[:2])


@case
def batches(rank: int, size: int) -> None:
    """Sizes that differ between calls; more rows on one rank than on the other."""
    at = mesh(size)

    def program(x: torch.Tensor, w: DTensor) -> torch.Tensor:
        made: torch.Tensor = (DTensor.from_local(x, at, [Replicate()]) @ w).full_tensor()
        return made

    compiled, w = kiln.compile(program, fullgraph=True), distribute_tensor(torch.randn(4, 5), at, [Shard(1)])
    for rows in (2, 3, 4, 3):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x, w), program(x, w))


@case
def in_place(rank: int, size: int) -> None:
    x = distribute_tensor(torch.randn(4, 4), mesh(size), [Shard(0)])

    def program(x: DTensor, y: DTensor) -> DTensor:
        x.add_(y, alpha=2)
        x.mul_(3)
        return x * y

    same(program, x, x + 1, grads=False)


@case
def refused(rank: int, size: int) -> None:
    """What draws random numbers, or mixes plain tensors with DTensors, runs or raises as in eager."""
    x = distribute_tensor(torch.randn(4, 4), mesh(size), [Shard(0)])

    def draws(x: DTensor) -> DTensor:
        return F.dropout(x * 2, 0.5).abs() > 0

    def mixed(x: DTensor) -> DTensor:
        return x @ torch.ones(4, 4)

    drawn = []
    for function in (draws, kiln.compile(draws)):
        torch.manual_seed(0)
        drawn.append(function(x).to_local())
    torch.testing.assert_close(drawn[1], drawn[0])
    kinds = []
    for function in (mixed, kiln.compile(mixed)):
        try:
            function(x)
        except Exception as error:
            kinds.append(type(error))
    assert kinds == [RuntimeError] * 2, kinds


class Norm(nn.Module):
    """Sequence parallel around a tensor parallel block, with an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.norm = nn.Embedding(12, 8), nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.tokens(tokens))
        out: torch.Tensor = self.down(F.silu(self.up(x))) + x
        return out


PLAN = {
    "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
}


def step(module: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    out: Any = module(tokens)
    out = out.to_local() if isinstance(out, DTensor) else out
    out.square().sum().backward()
    made: torch.Tensor = out.detach()
    return made


@case
def plans(rank: int, size: int) -> None:
    """A block with all kinds of parallel layers is one region, forward and backward."""
    generator = torch.Generator(device_type()).manual_seed(0)
    outcomes, tokens = [], torch.randint(0, 12, (2, 4 * size), generator=generator)
    for wrap in (lambda module: module, lambda module: kiln.compile(module, fullgraph=True)):
        torch.manual_seed(0)
        module = wrap(parallelize_module(Norm(), mesh(size), dict(PLAN)))
        results = [step(module, tokens) for _ in range(2)]
        outcomes.append([found(results), found([p.grad for p in module.parameters()])])
    torch.testing.assert_close(outcomes[1], outcomes[0], rtol=1e-5, atol=1e-5)
    assert module.report().regions == 1 and not module.report().eager, str(module.report())


@case
def parameters(rank: int, size: int) -> None:
    """Parameters of a module, each of which it finds once."""
    module = parallelize_module(nn.Linear(4, 4), mesh(size), ColwiseParallel())

    def program() -> list[torch.Tensor]:
        return [parameter * 2 for parameter in module.parameters()]

    with torch.no_grad():
        torch.testing.assert_close(found(kiln.compile(program, fullgraph=True)()), found(program()))


@case
def sharded_embedding(rank: int, size: int) -> None:
    """What it leaves for its reduction is not seen by eager, also where the graph breaks in between."""
    table = distribute_tensor(torch.randn(6, 4), mesh(size), [Shard(0)])
    tokens = distribute_tensor(torch.arange(5), mesh(size), [Replicate()])

    def whole(tokens: DTensor, table: DTensor) -> torch.Tensor:
        return F.embedding(tokens, table).full_tensor() + F.embedding(tokens, table).full_tensor()

    def broken(tokens: DTensor, table: DTensor) -> torch.Tensor:
        found = F.embedding(tokens, table)
        torch._dynamo.graph_break()
        made: torch.Tensor = found.full_tensor() * 2
        return made

    expected = whole(tokens, table)
    for program, full in ((whole, True), (broken, False), (whole, True)):
        torch.testing.assert_close(kiln.compile(program, fullgraph=full)(tokens, table), expected)
        torch.testing.assert_close(whole(tokens, table), expected)
