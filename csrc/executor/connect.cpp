#include "executor/connect.h"

#include <algorithm>

#include "executor/aten.h"
#include "executor/cuda_runtime.h"

namespace kiln {

namespace {

constexpr int8_t kCpu = 0;
constexpr int8_t kCuda = 1;

[[noreturn]] void fail(DeviceProblem problem, const std::string& text) {
  throw PlanError(ErrorKind::kDevice, static_cast<int64_t>(problem), text);
}

bool uses_cuda(const Program& program) {
  for (const KernelEntry& kernel : program.kernels) {
    if (kernel.on_device) return true;
  }
  for (const Layout& layout : program.layouts) {
    if (layout.device_type == kCuda) return true;
  }
  return false;
}

void check_types(const KernelImage& image, const Launch& launch) {
  const std::vector<ParameterType>& types = image.parameters;
  size_t tensors = launch.tensors.size();
  size_t numbers = tensors + static_cast<size_t>(launch.num_ints);
  size_t end = types.size() - (image.status && !types.empty() ? 1 : 0);
  bool good =
      numbers <= end && types.size() + static_cast<size_t>(image.trailing) <= Parameters::kMost;
  for (size_t n = 0; good && n < types.size(); n++) {
    bool pointer = n < tensors || n >= end;
    bool real = types[n] == ParameterType::kFloat16 || types[n] == ParameterType::kBFloat16 ||
                types[n] == ParameterType::kFloat32 || types[n] == ParameterType::kFloat64;
    good = pointer ? types[n] == ParameterType::kPointer
                   : types[n] != ParameterType::kPointer && real == (n >= numbers);
  }
  if (!good) {
    fail(DeviceProblem::kWrongImage,
         image.symbol + ": the compiled kernel does not take the plan's parameters");
  }
}

void load_kernels(Program& program, const KernelImages& images) {
  for (Launch& launch : program.launches) {
    const KernelEntry& kernel = program.kernels.at(static_cast<size_t>(launch.kernel));
    if (!kernel.on_device) continue;
    if (!program.runtime) {
      fail(DeviceProblem::kNoRuntime, kernel.symbol + ": " + install_cuda_runtime());
    }
    auto image = images.find(kernel.symbol);
    if (image == images.end()) {
      fail(DeviceProblem::kWrongImage, kernel.symbol + ": there is no compiled code of it");
    }
    check_types(image->second, launch);
    launch.loaded = program.runtime->load(image->second, launch.device);
    auto& devices = program.status_devices;
    bool known = std::find(devices.begin(), devices.end(), launch.device) != devices.end();
    if (image->second.status && !known) devices.push_back(launch.device);
  }
}

void place_on_cpu(std::vector<Argument>& arguments) {
  for (Argument& one : arguments) {
    place_on_cpu(one.items);
    if (one.kind != ArgumentKind::kDevice || one.value != kCuda) continue;
    one.value = kCpu;
    one.count = -1;
  }
}

// For a runtime that runs nothing: what the plan has on its device stands in CPU memory.
void place_on_cpu(Program& program) {
  for (Layout& layout : program.layouts) {
    if (layout.device_type != kCuda) continue;
    layout.device_type = kCpu;
    layout.device_index = -1;
  }
  for (CallSpec& call : program.calls) {
    place_on_cpu(call.args);
    for (auto& [name, value] : call.kwargs) {
      std::vector<Argument> one{std::move(value)};
      place_on_cpu(one);
      value = std::move(one[0]);
    }
  }
  for (Step& step : program.steps) {
    if (step.kind == StepKind::kRandomSeed) step.b = kCpu;
  }
}

void connect_device(Program& program, const KernelImages& images) {
  if (!uses_cuda(program)) return;
  if (!device_runtime(kCuda)) install_cuda_runtime();
  program.runtime = device_runtime(kCuda);
  load_kernels(program, images);
  if (!program.runtime) return;
  for (const Layout& layout : program.layouts) {
    if (layout.device_type == kCuda) program.runtime->prepare(layout.device_index);
  }
  program.aligned = std::any_of(program.kernels.begin(), program.kernels.end(),
                                [](const KernelEntry& one) { return one.on_device; });
  for (size_t n = 0; program.aligned && n < program.inputs.size(); n++) {
    int32_t layout = program.inputs[n].layout;
    if (layout == kNone) continue;
    bool there = program.layouts[static_cast<size_t>(layout)].device_type == kCuda;
    if (there) program.aligned_inputs.push_back(static_cast<Slot>(n));
  }
  program.noted = program.runtime->is_null();
  if (program.noted) place_on_cpu(program);
}

}  // namespace

void connect(Program& program, const KernelImages& images) {
  connect_device(program, images);
  for (const CallSpec& call : program.calls) program.resolved.push_back(resolve(call));
  for (Branch& branch : program.branches) {
    connect(*branch.if_true, images);
    connect(*branch.if_false, images);
  }
}

}  // namespace kiln
