// Launching kernels on a device other than the CPU.
//
// A device's runtime registers itself when its driver has been opened; the executor asks for it by
// device type when a plan with such kernels is loaded, so one binary serves machines with and
// without the device.
#pragma once

#include <cstdint>

namespace kiln {

struct KernelEntry;

// One launch: tensors and numbers in the order of the kernel's parameters, evaluated.
struct DeviceLaunch {
  const KernelEntry* kernel;
  void* const* tensors;
  int32_t num_tensors;
  const int64_t* ints;
  const double* floats;
  const int64_t* grid;
  int32_t grid_rank;
  int64_t* status;
};

class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  // On the current stream of the device that torch has selected in this thread.
  virtual void launch(const DeviceLaunch& launch) = 0;
};

// nullptr where no runtime is registered for the type (a number of c10::DeviceType).
DeviceRuntime* device_runtime(int8_t device_type);
// `runtime` lives as long as the process.
void register_device_runtime(int8_t device_type, DeviceRuntime* runtime);

}  // namespace kiln
