#include "executor/gradient_hooks.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_hook.h>

#include <algorithm>
#include <cstring>
#include <typeinfo>

#include "executor/callable.h"

namespace kiln {

namespace {

namespace ag = torch::autograd;

// Is it for another value of its node, or have all its functions been removed? torch_python hides
// the type's information, not its layout.
bool is_for(const ag::FunctionPreHook& hook, uint32_t value) {
  if (!std::strstr(typeid(hook).name(), "PyFunctionTensorPreHook")) return true;
  const auto& python = static_cast<const ag::PyFunctionTensorPreHook&>(hook);
  TakeGil gil;
  bool is_empty = python.dict && PyDict_Check(python.dict) && PyDict_GET_SIZE(python.dict) == 0;
  return !is_empty && static_cast<uint32_t>(python.value_idx) == value;
}

bool is_asked_for(const ag::Edge& edge) {
  const auto* wanted = ag::get_current_graph_task_exec_info();
  if (!wanted) return false;
  auto found = wanted->find(edge.function.get());
  if (found == wanted->end() || !found->second.captures_) return false;
  const auto& captures = *found->second.captures_;
  return std::any_of(captures.begin(), captures.end(), [&](const auto& capture) {
    return static_cast<uint32_t>(capture.input_idx_) == edge.input_nr;
  });
}

}  // namespace

// Such nodes run before all others.
bool is_leaf(const ag::Node& node) { return node.sequence_nr() == UINT64_MAX; }

bool is_hooked_leaf(ag::Node& node) {
  return is_leaf(node) && !(node.tensor_pre_hooks().empty() && !node.tensor_post_acc_grad_hooks() &&
                            node.pre_hooks().empty() && node.post_hooks().empty());
}

Observed observed(const ag::Edge& edge) {
  ag::Node& node = *edge.function;
  if (!node.pre_hooks().empty() || !node.post_hooks().empty()) return Observed::kHooked;
  const auto& hooks = node.tensor_pre_hooks();
  bool hooked = std::any_of(hooks.begin(), hooks.end(),
                            [&](const auto& hook) { return is_for(*hook, edge.input_nr); });
  if (hooked || node.retains_grad_hooks().count(static_cast<int>(edge.input_nr))) {
    return Observed::kHooked;
  }
  return is_asked_for(edge) ? Observed::kAskedFor : Observed::kNo;
}

}  // namespace kiln
