#include "executor/device.h"

#include <array>
#include <atomic>

namespace kiln {

namespace {

std::array<std::atomic<DeviceRuntime*>, 32> runtimes{};

}  // namespace

DeviceRuntime* device_runtime(int8_t device_type) {
  return runtimes.at(static_cast<size_t>(device_type)).load();
}

void register_device_runtime(int8_t device_type, DeviceRuntime* runtime) {
  runtimes.at(static_cast<size_t>(device_type)).store(runtime);
}

}  // namespace kiln
