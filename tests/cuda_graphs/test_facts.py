"""Whether and how a plan can be recorded, from its steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kiln.native import _executor
from kiln.plan.plan import Plan, PlanInput, PlanOutput, Ref, Step, SymbolBinding
from kiln.plan.steps import AtenStep, CheckStep, HostReadStep, RandomSeedStep
from kiln.runtime.cuda_graphs.facts import graph_facts, seeded_plan
from kiln.runtime.cuda_graphs.seeds import SeedRows
from kiln.runtime.executor import make_executor
from kiln.runtime.kernels import Libraries
from kiln.tensor.spec import TensorSpec
from tests.runtime.samples import spec

CUDA = torch.device("cuda", 0)


def on_cuda(planned: TensorSpec) -> TensorSpec:
    return replace(planned, device=CUDA)


def plan(*steps: Step, symbols: tuple[SymbolBinding, ...] = ()) -> Plan:
    call = AtenStep("aten.tanh.default", (Ref(0),), (), (1,), (on_cuda(spec(4)),))
    inputs = (PlanInput("x", on_cuda(spec(4))),)
    return Plan("net", inputs, symbols, (call, *steps), (PlanOutput(slot=1),), (), num_slots=8)


def call(target: str, *args: object, out: TensorSpec | None = None) -> AtenStep:
    return AtenStep(target, args, (), (2,), (out or on_cuda(spec(4)),))


def test_a_plan_of_kernels_and_library_calls_can_be_recorded() -> None:
    facts = graph_facts(plan())
    assert (facts.refusal, facts.device, facts.seeds) == ("", "cuda:0", 0)


MASK = AtenStep("aten.gt.Scalar", (Ref(0), 0), (), (3,), (on_cuda(spec(4, dtype=torch.bool)),))


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ((HostReadStep("u0", 1, "int"),), "on the host"),
        ((CheckStep(None, 1, "no"),), "on the host"),
        ((call("aten._to_copy.default", Ref(1), out=spec(4)),), "a tensor is on cpu"),
        ((call("aten._to_copy.default", Ref(1), out=replace(spec(4), device=torch.device("cuda", 1))),), "on cuda:1"),
        ((call("aten.nonzero.default", Ref(1)),), "waits for the device"),
        ((call("aten.bernoulli.p", Ref(1), 0.5),), "draws from torch's generator"),
        ((MASK, call("aten.index_put.default", Ref(0), (Ref(3),), Ref(1))), "mask waits"),
        ((call("_c10d_functional.all_reduce.default", Ref(1), "sum", ""),), "collective"),
    ],
)
def test_what_cannot_be_recorded(steps: tuple[Step, ...], reason: str) -> None:
    assert reason in graph_facts(plan(*steps)).refusal


def test_a_plan_of_another_gpu_that_uses_the_first_cannot_be_recorded() -> None:
    """A recording contains launches of one device only."""
    second = replace(spec(4), device=torch.device("cuda", 1))
    move = AtenStep("aten._to_copy.default", (Ref(0),), (), (1,), (on_cuda(spec(4)),))
    moved = Plan("net", (PlanInput("x", second),), (), (move,), (PlanOutput(slot=1),), (), 2)
    assert graph_facts(moved).refusal == "a tensor is on cuda:0, others are on cuda:1"


def test_sizes_from_offsets_and_data_cannot_be_recorded() -> None:
    assert "offset" in graph_facts(plan(symbols=(SymbolBinding("s0", "offset", 0),))).refusal
    assert "data" in graph_facts(plan(symbols=(SymbolBinding("u0", "unbacked", -1),))).refusal


def test_a_plan_that_launches_nothing_is_not_recorded() -> None:
    nothing = Plan("net", (PlanInput("x", on_cuda(spec(4))),), (), (), (PlanOutput(slot=0),), (), 1)
    assert graph_facts(nothing).refusal == "it launches nothing"


def test_what_kernels_reported_is_taken_once() -> None:
    _executor.use_null_device(True)
    try:
        _executor.set_null_status(2)
        assert [_executor.take_report(0)[0], _executor.take_report(0)[0]] == [2, 0]
    finally:
        _executor.use_null_device(False)


@pytest.mark.unrecorded  # its constants are written between calls
def test_seeds_become_constants() -> None:
    drawing = Plan(
        "net",
        (PlanInput("x", spec(4)),),
        (),
        (
            RandomSeedStep(1, torch.device("cpu"), 4),
            RandomSeedStep(2, torch.device("cpu"), 8),
            AtenStep("aten.clone.default", (Ref(1),), (), (3,), (spec(2, dtype=torch.int64),)),
            AtenStep("aten.clone.default", (Ref(2),), (), (4,), (spec(2, dtype=torch.int64),)),
        ),
        (PlanOutput(slot=4), PlanOutput(slot=3)),
        (),
        num_slots=5,
    )
    facts = graph_facts(drawing)
    rows = SeedRows(torch.device("cpu"), facts.seeds)
    run = make_executor(seeded_plan(drawing), Libraries({}, ()), rows.tensors)
    torch.manual_seed(1)
    plain = make_executor(drawing, Libraries({}, ()))(torch.ones(4))
    torch.manual_seed(1)
    rows.refresh((4, 8))
    second, first, *increments = run(torch.ones(4))
    assert increments == [4, 8]
    assert torch.equal(second, plain[0]) and torch.equal(first, plain[1])


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("name", ["flash", "cudnn", "efficient"])
def test_attention_without_dropout_draws_nothing(name: str, share: float) -> None:
    heads = tuple([Ref(0)] * 3)
    more = {"flash": (share,), "cudnn": (None, True, share), "efficient": (None, True, share)}[name]
    attention = call(f"aten._scaled_dot_product_{name}_attention.default", *heads, *more)
    assert ("draws" in graph_facts(plan(attention)).refusal) is (share > 0)
    if name == "flash":
        assert graph_facts(plan(call(attention.target, *heads))).refusal == ""  # by default
