// The state of torch, per thread or process, that changes the meaning of a program, as one word.
//
//   bits 0 grad, 1 inference, 2-3 deterministic, 4-5 torch function off, 6 functorch,
//   7 saved-tensor hooks that may change values, 8-13 autocast dtype + 1 on CPU, 14-19 on CUDA,
//   20-25 default dtype, 26-31 current CUDA device, 32-35 function modes, 36-39 dispatch modes (15:
//   or more), 40-44 attention back ends that are off (math, flash, memory-efficient, cuDNN,
//   overrideable), 48-63 other (nonzero: an unknown mode).
#pragma once

#include <cstdint>
#include <string>

namespace kiln {

// Looks up functions of libtorch_cpu without a c10 header; returns "" or what is missing.
std::string probe_global_state();

uint64_t global_state();

// From now on the word holds the current CUDA device, before that 0. CUDA must be initialised:
// asking for the device would initialise it.
void watch_cuda_device();

}  // namespace kiln
