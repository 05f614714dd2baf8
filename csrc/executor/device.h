// Kernels and memory of a device other than the CPU.
//
// A device's runtime registers itself when its driver has been opened; the executor looks it up by
// device type when a plan with such kernels is loaded, so one binary serves machines with and
// without the device.
#pragma once

#include <c10/core/Allocator.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kiln {

struct Step;

// How a parameter of a device kernel is stored; letters as in kiln/build/cubins.py.
enum class ParameterType : char {
  kPointer = 'p',
  kInt8 = 'b',
  kInt16 = 'h',
  kInt32 = 'i',
  kInt64 = 'q',
  kFloat16 = 'e',
  kBFloat16 = 'g',
  kFloat32 = 'f',
  kFloat64 = 'd',
};

// A compiled kernel as it comes from the store.
struct KernelImage {
  std::string symbol;  // in the plan
  std::string entry;   // in `code`
  // Tensors, then ints, then floats, then the status slot where there is one.
  std::vector<ParameterType> parameters;
  bool status = false;
  int32_t trailing = 0;    // pointers after those: scratch memory of the launch, then profiling
  int32_t threads = 0;     // of a block
  int64_t shared = 0;      // dynamic shared memory of a block, bytes
  int64_t scratch = 0;     // global memory of a block, bytes
  int32_t capability = 0;  // major * 10 + minor
  std::string code;
};

// Why a kernel cannot run; as DEVICE_ERRORS of kiln/plan/errors.py.
enum class DeviceProblem : int64_t {
  kNoRuntime,
  kNoDriver,
  kWrongImage,
  kTooMuchShared,
  kFailed,
  kNoMemory,
};

// Numbers of c10::DeviceType.
inline constexpr int8_t kCpu = 0;
inline constexpr int8_t kCuda = 1;

// Throws PlanError(kDevice).
[[noreturn]] void fail(DeviceProblem problem, const std::string& text);

// A kernel that a runtime has loaded.
class DeviceKernel {
 public:
  explicit DeviceKernel(KernelImage image) : image(std::move(image)) {}
  virtual ~DeviceKernel() = default;

  const KernelImage image;
};

// What a kernel reported: its code (0: nothing), and the step of the plan that launched it.
struct Report {
  int64_t code = 0;
  std::string where;
};

// Launches whose kernels may report an error: each writes to a slot of its own, so that an error
// names the user's line. Launches beyond the table share the last slot.
inline constexpr int32_t kMostReports = 256;
// A slot for launches at `where`; equal places share one.
int32_t report_slot(const std::string& where);
// The first report in `slots`, which is cleared.
Report take_report(std::atomic<int64_t>* slots);

// One launch: tensors and numbers in the order of the kernel's parameters, evaluated.
struct DeviceLaunch {
  DeviceKernel* kernel;
  void* const* tensors;
  int32_t num_tensors;
  const int64_t* ints;
  int32_t num_ints;
  const double* floats;
  const int64_t* grid;
  int32_t grid_rank;
  int32_t report;  // the slot of its status
};

// The device and stream on which this thread runs the steps of a plan. Made by the runtime, so that
// what a launch needs of them is looked up once per run.
class DeviceScope {
 public:
  virtual ~DeviceScope() = default;  // restores the current device
  // Makes device `index` (-1: the current one) current in this thread.
  virtual void enter(int8_t index) = 0;
  // On the current stream of the device that was entered.
  virtual void launch(const DeviceLaunch& launch) = 0;
  // Of the device that was entered; freed blocks are reused in the order of its stream.
  virtual c10::Allocator& allocator() = 0;
  virtual void store_pair(void* target, int64_t first, int64_t second) = 0;
  // Is the stream recorded as a graph, to be replayed later?
  virtual bool is_capturing() const { return false; }
  // Returns and clears the first report of finished kernels on the device that was entered.
  virtual Report take_report() = 0;
};

class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  // Is it the null device, which only logs, with tensors in CPU memory?
  virtual bool is_null() const { return false; }
  // Loads the kernel on device `index` (-1: the current one), or throws PlanError(kDevice).
  virtual std::shared_ptr<DeviceKernel> load(const KernelImage& image, int8_t index) = 0;
  virtual std::unique_ptr<DeviceScope> scope() = 0;
  // Slow initialisation, before the first plan with tensors on the device runs.
  virtual void prepare(int8_t index) {}
  // Called before each step if the runtime is null.
  virtual void log(const Step& step) {}
};

// nullptr where no runtime is registered for the type (a number of c10::DeviceType).
DeviceRuntime* device_runtime(int8_t device_type);
// `runtime` lives as long as the process.
void register_device_runtime(int8_t device_type, DeviceRuntime* runtime);

// A launch's parameters as the driver takes them: one pointer per parameter, to its bytes.
class Parameters {
 public:
  static constexpr size_t kMost = 512;

  // Throws PlanError(kDevice) where a number does not fit into the kernel's type.
  void pack(const DeviceLaunch& launch, void* status, void* scratch);
  void** pointers() { return pointers_; }
  size_t count() const { return count_; }

 private:
  void put(uint64_t word) {
    words_[count_] = word;
    pointers_[count_] = &words_[count_];
    count_++;
  }

  size_t count_ = 0;
  uint64_t words_[kMost];
  void* pointers_[kMost];
};

int32_t parameter_size(ParameterType type);

}  // namespace kiln
