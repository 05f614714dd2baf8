// The CUDA driver's functions, found at run time: no CUDA header or library is needed to build.
//
// Types and numbers as in NVIDIA's driver API manual. Where the library exports a function under a
// newer name than the one in the manual (cuda.h renames it), the newer one is asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace kiln {

using CudaResult = int;
using CudaDevice = int;
using CudaContext = struct CudaContextTag*;
using CudaModule = struct CudaModuleTag*;
using CudaFunction = struct CudaFunctionTag*;
using CudaStream = struct CudaStreamTag*;
using CudaPointer = unsigned long long;

inline constexpr CudaResult kCudaSuccess = 0;
inline constexpr CudaResult kCudaOutOfMemory = 2;
inline constexpr CudaResult kCudaInvalidImage = 200;
inline constexpr CudaResult kCudaNoBinaryForGpu = 209;
inline constexpr CudaResult kCudaInvalidPtx = 218;
inline constexpr CudaResult kCudaUnsupportedPtxVersion = 222;

// Numbers of CUdevice_attribute and CUfunction_attribute.
inline constexpr int kDeviceCapabilityMajor = 75;
inline constexpr int kDeviceCapabilityMinor = 76;
inline constexpr int kDeviceMaxSharedOptin = 97;
inline constexpr int kFunctionMaxThreads = 0;
inline constexpr int kFunctionSharedBytes = 1;
inline constexpr int kFunctionMaxDynamicShared = 8;

inline constexpr int kCaptureActive = 1;  // of CUstreamCaptureStatus

inline constexpr unsigned kHostPortable = 1;
inline constexpr unsigned kHostDeviceMapped = 2;

struct CudaDriver {
  CudaResult (*init)(unsigned flags);
  CudaResult (*driver_version)(int* version);
  CudaResult (*error_name)(CudaResult error, const char** text);
  CudaResult (*error_string)(CudaResult error, const char** text);
  CudaResult (*device_get)(CudaDevice* device, int ordinal);
  CudaResult (*device_get_attribute)(int* value, int attribute, CudaDevice device);
  CudaResult (*primary_context_retain)(CudaContext* context, CudaDevice device);
  CudaResult (*context_get_current)(CudaContext* context);
  CudaResult (*context_set_current)(CudaContext context);
  CudaResult (*module_load_data)(CudaModule* module, const void* image);
  CudaResult (*module_get_function)(CudaFunction* function, CudaModule module, const char* name);
  CudaResult (*function_get_attribute)(int* value, int attribute, CudaFunction function);
  CudaResult (*function_set_attribute)(CudaFunction function, int attribute, int value);
  CudaResult (*launch_kernel)(CudaFunction function, unsigned grid_x, unsigned grid_y,
                              unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                              unsigned shared_bytes, CudaStream stream, void** parameters,
                              void** extra);
  CudaResult (*stream_is_capturing)(CudaStream stream, int* status);
  CudaResult (*host_alloc)(void** pointer, size_t bytes, unsigned flags);
  CudaResult (*host_get_device_pointer)(CudaPointer* pointer, void* host, unsigned flags);

  // "CUDA_ERROR_OUT_OF_MEMORY: out of memory"
  std::string describe(CudaResult error) const;
};

// The driver, opened once; nullptr where it cannot be, and `driver_problem` says why.
const CudaDriver* cuda_driver();
const std::string& driver_problem();

}  // namespace kiln
