#include "executor/null_runtime.h"

#include <c10/core/CPUAllocator.h>

#include <cstring>
#include <mutex>
#include <utility>

#include "executor/device.h"
#include "executor/program.h"
#include "support/hex.h"

namespace kiln {

namespace {

std::mutex mutex;
std::string lines;
std::array<std::atomic<int64_t>, kMostReports> status_slots{};
const LaunchStep* launched = nullptr;  // the last step, if it is a launch

void write_line(const std::string& text) {
  std::lock_guard<std::mutex> lock(mutex);
  lines += text + "\n";
}

bool is_status(const void* pointer) {
  return pointer >= status_slots.data() && pointer < status_slots.data() + status_slots.size();
}

std::string slot_text(Slot slot) { return "%" + std::to_string(slot); }

// The parameters as the driver would read them; `launched` names the slots of the pointers.
std::string parameters_text(const DeviceLaunch& launch, Parameters& parameters) {
  const std::vector<ParameterType>& types = launch.kernel->image.parameters;
  std::string text;
  for (size_t n = 0; n < parameters.count(); n++) {
    auto type = n < types.size() ? types[n] : ParameterType::kPointer;
    const void* at = parameters.pointers()[n];
    text += n ? ", " : "";
    text += static_cast<char>(type);
    void* pointer = nullptr;
    if (type == ParameterType::kPointer) std::memcpy(&pointer, at, sizeof pointer);
    if (launched && n < launched->tensors.size() && type == ParameterType::kPointer) {
      bool right = pointer == launch.tensors[n];
      text += right ? " " + slot_text(launched->tensors[n]) : " another pointer";
    } else if (type == ParameterType::kPointer) {
      text += is_status(pointer) ? " status" : pointer ? " scratch" : " null";
    } else {
      text += " " + hex({static_cast<const char*>(at), static_cast<size_t>(parameter_size(type))});
    }
  }
  return text;
}

class NullScope final : public DeviceScope {
 public:
  void enter(int8_t) override {}

  void launch(const DeviceLaunch& launch) override {
    const KernelImage& image = launch.kernel->image;
    int64_t grid[3] = {1, 1, 1};
    for (int32_t n = 0; n < launch.grid_rank; n++) grid[n] = launch.grid[n];
    if (grid[0] <= 0 || grid[1] <= 0 || grid[2] <= 0) {
      return write_line("launch " + image.symbol + " of no blocks");
    }
    char scratch = 0;
    Parameters parameters;
    parameters.pack(launch, &status_slots[static_cast<size_t>(launch.report)],
                    image.scratch ? &scratch : nullptr);
    std::string sizes =
        std::to_string(grid[0]) + ", " + std::to_string(grid[1]) + ", " + std::to_string(grid[2]);
    write_line("launch " + image.symbol + " grid (" + sizes + ") threads " +
               std::to_string(image.threads) + " shared " + std::to_string(image.shared) + ": " +
               parameters_text(launch, parameters));
  }

  c10::Allocator& allocator() override { return *c10::GetCPUAllocator(); }

  void store_pair(void* target, int64_t first, int64_t second) override {
    auto* words = static_cast<int64_t*>(target);
    words[0] = first;
    words[1] = second;
  }

  Report take_report() override { return kiln::take_report(status_slots.data()); }
};

std::string slots_text(const std::vector<Slot>& slots) {
  std::string text;
  for (Slot slot : slots) text += (text.empty() ? "" : ", ") + slot_text(slot);
  return text;
}

std::string allocation_text(Slot out, Slot reuse) {
  return "allocate " + slot_text(out) +
         (reuse == kNone ? "" : " in the memory of " + slot_text(reuse));
}
std::string text_of(const AllocateStep& step) { return allocation_text(step.out, step.reuse); }
std::string text_of(const RawAllocateStep& step) { return allocation_text(step.out, step.ended); }
std::string text_of(const ViewStep& step) {
  return "view " + slot_text(step.out) + " of " + slot_text(step.base);
}
std::string text_of(const CopyStep& step) {
  return "copy " + slot_text(step.source) + " into " + slot_text(step.target);
}
std::string text_of(const FreeStep& step) { return "free " + slots_text(step.slots); }
std::string text_of(const AtenStep& step) { return "call " + step.target; }
std::string text_of(const HostReadStep& step) { return "read " + slot_text(step.source); }
std::string text_of(const RandomSeedStep& step) { return "seed " + slot_text(step.out); }
template <typename Other>
std::string text_of(const Other&) {
  return "";
}

class NullRuntime final : public DeviceRuntime {
 public:
  bool is_null() const override { return true; }

  std::shared_ptr<DeviceKernel> load(const KernelImage& image, int8_t index) override {
    std::string at = index < 0 ? "the current device" : "device " + std::to_string(index);
    write_line("load " + image.symbol + " on " + at);
    return std::make_shared<DeviceKernel>(image);
  }

  std::unique_ptr<DeviceScope> scope() override { return std::make_unique<NullScope>(); }

  void log(const Step& step) override {
    launched = std::get_if<LaunchStep>(&step.data);
    std::string text = std::visit([](const auto& data) { return text_of(data); }, step.data);
    if (!text.empty()) write_line(text);
  }
};

DeviceRuntime* before = nullptr;

}  // namespace

void use_null_device(bool used) {
  static auto* runtime = new NullRuntime();
  bool is_used = device_runtime(kCuda) == runtime;
  if (used == is_used) return;
  if (used) before = device_runtime(kCuda);
  register_device_runtime(kCuda, used ? runtime : before);
}

std::string take_null_log() {
  std::lock_guard<std::mutex> lock(mutex);
  return std::exchange(lines, "");
}

void set_null_status(long long code) {
  status_slots[static_cast<size_t>(report_slot("a kernel of the null device"))] = code;
}

}  // namespace kiln
