#include "executor/cuda_runtime.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>

#include "executor/aten.h"
#include "executor/cuda_driver.h"
#include "executor/device.h"
#include "executor/program.h"

namespace kiln {

namespace {

constexpr size_t kMostDevices = 64;
constexpr auto kType = c10::DeviceType::CUDA;

// CUDAStream::stream() in torch's C++ library, which returns the raw handle.
constexpr const char* kStreamSymbol = "_ZNK3c104cuda10CUDAStream6streamEv";

const c10::impl::DeviceGuardImplInterface& torch_cuda() {
  return *c10::impl::getDeviceGuardImpl(kType);
}

int8_t index_or_current(int8_t index) {
  return index >= 0 ? index : static_cast<int8_t>(torch_cuda().getDevice().index());
}

// c10::cuda::CUDAStream::stream(), of an object that holds nothing but a c10::Stream.
using StreamOf = void* (*)(const c10::Stream* stream);

StreamOf stream_function() {
  static const StreamOf found = [] {
    void* library = dlopen("libc10_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    return library ? reinterpret_cast<StreamOf>(dlsym(library, kStreamSymbol)) : nullptr;
  }();
  return found;
}

template <typename Guard>
void* native_handle(const Guard& guard, const c10::Stream& stream) {
  if constexpr (requires { guard.getStreamNativeHandle(stream); }) {
    return guard.getStreamNativeHandle(stream);
  } else {
    fail(DeviceProblem::kNoRuntime, "this torch does not expose the handles of its streams");
  }
}

// One device: its primary context, which is torch's, and where kernels report to the host.
struct CudaState {
  CudaContext context = nullptr;
  int32_t capability = 0;
  int64_t max_shared = 0;
  std::atomic<int64_t>* reports = nullptr;  // kMostReports slots
  int64_t* reports_on_device = nullptr;
};

class CudaKernel final : public DeviceKernel {
 public:
  using DeviceKernel::DeviceKernel;
  std::array<std::atomic<CudaFunction>, kMostDevices> functions{};
};

class CudaRuntime final : public DeviceRuntime {
 public:
  explicit CudaRuntime(const CudaDriver& driver);

  std::shared_ptr<DeviceKernel> load(const KernelImage& image, int8_t index) override;
  std::unique_ptr<DeviceScope> scope() override;
  void prepare(int8_t index) override;

  CudaKernel& store_pair() { return *store_pair_; }
  const CudaDriver& driver() const { return driver_; }
  const CudaState& state(int8_t index);
  CudaFunction function(CudaKernel& kernel, int8_t index);
  // torch's allocator for the device, whichever the user has chosen.
  c10::Allocator& allocator(int8_t index);
  void check(CudaResult result, const std::string& what) const {
    if (result == kCudaSuccess) return;
    fail(result == kCudaOutOfMemory ? DeviceProblem::kNoMemory : DeviceProblem::kFailed,
         what + ": " + driver_.describe(result));
  }

 private:
  void open(CudaState& state, int8_t index) const;
  CudaFunction load_on(const KernelImage& image, const CudaState& state) const;
  CudaModule load_module(const KernelImage& image) const;
  void allow_shared(const KernelImage& image, const CudaState& state, CudaFunction function) const;

  const CudaDriver& driver_;
  std::mutex mutex_;
  std::array<std::atomic<CudaState*>, kMostDevices> states_{};
  std::map<std::string, std::shared_ptr<CudaKernel>> kernels_;  // by symbol and code
  std::unique_ptr<CudaKernel> store_pair_;
  std::atomic<c10::Allocator*> allocator_{nullptr};
};

// The driver's context of a thread follows torch's device, but a thread that has not used CUDA yet
// has none.
class CurrentContext {
 public:
  CurrentContext(const CudaDriver& driver, CudaContext wanted) : driver_(driver) {
    driver_.context_get_current(&before_);
    changed_ = before_ != wanted;
    if (changed_) driver_.context_set_current(wanted);
  }
  ~CurrentContext() {
    if (changed_ && before_) driver_.context_set_current(before_);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const CudaDriver& driver_;
  CudaContext before_ = nullptr;
  bool changed_ = false;
};

class CudaScope final : public DeviceScope {
 public:
  explicit CudaScope(CudaRuntime& runtime) : runtime_(runtime) {}
  ~CudaScope() override {
    if (moved_) torch_cuda().uncheckedSetDevice(c10::Device(kType, before_));
  }

  void enter(int8_t index) override;
  void launch(const DeviceLaunch& launch) override;
  c10::Allocator& allocator() override { return runtime_.allocator(current_); }
  void store_pair(void* target, int64_t first, int64_t second) override;
  bool is_capturing() const override;
  Report take_report() override { return kiln::take_report(state_->reports); }

 private:
  void issue(CudaFunction function, unsigned x, unsigned y, unsigned z, unsigned threads,
             unsigned shared, void** parameters, const std::string& name) const;

  CudaRuntime& runtime_;
  bool entered_ = false;
  bool moved_ = false;
  int8_t before_ = 0;
  int8_t current_ = 0;
  const CudaState* state_ = nullptr;
  void* stream_ = nullptr;
};

// Two words to global memory: (seed, offset) of a random stream.
constexpr const char* kStorePair = R"(.version 7.0
.target sm_70
.address_size 64
.visible .entry kiln_store_pair(
  .param .u64 target, .param .u64 first, .param .u64 second)
{
  .reg .b64 %r<5>;
  ld.param.u64 %r1, [target];
  ld.param.u64 %r2, [first];
  ld.param.u64 %r3, [second];
  cvta.to.global.u64 %r4, %r1;
  st.global.u64 [%r4], %r2;
  st.global.u64 [%r4+8], %r3;
  ret;
}
)";

KernelImage store_pair_image() {
  KernelImage image;
  image.symbol = image.entry = "kiln_store_pair";
  image.parameters = {ParameterType::kPointer, ParameterType::kInt64, ParameterType::kInt64};
  image.threads = 1;
  image.code = kStorePair;
  return image;
}

CudaRuntime::CudaRuntime(const CudaDriver& driver)
    : driver_(driver), store_pair_(std::make_unique<CudaKernel>(store_pair_image())) {}

const CudaState& CudaRuntime::state(int8_t index) {
  auto& place = states_.at(static_cast<size_t>(index));
  if (CudaState* known = place.load(std::memory_order_acquire)) return *known;
  std::lock_guard<std::mutex> lock(mutex_);
  if (!place.load(std::memory_order_relaxed)) {
    auto made = std::make_unique<CudaState>();
    open(*made, index);
    place.store(made.release(), std::memory_order_release);
  }
  return *place.load(std::memory_order_relaxed);
}

void CudaRuntime::open(CudaState& state, int8_t index) const {
  CudaDevice device = 0;
  check(driver_.device_get(&device, index), "cuDeviceGet");
  check(driver_.primary_context_retain(&state.context, device), "cuDevicePrimaryCtxRetain");
  int major = 0, minor = 0, shared = 0;
  driver_.device_get_attribute(&major, kDeviceCapabilityMajor, device);
  driver_.device_get_attribute(&minor, kDeviceCapabilityMinor, device);
  driver_.device_get_attribute(&shared, kDeviceMaxSharedOptin, device);
  state.capability = major * 10 + minor;
  state.max_shared = shared;
  CurrentContext current(driver_, state.context);
  void* host = nullptr;
  CudaPointer pointer = 0;
  size_t bytes = kMostReports * sizeof(int64_t);
  check(driver_.host_alloc(&host, bytes, kHostPortable | kHostDeviceMapped), "cuMemHostAlloc");
  check(driver_.host_get_device_pointer(&pointer, host, 0), "cuMemHostGetDevicePointer");
  static_assert(sizeof(std::atomic<int64_t>) == sizeof(int64_t));
  state.reports = static_cast<std::atomic<int64_t>*>(host);
  for (int32_t slot = 0; slot < kMostReports; slot++)
    new (state.reports + slot) std::atomic<int64_t>(0);
  state.reports_on_device = reinterpret_cast<int64_t*>(pointer);
}

std::shared_ptr<DeviceKernel> CudaRuntime::load(const KernelImage& image, int8_t index) {
  std::shared_ptr<CudaKernel> kernel;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& place = kernels_[image.symbol + '\0' + image.code];
    if (!place) place = std::make_shared<CudaKernel>(image);
    kernel = place;
  }
  function(*kernel, index_or_current(index));
  return kernel;
}

void CudaRuntime::prepare(int8_t index) {
  index = index_or_current(index);
  state(index);
  allocator(index);
  function(*store_pair_, index);
}

CudaFunction CudaRuntime::function(CudaKernel& kernel, int8_t index) {
  auto& place = kernel.functions.at(static_cast<size_t>(index));
  if (CudaFunction known = place.load(std::memory_order_acquire)) return known;
  const CudaState& on = state(index);
  std::lock_guard<std::mutex> lock(mutex_);
  if (!place.load(std::memory_order_relaxed)) {
    place.store(load_on(kernel.image, on), std::memory_order_release);
  }
  return place.load(std::memory_order_relaxed);
}

CudaFunction CudaRuntime::load_on(const KernelImage& image, const CudaState& state) const {
  // A cubin runs on its own kind of GPU and on later minor versions of it.
  bool other_kind = image.capability / 10 != state.capability / 10;
  if (image.capability && (other_kind || image.capability > state.capability)) {
    fail(DeviceProblem::kWrongImage, image.symbol + ": it was compiled for sm_" +
                                         std::to_string(image.capability) + ", the device is sm_" +
                                         std::to_string(state.capability));
  }
  CurrentContext current(driver_, state.context);
  CudaModule module = load_module(image);
  CudaFunction function = nullptr;
  check(driver_.module_get_function(&function, module, image.entry.c_str()),
        image.symbol + ": cuModuleGetFunction");
  int most = 0;
  driver_.function_get_attribute(&most, kFunctionMaxThreads, function);
  if (image.threads > most) {
    fail(DeviceProblem::kTooMuchShared,
         image.symbol + ": its blocks have " + std::to_string(image.threads) +
             " threads, and with its registers the device runs " + std::to_string(most));
  }
  allow_shared(image, state, function);
  return function;
}

CudaModule CudaRuntime::load_module(const KernelImage& image) const {
  CudaModule module = nullptr;
  CudaResult result = driver_.module_load_data(&module, image.code.data());
  bool wrong = result == kCudaInvalidImage || result == kCudaNoBinaryForGpu ||
               result == kCudaInvalidPtx || result == kCudaUnsupportedPtxVersion;
  if (wrong) {
    int version = 0;
    driver_.driver_version(&version);
    fail(DeviceProblem::kWrongImage, image.symbol + ": the driver (CUDA " +
                                         std::to_string(version / 1000) + "." +
                                         std::to_string(version % 1000 / 10) +
                                         ") does not take it: " + driver_.describe(result));
  }
  check(result, image.symbol + ": cuModuleLoadData");
  return module;
}

// Up to 48 KiB of dynamic shared memory need no permission.
void CudaRuntime::allow_shared(const KernelImage& image, const CudaState& state,
                               CudaFunction function) const {
  int fixed = 0;
  driver_.function_get_attribute(&fixed, kFunctionSharedBytes, function);
  if (image.shared + fixed > state.max_shared) {
    fail(DeviceProblem::kTooMuchShared,
         image.symbol + ": it needs " + std::to_string(image.shared + fixed) +
             " bytes of shared memory, a block has " + std::to_string(state.max_shared));
  }
  if (image.shared + fixed <= 48 * 1024) return;
  check(driver_.function_set_attribute(function, kFunctionMaxDynamicShared,
                                       static_cast<int>(image.shared)),
        image.symbol + ": cuFuncSetAttribute");
}

c10::Allocator& CudaRuntime::allocator(int8_t index) {
  if (c10::Allocator* known = allocator_.load(std::memory_order_acquire)) return *known;
  c10::Allocator* found = allocator_of(c10::Device(kType, index));
  if (!found) fail(DeviceProblem::kNoRuntime, "torch does not expose its CUDA allocator");
  allocator_.store(found, std::memory_order_release);
  return *found;
}

std::unique_ptr<DeviceScope> CudaRuntime::scope() { return std::make_unique<CudaScope>(*this); }

void CudaScope::enter(int8_t index) {
  int8_t wanted = index >= 0 ? index : before_;
  if (entered_ && wanted == current_) return;
  const auto& torch = torch_cuda();
  if (!entered_) {
    current_ = before_ = static_cast<int8_t>(torch.getDevice().index());
    wanted = index >= 0 ? index : before_;
  }
  if (wanted != current_) {
    torch.setDevice(c10::Device(kType, wanted));
    moved_ = true;
    current_ = wanted;
  }
  entered_ = true;
  state_ = &runtime_.state(current_);
  CudaContext context = nullptr;
  runtime_.driver().context_get_current(&context);
  if (context != state_->context) {
    runtime_.check(runtime_.driver().context_set_current(state_->context), "cuCtxSetCurrent");
  }
  stream_ = current_cuda_stream(current_);
}

void CudaScope::launch(const DeviceLaunch& launch) {
  unsigned grid[3] = {1, 1, 1};
  for (int32_t n = 0; n < launch.grid_rank; n++) {
    if (launch.grid[n] <= 0) return;
    if (launch.grid[n] > INT32_MAX) {
      fail(DeviceProblem::kFailed, launch.kernel->image.symbol + ": its grid is too large");
    }
    grid[n] = static_cast<unsigned>(launch.grid[n]);
  }
  auto& kernel = static_cast<CudaKernel&>(*launch.kernel);
  const KernelImage& image = kernel.image;
  c10::DataPtr scratch;  // freed behind the kernel, in the order of the stream
  if (image.scratch) {
    size_t blocks = size_t{grid[0]} * grid[1] * grid[2];
    scratch = allocator().allocate(static_cast<size_t>(image.scratch) * blocks);
  }
  Parameters parameters;
  parameters.pack(launch, state_->reports_on_device + launch.report, scratch.get());
  issue(runtime_.function(kernel, current_), grid[0], grid[1], grid[2],
        static_cast<unsigned>(image.threads), static_cast<unsigned>(image.shared),
        parameters.pointers(), image.symbol);
}

void CudaScope::issue(CudaFunction function, unsigned x, unsigned y, unsigned z, unsigned threads,
                      unsigned shared, void** parameters, const std::string& name) const {
  CudaResult result =
      runtime_.driver().launch_kernel(function, x, y, z, threads, 1, 1, shared,
                                      static_cast<CudaStream>(stream_), parameters, nullptr);
  if (result != kCudaSuccess) runtime_.check(result, name);
}

void CudaScope::store_pair(void* target, int64_t first, int64_t second) {
  CudaKernel& kernel = runtime_.store_pair();
  void* parameters[] = {&target, &first, &second};
  issue(runtime_.function(kernel, current_), 1, 1, 1, 1, 0, parameters, kernel.image.symbol);
}

// The driver reports an error if another stream is being recorded, and not this one.
bool CudaScope::is_capturing() const {
  int status = 0;
  CudaResult result =
      runtime_.driver().stream_is_capturing(static_cast<CudaStream>(stream_), &status);
  return result == kCudaSuccess && status == kCaptureActive;
}

std::string try_install() {
  bool has_devices = c10::impl::hasDeviceGuardImpl(kType) && torch_cuda().deviceCount() > 0;
  if (!has_devices) return "torch has no CUDA device";
  const CudaDriver* driver = cuda_driver();
  if (!driver) return driver_problem();
  register_device_runtime(static_cast<int8_t>(kType), new CudaRuntime(*driver));
  return "";
}

}  // namespace

const std::string& install_cuda_runtime() {
  static const std::string* problem = new std::string(try_install());
  return *problem;
}

void* current_cuda_stream(int8_t index) {
  const auto& torch = torch_cuda();
  c10::Stream stream = torch.getStream(c10::Device(kType, index));
  if (StreamOf of = stream_function()) return of(&stream);
  return native_handle(torch, stream);
}

}  // namespace kiln
