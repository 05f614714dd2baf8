"""Both executors on hand-written plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from kiln.native._executor import Executor
from kiln.plan.encode import encode_program
from kiln.plan.errors import (
    CheckFailed,
    IndexOutOfRange,
    InputMismatch,
    InvalidProgram,
    NoDeviceMemory,
    UnknownOperator,
)
from kiln.plan.plan import Plan, PlanInput, PlanOutput, Ref, SymbolBinding
from kiln.plan.reference import PythonExecutor
from kiln.plan.steps import (
    AllocateStep,
    AtenStep,
    BranchStep,
    CheckStep,
    ConstantStep,
    HostReadStep,
    LaunchStep,
    RandomSeedStep,
    ViewStep,
)
from kiln.runtime import executor
from kiln.runtime.executor import Explain, load_executor, make_executor
from kiln.runtime.kernels import Libraries
from kiln.runtime.loader import load_bundle, save_bundle
from kiln.symbolic import symbol
from kiln.tensor.spec import TensorSpec
from tests.runtime.samples import SCALE, add_norm, gather, spec
from tests.runtime.test_plan_text import everything

Make = Callable[..., Callable[..., tuple[Any, ...]]]


def saved_and_loaded(plan: Plan, libraries: Libraries, constants: Sequence[torch.Tensor] = ()) -> Executor:
    """The plan as it comes out of a bundle."""
    by_key = dict(zip(plan.constants, constants, strict=True))
    return load_bundle(save_bundle(plan, libraries, by_key)).executor()


@pytest.fixture(params=[PythonExecutor, make_executor, saved_and_loaded], ids=["python", "native", "loaded"])
def make(request: pytest.FixtureRequest) -> Make:
    chosen: Make = request.param
    return chosen


def test_runs_for_every_size(make: Make, libraries: Libraries) -> None:
    run = make(add_norm(), libraries)
    for rows in (1, 3, 7):
        x, y, w = torch.randn(rows, 8), torch.randn(rows, 8), torch.randn(8, 4)
        assert torch.equal(run(x, y, w)[0], (x + y) @ w)


def test_steps_one_at_a_time(libraries: Libraries) -> None:
    x, y, w = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8, 4)
    run = PythonExecutor(add_norm(), libraries).start((x, y, w))
    seen = []
    while (step := run.step()) is not None:
        seen.append(type(step).__name__)
        if len(seen) == 2:
            assert torch.equal(run.values[3], x + y)
    assert seen == ["AllocateStep", "LaunchStep", "AtenStep", "FreeStep"]
    assert run.values[3] is None


def test_index_out_of_range_is_reported(make: Make, libraries: Libraries) -> None:
    run = make(gather(), libraries)
    assert torch.equal(run(torch.arange(5.0), torch.tensor([4, 0, 1]))[0], torch.tensor([4.0, 0.0, 1.0]))
    with pytest.raises(IndexOutOfRange, match=r"KILN4001[\s\S]*user.py:7"):
        run(torch.arange(5.0), torch.tensor([4, 5, 1]))
    with pytest.raises(IndexError):
        run(torch.arange(5.0), torch.tensor([-1, 0, 1]))


def test_every_kind_of_step(make: Make, libraries: Libraries) -> None:
    constant = torch.tensor([7.0])
    x = torch.arange(4.0)
    old = x.clone()
    version = x._version
    run = make(everything(), libraries, [constant])
    outs = run(x, torch.tensor(True), torch.tensor(2), 3.0, 5)
    new = old * 3.0 + 6.0
    assert torch.equal(x, new) and x._version == version + 1
    assert torch.equal(outs[1], constant) and outs[3] is x and outs[7] is None
    assert torch.equal(outs[0], new.view(2, 2).t()) and torch.equal(outs[2], new.view(2, 2))
    assert torch.equal(outs[4], new[2:]) and outs[4].data_ptr() == x[2:].data_ptr()
    assert outs[5].data_ptr() == outs[0].data_ptr()
    assert outs[6] == 4 and outs[9] == 2
    assert torch.equal(outs[8], x[:2] * 0.5)
    with pytest.raises(CheckFailed, match="u0 must be small"):
        run(x, torch.tensor(True), torch.tensor(5), 3.0, 5)
    with pytest.raises(CheckFailed, match="flag must be set"):
        run(x, torch.tensor(False), torch.tensor(2), 3.0, 5)


def test_wrong_arguments_are_refused(make: Make, libraries: Libraries) -> None:
    run = make(add_norm(), libraries)
    x, w = torch.randn(3, 8), torch.randn(8, 4)
    for bad in ((x, x), (x, x, 1.0), (x, x[:2], w), (x, x.double(), w), (x, x, torch.randn(4, 8).t())):
        with pytest.raises(InputMismatch, match="KILN4003"):
            run(*bad)


def test_wrong_prediction_is_copied_into_the_planned_layout(make: Make, libraries: Libraries) -> None:
    """The plan predicts a contiguous tensor, but the op returns a transposed view."""
    plan = Plan(
        "wrong",
        (PlanInput("x", spec(2, 3)),),
        (),
        (
            AtenStep("aten.t.default", (Ref(0),), (), (1,), (spec(3, 2),)),
            ViewStep(2, 1, spec(6)),
        ),
        (PlanOutput(slot=2),),
        (),
        num_slots=3,
    )
    x = torch.randn(2, 3)
    assert torch.equal(make(plan, libraries)(x)[0], x.t().reshape(6))


def test_autograd_and_autocast_do_not_reach_the_steps(make: Make, libraries: Libraries) -> None:
    run = make(add_norm(), libraries)
    x, w = torch.randn(3, 8, requires_grad=True), torch.randn(8, 4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        (out,) = run(x, x, w)
    assert out.dtype == torch.float32 and not out.requires_grad


def test_results_of_other_kinds(make: Make, libraries: Libraries) -> None:
    """Lists of tensors, several results, numbers as arguments, optional tensors."""
    s = symbol("s0")
    left, right = spec(s, 3, strides=(6, 1)), spec(s, 3, strides=(6, 1), offset=3)
    norm = (spec(s, 6), None, spec(s, 1))
    plan = Plan(
        "kinds",
        (PlanInput("x", spec(s, 6)), PlanInput("k", None, "int"), PlanInput("eps", None, "float")),
        (SymbolBinding("s0", "size", 0, 0), SymbolBinding("k0", "scalar", 1)),
        (
            AtenStep("aten.split.Tensor", (Ref(0), 3, 1), (), (3, 4), (left, right)),
            AtenStep("aten.cat.default", ((Ref(4), Ref(3)), 1), (), (5,), (spec(s, 6),)),
            AtenStep("aten.native_layer_norm.default", (Ref(5), (6,), None, None, Ref(2)), (), (6, None, 7), norm),
            AtenStep("aten.add.Tensor", (Ref(6), symbol("k0") * 2), (("alpha", 0.5),), (8,), (spec(s, 6),)),
            AtenStep("aten.index.Tensor", (Ref(8), (None, Ref(9))), (), (10,), (spec(s, 2, strides=(1, s)),)),
            AtenStep("aten.reshape.default", (Ref(10), (s * 2,)), (), (11,), (spec(s * 2),)),
        ),
        (PlanOutput(slot=7), PlanOutput(slot=11), PlanOutput(slot=12)),
        (),
        num_slots=13,
    )  # fmt: skip
    index = ConstantStep(9, 0)
    maximum = AtenStep("aten.item.default", (Ref(13),), (), (12,), (None,))
    steps = (
        *plan.steps[:4],
        index,
        *plan.steps[4:],
        AtenStep("aten.max.default", (Ref(11),), (), (13,), (spec(),)),
        maximum,
    )
    plan = replace(plan, steps=steps, num_slots=14, constants=("c",))
    x, columns = torch.randn(4, 6), torch.tensor([5, 0])
    rstd, flat, number = make(plan, libraries, [columns])(x, 3, 0.25)
    swapped = torch.cat([x[:, 3:], x[:, :3]], 1)
    normed, _, wanted_rstd = torch.native_layer_norm(swapped, (6,), None, None, 0.25)
    wanted = (normed + 3)[:, columns].reshape(-1)
    assert torch.equal(rstd, wanted_rstd) and torch.equal(flat, wanted) and number == wanted.max().item()


@pytest.mark.parametrize("target", ["aten.nothing.default", "aten.mm.none", "aten", "aten.mm.default"])
def test_unknown_operators_are_refused(libraries: Libraries, target: str) -> None:
    plan = Plan(
        "unknown", (PlanInput("x", spec(2)),), (), (AtenStep(target, (Ref(0),), (), (1,), (spec(2),)),), (), (), 2
    )
    with pytest.raises(UnknownOperator, match="KILN4006"):
        make_executor(plan, libraries)


def test_errors_of_ops_are_torchs(make: Make, libraries: Libraries) -> None:
    plan = Plan(
        "bad",
        (PlanInput("x", spec(2)),),
        (),
        (AtenStep("aten.mm.default", (Ref(0), Ref(0)), (), (1,), (spec(2),)),),
        (),
        (),
        2,
    )
    run = make(plan, libraries)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="must be a matrix"):
            run(torch.randn(2))


def test_random_seed_follows_the_generator(libraries: Libraries) -> None:
    plan = Plan("seed", (), (), (RandomSeedStep(0, torch.device("cpu"), 4),), (PlanOutput(slot=0),), (), 1)
    drawn = []
    for make in (PythonExecutor, make_executor):
        torch.manual_seed(5)
        run = make(plan, libraries)
        drawn.append([run()[0].tolist(), run()[0].tolist()])
    assert drawn[0] == drawn[1] and drawn[0][0] != drawn[0][1]


@pytest.mark.unrecorded  # results that no step writes
def test_memory_is_reused(make: Make, libraries: Libraries) -> None:
    plan = Plan(
        "reuse",
        (PlanInput("x", spec(4)), PlanInput("saved", spec(4))),
        (),
        (
            AtenStep("aten.neg.default", (Ref(0),), (), (2,), (spec(4),)),
            HostReadStep("u0", 1, "float"),
            AllocateStep(3, spec(2, 2), reuse=2),
            LaunchStep("k_scale", (0, 3), (1,), (Ref(7),), 4),
            AtenStep("aten.neg.default", (Ref(0),), (), (4,), (spec(4),)),
            AllocateStep(5, spec(8), reuse=4),  # too small: fresh memory
            AllocateStep(6, spec(4), reuse=1),  # the caller holds the input: fresh memory
        ),
        (PlanOutput(slot=3), PlanOutput(slot=5), PlanOutput(slot=6)),
        (SCALE,),
        num_slots=8,
        donated=(1,),
    )
    plan = replace(
        plan, inputs=(*plan.inputs[:1], PlanInput("saved", spec())), symbols=(SymbolBinding("u0", "unbacked", 7),)
    )
    saved = torch.tensor(2.0)
    out, _, fresh = make(plan, libraries)(torch.arange(4.0), saved)
    assert out.tolist() == [[1.0, 3.0], [5.0, 7.0]] and fresh.data_ptr() != saved.data_ptr()


def test_tensors_that_are_not_plain_memory_are_refused(libraries: Libraries) -> None:
    run = make_executor(gather(), libraries)
    index = torch.tensor([0, 1, 2])
    lazy = torch.randn(5, dtype=torch.complex64).conj().imag  # a negative bit
    assert lazy.is_neg()
    for bad in (lazy.as_strided((5,), (1,)), torch.zeros(5).to_sparse(), None, "x"):
        with pytest.raises(InputMismatch):
            run(bad, index)


def test_results_that_are_views_are_views_for_autograd(make: Make, libraries: Libraries) -> None:
    plan = Plan(
        "views", (PlanInput("x", spec(4)),), (), (), (PlanOutput(alias_input=0, view=spec(2, offset=1)),), (), 1
    )
    x = torch.arange(4.0, requires_grad=True)
    (out,) = make(plan, libraries)(x)
    assert out._base is x and out._version == 0
    out.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0.0, 1.0, 1.0, 0.0]
    base = torch.arange(10.0)[3:7]  # the offset counts from that of the planned input
    assert make(plan, libraries)(base)[0].tolist() == [4.0, 5.0]


def test_a_stride_of_a_dimension_of_one_may_differ(make: Make, libraries: Libraries) -> None:
    plan = Plan("one", (PlanInput("x", spec(1, 4)),), (), (), (PlanOutput(slot=0),), (), 1)
    x = torch.randn(1, 4).as_strided((1, 4), (17, 1))
    assert make(plan, libraries)(x)[0] is x


def test_inference_mode(make: Make, libraries: Libraries) -> None:
    with torch.inference_mode():
        (out,) = make(add_norm(), libraries)(torch.randn(3, 8), torch.randn(3, 8), torch.randn(8, 4))
    assert out.is_inference()


def test_programs_of_another_format_are_refused() -> None:
    good = encode_program(gather())
    for bad in (b"", good[:-1], good[:100], b"x" * len(good), good[:8] + bytes([9]) + good[9:]):
        with pytest.raises(InvalidProgram, match="KILN4007"):
            Executor(bad, {"k_gather": 1}, [], Explain("p", []))
    with pytest.raises(InvalidProgram, match="k_gather"):
        Executor(good, {}, [], Explain("p", []))


def test_a_branch_that_fails_keeps_nothing(libraries: Libraries) -> None:
    def plan(name: str, message: str) -> Plan:
        flag = TensorSpec(torch.bool, (), ())
        steps = (CheckStep(None, 1, message),) if message else ()
        return Plan(name, (PlanInput("x", spec(4)), PlanInput("flag", flag)), (), steps, (), (), num_slots=2)

    inner, other = plan("inner", "always wrong"), plan("other", "")
    flag = PlanInput("flag", TensorSpec(torch.bool, (), ()))
    steps = (BranchStep(1, other, inner, (0, 1), ()),)
    outer = Plan("outer", (PlanInput("x", spec(4)), flag), (), steps, (), (), num_slots=2)
    run = make_executor(outer, libraries)
    x = torch.ones(4)
    before = x._use_count()
    run(x, torch.tensor(True))
    with pytest.raises(CheckFailed, match="always wrong"):
        run(x, torch.tensor(False))
    assert x._use_count() == before


def test_views_of_an_argument_that_lies_inside_of_its_storage(libraries: Libraries) -> None:
    plan = Plan(
        name="window",
        inputs=(PlanInput("x", spec(6)),),
        symbols=(),
        steps=(ViewStep(1, 0, spec(3, strides=(2,), offset=1)),),
        outputs=(PlanOutput(slot=1),),
        kernels=(),
        num_slots=2,
    )
    given = torch.arange(20.0)[7:13]
    for run in (PythonExecutor(plan, libraries), make_executor(plan, libraries)):
        assert run(given)[0].tolist() == [8.0, 10.0, 12.0]


def test_memory_that_a_program_cannot_get_is_an_error_of_ours(
    libraries: Libraries, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise torch.OutOfMemoryError("none left")

    monkeypatch.setattr(executor, "Executor", refuse)
    with pytest.raises(NoDeviceMemory, match="none left") as caught:
        load_executor(b"", libraries, (), Explain("big", []))
    monkeypatch.setattr(executor, "Executor", lambda *arguments: (_ for _ in ()).throw(caught.value))
    with pytest.raises(NoDeviceMemory) as again:
        load_executor(b"", libraries, (), Explain("big", []))
    assert again.value is caught.value
