"""Kernels of a GPU and values that stand in CPU memory.

    launch t(%0, %1, %2)                     %3 = aten._to_copy.default(%0, device=cuda:0) -> f32[ @cuda:0]
        with %0: f32[] on the CPU      =>    launch t(%3, %1, %2)
                                             free %3

A scalar tensor on the CPU may stand where torch wants one on the GPU, and reaches a kernel as a tensor like any other.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from kiln.runtime.plan import BufferSpec, CallAten, Free, Launch, Plan, Ref, Slot, Step
from kiln.runtime.verify_plan import InvalidPlan, slot_specs


def with_device_copies(plan: Plan) -> Plan:
    """`plan`, where every kernel of a GPU gets its arguments on that GPU. Nested plans are left alone.

    Raises InvalidPlan where such a kernel writes CPU memory.
    """
    triton = {kernel.symbol: kernel for kernel in plan.kernels if kernel.language == "triton"}
    if not triton:
        return plan
    specs = slot_specs(plan)
    steps: list[Step] = []
    slots = plan.num_slots
    for step in plan.steps:
        away = cpu_slots(step, specs) if isinstance(step, Launch) and step.kernel in triton else ()
        if not isinstance(step, Launch) or not away:
            steps.append(step)
            continue
        access = dict(zip(step.tensors, (param.access for param in triton[step.kernel].params), strict=True))
        for slot in away:
            if access[slot] != "read":
                raise InvalidPlan(plan=plan.name, problem=f"{step.kernel} writes %{slot}, which is in CPU memory")
        device = launch_device(step, specs) or torch.device("cuda")
        copies = {slot: slots + n for n, slot in enumerate(away)}
        slots += len(copies)
        steps += [copy_step(slot, copy, replace(specs[slot], device=device)) for slot, copy in copies.items()]
        steps.append(replace(step, tensors=tuple(copies.get(slot, slot) for slot in step.tensors)))
        steps.append(Free(tuple(copies.values())))
    return plan if slots == plan.num_slots else replace(plan, steps=tuple(steps), num_slots=slots)


def cpu_slots(step: Launch, specs: dict[Slot, BufferSpec]) -> tuple[Slot, ...]:
    """Tensors of the launch in CPU memory, each once."""
    return tuple(dict.fromkeys(slot for slot in step.tensors if slot in specs and specs[slot].device.type == "cpu"))


def launch_device(step: Launch, specs: dict[Slot, BufferSpec]) -> torch.device | None:
    """Where the launch goes: the device of its tensors, those on the CPU left out."""
    devices = (specs[slot].device for slot in step.tensors if slot in specs)
    return next((device for device in devices if device.type != "cpu"), None)


def copy_step(source: Slot, target: Slot, spec: BufferSpec) -> CallAten:
    device = ("device", spec.device)
    return CallAten("aten._to_copy.default", (Ref(source),), (device,), (target,), (replace(spec, offset=0),))
