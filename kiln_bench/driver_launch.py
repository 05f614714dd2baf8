"""The cost of a launch through the CUDA driver alone, to compare the executor's launches with."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import torch

from kiln.runtime.kernels import Cubin
from kiln.support.target import WARP

SOURCE = """
#include <dlfcn.h>
#include <chrono>
#include <vector>

using Load = int (*)(void** module, const void* code);
using Find = int (*)(void** function, void* module, const char* name);
using Launch = int (*)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared,
                       void* stream, void** parameters, void** extra);

extern "C" double launch_cost(const void* code, const char* entry, unsigned threads, unsigned shared, int parameters,
                              int count, void* stream) {
  void* cuda = dlopen("libcuda.so.1", RTLD_NOW);
  auto launch = reinterpret_cast<Launch>(dlsym(cuda, "cuLaunchKernel"));
  void *module, *function;
  if (reinterpret_cast<Load>(dlsym(cuda, "cuModuleLoadData"))(&module, code)) return -1;
  if (reinterpret_cast<Find>(dlsym(cuda, "cuModuleGetFunction"))(&function, module, entry)) return -1;
  unsigned long long zero = 0;
  std::vector<void*> given(parameters, &zero);
  auto started = std::chrono::steady_clock::now();
  for (int n = 0; n < count; n++) {
    if (launch(function, 1, 1, 1, threads, 1, 1, shared, stream, given.data(), nullptr)) return -1;
  }
  std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - started;
  return spent.count() / count;
}
"""


def driver_launch_cost(cubin: Cubin, count: int, folder: Path) -> float:
    """Microseconds of CPU per launch of one block, every parameter zero, on the current stream."""
    library = folder / "launch_cost.so"
    if not library.exists():
        command = ["g++", "-std=c++20", "-O2", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library)]
        subprocess.run(command, input=SOURCE, text=True, check=True)
    cost = ctypes.CDLL(str(library)).launch_cost
    cost.restype = ctypes.c_double
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    parameters = len(cubin.letters) + cubin.trailing
    sizes = cubin.num_warps * WARP, cubin.shared_bytes
    spent: float = cost(cubin.code, cubin.entry.encode(), *sizes, parameters, count, stream)
    assert spent > 0, "the driver refused a launch"
    return spent
