#include "executor/connect.h"

#include <algorithm>

#include "executor/aten.h"
#include "executor/cuda_runtime.h"

namespace kiln {

namespace {

bool uses_cuda(const Program& program) {
  for (const KernelEntry& kernel : program.kernels) {
    if (kernel.on_device) return true;
  }
  for (const Layout& layout : program.layouts) {
    if (layout.device_type == kCuda) return true;
  }
  return false;
}

void check_types(const KernelImage& image, const LaunchStep& launch) {
  const std::vector<ParameterType>& types = image.parameters;
  size_t tensors = launch.tensors.size();
  size_t numbers = tensors + static_cast<size_t>(launch.num_ints);
  size_t end = types.size() - (image.status && !types.empty() ? 1 : 0);
  bool good =
      numbers <= end && types.size() + static_cast<size_t>(image.trailing) <= Parameters::kMost;
  for (size_t n = 0; good && n < types.size(); n++) {
    if (n < tensors && types[n] != ParameterType::kPointer) continue;  // passed by value
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

// Calls `visit` on each step of one kind, with the step's origin where it is asked for.
template <typename Kind, typename Visit>
void for_each(Program& program, Visit visit) {
  for (Step& step : program.steps) {
    auto* data = std::get_if<Kind>(&step.data);
    if (!data) continue;
    if constexpr (std::is_invocable_v<Visit, Kind&, int32_t>) {
      visit(*data, step.origin);
    } else {
      visit(*data);
    }
  }
}

void load_kernel(Program& program, LaunchStep& launch, int32_t origin, const KernelImages& images) {
  const KernelEntry& kernel = program.kernels.at(static_cast<size_t>(launch.kernel));
  if (!kernel.on_device) return;
  if (!program.runtime) {
    fail(DeviceProblem::kNoRuntime, kernel.symbol + ": " + install_cuda_runtime());
  }
  auto image = images.find(kernel.symbol);
  if (image == images.end()) {
    fail(DeviceProblem::kWrongImage, kernel.symbol + ": there is no compiled code of it");
  }
  check_types(image->second, launch);
  launch.loaded = program.runtime->load(image->second, launch.device);
  launch.report = 0;
  if (!image->second.status) return;
  std::string where = "kernel " + kernel.symbol;
  if (origin != kNone) where = program.strings.at(static_cast<size_t>(origin)) + ", " + where;
  launch.report = report_slot(where);
  auto& devices = program.status_devices;
  bool known = std::find(devices.begin(), devices.end(), launch.device) != devices.end();
  if (!known) devices.push_back(launch.device);
}

void place_on_cpu(Argument& argument) {
  for (Argument& item : argument.items) place_on_cpu(item);
  if (argument.kind != ArgumentKind::kDevice || argument.value != kCuda) return;
  argument.value = kCpu;
  argument.count = -1;
}

// For a runtime that runs nothing: the plan's CUDA tensors become CPU tensors.
void place_on_cpu(Program& program) {
  for (Layout& layout : program.layouts) {
    if (layout.device_type != kCuda) continue;
    layout.device_type = kCpu;
    layout.device_index = -1;
  }
  for_each<AtenStep>(program, [](AtenStep& call) {
    for (Argument& argument : call.args) place_on_cpu(argument);
    for (auto& [name, argument] : call.kwargs) place_on_cpu(argument);
  });
  for_each<RandomSeedStep>(program, [](RandomSeedStep& seed) { seed.device.type = kCpu; });
}

void connect_device(Program& program, const KernelImages& images) {
  if (!uses_cuda(program)) return;
  if (!device_runtime(kCuda)) install_cuda_runtime();
  program.runtime = device_runtime(kCuda);
  for_each<LaunchStep>(program, [&](LaunchStep& launch, int32_t origin) {
    load_kernel(program, launch, origin, images);
  });
  if (!program.runtime) return;
  for (const Layout& layout : program.layouts) {
    if (layout.device_type == kCuda) program.runtime->prepare(layout.device_index);
  }
  program.aligned = std::any_of(program.kernels.begin(), program.kernels.end(),
                                [](const KernelEntry& kernel) { return kernel.on_device; });
  for (size_t n = 0; program.aligned && n < program.inputs.size(); n++) {
    int32_t layout = program.inputs[n].layout;
    if (layout == kNone) continue;
    bool on_gpu = program.layouts[static_cast<size_t>(layout)].device_type == kCuda;
    if (on_gpu) program.aligned_inputs.push_back(static_cast<Slot>(n));
  }
  program.logged = program.runtime->is_null();
  if (program.logged) place_on_cpu(program);
}

}  // namespace

void connect(Program& program, const Kernels& kernels) {
  for (KernelEntry& kernel : program.kernels) {
    if (kernel.on_device) continue;
    kernel.function = reinterpret_cast<KernelFunction>(kernels.find_cpp(kernel.symbol.c_str()));
    if (!kernel.function) {
      throw PlanError(ErrorKind::kProgram, -1, "there is no code of kernel " + kernel.symbol);
    }
  }
  connect_device(program, kernels.images);
  for_each<AtenStep>(program, [](AtenStep& call) { call.resolved = resolve(call); });
  for_each<BranchStep>(program, [&](BranchStep& branch) {
    connect(*branch.if_true, kernels);
    connect(*branch.if_false, kernels);
  });
  for_each<LoopStep>(program, [&](LoopStep& loop) {
    connect(*loop.body, kernels);
    for (auto& test : loop.test) connect(*test, kernels);
  });
}

}  // namespace kiln
