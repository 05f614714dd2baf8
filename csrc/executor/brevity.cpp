#include "executor/brevity.h"

#include <algorithm>

namespace kiln {

namespace {

// Work in parts of what is worth a thread: 20 us, the grain of a launch.
constexpr int64_t kMostWork = 1024;
constexpr int64_t kLaunch = 8, kCall = 128;  // the least that a launch, or a call of ATen, takes
constexpr int64_t kMostBytes = 16 << 10;     // of each tensor, if operators of ATen read them
// Launches and layouts that are looked at in each call, if sizes differ between calls.
constexpr size_t kMostLooks = 16;

bool is_native(const AtenStep& step) { return step.target.rfind("aten.", 0) == 0; }

bool has_fixed_sizes(const Program& program) {
  return program.bindings.empty() &&
         std::all_of(program.inputs.begin(), program.inputs.end(), [](const Input& input) {
           return input.scalar == ScalarKind::kTensor || input.scalar == ScalarKind::kFloat;
         });
}

}  // namespace

Brevity::Brevity(const Program& program, const std::vector<TensorPtr>& constants) {
  if (program.runtime || program.segments.size() != 1) return;
  for (const Step& step : program.steps) {
    if (const auto* launch = std::get_if<LaunchStep>(&step.data)) {
      launches_.push_back(launch);
    } else if (const auto* call = std::get_if<AtenStep>(&step.data)) {
      if (!is_native(*call)) return;  // it may wait for another thread of Python
      calls_++;
    } else if (std::holds_alternative<CopyStep>(step.data)) {
      calls_++;
    } else if (std::holds_alternative<BranchStep>(step.data) ||
               std::holds_alternative<WaitStep>(step.data) ||
               std::holds_alternative<LoopStep>(step.data)) {
      return;
    }
  }
  for (const TensorPtr& constant : constants) {
    if (calls_ && static_cast<int64_t>(constant->storage().nbytes()) > kMostBytes) return;
  }
  if (!has_fixed_sizes(program)) {
    size_t looks = launches_.size() + (calls_ ? program.layouts.size() : 0);
    if (looks <= kMostLooks) answer_ = Answer::kBySize;
    return;
  }
  std::vector<int64_t> ints = program.ints;
  std::vector<double> floats = program.floats;
  try {
    compute(program.segments[0], ints.data(), floats.data());
  } catch (const PlanError&) {
    return;  // as each call will
  }
  if (is_little_work(program, ints.data())) answer_ = Answer::kAlways;
}

bool Brevity::is_little_work(const Program& program, const int64_t* ints) const {
  int64_t work = calls_ * kCall;
  for (const LaunchStep* launch : launches_) {
    int64_t units = ints[launch->units], grain = ints[launch->grain];
    if (units > grain) return false;
    work += std::max(units * kMostWork / std::max<int64_t>(grain, 1), kLaunch);
  }
  if (work > kMostWork) return false;
  return calls_ == 0 ||
         std::all_of(program.layouts.begin(), program.layouts.end(),
                     [&](const Layout& layout) { return ints[layout.bytes] <= kMostBytes; });
}

}  // namespace kiln
