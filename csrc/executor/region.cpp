#include "executor/region.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <unordered_set>

#include "executor/aten.h"
#include "executor/autograd_node.h"
#include "executor/check.h"
#include "executor/gradient_hooks.h"
#include "executor/gradient_parts.h"
#include "executor/python.h"
#include "executor/saved_values.h"

namespace kiln {

namespace {

namespace ag = torch::autograd;

// Of a value that holds a tensor.
const at::Tensor& tensor_in(const Value& value) { return value.as<at::Tensor>(); }

bool is_false(const Value& flag) { return flag.is_tensor() && !tensor_in(flag).item<bool>(); }

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

// What one backward has of a region when gradients pass between its results.
struct Turn {
  int task = -1;
  bool between = false;
  std::shared_ptr<PyObject> replayed;  // `Replayed` of kiln/runtime/autograd.py, once it is needed
};

// The nodes of the results of a call that are computed from others, while they are alive.
struct ResultNodes {
  std::mutex mutex;
  std::unordered_set<ag::Node*> alive;
};

// Hands a gradient on to a leaf. Of nodes that are ready, the engine runs the one of the highest
// number: leaves, then these.
class LeafGradientNode final : public ag::Node {
 public:
  explicit LeafGradientNode(size_t position) : ag::Node(UINT64_MAX - 1 - position) {}

  ag::variable_list apply(ag::variable_list&& gradients) override { return std::move(gradients); }
};

class RegionNode final : public ag::Node {
 public:
  std::string name() const override { return state_->name; }

  void start(std::shared_ptr<RegionState> state, const std::vector<Value>& inputs) {
    state_ = std::move(state);
    if (!state_->depends.empty()) results_ = std::make_shared<ResultNodes>();
    ag::edge_list edges(inputs.size());
    bool hooked = false;
    for (int32_t number : state_->reached) {
      auto n = static_cast<size_t>(number);
      if (!inputs[n].is_tensor()) continue;
      const at::Tensor& input = tensor_in(inputs[n]);
      if (!input.requires_grad()) continue;
      edges[n] = ag::impl::gradient_edge(input);
      hooked = hooked || is_hooked_leaf(*edges[n].function);
    }
    if (hooked) set_order(edges, inputs);
    auto first = std::find_if(inputs.begin(), inputs.end(), [](const Value& input) {
      return input.is_tensor() && input.tensor()->requires_grad();
    });
    if (!state_->parts.empty() && first != inputs.end()) {
      parts_ = std::make_shared<GradientParts>(state_->parts);
      parts_->split(state_->name, edges, first->tensor()->device());
    }
    set_next_edges(std::move(edges));
  }

  // Keeps what backward needs; to be called after the outputs have this node as their history.
  void save(const std::vector<Value>& inputs, std::vector<Value>& results) {
    saved_.keep(*state_, inputs, results);
  }

  ag::variable_list apply(ag::variable_list&& tangents) override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (size_t n = 0; n < tangents.size(); n++) prepare(tangents[n], n);
    partial_.begin(*state_, tangents);
    ag::variable_list made;
    try {
      made = all_gradients(tangents, needed());
    } catch (const RaisedError& error) {
      throw_to_engine(error);
    }
    return parts_ ? parts_->begin(std::move(paused_), std::move(made)) : made;
  }

  // The gradients of the results from which `result`, of this node, is computed; none if they meet
  // in the region.
  ag::variable_list through(ag::Node* node, int32_t result, const at::Tensor& tangent) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!passes_between(node)) return {};
    try {
      start_turn(needed());
      std::vector<Value> given = values_of({tangent});
      TakeGil gil;
      std::vector<Value> gradients = taken(PyObject_CallMethod(
          turn_.replayed.get(), "through", "iN", result, values_to_python(given)));
      ag::variable_list found(gradients.size());
      for (size_t n = 0; n < found.size(); n++) found[n] = at::Tensor(gradients[n].take());
      return found;
    } catch (const RaisedError& error) {
      throw_to_engine(error);
    }
  }

  const std::shared_ptr<ResultNodes>& results() { return results_; }

  // After a backward for some of the results, what the others need is kept.
  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    saved_.release(*state_, partial_);
  }

 private:
  // By input; those of later parts are missing if `paused_` makes them.
  ag::variable_list all_gradients(ag::variable_list& tangents, const std::vector<bool>& mask) {
    saved_.check(*state_, partial_, mask);
    if (passes_between()) return finish_turn(tangents, mask);
    bool wrapped = state_->accepts ? !accepted(tangents) : any_wrapped(tangents);
    if (!c10::GradMode::is_enabled() && !wrapped) return run(tangents, mask);
    if (state_->differentiate) return differentiate(tangents, mask);
    TORCH_CHECK_NOT_IMPLEMENTED(!wrapped, state_->no_wrapped_tangents);
    return refuse_second_derivative(tangents, mask);
  }

  // Puts a node in front of each leaf, so that leaves get their gradients in eager's order.
  void set_order(ag::edge_list& edges, const std::vector<Value>& inputs) const {
    size_t position = 0;
    for (int32_t number : state_->reached) {
      auto n = static_cast<size_t>(number);
      if (!edges[n].is_valid() || !is_leaf(*edges[n].function)) continue;
      auto node = new_node<LeafGradientNode>(position++);
      node->add_input_metadata(tensor_in(inputs[n]));
      node->add_next_edge(std::move(edges[n]));
      edges[n] = ag::Edge(std::move(node), 0);
    }
  }

  std::vector<bool> needed() const {
    if (parts_) return state_->mask(parts_->connected(), parts_->needed());
    std::vector<bool> connected(num_outputs()), needed(num_outputs());
    for (size_t n = 0; n < needed.size(); n++) {
      connected[n] = should_compute_output(n);
      needed[n] = task_should_compute_output(n);
    }
    return state_->mask(connected, needed);
  }

  // Decided once in a backward: does anything see the gradient of a result from which another one
  // is computed, with a gradient of its own?
  bool passes_between(ag::Node* asking = nullptr) {
    if (state_->depends.empty()) return false;
    int task = ag::get_current_graph_task_id();
    if (turn_.task != task || task < 0) {
      turn_ = Turn();
      turn_.task = task;
      Observed seen = inner_observed(asking);
      turn_.between = seen != Observed::kNo;
      if (seen == Observed::kHooked && c10::GradMode::is_enabled()) {
        throw std::runtime_error(state_->no_second_hooks);
      }
    }
    return turn_.between;
  }

  Observed inner_observed(ag::Node* asking);

  // By result: a tensor with the history of the result, where another is computed from it.
  std::vector<Value> ends_of_inner() const;

  // Runs the region again by eager operators, unless this backward has done so.
  void start_turn(const std::vector<bool>& mask) {
    if (turn_.replayed) return;
    if (!state_->differentiate) throw std::runtime_error(state_->no_inner_gradient);
    SavedValues::Given given = saved_.for_replay(*state_, getptr());
    std::vector<Value> ends;
    if (c10::GradMode::is_enabled()) ends = ends_of_inner();
    TakeGil gil;
    PyObject* made = PyObject_CallMethod(
        state_->differentiate.get(), "start", "NNNN", values_to_python(given.inputs),
        values_to_python(given.saved), mask_to_python(mask), values_to_python(ends));
    if (!made) throw RaisedError::fetch();
    turn_.replayed = share_object(made);
    Py_DECREF(made);
    // Where this backward ends at a result, nothing else drops the replayed values.
    ag::Engine::get_default_engine().queue_callback([node = getptr()] {
      auto* region = static_cast<RegionNode*>(node.get());
      std::lock_guard<std::mutex> lock(region->mutex_);
      region->turn_ = Turn();
    });
  }

  ag::variable_list finish_turn(const ag::variable_list& tangents, const std::vector<bool>& mask) {
    start_turn(mask);
    std::vector<Value> given = values_of(tangents);
    TakeGil gil;
    std::vector<Value> made = taken(
        PyObject_CallMethod(turn_.replayed.get(), "differentiate", "(N)", values_to_python(given)));
    turn_ = Turn();
    return gradients(std::move(made), mask);
  }

  // The values of a sequence, which it gives up; with the interpreter lock.
  static std::vector<Value> taken(PyObject* made) {
    std::vector<Value> results;
    bool good = made && values_from_python(made, results);
    Py_XDECREF(made);
    if (!good) throw RaisedError::fetch();
    return results;
  }

  static std::vector<Value> values_of(const ag::variable_list& tangents) {
    std::vector<Value> given(tangents.size());
    for (size_t n = 0; n < given.size(); n++) {
      if (tangents[n].defined()) given[n].set_tensor(tangents[n].getIntrusivePtr());
    }
    return given;
  }

  bool accepted(const ag::variable_list& tangents) const {
    std::vector<Value> given = values_of(tangents);
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
    bool creates_graph = c10::GradMode::is_enabled();
    bool keep_graph = ag::get_current_graph_task_keep_graph();
    bool donate = !keep_graph;
    std::vector<bool> wanted = mask;  // followed by: which tangents are defined
    wanted.insert(wanted.end(), partial_.given().begin(), partial_.given().end());
    const Callable* backward;
    {
      at::AutoGradMode no_grad(false);
      backward = &state_->backward(wanted);
    }
    if (!*backward) return differentiate(tangents, mask);
    std::vector<Value> inputs = saved_.read(*state_, partial_, getptr(), keep_graph, donate);
    for (at::Tensor& tangent : tangents) {
      if (!tangent.defined()) continue;
      inputs.emplace_back();
      inputs.back().set_tensor(tangent.unsafeReleaseIntrusivePtr());
    }
    at::AutoGradMode no_grad(false);
    if (parts_ && !creates_graph) paused_ = backward->begin(inputs, donate);
    return gradients(paused_ ? paused_->go_on() : (*backward)(inputs, donate), mask);
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
    SavedValues::Given given = saved_.for_replay(*state_, getptr(), &partial_);
    std::vector<Value> arrived = values_of(tangents);
    TakeGil gil;
    PyObject* masked = mask_to_python(mask);
    std::vector<Value> results = taken(
        PyObject_CallFunction(state_->differentiate.get(), "NNNN", values_to_python(given.inputs),
                              values_to_python(given.saved), values_to_python(arrived), masked));
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
    ag::variable_list made = run(tangents, mask);
    auto refuse = new_node<ag::Error>(state_->no_second_derivative, std::move(edges));
    for (at::Tensor& gradient : made) {
      if (!gradient.defined()) continue;
      gradient = gradient.detach();
      ag::set_history(gradient, refuse);
    }
    return made;
  }

  std::shared_ptr<RegionState> state_;
  SavedValues saved_;
  PartialBackwards partial_;
  Turn turn_;
  std::shared_ptr<ResultNodes> results_;
  std::shared_ptr<GradientParts> parts_;
  std::unique_ptr<PausedCall> paused_;  // from `run` to the end of `apply`
};

// One of several results of a region: its gradient goes to the region, in which those of all meet.
// Where a result from which this one is computed is observed, its part goes there, by edges behind
// the first.
class ResultNode final : public ag::Node {
 public:
  ResultNode(std::shared_ptr<RegionState> state, ag::Edge region, int32_t result)
      : state_(std::move(state)), region_(std::move(region)), result_(result) {}

  ~ResultNode() override {
    if (!all_) return;
    std::lock_guard<std::mutex> lock(all_->mutex);
    all_->alive.erase(this);
  }

  std::string name() const override { return state_->name; }

  size_t result() const { return static_cast<size_t>(result_); }

  // Sets the edges; the results from which it is computed are finished.
  void connect(const std::vector<Value>& results) {
    if (state_->depends.empty() || state_->depends[static_cast<size_t>(result_)].empty()) {
      add_next_edge(std::move(region_));
      return;
    }
    all_ = static_cast<RegionNode&>(*region_.function).results();
    add_next_edge(std::move(region_));
    for (int32_t other : state_->depends[static_cast<size_t>(result_)]) {
      const Value& result = results[static_cast<size_t>(other)];
      bool has_gradient = result.is_tensor() && result.tensor()->requires_grad();
      add_next_edge(has_gradient ? ag::impl::gradient_edge(tensor_in(result)) : ag::Edge());
    }
    std::lock_guard<std::mutex> lock(all_->mutex);
    all_->alive.insert(this);
  }

  ag::variable_list apply(ag::variable_list&& tangents) override {
    ag::variable_list made(num_outputs());
    if (all_ && tangents[0].defined()) {
      auto& region = static_cast<RegionNode&>(*next_edge(0).function);
      ag::variable_list found = region.through(this, result_, tangents[0]);
      std::move(found.begin(), found.end(), made.begin() + 1);
    }
    made[0] = std::move(tangents[0]);
    return made;
  }

  // Is the gradient of one from which it is computed observed? Views may stand in between.
  Observed inner_observed() const {
    Observed most = Observed::kNo;
    for (size_t n = 1; n < num_outputs(); n++) {
      auto result = static_cast<size_t>(state_->depends[static_cast<size_t>(result_)][n - 1]);
      ag::Edge edge = next_edge(n);
      while (edge.is_valid()) {
        most = std::max(most, observed(edge));
        if (dynamic_cast<ResultNode*>(edge.function.get())) break;
        if (state_->results[result].base != BaseKind::kNone) {
          if (state_->depends[result].empty()) break;  // a view of an input
          result = static_cast<size_t>(state_->depends[result][0]);
        }
        edge = edge.function->num_outputs() ? edge.function->next_edge(0) : ag::Edge();
      }
    }
    return most;
  }

 private:
  std::shared_ptr<RegionState> state_;
  ag::Edge region_;  // until it is connected
  int32_t result_;
  std::shared_ptr<ResultNodes> all_;  // if it is computed from others
};

Observed RegionNode::inner_observed(ag::Node* asking) {
  const std::unordered_set<ag::Node*>* nodes = ag::get_current_graph_task_nodes_in_graph();
  std::vector<ag::Node*> present;  // in this backward, which keeps them alive
  {
    std::lock_guard<std::mutex> lock(results_->mutex);
    for (ag::Node* node : results_->alive) {
      // The engine does not count the node at which it starts.
      if (node == asking || (nodes && nodes->count(node))) present.push_back(node);
    }
  }
  Observed most = Observed::kNo;
  for (ag::Node* node : present) {
    most = std::max(most, static_cast<ResultNode*>(node)->inner_observed());
  }
  return most;
}

std::vector<Value> RegionNode::ends_of_inner() const {
  std::vector<Value> ends(state_->depends.size());
  std::lock_guard<std::mutex> lock(results_->mutex);
  for (ag::Node* node : results_->alive) {
    size_t number = static_cast<ResultNode*>(node)->result();
    for (size_t n = 0; n < state_->depends[number].size(); n++) {
      Value& end = ends[static_cast<size_t>(state_->depends[number][n])];
      const ag::Edge& edge = node->next_edge(n + 1);
      if (!edge.is_valid() || end.is_tensor()) continue;
      at::Tensor made = at::empty({0});
      ag::impl::set_gradient_edge(made, edge);
      end.set_tensor(made.unsafeReleaseIntrusivePtr());
    }
  }
  return ends;
}

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
    TORCH_CHECK_NOT_IMPLEMENTED(!input.is_tensor() || !tensor_in(input)._fw_grad(0).defined(),
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
  TensorPtr view = view_of(*base.tensor(), layout.dtype(), layout.sizes(), layout.strides(),
                           layout.storage_offset());
  if (entry.creation) {
    ag::DifferentiableViewMeta* meta = ag::impl::get_view_autograd_meta(at::Tensor(view));
    if (meta && meta->has_bw_view()) meta->set_creation_meta(creation);
  }
  return view;
}

// A result that is an input, or a view of an input or another result, as autograd must see it.
void rebuild(const RegionState& state, size_t n, const std::vector<Value>& inputs,
             std::vector<Value>& results) {
  const ResultEntry& entry = state.results[n];
  if (entry.base == BaseKind::kNone) {
    if (entry.creation) results[n].set_tensor(guarded_view(results[n], results[n], entry));
    return;
  }
  auto index = static_cast<size_t>(entry.base_index);
  const Value& base = entry.base == BaseKind::kInput ? inputs[index] : results[index];
  results[n].set_tensor(entry.is_view ? guarded_view(base, results[n], entry) : base.share());
}

// Results that are views of tensors with a gradient, and have none.
void detach(const RegionState& state, std::vector<Value>& results) {
  for (int32_t n : state.detached) {
    // A view of a tensor without a gradient stays a view: a later write may give both a history.
    Value& result = results[static_cast<size_t>(n)];
    if (!result.tensor()->requires_grad()) continue;
    result.set_tensor(tensor_in(result).detach().unsafeReleaseIntrusivePtr());
    const ResultEntry& entry = state.results[static_cast<size_t>(n)];
    if (entry.creation) result.set_tensor(guarded_view(result, result, entry));
  }
}

// Gives each fresh result a history: the region's node, or, if there are several, each a node of
// its own, which is returned.
std::vector<NodePtr> set_histories(const std::shared_ptr<RegionState>& state, const NodePtr& region,
                                   std::vector<Value>& results) {
  const auto& entries = state->results;
  auto count = std::count_if(entries.begin(), entries.end(),
                             [](const ResultEntry& entry) { return entry.differentiable; });
  bool several = state->optional_tangents && (count > 1 || !state->depends.empty());
  std::vector<NodePtr> nodes(several ? entries.size() : 0);
  for (size_t n = 0; n < entries.size(); n++) {
    if (!entries[n].differentiable) continue;
    KILN_CHECK(results[n].is_tensor(), state->name, ": result ", n, " is no tensor");
    const at::Tensor& result = tensor_in(results[n]);
    KILN_CHECK(!result.requires_grad(), state->name, ": result ", n, " is not a fresh tensor");
    if (several) {
      ag::Edge edge(region, region->add_input_metadata(result));
      nodes[n] = new_node<ResultNode>(state, std::move(edge), static_cast<int32_t>(n));
    }
    ag::set_history(result, several ? nodes[n] : region);
  }
  return nodes;
}

void write(const RegionState& state, const std::vector<Value>& inputs,
           const std::vector<Value>& results) {
  for (auto [input, result] : state.written) {
    copy_into(*inputs[static_cast<size_t>(input)].tensor(),
              *results[static_cast<size_t>(result)].tensor());
  }
}

bool is_written(const RegionState& state, int32_t result) {
  return std::any_of(state.written.begin(), state.written.end(),
                     [&](const auto& pair) { return pair.second == result; });
}

std::vector<Value> lend(std::vector<Value>& inputs) {
  std::vector<Value> lent(inputs.size());
  for (size_t n = 0; n < inputs.size(); n++) lent[n] = inputs[n].hand_over();
  return lent;
}

}  // namespace

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
  std::vector<NodePtr> nodes;
  if (node) {
    nodes = set_histories(state, node, results);
    node->save(inputs, results);
  }
  size_t to_write = state->written.size();
  if (nodes.empty()) write(*state, inputs, results);
  for (int32_t number : state->order) {
    auto n = static_cast<size_t>(number);
    if (!nodes.empty() && nodes[n]) static_cast<ResultNode&>(*nodes[n]).connect(results);
    rebuild(*state, n, inputs, results);
    if (!nodes.empty() && to_write && is_written(*state, number) && !--to_write) {
      write(*state, inputs, results);
    }
  }
  detach(*state, results);
  results.resize(state->results.size());
  return results;
}

}  // namespace kiln
