#include "executor/gradient_parts.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

#include "executor/autograd_node.h"

namespace kiln {

namespace {

namespace ag = torch::autograd;

class PartNode final : public ag::Node {
 public:
  PartNode(std::string name, std::shared_ptr<GradientParts> parts, size_t part)
      : name_(std::move(name)), parts_(std::move(parts)), part_(part) {}

  std::string name() const override { return name_; }

  ag::variable_list apply(ag::variable_list&& token) override {
    try {
      return parts_->next(part_);
    } catch (const RaisedError& error) {
      throw_to_engine(error);
    }
  }

 private:
  std::string name_;
  std::shared_ptr<GradientParts> parts_;
  size_t part_;
};

}  // namespace

GradientParts::GradientParts(const std::vector<int32_t>& parts)
    : members_(static_cast<size_t>(*std::max_element(parts.begin(), parts.end())) + 1),
      connected_(parts.size()),
      functions_(parts.size()) {
  for (size_t n = 0; n < parts.size(); n++) members_[static_cast<size_t>(parts[n])].push_back(n);
}

void GradientParts::split(const std::string& name, ag::edge_list& edges, c10::Device device) {
  for (size_t n = 0; n < connected_.size(); n++) {
    connected_[n] = edges[n].is_valid();
    functions_[n] = edges[n].function.get();
  }
  token_ = at::empty({0}, at::TensorOptions().device(device));
  ag::Edge following;
  for (size_t part = members_.size() - 1; part > 0; part--) {
    auto node = new_node<PartNode>(name, shared_from_this(), part);
    ag::edge_list own;
    for (size_t n : members_[part]) own.push_back(std::move(edges[n]));
    for (size_t n : members_[part]) edges[n] = ag::Edge();
    if (following.is_valid()) own.push_back(std::move(following));
    node->set_next_edges(std::move(own));
    following = ag::Edge(node, node->add_input_metadata(token_));
  }
  edges.push_back(std::move(following));
}

std::vector<bool> GradientParts::needed() const {
  std::vector<bool> needed = connected_;
  const auto* asked = ag::get_current_graph_task_exec_info();
  if (!asked || asked->empty()) return needed;
  for (size_t n = 0; n < needed.size(); n++) {
    auto found = asked->find(functions_[n]);
    needed[n] = needed[n] && found != asked->end() && found->second.should_execute();
  }
  return needed;
}

ag::variable_list GradientParts::begin(std::unique_ptr<PausedCall> call,
                                       ag::variable_list gradients) {
  ag::variable_list first(gradients.size() + 1);
  for (size_t n : members_[0]) first[n] = std::move(gradients[n]);
  first.back() = token_;
  int task = ag::get_current_graph_task_id();
  if (task < 0) return first;  // the node is called by itself
  {
    std::lock_guard<std::mutex> lock(mutex_);
    under_way_[task] = {std::move(call), std::move(gradients)};
  }
  // Where a backward ends before the chain does, nothing else drops what is left.
  ag::Engine::get_default_engine().queue_callback([parts = shared_from_this(), task] {
    std::lock_guard<std::mutex> lock(parts->mutex_);
    parts->under_way_.erase(task);
  });
  return first;
}

ag::variable_list GradientParts::next(size_t part) {
  int task = ag::get_current_graph_task_id();
  Backward backward;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = under_way_.find(task);
    if (found == under_way_.end()) return ag::variable_list(num_handed_on(part));
    backward = std::move(found->second);
    under_way_.erase(found);
  }
  if (backward.call) {
    std::vector<Value> results = backward.call->go_on();
    if (is_last(part)) backward.call.reset();  // its references to the results
    for (size_t n : members_[part]) {
      if (connected_[n] && results[n].is_tensor()) {
        backward.gradients[n] = at::Tensor(results[n].take());
      }
    }
  }
  ag::variable_list made = taken(backward.gradients, part);
  if (is_last(part)) return made;
  made.push_back(token_);
  std::lock_guard<std::mutex> lock(mutex_);
  under_way_[task] = std::move(backward);
  return made;
}

ag::variable_list GradientParts::taken(ag::variable_list& gradients, size_t part) {
  ag::variable_list made;
  for (size_t n : members_[part]) made.push_back(std::move(gradients[n]));
  return made;
}

}  // namespace kiln
