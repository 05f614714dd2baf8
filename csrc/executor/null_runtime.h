// A device that runs nothing but logs what it would do, so that plans for CUDA can be tested
// without a GPU.
//
//   allocate %2
//   launch k_scale grid (4, 1, 1) threads 128 shared 0: p %0, p %2, i 00100000, f 0000003f
//   free %1
//
// Tensors of the device are in CPU memory. Numbers are shown as the bytes that the driver would
// read; a pointer into the status slot as "status".
#pragma once

#include <string>

namespace kiln {

// While the null device is in place, executors that are made run their CUDA kernels on it.
void use_null_device(bool used);
// The lines since the last call.
std::string take_null_log();
// As if a kernel had reported `code`.
void set_null_status(long long code);

}  // namespace kiln
