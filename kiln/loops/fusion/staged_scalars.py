"""Scalars on the CPU that GPU kernels read are sent to the GPU in one copy, in front of the kernels.

    launch decay(step -> rate)                     on the CPU
    launch update(g0, rate -> p0)                  a launch would read `rate` when it starts

    launch decay(step -> rate)
    host = extern kiln.empty()                     i64[2]
    launch copy(rate -> host_rate)                 a view of it
    staged = extern aten._to_copy(host, cuda:0)
    launch update(g0, staged_rate -> p0)

A CUDA graph repeats its launches with the arguments of the recording: where graphs are recorded, numbers that change
have to lie in the memory of the GPU. Steps that touch only CPU memory come first, so that the others are a graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import final

import torch

from kiln.loops.fusion.kernel_table import KernelTable
from kiln.loops.fusion.lifetimes import ScheduledStep
from kiln.loops.fusion.overlap import changes
from kiln.loops.fusion.scatter_kernel import copy_kernel
from kiln.loops.kernel.kernel import KernelIR
from kiln.loops.kernel.launches.program import KernelLaunch, NestedCall
from kiln.loops.program.analyses import memory_of
from kiln.loops.program.nodes import LOCAL_SCALAR, Buffer, BufferArg, Extern
from kiln.support.target import Target
from kiln.tensor.spec import CPU, TensorSpec

WORDS = 2
"""Words of 8 bytes from one scalar to the next: each starts at an address that any access may use."""


def staged_scalars(
    steps: Sequence[ScheduledStep], buffers: dict[str, Buffer], table: KernelTable, target: Target
) -> list[ScheduledStep]:
    """The steps; new buffers are added to `buffers`. They stay as they are where the GPU gives the CPU a value."""
    stage = _Stage(buffers, table, target)
    mixed = any([isinstance(step.step, NestedCall) or stage.comes_back(step) for step in steps])
    return list(steps) if mixed else stage.run(steps)


@final
class _Stage:
    def __init__(self, buffers: dict[str, Buffer], table: KernelTable, target: Target) -> None:
        self.buffers, self.table, self.target = buffers, table, target
        self.host: list[ScheduledStep] = []
        self.device: list[ScheduledStep] = []
        self.waiting: dict[str, str] = {}
        """Scalars and the names of their copies, until they are sent."""
        self.groups = 0

    def run(self, steps: Sequence[ScheduledStep]) -> list[ScheduledStep]:
        for step in steps:
            if not self._is_on_host(step):
                self.device.append(self._staged(step))
                continue
            changed = {memory_of(name, self.buffers) for name in changes(step)}
            if any([memory_of(name, self.buffers) in changed for name in self.waiting]):
                self._send()  # as they are before this step
            self.host.append(step)
        self._send()
        return [*self.host, *self.device]

    def comes_back(self, step: ScheduledStep) -> bool:
        """Does it write CPU memory, or read a number, that depends on the GPU?"""
        reads = isinstance(step.step, Extern) and step.step.target == LOCAL_SCALAR
        return not self._is_on_host(step) and (reads or any([self._device(name) == CPU for name in changes(step)]))

    def _device(self, name: str) -> torch.device:
        return self.buffers[name].spec.device

    def _is_on_host(self, step: ScheduledStep) -> bool:
        touched = step.touched()
        return bool(touched) and all([self._device(name) == CPU for name in touched])

    def _staged(self, step: ScheduledStep) -> ScheduledStep:
        """The step with copies in the place of scalars on the CPU."""
        launch = step.step
        if not isinstance(launch, KernelLaunch):
            return step
        scalars = {name for name in launch.args if self._device(name) == CPU}
        if not scalars:
            return step
        device = next(self._device(name) for name in launch.args if self._device(name) != CPU)
        args = tuple([self._copy_of(name, device) if name in scalars else name for name in launch.args])
        made = replace(launch, args=args, kernel=self._on(launch.kernel, device))
        row = step.row
        if row is not None:
            args = tuple([self.waiting[name] if name in scalars else name for name in row.args])
            row = made if row.kernel is launch.kernel else replace(row, args=args, kernel=self._on(row.kernel, device))
        return replace(step, step=made, row=row)

    def _on(self, kernel: KernelIR, device: torch.device) -> KernelIR:
        """The kernel with all parameters on the GPU."""
        params = [replace(param, spec=replace(param.spec, device=device)) for param in kernel.params]
        return self.table.known(replace(kernel, params=tuple(params)))

    def _copy_of(self, name: str, device: torch.device) -> str:
        if name not in self.waiting:
            place, dtype = WORDS * len(self.waiting), self.buffers[name].spec.dtype
            made = f"{name}_staged{self.groups}"
            offset = place * torch.int64.itemsize // dtype.itemsize
            for part, where in (("host", CPU), ("device", device)):
                spec = TensorSpec(dtype, (), (), offset, where)
                own = made if part == "device" else f"{made}_host"
                self.buffers[own] = Buffer(own, spec, f"staged{self.groups}_{part}")
            self.waiting[name] = made
        return self.waiting[name]

    def _send(self) -> None:
        """Copy what waits into memory of its own, and that to the GPU."""
        if not self.waiting:
            return
        device = self._device(next(iter(self.waiting.values())))
        size = WORDS * len(self.waiting)
        host, sent = [
            Buffer(f"staged{self.groups}_{part}", TensorSpec(torch.int64, (size,), (1,), 0, where))
            for part, where in (("host", CPU), ("device", device))
        ]
        self.buffers |= {host.name: host, sent.name: sent}
        self.host.append(ScheduledStep(Extern((host,), "kiln.empty", ())))
        self.host += [ScheduledStep(launch) for launch in self._copies()]
        kwargs = (("device", device), ("non_blocking", True))  # the driver reads pageable memory at once
        self.host.append(ScheduledStep(Extern((sent,), "aten._to_copy.default", (BufferArg(host.name),), kwargs)))
        self.waiting = {}
        self.groups += 1

    def _copies(self) -> Iterator[KernelLaunch]:
        """A launch for the scalars of each dtype: they go to different places of one tensor."""
        kernels: dict[KernelIR, list[str]] = {}
        for name, made in self.waiting.items():
            call = copy_kernel(self.buffers[name], self.buffers[f"{made}_host"], self.buffers, self.target)
            launch = self.table.launch(call)
            kernels.setdefault(launch.kernel, []).extend(launch.args)
        for kernel, args in kernels.items():
            yield KernelLaunch(kernel, tuple(args), rows=len(args) // len(kernel.params))
