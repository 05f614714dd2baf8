"""Copies CPU arguments of GPU kernels to the GPU, unless they are passed by value (`Kernel.passed_by_value`).

    launch t(%0, %1, %2)                     %4 = aten.clone.default(%0) -> f32[]
        with %0: f32[] on the CPU      =>    %3 = aten._to_copy.default(%4, device=cuda:0) -> f32[ @cuda:0]
                                             launch t(%3, %1, %2)
                                             free %3, %4

As in eager, a scalar tensor on the CPU can be combined with tensors on the GPU. One of a type that no kernel takes as a
number, such as bool or bf16, is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch

from kiln.plan.plan import Kernel, Plan, Ref, Slot, Step
from kiln.plan.steps import AtenStep, FreeStep, LaunchStep
from kiln.plan.verify import InvalidPlan, slot_specs
from kiln.tensor.spec import TensorSpec


def with_device_copies(plan: Plan) -> Plan:
    """The plan with copies in front of GPU kernels that have CPU arguments. Nested plans are left alone.

    Raises InvalidPlan for a GPU kernel that writes CPU memory.
    """
    triton = {kernel.symbol: kernel for kernel in plan.kernels if kernel.language == "triton"}
    if not triton:
        return plan
    specs = slot_specs(plan)
    steps: list[Step] = []
    slots = plan.num_slots
    for step in plan.steps:
        kernel = triton.get(step.kernel) if isinstance(step, LaunchStep) else None
        away = cpu_slots(step, kernel, specs) if isinstance(step, LaunchStep) and kernel else ()
        if not isinstance(step, LaunchStep) or not kernel or not away:
            steps.append(step)
            continue
        access = dict(zip(step.tensors, (param.access for param in kernel.params), strict=True))
        for slot in away:
            if access[slot] != "read":
                raise InvalidPlan(plan=plan.name, problem=f"{step.kernel} writes %{slot}, which is in CPU memory")
        device = device_of(step.tensors, specs) or torch.device("cuda")
        copies = {slot: slots + 2 * n for n, slot in enumerate(away)}
        for slot, copy in copies.items():
            steps += copy_steps(slot, copy + 1, copy, specs[slot], device)
        steps.append(replace(step, tensors=tuple(copies.get(slot, slot) for slot in step.tensors)))
        steps.append(FreeStep(tuple(range(slots, slots + 2 * len(copies)))))
        slots += 2 * len(copies)
    return plan if slots == plan.num_slots else replace(plan, steps=tuple(steps), num_slots=slots)


def cpu_slots(step: LaunchStep, kernel: Kernel, specs: dict[Slot, TensorSpec]) -> tuple[Slot, ...]:
    """Tensors of the launch in CPU memory whose address the kernel gets, each once."""
    values = kernel.passed_by_value()
    pointers = [slot for position, slot in enumerate(step.tensors) if position not in values]
    return tuple(dict.fromkeys(slot for slot in pointers if slot in specs and specs[slot].device.type == "cpu"))


def device_of(tensors: Iterable[Slot], specs: Mapping[Slot, TensorSpec]) -> torch.device | None:
    """The device of the first tensor that is not on the CPU."""
    devices = (specs[slot].device for slot in tensors if slot in specs)
    return next((device for device in devices if device.type != "cpu"), None)


def copy_steps(source: Slot, host: Slot, target: Slot, spec: TensorSpec, device: torch.device) -> list[Step]:
    """Copy `source` to `target` on `device` without waiting: the driver reads pageable memory at once.

    `source` may be pinned and would be read later, so its copy `host` is sent.
    """
    layout = replace(spec, offset=0)
    kwargs = (("device", device), ("non_blocking", True))
    return [
        AtenStep("aten.clone.default", (Ref(source),), (), (host,), (layout,)),
        AtenStep("aten._to_copy.default", (Ref(host),), kwargs, (target,), (replace(layout, device=device),)),
    ]
