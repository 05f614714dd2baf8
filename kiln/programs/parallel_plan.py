"""How to train a model on many devices: degrees of data, shard, tensor and pipeline parallelism, by a cost model.

    facts      flops and activations of a step, bytes of parameters, products with a tensor plan
    machine    flops, memory and link of one device
    =>         Estimate for each way to use the dimensions of the mesh; the fastest that fits is chosen

A step takes the arithmetic of a forward three times, divided by the devices, and what of the communication the backward
does not hide. `data`: gradients are all-reduced beside the backward. `shard`: parameters are gathered twice and
gradients scattered beside forward and backward. `tensor`: two all-reduces of the activations for each product of rows,
which nothing hides. `pipeline`: stages wait while it fills and drains, and for the start of each message.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import final

from kiln.support.records import dataclass

ROLES = ("data", "shard", "tensor", "pipeline")
HIDDEN = 0.8
"""The share of compute beside which communication runs."""
USABLE = 0.9
"""The share of a device's memory that a plan may use."""
BACKWARD = 2 / 3
"""Of the arithmetic of a step."""


@final
@dataclass(frozen=True, slots=True)
class Machine:
    """One device: sustained arithmetic operations and link bytes per second, seconds to start a collective, bytes."""

    name: str
    flops: float
    link: float
    latency: float
    memory: float


@final
@dataclass(frozen=True, slots=True)
class StepFacts:
    """Of a step on the whole batch: arithmetic of the forward, bytes of parameters, and of activations kept for the
    backward. `reduced`: bytes of the results of products of rows, 0 without a tensor plan; `rows`: how many there are.
    `stages`: the most stages that the model can be cut into; `blocks`: what is sharded as a whole."""

    flops: float
    parameters: float
    activations: float
    reduced: float = 0.0
    rows: int = 0
    stages: int = 1
    blocks: int = 1


@final
@dataclass(frozen=True, slots=True)
class Degrees:
    data: int = 1
    shard: int = 1
    tensor: int = 1
    pipeline: int = 1

    def __str__(self) -> str:
        used = [f"{role} {getattr(self, role)}" for role in ROLES if getattr(self, role) > 1]
        return ", ".join(used) or "one device"


@final
@dataclass(frozen=True, slots=True)
class Estimate:
    """Of one way: seconds of a step and what they are spent on, bytes of a device. `why_not`: why it is no choice."""

    degrees: Degrees
    compute: float
    exposed: float
    idle: float
    memory: float
    why_not: str = ""

    @property
    def seconds(self) -> float:
        return self.compute + self.exposed + self.idle

    def row(self) -> str:
        times = f"{self.seconds * 1e3:9.2f} {self.compute * 1e3:9.2f} {self.exposed * 1e3:9.2f} {self.idle * 1e3:9.2f}"
        return f"{self.degrees!s:40} {times} {self.memory / 2**30:9.2f}  {self.why_not}".rstrip()


HEAD = f"{'':40} {'step, ms':>9} {'compute':>9} {'exposed':>9} {'idle':>9} {'GiB':>9}"


def estimate(facts: StepFacts, degrees: Degrees, machine: Machine, micro_batches: int) -> Estimate:
    devices = degrees.data * degrees.shard * degrees.tensor * degrees.pipeline
    compute = 3 * facts.flops / devices / machine.flops
    own = facts.parameters / (degrees.tensor * degrees.pipeline)

    def transfer(bytes_moved: float, ranks: int, times: int) -> float:
        """`times` gathers or scatters of so many bytes, of `ranks`."""
        return times * bytes_moved * (ranks - 1) / ranks / machine.link

    hidden = HIDDEN * BACKWARD * compute
    gradients = transfer(own / degrees.shard, degrees.data, 2)
    exposed = max(0.0, gradients - hidden) + (machine.latency if degrees.data > 1 else 0.0)
    hidden = max(0.0, hidden - gradients) + HIDDEN * (1 - BACKWARD) * compute
    gathers = transfer(own, degrees.shard, 3)
    if degrees.shard > 1:
        exposed += max(0.0, gathers - hidden) + gathers / 3 / facts.blocks + machine.latency
    if degrees.tensor > 1:
        activations = facts.reduced / (degrees.data * degrees.shard)
        exposed += 2 * transfer(activations, degrees.tensor, 2) / degrees.pipeline
        exposed += 2 * facts.rows * machine.latency / degrees.pipeline
    if degrees.pipeline > 1:
        exposed += 2 * (degrees.pipeline - 1 + micro_batches) * machine.latency  # messages between stages
    idle = compute * (degrees.pipeline - 1) / micro_batches
    states = own / degrees.shard * 4  # parameters, gradients, two moments
    whole = 2 * own / facts.blocks if degrees.shard > 1 else 0.0
    held = facts.activations / devices * min(1.0, degrees.pipeline / micro_batches) * degrees.pipeline
    return Estimate(degrees, compute, exposed, idle, states + whole + held, refusal(facts, degrees))


def refusal(facts: StepFacts, degrees: Degrees) -> str:
    if degrees.tensor > 1 and not facts.rows:
        return "no tensor plan"
    if degrees.tensor > 1 and degrees.data > 1 and degrees.shard == 1:
        return "DDP takes no DTensors"
    if degrees.pipeline > facts.stages:
        return f"it can be cut into {facts.stages} stages" if facts.stages > 1 else "it cannot be cut into stages"
    return ""


def ways(sizes: Sequence[int]) -> Iterator[Degrees]:
    """Each way to use a mesh: a dimension has one role; the only dimension of a mesh may be divided among several."""
    if len(sizes) == 1:
        count = sizes[0]
        for data, shard, tensor in products_up_to(count):
            yield Degrees(data, shard, tensor, count // (data * shard * tensor))
        return
    seen: dict[Degrees, None] = {}
    for number in range(len(ROLES) ** len(sizes)):
        found = dict.fromkeys(ROLES, 1)
        for size in sizes:
            number, role = divmod(number, len(ROLES))
            found[ROLES[role]] *= size
        seen[Degrees(**found)] = None
    yield from seen


def products_up_to(count: int) -> Iterator[tuple[int, int, int]]:
    """Three factors whose product divides `count`."""
    divisors = [number for number in range(1, count + 1) if count % number == 0]
    for data in divisors:
        for shard in divisors:
            for tensor in divisors:
                if count % (data * shard * tensor) == 0:
                    yield data, shard, tensor


def ranked(facts: StepFacts, sizes: Sequence[int], machine: Machine, micro_batches: int) -> list[Estimate]:
    """All ways, those that are possible and fit first, then by time."""
    found = [estimate(facts, degrees, machine, micro_batches) for degrees in ways(sizes)]
    most = USABLE * machine.memory

    def order(each: Estimate) -> tuple[bool, float, float]:
        excess = max(0.0, each.memory - most)
        return bool(each.why_not), excess, each.seconds

    return sorted(found, key=order)


def devices_of(sizes: Sequence[int]) -> int:
    return math.prod(sizes)
