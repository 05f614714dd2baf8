#include "executor/region.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_hook.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <typeinfo>

#include "executor/aten.h"
#include "executor/check.h"
#include "executor/python.h"

namespace kiln {

namespace {

namespace ag = torch::autograd;

// std::shared_ptr up to torch 2.12, c10::intrusive_ptr from 2.13.
using NodePtr = decltype(ag::Edge::function);

template <typename T, typename... Args>
auto new_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<ag::Node>>) {
    return std::make_shared<T>(std::forward<Args>(args)...);
  } else {
    return c10::make_intrusive<T>(std::forward<Args>(args)...);
  }
}

PyObject* mask_to_python(const std::vector<bool>& mask) {
  return make_tuple(mask.size(), [&](size_t n) { return PyBool_FromLong(mask[n]); });
}

// Of a value that holds a tensor.
const at::Tensor& tensor_of(const Value& value) { return value.as<at::Tensor>(); }

bool is_false(const Value& flag) { return flag.is_tensor() && !tensor_of(flag).item<bool>(); }

// Is there a tangent without memory of its own: of vmap, or of a tensor subclass?
bool any_wrapped(const ag::variable_list& tangents) {
  constexpr c10::DispatchKeySet kWrappers({c10::DispatchKey::FuncTorchBatched,
                                           c10::DispatchKey::FuncTorchGradWrapper,
                                           c10::DispatchKey::Batched, c10::DispatchKey::Python});
  for (const at::Tensor& tangent : tangents) {
    if (tangent.defined() && tangent.key_set().has_any(kWrappers)) return true;
  }
  return false;
}

// Rethrows a Python error as the one that torch's engine carries to the caller.
[[noreturn]] void throw_to_engine(const RaisedError& error) {
  TakeGil gil;
  error.restore();
  python_error carried;
  carried.persist();
  throw carried;
}

// The number of the value that a hook registered in Python is for; torch_python hides the type's
// information, not its layout.
int64_t hooked_value(const ag::FunctionPreHook& hook) {
  if (!std::strstr(typeid(hook).name(), "PyFunctionTensorPreHook")) return -1;
  const auto& python = static_cast<const ag::PyFunctionTensorPreHook&>(hook);
  TakeGil gil;
  bool is_empty = python.dict && PyDict_Check(python.dict) && PyDict_GET_SIZE(python.dict) == 0;
  return is_empty ? -1 : static_cast<int64_t>(python.value_idx);
}

class RegionNode final : public ag::Node {
 public:
  std::string name() const override { return state_->name; }

  void start(std::shared_ptr<RegionState> state, const std::vector<Value>& inputs) {
    state_ = std::move(state);
    ag::edge_list edges(inputs.size());
    for (size_t n = 0; n < inputs.size(); n++) {
      if (!inputs[n].is_tensor()) continue;
      const at::Tensor& input = tensor_of(inputs[n]);
      if (input.requires_grad()) edges[n] = ag::impl::gradient_edge(input);
    }
    for (int32_t n : state_->unreached) edges[static_cast<size_t>(n)] = ag::Edge();
    set_next_edges(std::move(edges));
  }

  // Keeps what backward needs; to be called after the outputs have this node as their history.
  void save(const std::vector<Value>& inputs, std::vector<Value>& results) {
    saved_.resize(state_->saved.size());
    for (size_t n = 0; n < saved_.size(); n++) {
      const SavedEntry& entry = state_->saved[n];
      auto index = static_cast<size_t>(entry.index);
      bool is_output = entry.kind == SavedKind::kOutput;
      Value& value = entry.kind == SavedKind::kInput ? const_cast<Value&>(inputs.at(index))
                                                     : results.at(index);
      if (entry.base != BaseKind::kNone) {
        const auto& bases = entry.base == BaseKind::kInput ? inputs : results;
        share_version(value, bases.at(static_cast<size_t>(entry.base_index)));
      }
      keep(saved_[n], value, is_output && state_->results[index].differentiable);
    }
    if (!state_->differentiate) return;
    replayed_.resize(inputs.size());
    for (size_t n = 0; n < saved_.size(); n++) {
      const SavedEntry& entry = state_->saved[n];
      if (entry.kind == SavedKind::kInput)
        replayed_[static_cast<size_t>(entry.index)].saved = &saved_[n];
    }
    for (size_t n = 0; n < inputs.size(); n++) {
      if (!replayed_[n].saved) replayed_[n].watch(inputs[n]);
    }
  }

  ag::variable_list apply(ag::variable_list&& tangents) override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (size_t n = 0; n < tangents.size(); n++) prepare(tangents[n], n);
    begin(tangents);
    refuse_inner_hooks();
    std::vector<bool> mask(num_outputs());
    for (size_t n = 0; n < mask.size(); n++) mask[n] = should_compute_output(n);
    bool wrapped;
    try {
      wrapped = state_->accepts ? !accepted(tangents) : any_wrapped(tangents);
      if (!c10::GradMode::is_enabled() && !wrapped) return run(tangents, mask);
      if (state_->differentiate) return differentiate(tangents, mask);
    } catch (const RaisedError& error) {
      throw_to_engine(error);
    }
    TORCH_CHECK_NOT_IMPLEMENTED(!wrapped, state_->no_wrapped_tangents);
    return refuse_second_derivative(tangents, mask);
  }

  // After a backward for some of the results, what the others need is kept.
  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    finished_ = finishing_;
    ended_ = ending_;
    bool all =
        given_.empty() || std::find(finished_.begin(), finished_.end(), false) == finished_.end();
    for (size_t n = 0; n < saved_.size(); n++) {
      if (all || is_last(n)) saved_[n].tensor.reset_data();
    }
    given_.clear();  // the next release may be that of a graph that goes away
    if (!all) return;
    for (Input& input : replayed_) input.value = Value();
    released_ = true;
  }

 private:
  struct Kept {
    ag::SavedVariable tensor;
    Value number;
    bool is_tensor = false;
    bool is_output = false;
  };

  // An input that only the second derivative needs. It is no saved variable, since eager would not
  // save it, and saved-tensor hooks must not see it.
  struct Input {
    Kept* saved = nullptr;
    Value value;
    uint32_t version = 0;

    static uint32_t version_of(const Value& value) {
      return value.tensor()->is_inference() ? 0 : tensor_of(value)._version();
    }

    void watch(const Value& input) {
      value = input.copy();
      if (value.is_tensor()) version = version_of(value);
    }

    Value get(const std::string& name) {
      KILN_CHECK(!value.is_tensor() || version_of(value) == version, name,
                 ": one of the variables needed for gradient computation has been modified by an "
                 "inplace operation: an input is at version ",
                 version_of(value), "; expected version ", version, " instead");
      return value.copy();
    }
  };

  // Notes which tangents the present backward is for, and for which no other can follow if it
  // frees the graph. Raises if none can be for these.
  void begin(const ag::variable_list& tangents) {
    size_t count = tangents.size();
    bool apart = !state_->ends.empty();
    given_.resize(count);
    finished_.resize(count);
    ended_.resize(count);
    finishing_ = finished_;
    ending_ = ended_;
    for (size_t n = 0; n < count; n++) {
      given_[n] = tangents[n].defined();
      if (given_[n] && ended_[n]) throw std::runtime_error(ag::ERR_BACKWARD_TWICE);
      if (!given_[n] && apart) continue;
      finishing_[n] = true;
      if (!apart) continue;
      for (int32_t other : state_->ends[n]) finishing_[other] = ending_[other] = true;
    }
  }

  // A hook on a result has run with the tangent of that result, without the part that comes through
  // results which are computed from it.
  void refuse_inner_hooks() {
    if (state_->inner.empty()) return;
    std::vector<int64_t> hooked;
    for (const auto& hook : tensor_pre_hooks()) hooked.push_back(hooked_value(*hook));
    for (const auto& [value, hook] : retains_grad_hooks()) hooked.push_back(value);
    for (int32_t n : state_->inner) {
      bool is_hooked = std::find(hooked.begin(), hooked.end(), n) != hooked.end();
      bool alone = std::count(given_.begin(), given_.end(), true) == 1 && given_.at(n);
      if (is_hooked && !alone) throw std::runtime_error(state_->no_inner_hooks);
    }
  }

  // Does the present backward read the saved value?
  bool is_read(size_t n) const {
    const SavedEntry& entry = state_->saved[n];
    return entry.always_read || any_of(entry, given_);
  }

  // Will no backward read it after the present one?
  bool is_last(size_t n) const {
    const SavedEntry& entry = state_->saved[n];
    if (!entry.always_read) {
      return std::all_of(entry.readers.begin(), entry.readers.end(),
                         [&](int32_t tangent) { return finishing_[tangent]; });
    }
    return std::find(finishing_.begin(), finishing_.end(), false) == finishing_.end();
  }

  static bool any_of(const SavedEntry& entry, const std::vector<bool>& tangents) {
    return std::any_of(entry.readers.begin(), entry.readers.end(),
                       [&](int32_t tangent) { return tangents[tangent]; });
  }

  static void share_version(const Value& view, const Value& base) {
    if (!view.is_tensor() || !base.is_tensor() || view.tensor()->is_inference()) return;
    ag::impl::set_version_counter(tensor_of(view), ag::impl::version_counter(tensor_of(base)));
  }

  static void keep(Kept& kept, const Value& value, bool is_output) {
    kept.is_tensor = value.is_tensor();
    kept.is_output = is_output;
    if (kept.is_tensor) {
      kept.tensor = ag::SavedVariable(tensor_of(value), is_output);
    } else {
      kept.number = const_cast<Value&>(value).hand_over();
    }
  }

  Value value_of(Kept& kept) {
    if (!kept.is_tensor) return kept.number.hand_over();
    Value made;
    at::Tensor tensor = kept.tensor.unpack(kept.is_output ? getptr() : NodePtr());
    made.set_tensor(tensor.unsafeReleaseIntrusivePtr());
    return made;
  }

  bool accepted(const ag::variable_list& tangents) const {
    std::vector<Value> given(tangents.size());
    for (size_t n = 0; n < given.size(); n++) {
      if (tangents[n].defined()) given[n].set_tensor(tangents[n].getIntrusivePtr());
    }
    TakeGil gil;
    PyObject* made = PyObject_CallFunction(state_->accepts.get(), "N", values_to_python(given));
    int truth = made ? PyObject_IsTrue(made) : -1;
    Py_XDECREF(made);
    if (truth < 0) throw RaisedError::fetch();
    return truth != 0;
  }

  // A missing tangent becomes zeros, unless backward plans are compiled without it.
  void prepare(at::Tensor& tangent, size_t n) const {
    if (!tangent.defined()) {
      if (!state_->optional_tangents) tangent = input_metadata(n).zeros_like();
    } else if (tangent.layout() != c10::kStrided) {
      tangent = tangent.to_dense();
    }
  }

  // The backward plan on saved values and tangents. Unless the graph is kept, it owns the only
  // reference to what was saved, so that each is freed, or its memory reused, at its last use.
  ag::variable_list run(ag::variable_list& tangents, const std::vector<bool>& mask) {
    bool keep_graph = ag::get_current_graph_task_keep_graph();
    bool donate = !keep_graph;
    std::vector<bool> wanted = mask;  // followed by: which tangents are defined
    wanted.insert(wanted.end(), given_.begin(), given_.end());
    const Callable* backward;
    {
      at::AutoGradMode no_grad(false);
      backward = &state_->backward(wanted);
    }
    if (!*backward) return differentiate(tangents, mask);
    std::vector<Value> inputs;
    inputs.reserve(saved_.size() + tangents.size());
    for (size_t n = 0; n < saved_.size(); n++) {
      if (!is_read(n)) continue;
      Kept& kept = saved_[n];
      inputs.push_back(value_of(kept));
      if (keep_graph || !kept.is_tensor) continue;
      if (is_last(n)) {
        kept.tensor.reset_data();
      } else {
        donate = false;
      }
    }
    for (at::Tensor& tangent : tangents) {
      if (!tangent.defined()) continue;
      inputs.emplace_back();
      inputs.back().set_tensor(tangent.unsafeReleaseIntrusivePtr());
    }
    at::AutoGradMode no_grad(false);
    return gradients((*backward)(inputs, donate), mask);
  }

  // Behind the gradients there may be flags, one for each: does it exist? (As in eager's backward
  // of the branch that was taken.)
  ag::variable_list gradients(std::vector<Value> results, const std::vector<bool>& mask) const {
    size_t count = mask.size();
    bool flagged = results.size() == 2 * count;
    KILN_CHECK(flagged || results.size() == count, name(), ": backward returned ", results.size(),
               " gradients for ", count, " inputs");
    ag::variable_list made(count);
    for (size_t n = 0; n < count; n++) {
      if (!mask[n] || (flagged && is_false(results[count + n]))) continue;
      made[n] = at::Tensor(results[n].take());
    }
    return made;
  }

  // For create_graph=True: runs the forward again by eager operators and differentiates that.
  ag::variable_list differentiate(const ag::variable_list& tangents,
                                  const std::vector<bool>& mask) {
    std::vector<Value> inputs;
    if (released_) throw std::runtime_error(ag::ERR_BACKWARD_TWICE);
    for (size_t n = 0; n < saved_.size(); n++) {
      if (is_read(n)) value_of(saved_[n]);  // raises if it is gone or has changed
    }
    for (Input& input : replayed_) {
      inputs.push_back(input.saved ? value_of(*input.saved) : input.get(name()));
    }
    std::vector<Value> drawn;
    for (int32_t n : state_->drawn) drawn.push_back(value_of(saved_.at(static_cast<size_t>(n))));
    std::vector<Value> given(tangents.size());
    for (size_t n = 0; n < given.size(); n++) {
      if (tangents[n].defined()) given[n].set_tensor(tangents[n].getIntrusivePtr());
    }
    TakeGil gil;
    PyObject* masked = mask_to_python(mask);
    PyObject* made =
        PyObject_CallFunction(state_->differentiate.get(), "NNNN", values_to_python(inputs),
                              values_to_python(drawn), values_to_python(given), masked);
    std::vector<Value> results;
    bool good = made && values_from_python(made, results);
    Py_XDECREF(made);
    if (!good) throw RaisedError::fetch();
    return gradients(std::move(results), mask);
  }

  // The gradients, with a history that raises when differentiated: they are never silently
  // constant. Its edges lead where those of the real history would, so that asking for the
  // gradient of an input raises too, instead of finding that nothing depends on it.
  ag::variable_list refuse_second_derivative(ag::variable_list& tangents,
                                             const std::vector<bool>& mask) {
    ag::edge_list edges = next_edges();
    for (const at::Tensor& tangent : tangents) {
      if (tangent.defined() && tangent.requires_grad()) {
        edges.push_back(ag::impl::gradient_edge(tangent));
      }
    }
    ag::variable_list made;
    try {
      made = run(tangents, mask);
    } catch (const RaisedError& error) {
      throw_to_engine(error);
    }
    auto refuse = new_node<ag::Error>(state_->no_second_derivative, std::move(edges));
    for (at::Tensor& gradient : made) {
      if (!gradient.defined()) continue;
      gradient = gradient.detach();
      ag::set_history(gradient, refuse);
    }
    return made;
  }

  std::shared_ptr<RegionState> state_;
  std::vector<Kept> saved_;
  std::vector<Input> replayed_;
  // By tangent: of the present backward; of those that freed the graph, or for which no other can
  // follow; those for which another would raise; the same after the present one.
  std::vector<bool> given_, finished_, ended_, finishing_, ending_;
  bool released_ = false;
};

bool needs_gradient(const std::vector<Value>& inputs) {
  if (!c10::GradMode::is_enabled()) return false;
  for (const Value& input : inputs) {
    if (input.is_tensor() && input.tensor()->requires_grad()) return true;
  }
  return false;
}

void refuse_forward_mode(const RegionState& state, const std::vector<Value>& inputs) {
  if (!ag::ForwardADLevel::try_get_by_idx(0)) return;
  for (const Value& input : inputs) {
    TORCH_CHECK_NOT_IMPLEMENTED(!input.is_tensor() || !tensor_of(input)._fw_grad(0).defined(),
                                state.no_forward_mode);
  }
}

// The view of `base` with the layout of `plain`; autograd refuses to change it in place if eager
// does.
TensorPtr guarded_view(const Value& base, const Value& plain, const ResultEntry& entry) {
  auto creation = static_cast<ag::CreationMeta>(entry.creation);
  bool grad = c10::GradMode::is_enabled() && creation != ag::CreationMeta::NO_GRAD_MODE;
  at::AutoGradMode mode(grad);
  const c10::TensorImpl& layout = *plain.tensor();
  TensorPtr view =
      view_of(*base.tensor(), layout.sizes(), layout.strides(), layout.storage_offset());
  if (entry.creation) {
    ag::DifferentiableViewMeta* meta = ag::impl::get_view_autograd_meta(at::Tensor(view));
    if (meta && meta->has_bw_view()) meta->set_creation_meta(creation);
  }
  return view;
}

// Results that are inputs, or views of inputs and other results, as autograd must see them.
void rebuild(const RegionState& state, const std::vector<Value>& inputs,
             std::vector<Value>& results) {
  for (size_t n = 0; n < state.results.size(); n++) {
    const ResultEntry& entry = state.results[n];
    if (entry.base == BaseKind::kNone) {
      if (entry.creation) results[n].set_tensor(guarded_view(results[n], results[n], entry));
      continue;
    }
    auto index = static_cast<size_t>(entry.base_index);
    const Value& base = entry.base == BaseKind::kInput ? inputs[index] : results[index];
    if (!entry.is_view) {
      results[n].set_tensor(base.share());
      continue;
    }
    results[n].set_tensor(guarded_view(base, results[n], entry));
  }
  for (int32_t n : state.detached) {
    // A view of a tensor without a gradient stays a view: a later write may give both a history.
    Value& result = results[static_cast<size_t>(n)];
    if (!result.tensor()->requires_grad()) continue;
    result.set_tensor(tensor_of(result).detach().unsafeReleaseIntrusivePtr());
    const ResultEntry& entry = state.results[static_cast<size_t>(n)];
    if (entry.creation) result.set_tensor(guarded_view(result, result, entry));
  }
}

std::vector<Value> lend(std::vector<Value>& inputs) {
  std::vector<Value> lent(inputs.size());
  for (size_t n = 0; n < inputs.size(); n++) lent[n] = inputs[n].hand_over();
  return lent;
}

}  // namespace

const Callable& RegionState::backward(const std::vector<bool>& wanted) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = backwards_.find(wanted);
    if (found != backwards_.end()) return found->second;
  }
  // Not under the mutex: compiling runs Python, which may switch threads.
  TakeGil gil;
  auto split = wanted.begin() + static_cast<std::ptrdiff_t>(num_inputs);
  PyObject* needed = mask_to_python({wanted.begin(), split});
  PyObject* given = optional_tangents ? mask_to_python({split, wanted.end()}) : nullptr;
  PyObject* made = PyObject_CallFunctionObjArgs(make_backward.get(), needed, given, nullptr);
  Py_XDECREF(needed);
  Py_XDECREF(given);
  if (!made) throw RaisedError::fetch();
  Callable callable = made == Py_None ? Callable() : Callable(made);
  Py_DECREF(made);
  std::lock_guard<std::mutex> lock(mutex_);
  return backwards_.emplace(wanted, std::move(callable)).first->second;
}

int RegionState::visit(visitproc visit, void* arg) const {
  if (int stop = forward.visit(visit, arg)) return stop;
  for (const auto& [mask, callable] : backwards_) {
    if (int stop = callable.visit(visit, arg)) return stop;
  }
  Py_VISIT(make_backward.get());
  Py_VISIT(differentiate.get());
  Py_VISIT(accepts.get());
  return 0;
}

void RegionState::drop() {
  forward = Callable();
  backwards_.clear();
  make_backward.reset();
  differentiate.reset();
  accepts.reset();
}

std::vector<Value> call_region(const std::shared_ptr<RegionState>& state,
                               std::vector<Value>& inputs) {
  bool recorded = needs_gradient(inputs);
  if (recorded) refuse_forward_mode(*state, inputs);
  auto node = recorded ? new_node<RegionNode>() : nullptr;
  if (node) node->start(state, inputs);
  std::vector<Value> lent = lend(inputs);
  std::vector<Value> results;
  {
    at::AutoGradMode no_grad(false);
    results = state->forward(lent, false);
  }
  KILN_CHECK(results.size() >= state->results.size(), state->name, ": forward returned ",
             results.size(), " results, expected ", state->results.size(), " or more");
  if (node) {
    for (size_t n = 0; n < state->results.size(); n++) {
      if (!state->results[n].differentiable) continue;
      KILN_CHECK(results[n].is_tensor(), state->name, ": result ", n, " is no tensor");
      const at::Tensor& result = tensor_of(results[n]);
      KILN_CHECK(!result.requires_grad(), state->name, ": result ", n, " is not a fresh tensor");
      ag::set_history(result, node);
    }
    node->save(inputs, results);
  }
  for (auto [input, result] : state->written) {
    copy_into(*inputs[static_cast<size_t>(input)].tensor(),
              *results[static_cast<size_t>(result)].tensor());
  }
  rebuild(*state, inputs, results);
  results.resize(state->results.size());
  return results;
}

}  // namespace kiln
