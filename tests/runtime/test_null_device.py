"""Plans for CUDA on the null device: what the driver would get, byte by byte, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from kiln.build.cubins import parameter_letters
from kiln.native import _executor
from kiln.plan.errors import IndexOutOfRange, KernelDoesNotFit, LaunchFailed, NoDeviceRuntime
from kiln.plan.plan import Kernel, KernelParam, Plan, PlanInput, PlanOutput, Ref, SymbolBinding
from kiln.plan.steps import AllocateStep, AtenStep, CopyStep, FreeStep, LaunchStep, ViewStep
from kiln.plan.verify import InvalidPlan
from kiln.runtime.executor import DEVICE, Explain, make_executor
from kiln.runtime.kernels import Cubin, Libraries
from kiln.symbolic import symbol
from tests.runtime.samples import spec
from tests.runtime.triton_samples import (
    GATHER,
    SCALE,
    gather,
    on_cuda,
    scaled_product,
    seed_pair,
    triton_kernel,
)


def fake_cubin(kernel: Kernel, **more: Any) -> Cubin:
    facts: dict[str, Any] = {"num_warps": dict(kernel.meta)["num_warps"], "shared_bytes": 512, "scratch_bytes": 0}
    facts.update(entry=kernel.symbol, letters=parameter_letters(kernel), trailing=2, capability=90, code=b"\x7fELF")
    return Cubin(**{**facts, "status": bool(dict(kernel.meta)["status"]), **more})


def fake_libraries(plan: Plan, **more: Any) -> Libraries:
    return Libraries({}, (), {kernel.symbol: fake_cubin(kernel, **more) for kernel in plan.kernels})


@pytest.fixture
def null_device() -> Iterator[None]:
    _executor.use_null_device(True)
    _executor.take_null_log()
    yield
    _executor.set_null_status(0)
    _executor.use_null_device(False)


def run_log(plan: Plan, inputs: Sequence[Any], **more: Any) -> str:
    executor = make_executor(plan, fake_libraries(plan, **more))
    executor(*inputs)
    return _executor.take_null_log()


def test_steps_in_order(null_device: None) -> None:
    assert run_log(scaled_product(), [torch.randn(40, 64), torch.randn(64, 32)]) == (
        "load t_scale on device 0\n"
        "load t_scale on device 0\n"
        "allocate %2\n"
        "launch t_scale grid (3, 1, 1) threads 128 shared 512: p %0, p %2, i 000a0000, f 0000003f, p null, p null\n"
        "call aten.mm.default\n"
        "free %2\n"
        "allocate %4\n"
        "launch t_scale grid (2, 1, 1) threads 128 shared 512: p %3, p %4, i 00050000, f 0000003f, p null, p null\n"
        "free %3\n"
    )


def test_no_blocks_no_launch(null_device: None) -> None:
    log = run_log(scaled_product(), [torch.randn(0, 64), torch.randn(64, 32)])
    assert log.count("launch t_scale of no blocks") == 2


ALL_TYPES = ("*fp32", "i1", "i8", "i16", "i32", "i64", "fp16", "bf16", "fp32", "fp64", "*i64")
PACKED = "p %0, b 01, b fe, h fdff, i fcffffff, q fbffffffffffffff, e 003e, g c03f, f 0000c03f, d 000000000000f83f"


@pytest.mark.parametrize(("trailing", "scratch", "end"), [
    (0, 0, ""), (1, 0, ", p null"), (2, 0, ", p null, p null"), (2, 64, ", p scratch, p null"),
])  # fmt: skip
def test_parameters_byte_by_byte(null_device: None, trailing: int, scratch: int, end: str) -> None:
    kernel = triton_kernel("t_types", "", "r", ALL_TYPES, status=True)
    plan = Plan(
        name="types",
        inputs=(PlanInput("x", on_cuda(spec(4))),),
        symbols=(),
        steps=(LaunchStep("t_types", (0,), (1, -2, -3, -4, -5), (1.5, 1.5, 1.5, 1.5), 24, grid=(2, 3, 4)),),
        outputs=(),
        kernels=(kernel,),
        num_slots=1,
    )
    log = run_log(plan, [torch.zeros(4)], trailing=trailing, scratch_bytes=scratch).splitlines()
    assert log[1] == f"launch t_types grid (2, 3, 4) threads 128 shared 512: {PACKED}, p status{end}"


def one_int(value: Any, kind: str = "i32") -> Plan:
    kernel = triton_kernel("t_int", "", "r", ("*fp32", kind))
    return Plan(
        name="one_int",
        inputs=(PlanInput("x", on_cuda(spec(symbol("s0")))),),
        symbols=(SymbolBinding("s0", "size", 0, 0),),
        steps=(LaunchStep("t_int", (0,), (value,), (), 1, grid=(1,)),),
        outputs=(),
        kernels=(kernel,),
        num_slots=1,
    )


def test_numbers_that_are_too_large_are_refused(null_device: None) -> None:
    large = symbol("s0") * (1 << 30)
    for kind, rows, good in (("i32", 1, True), ("i32", 2, False), ("i64", 2, True), ("i8", 1, False)):
        plan = one_int(large, kind)
        executor = make_executor(plan, fake_libraries(plan))
        if good:
            executor(torch.zeros(rows))
        else:
            with pytest.raises(LaunchFailed, match=r"KILN4013[\s\S]*does not fit into the type"):
                executor(torch.zeros(rows))


def test_a_reported_status_is_raised_at_the_next_call(null_device: None) -> None:
    executor = make_executor(gather(), fake_libraries(gather()))
    inputs = (torch.randn(5), torch.tensor([0, 1, 2]))
    executor(*inputs)
    _executor.set_null_status(1)
    with pytest.raises(IndexOutOfRange, match="kernel "):
        executor(*inputs)
    executor(*inputs)


def test_a_status_does_not_stop_plans_that_report_none(null_device: None) -> None:
    _executor.set_null_status(1)
    run_log(scaled_product(), [torch.randn(2, 64), torch.randn(64, 32)])


def test_seeds_are_on_the_device(null_device: None) -> None:
    assert run_log(seed_pair(), []) == (
        "load t_copy_pair on device 0\nseed %0\nallocate %1\n"
        "launch t_copy_pair grid (1, 1, 1) threads 128 shared 512: p %0, p %1, p null, p null\nfree %0\n"
    )


def mutating() -> Plan:
    """x[:, :2] = 2 * x[:, :2] by ATen steps beside a kernel; x comes back, and a view of it."""
    rows, half = on_cuda(spec(3, 4)), on_cuda(spec(3, 2, strides=(4, 1)))
    return Plan(
        name="mutating",
        inputs=(PlanInput("x", rows), PlanInput("y", on_cuda(spec(3, 2)))),
        symbols=(),
        steps=(
            AllocateStep(2, rows),
            LaunchStep(SCALE.symbol, (0, 2), (12,), (0.5,), 1, grid=(1,)),
            FreeStep((2,)),
            ViewStep(3, 0, half),
            CopyStep(3, 1),
        ),
        outputs=(PlanOutput(alias_input=0), PlanOutput(alias_input=0, view=half)),
        kernels=(SCALE,),
        num_slots=4,
        mutated=(0,),
    )


@pytest.mark.parametrize("shift", [0, 1, 3, 4])
def test_unaligned_inputs(null_device: None, shift: int) -> None:
    base = torch.arange(20.0)
    x, y = base[shift : shift + 12].view(3, 4), torch.full((3, 2), -1.0)
    wanted = base.clone()
    wanted[shift : shift + 12].view(3, 4)[:, :2] = y
    executor = make_executor(mutating(), fake_libraries(mutating()))
    version = x._version
    same, half = executor(x, y)
    assert torch.equal(base, wanted) and same is x and half.data_ptr() == x.data_ptr() and half._base is base
    assert x._version == version + 1


def test_unaligned_inputs_that_share_elements(null_device: None) -> None:
    row = torch.arange(8.0)[1:5]
    plan = replace(gather(), inputs=(PlanInput("table", on_cuda(spec(5, 4, strides=(0, 1)))), gather().inputs[1]))
    executor = make_executor(plan, fake_libraries(plan))
    executor(row.expand(5, 4), torch.tensor([0, 1, 2]))


def test_scalar_tensors_on_the_cpu(null_device: None) -> None:
    """A GPU kernel gets a copy of a CPU scalar, and never writes to it."""
    plan = replace(gather(), inputs=(gather().inputs[0], PlanInput("index", spec(3, dtype=torch.int64))))
    assert run_log(plan, [torch.randn(5), torch.tensor([0, 1, 2])]) == (
        "load t_gather on device 0\nallocate %2\ncall aten.clone.default\ncall aten._to_copy.default\n"
        "launch t_gather grid (1, 1, 1) threads 128 shared 512: "
        "p %0, p %3, p %2, q 0500000000000000, i 03000000, p status, p null, p null\nfree %3, %4\n"
    )
    with pytest.raises(InvalidPlan, match="writes %2, which is in CPU memory"):
        run_log(replace(plan, steps=(AllocateStep(2, spec(3)), plan.steps[1])), [])


def test_kernels_that_do_not_belong_to_the_plan(null_device: None) -> None:
    with pytest.raises(KernelDoesNotFit, match=r"KILN4011[\s\S]*no compiled code"):
        make_executor(gather(), Libraries({}, ()))
    for letters in ("ppqip", "pppqi", "pppqfp", "pppqipp"):
        with pytest.raises(KernelDoesNotFit, match=r"KILN4011[\s\S]*does not take"):
            make_executor(gather(), Libraries({}, (), {GATHER.symbol: fake_cubin(GATHER, letters=letters)}))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device() -> None:
    assert _executor.cuda_problem() == "torch has no CUDA device"
    with pytest.raises(NoDeviceRuntime, match=r"KILN4010[\s\S]*torch has no CUDA device"):
        make_executor(gather(), fake_libraries(gather()))


def test_what_a_device_reports_has_a_code() -> None:
    explain = Explain("plan", ())
    found = [explain(DEVICE, problem, "", "k_1: reason") for problem in range(6)]
    assert [value.code for value in found] == [f"KILN401{n}" for n in (0, 0, 1, 2, 3, 4)]  # type: ignore[attr-defined]
    assert all("k_1" in str(value) and "reason" in str(value) for value in found)
    assert isinstance(found[5], torch.OutOfMemoryError)


@torch.library.custom_op("kiln_tests::behind_padding", mutates_args=())
def behind_padding(x: torch.Tensor) -> torch.Tensor:
    """A view of fresh memory that starts four bytes after a multiple of sixteen."""
    return torch.nn.functional.pad(x, (1, 0))[1:]


def test_what_an_operator_returns_is_aligned_for_kernels(null_device: None) -> None:
    kernel = triton_kernel("t_read", "", "r", ("*fp32",), divisible=(0,))
    plan = Plan(
        name="behind_one",
        inputs=(PlanInput("x", on_cuda(spec(64))),),
        symbols=(),
        steps=(
            AtenStep("kiln_tests.behind_padding.default", (Ref(0),), (), (1,), (on_cuda(spec(64)),)),
            LaunchStep("t_read", (1,), (), (), 1, grid=(1,)),
        ),
        outputs=(PlanOutput(slot=1),),
        kernels=(kernel,),
        num_slots=2,
    )
    x = torch.arange(64.0)
    assert behind_padding(x).data_ptr() % 16 == 4
    (result,) = make_executor(plan, fake_libraries(plan))(x)
    assert result.data_ptr() % 16 == 0 and torch.equal(result, x)


def test_scalar_tensors_that_a_kernel_takes_as_numbers(null_device: None) -> None:
    """The launch reads the element; nothing is copied."""
    rows = [(torch.float32, "read"), (torch.float64, "read"), (torch.float32, "write")]
    params = tuple([KernelParam(dtype, access) for dtype, access in rows])  # type: ignore[arg-type]
    meta = (("num_warps", 4), ("signature", ("*fp32", "fp64", "*fp32")), ("status", False))
    kernel = Kernel("t_scale_by", "triton", "def t_scale_by(x, by, out):\n    pass\n", params, 0, meta=meta)
    inputs = (PlanInput("x", on_cuda(spec(4))), PlanInput("by", spec(dtype=torch.float64)))
    steps = (AllocateStep(2, on_cuda(spec(4))), LaunchStep("t_scale_by", (0, 1, 2), (), (), 1, grid=(1,)))
    plan = Plan("scale", inputs, (), steps, (PlanOutput(slot=2),), (kernel,), num_slots=3)
    assert run_log(plan, [torch.randn(4), torch.tensor(1.0, dtype=torch.float64)]).endswith(
        "p %0, d 000000000000f03f, p %2, p null, p null\n"
    )
