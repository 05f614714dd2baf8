"""The device that code is compiled for, as data."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import final

from kiln.support.records import dataclass

WARP = 32
"""GPU threads that run in lockstep."""


@final
@dataclass(frozen=True, slots=True)
class KernelLanguage:
    """A language of CPU kernels, and the package that compiles it. What it does not take is written in C++."""

    name: str
    package: str


@final
@dataclass(frozen=True, slots=True)
class Target:
    """A CPU with `vector_bytes` of its widest vectors (64: AVX-512, 32: AVX2, 16: others), or a GPU ("cuda")."""

    device: str = "cpu"
    vector_bytes: int = 32
    threads: int = 1
    isa: str = ""
    """The instruction set, for cache keys: different machines may share a cache."""
    capability: tuple[int, int] = (0, 0)
    multiprocessors: int = 0
    deterministic: bool = False
    """`torch.use_deterministic_algorithms`: sums have a fixed order, as they always have on a CPU."""
    rounds: bool = False
    """Results of 16 bits are rounded op by op, as eager does."""
    graphs: bool = False
    """CUDA graphs are recorded of what is compiled."""
    language: KernelLanguage | None = None
    """Of CPU kernels; None for C++."""
    without: tuple[str, ...] = ()
    """Passes and rules that are switched off (`pipeline/switches.py`)."""

    @property
    def is_gpu(self) -> bool:
        return self.device == "cuda"


@lru_cache(maxsize=1)
def cpu_flags() -> frozenset[str]:
    """The CPU's feature flags as Linux names them; empty elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())


def host_cpu(threads: int | None = None) -> Target:
    """The CPU that this process runs on; `threads` is the size of torch's intra-op pool."""
    flags = cpu_flags()
    wide = {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags
    narrow = {"avx2", "fma"} <= flags
    vector_bytes = 64 if wide else 32 if narrow else 16
    return Target(
        vector_bytes=vector_bytes,
        threads=threads or os.cpu_count() or 1,
        isa={64: "avx512", 32: "avx2", 16: "baseline"}[vector_bytes],
    )


def cuda_gpu(capability: tuple[int, int], multiprocessors: int) -> Target:
    """A GPU of NVIDIA: (8, 0) is an A100 with 108 multiprocessors, (9, 0) an H100 or H200 with 132."""
    major, minor = capability
    return Target(
        device="cuda", capability=capability, multiprocessors=multiprocessors, isa=f"sm_{major}{minor}", vector_bytes=16
    )
