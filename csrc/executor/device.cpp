#include "executor/device.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <limits>
#include <mutex>

#include "executor/program.h"

namespace kiln {

namespace {

std::array<std::atomic<DeviceRuntime*>, 32> runtimes{};

std::mutex reports_mutex;
std::vector<std::string> report_places;
std::atomic<int32_t> used_reports{0};

template <typename T>
uint64_t narrowed(const KernelImage& image, int64_t value) {
  if (value < std::numeric_limits<T>::min() || value > std::numeric_limits<T>::max()) {
    fail(DeviceProblem::kFailed,
         image.symbol + ": " + std::to_string(value) +
             " does not fit into the type that the kernel was compiled for");
  }
  return static_cast<uint64_t>(value);
}

uint64_t int_word(const KernelImage& image, ParameterType type, int64_t value) {
  switch (type) {
    case ParameterType::kInt8:
      return narrowed<int8_t>(image, value);
    case ParameterType::kInt16:
      return narrowed<int16_t>(image, value);
    case ParameterType::kInt32:
      return narrowed<int32_t>(image, value);
    default:
      return static_cast<uint64_t>(value);
  }
}

uint64_t float_word(ParameterType type, double value) {
  switch (type) {
    case ParameterType::kFloat16:
      return c10::Half(static_cast<float>(value)).x;
    case ParameterType::kBFloat16:
      return c10::BFloat16(static_cast<float>(value)).x;
    case ParameterType::kFloat32:
      return std::bit_cast<uint32_t>(static_cast<float>(value));
    default:
      return std::bit_cast<uint64_t>(value);
  }
}

// The number at `element`, in CPU memory.
uint64_t element_word(ParameterType type, const void* element) {
  uint64_t word = 0;
  std::memcpy(&word, element, static_cast<size_t>(parameter_size(type)));
  return word;
}

}  // namespace

void fail(DeviceProblem problem, const std::string& text) {
  throw PlanError(ErrorKind::kDevice, static_cast<int64_t>(problem), text);
}

DeviceRuntime* device_runtime(int8_t device_type) {
  return runtimes.at(static_cast<size_t>(device_type)).load();
}

void register_device_runtime(int8_t device_type, DeviceRuntime* runtime) {
  runtimes.at(static_cast<size_t>(device_type)).store(runtime);
}

int32_t report_slot(const std::string& where) {
  std::lock_guard<std::mutex> lock(reports_mutex);
  auto known = std::find(report_places.begin(), report_places.end(), where);
  auto slot = static_cast<int32_t>(known - report_places.begin());
  if (known != report_places.end()) return slot;
  if (slot == kMostReports) {
    report_places.back() = "a kernel of an earlier step or call";
    return slot - 1;
  }
  report_places.push_back(where);
  used_reports.store(slot + 1, std::memory_order_release);
  return slot;
}

Report take_report(std::atomic<int64_t>* slots) {
  int32_t used = used_reports.load(std::memory_order_acquire);
  for (int32_t slot = 0; slot < used; slot++) {
    if (slots[slot].load(std::memory_order_relaxed) == 0) continue;
    std::lock_guard<std::mutex> lock(reports_mutex);
    return {slots[slot].exchange(0), report_places[static_cast<size_t>(slot)]};
  }
  return {};
}

int32_t parameter_size(ParameterType type) {
  switch (type) {
    case ParameterType::kInt8:
      return 1;
    case ParameterType::kInt16:
    case ParameterType::kFloat16:
    case ParameterType::kBFloat16:
      return 2;
    case ParameterType::kInt32:
    case ParameterType::kFloat32:
      return 4;
    default:
      return 8;
  }
}

// The driver reads as many bytes as the kernel's parameter has: of a word that holds a smaller
// number, the first ones.
static_assert(std::endian::native == std::endian::little);

void Parameters::pack(const DeviceLaunch& launch, void* status, void* scratch) {
  const KernelImage& image = launch.kernel->image;
  const ParameterType* type = image.parameters.data();
  const ParameterType* end = type + image.parameters.size() - (image.status ? 1 : 0);
  count_ = 0;
  for (int32_t n = 0; n < launch.num_tensors; n++, type++) {
    put(*type == ParameterType::kPointer ? reinterpret_cast<uint64_t>(launch.tensors[n])
                                         : element_word(*type, launch.tensors[n]));
  }
  for (int32_t n = 0; n < launch.num_ints; n++, type++) put(int_word(image, *type, launch.ints[n]));
  for (int32_t n = 0; type != end; n++, type++) put(float_word(*type, launch.floats[n]));
  if (image.status) put(reinterpret_cast<uint64_t>(status));
  if (image.trailing > 0) put(reinterpret_cast<uint64_t>(scratch));
  for (int32_t n = 1; n < image.trailing; n++) put(0);
}

}  // namespace kiln
