"""Which device a graph is compiled for: the GPU that holds its values, else the CPU.

    region_target(graph, host)      Target(device="cuda", capability=(9, 0), ...)
    kernel_gpu(kernel)              the GPU of the kernel's own tensors, None on the CPU

A kernel runs on one device. A graph with values on several is scheduled for its first GPU: its CPU part is small, and
the GPUs of a machine are alike or nearly so. Each kernel is compiled for the GPU that will run it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch

from kiln.graph.ir.graph import Graph
from kiln.loops.kernel.kernel import KernelIR
from kiln.support.target import Target, cuda_gpu
from kiln.tensor.spec import Spec, TensorSpec


def region_target(graph: Graph, host: Target) -> Target:
    """The first GPU of the graph, or `host`."""
    for node in (*graph.inputs, *graph.nodes):
        device = device_of(node.spec)
        if device is not None and device.type == "cuda":
            return with_settings(gpu_of(device.index or 0), host)
    return host


def with_settings(gpu: Target, host: Target) -> Target:
    """`gpu` with what the options and torch's settings ask for."""
    return replace(gpu, deterministic=host.deterministic, rounds=host.rounds, graphs=host.graphs, without=host.without)


def device_of(spec: Spec) -> torch.device | None:
    """The device of a tensor, or of the first tensor of several results."""
    if isinstance(spec, TensorSpec):
        return spec.device
    parts = spec if isinstance(spec, tuple) else ()
    return next((part.device for part in parts if isinstance(part, TensorSpec)), None)


def kernel_gpu(kernel: KernelIR) -> Target | None:
    """The GPU that runs the kernel; scalar tensors among its parameters may be in CPU memory."""
    devices = (param.spec.device for param in kernel.params)
    device = next((device for device in devices if device.type == "cuda"), None)
    return None if device is None else gpu_of(device.index or 0)


@lru_cache(maxsize=16)
def gpu_of(index: int) -> Target:
    """GPU `index` of this process; without GPUs an H100, for graphs that were recorded elsewhere."""
    if not torch.cuda.is_available():
        return cuda_gpu((9, 0), 132)
    properties = torch.cuda.get_device_properties(index)
    return cuda_gpu((properties.major, properties.minor), properties.multi_processor_count)
