#include "executor/autograd_graph.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <queue>
#include <unordered_set>

#include "executor/gradient_hooks.h"
#include "executor/python.h"

namespace kiln {

namespace {

namespace ag = torch::autograd;

bool accumulates(const ag::Node& node) { return node.next_edges().empty(); }

// Stands for the nodes of a segment: their gradients by one plan.
class SegmentNode final : public ag::Node {
 public:
  SegmentNode(uint64_t sequence_nr, std::vector<NodePtr> members, std::shared_ptr<PyObject> prepare)
      : ag::Node(sequence_nr), members_(std::move(members)), prepare_(std::move(prepare)) {}

  std::string name() const override { return "CompiledSegment"; }

  void add_slot(const ag::InputMetadata& metadata) { input_metadata_.emplace_back(metadata); }

  void will_release_variables() override {
    releases_ = true;
    for (const NodePtr& member : members_) member->will_release_variables();
  }

  void release_variables() override {
    for (const NodePtr& member : members_) member->release_variables();
  }

  ag::variable_list apply(ag::variable_list&& tangents) override {
    try {
      return run(tangents);
    } catch (const RaisedError& error) {
      TakeGil gil;
      error.restore();
      python_error carried;
      carried.persist();
      throw carried;
    }
  }

 private:
  ag::variable_list run(ag::variable_list& tangents) {
    std::vector<Value> inputs;
    Callable plan;
    {
      TakeGil gil;
      PyObject* made = call_prepare(tangents);
      if (!made) throw RaisedError::fetch();
      bool good = read(made, tangents, plan, inputs);
      Py_DECREF(made);
      if (!good) throw RaisedError::fetch();
    }
    tangents.clear();
    if (releases_) release_variables();
    at::AutoGradMode no_grad(false);
    std::vector<Value> results = plan(inputs, releases_);
    ag::variable_list made(num_outputs());
    for (size_t n = 0; n < made.size() && n < results.size(); n++) {
      made[n] = at::Tensor(results[n].take());
    }
    return made;
  }

  // `prepare(tangents, needed, releases)`; needs the interpreter lock.
  PyObject* call_prepare(const ag::variable_list& tangents) {
    PyObject* given = make_tuple(tangents.size(), [&](size_t n) {
      Value value;
      if (tangents[n].defined()) value.set_tensor(tangents[n].getIntrusivePtr());
      return value_to_python(value);
    });
    PyObject* needed = make_tuple(
        num_outputs(), [&](size_t n) { return PyBool_FromLong(task_should_compute_output(n)); });
    return PyObject_CallFunction(prepare_.get(), "NNi", given, needed, releases_ ? 1 : 0);
  }

  // The plan and its inputs, where a number stands for a tangent.
  static bool read(PyObject* made, const ag::variable_list& tangents, Callable& plan,
                   std::vector<Value>& inputs) {
    PyObject *function, *items;
    if (!PyArg_ParseTuple(made, "OO!", &function, &PyTuple_Type, &items)) return false;
    plan = Callable(function);
    for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(items); n++) {
      PyObject* item = PyTuple_GET_ITEM(items, n);
      inputs.emplace_back();
      if (PyLong_Check(item)) {
        inputs.back().set_tensor(tangents.at(PyLong_AsSize_t(item)).getIntrusivePtr());
      } else if (!value_from_python(item, inputs.back())) {
        return false;
      }
    }
    return !PyErr_Occurred();
  }

  std::vector<NodePtr> members_;
  std::shared_ptr<PyObject> prepare_;
  bool releases_ = false;
};

struct Later {
  bool operator()(const ag::Node* a, const ag::Node* b) const {
    return a->sequence_nr() < b->sequence_nr();
  }
};

}  // namespace

AutogradGraph::AutogradGraph(std::vector<Edge> roots, const std::vector<Edge>& wanted)
    : roots_(std::move(roots)) {
  find_needed(wanted);
  order();
  describe(wanted);
}

// All nodes behind the roots, those before which nothing is wanted left out.
void AutogradGraph::find_needed(const std::vector<Edge>& wanted) {
  std::unordered_set<ag::Node*> seen, needed;
  for (const Edge& edge : wanted) needed.insert(edge.function.get());
  std::vector<std::pair<ag::Node*, size_t>> stack;
  std::vector<NodePtr> found;
  auto visit = [&](const NodePtr& node) {
    if (node && seen.insert(node.get()).second) {
      stack.emplace_back(node.get(), 0);
      found.push_back(node);
    }
  };
  for (const Edge& root : roots_) {
    visit(root.function);
    while (!stack.empty()) {
      auto& [node, next] = stack.back();
      if (next < node->num_outputs()) {
        visit(node->next_edge(next++).function);
        continue;
      }
      bool leads = wanted.empty();
      for (const Edge& edge : node->next_edges()) leads |= needed.count(edge.function.get()) != 0;
      if (leads) needed.insert(node);
      stack.pop_back();
    }
  }
  for (NodePtr& node : found) {
    if (needed.count(node.get())) nodes_.push_back(std::move(node));
  }
}

// The engine takes the ready node that the forward made last.
void AutogradGraph::order() {
  std::unordered_map<ag::Node*, NodePtr> owners;
  std::unordered_map<ag::Node*, size_t> waiting;
  for (const NodePtr& node : nodes_) owners.emplace(node.get(), node);
  auto each_edge = [&](ag::Node& node, auto&& body) {
    for (const Edge& edge : node.next_edges()) {
      if (edge.is_valid() && owners.count(edge.function.get())) body(edge.function.get());
    }
  };
  std::vector<NodePtr> leaves, made;
  for (const NodePtr& node : nodes_) {
    if (accumulates(*node)) leaves.push_back(node);
    each_edge(*node, [&](ag::Node* next) { waiting[next]++; });
  }
  std::priority_queue<ag::Node*, std::vector<ag::Node*>, Later> ready;
  for (const NodePtr& node : nodes_) {
    if (!accumulates(*node) && !waiting.count(node.get())) ready.push(node.get());
  }
  while (!ready.empty()) {
    ag::Node* node = ready.top();
    ready.pop();
    made.push_back(owners[node]);
    each_edge(*node, [&](ag::Node* next) {
      if (--waiting[next] == 0 && !accumulates(*next)) ready.push(next);
    });
  }
  made.insert(made.end(), leaves.begin(), leaves.end());
  nodes_ = std::move(made);
  for (size_t n = 0; n < nodes_.size(); n++) positions_[nodes_[n].get()] = static_cast<int32_t>(n);
}

// Are gradients at an edge plain dense tensors of known sizes?
static bool is_plain(const ag::InputMetadata& metadata) {
  if (metadata.was_default_constructed()) return true;
  if (metadata.is_tensor_subclass() || metadata.is_nested_tensor()) return false;
  if (metadata.layout() != c10::kStrided) return false;
  c10::SymIntArrayRef sizes = metadata.shape_as_dim_vector();
  return std::none_of(sizes.begin(), sizes.end(),
                      [](const c10::SymInt& size) { return size.is_symbolic(); });
}

void AutogradGraph::describe(const std::vector<Edge>& wanted) {
  std::vector<int64_t> words;
  auto edge_words = [&](const Edge& edge) {
    words.push_back(position(edge));
    words.push_back(edge.input_nr);
  };
  for (const Edge& root : roots_) edge_words(root);
  observed_.resize(nodes_.size());
  for (size_t n = 0; n < nodes_.size(); n++) {
    ag::Node& node = *nodes_[n];
    bool plain = true;
    words.push_back(node.num_inputs());
    for (uint32_t input = 0; input < node.num_inputs(); input++) {
      plain = plain && observed(Edge(nodes_[n], input)) != Observed::kHooked;
      const ag::InputMetadata& metadata = node.input_metadata(input);
      words.push_back(metadata.was_default_constructed());
      if (metadata.was_default_constructed()) continue;
      plain = plain && is_plain(metadata);
      words.push_back(static_cast<int64_t>(metadata.options().dtype().toScalarType()));
      words.push_back(static_cast<int64_t>(metadata.device().type()));
      words.push_back(metadata.device().index());
      if (metadata.is_nested_tensor()) continue;
      c10::SymIntArrayRef sizes = metadata.shape_as_dim_vector();
      words.push_back(static_cast<int64_t>(sizes.size()));
      for (const c10::SymInt& size : sizes) {
        words.push_back(size.is_symbolic() ? -1 : size.expect_int());
      }
    }
    words.push_back(static_cast<int64_t>(node.num_outputs()));
    for (const Edge& edge : node.next_edges()) {
      edge_words(edge);
      plain = plain && (!edge.is_valid() || is_plain(edge.function->input_metadata(edge.input_nr)));
    }
    observed_[n] = !plain;
  }
  for (const Edge& edge : wanted) {
    if (position(edge) >= 0) observed_[static_cast<size_t>(position(edge))] = true;
  }
  for (bool seen : observed_) words.push_back(seen);
  structure_.assign(reinterpret_cast<const char*>(words.data()), words.size() * sizeof(int64_t));
}

std::vector<AutogradGraph::Edge> AutogradGraph::splice(const std::vector<SegmentSpec>& segments) {
  std::unordered_map<ag::Node*, std::unordered_map<uint32_t, Edge>> moved;
  auto moved_to = [&](const Edge& edge) -> const Edge* {
    auto found = moved.find(edge.function.get());
    if (found == moved.end()) return nullptr;
    auto slot = found->second.find(edge.input_nr);
    return slot == found->second.end() ? nullptr : &slot->second;
  };
  std::unordered_set<ag::Node*> inside;
  for (auto spec = segments.rbegin(); spec != segments.rend(); ++spec) {
    std::vector<NodePtr> members;
    uint64_t latest = 0;
    for (int32_t n : spec->members) {
      members.push_back(nodes_.at(static_cast<size_t>(n)));
      latest = std::max(latest, members.back()->sequence_nr());
      inside.insert(members.back().get());
    }
    auto made = new_node<SegmentNode>(latest, std::move(members), spec->prepare);
    ag::edge_list edges;
    for (auto [position, input] : spec->targets) {
      Edge edge(nodes_.at(static_cast<size_t>(position)), input);
      const Edge* other = moved_to(edge);
      edges.push_back(other ? *other : std::move(edge));
    }
    made->set_next_edges(std::move(edges));
    for (size_t n = 0; n < spec->slots.size(); n++) {
      auto [position, input] = spec->slots[n];
      ag::Node* node = nodes_.at(static_cast<size_t>(position)).get();
      made->add_slot(node->input_metadata(input));
      moved[node][input] = Edge(made, static_cast<uint32_t>(n));
    }
  }
  for (const NodePtr& node : nodes_) {
    if (inside.count(node.get())) continue;
    for (Edge& edge : node->next_edges()) {
      const Edge* other = moved_to(edge);
      if (!other) continue;
      replaced_.emplace_back(&edge, edge);
      edge = *other;
    }
  }
  std::vector<Edge> roots;
  for (const Edge& root : roots_) {
    const Edge* other = moved_to(root);
    roots.push_back(other ? *other : Edge());
  }
  return roots;
}

void AutogradGraph::restore() {
  for (auto& [edge, before] : replaced_) *edge = std::move(before);
  replaced_.clear();
}

}  // namespace kiln
