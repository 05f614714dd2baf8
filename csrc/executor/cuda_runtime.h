// Triton kernels on CUDA devices, through the driver API.
#pragma once

#include <cstdint>
#include <string>

#include "executor/device.h"

namespace kiln {

// Registers the runtime of CUDA where torch has CUDA devices and the driver can be opened; once.
// Empty, or why there is none.
const std::string& install_cuda_runtime();

// The raw stream that torch has selected on device `index` in this thread.
void* current_cuda_stream(int8_t index);

}  // namespace kiln
