// What torch keeps per thread or process and what changes the meaning of a program, as one word.
//
//   bits 0 grad, 1 inference, 2-3 deterministic, 4-5 torch function off, 6 functorch,
//   8-15 autocast dtype + 1 on CPU, 16-23 on CUDA, 24-31 default dtype,
//   32-39 function modes, 40-47 dispatch modes, 48-63 other (nonzero: a mode we do not know).
#pragma once

#include <cstdint>
#include <string>

namespace kiln {

// Looks up the functions of libtorch_cpu that c10 has no header for; "" or what is missing.
std::string probe_global_state();

uint64_t global_state();

}  // namespace kiln
