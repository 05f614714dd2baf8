#include "executor/cuda_driver.h"

#include <dlfcn.h>

namespace kiln {

namespace {

struct Opened {
  CudaDriver driver{};
  std::string problem;

  Opened() { open(); }

 private:
  template <typename Function>
  void find(void* library, const char* name, Function& place) {
    place = reinterpret_cast<Function>(dlsym(library, name));
    if (!place && problem.empty()) problem = std::string("libcuda.so.1 has no function ") + name;
  }

  void open() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      const char* reason = dlerror();
      problem = reason ? reason : "libcuda.so.1 cannot be opened";
      return;
    }
    find(library, "cuInit", driver.init);
    find(library, "cuDriverGetVersion", driver.driver_version);
    find(library, "cuGetErrorName", driver.error_name);
    find(library, "cuGetErrorString", driver.error_string);
    find(library, "cuDeviceGet", driver.device_get);
    find(library, "cuDeviceGetAttribute", driver.device_get_attribute);
    find(library, "cuDevicePrimaryCtxRetain", driver.primary_context_retain);
    find(library, "cuCtxGetCurrent", driver.context_get_current);
    find(library, "cuCtxSetCurrent", driver.context_set_current);
    find(library, "cuModuleLoadData", driver.module_load_data);
    find(library, "cuModuleGetFunction", driver.module_get_function);
    find(library, "cuFuncGetAttribute", driver.function_get_attribute);
    find(library, "cuFuncSetAttribute", driver.function_set_attribute);
    find(library, "cuLaunchKernel", driver.launch_kernel);
    find(library, "cuStreamIsCapturing", driver.stream_is_capturing);
    find(library, "cuMemHostAlloc", driver.host_alloc);
    find(library, "cuMemHostGetDevicePointer_v2", driver.host_get_device_pointer);
    if (!problem.empty()) return;
    if (CudaResult error = driver.init(0)) problem = "cuInit failed: " + driver.describe(error);
  }
};

// A forked child cannot use its parent's driver: cuInit or the first call fails there, with the
// driver's own message.
const Opened& opened() {
  static const Opened* driver = new Opened();
  return *driver;
}

}  // namespace

std::string CudaDriver::describe(CudaResult error) const {
  const char* name = nullptr;
  const char* text = nullptr;
  error_name(error, &name);
  error_string(error, &text);
  std::string made = name ? name : "CUDA error " + std::to_string(error);
  return text ? made + ": " + text : made;
}

const CudaDriver* cuda_driver() { return opened().problem.empty() ? &opened().driver : nullptr; }

const std::string& driver_problem() { return opened().problem; }

}  // namespace kiln
