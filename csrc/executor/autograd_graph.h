// A part of autograd's graph as the compiler of eager backwards sees it, and its replacement by
// compiled nodes while the engine runs.
#pragma once

#include <torch/csrc/autograd/edge.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "executor/autograd_node.h"
#include "executor/callable.h"

namespace kiln {

// Several nodes that become one; numbers are positions in `AutogradGraph::nodes`.
struct SegmentSpec {
  std::vector<int32_t> members;
  std::vector<std::pair<int32_t, uint32_t>> slots;    // inputs of members that others fill
  std::vector<std::pair<int32_t, uint32_t>> targets;  // inputs of other nodes that members fill
  std::shared_ptr<PyObject> prepare;
};

class AutogradGraph {
 public:
  using Edge = torch::autograd::Edge;

  // What a backward from `roots` runs, in the engine's order; nodes that accumulate come last.
  // With `wanted` edges, what their gradients need; a node with a wanted edge counts as observed.
  AutogradGraph(std::vector<Edge> roots, const std::vector<Edge>& wanted);
  ~AutogradGraph() { restore(); }

  const std::vector<NodePtr>& nodes() const { return nodes_; }
  const std::vector<Edge>& roots() const { return roots_; }
  // -1 for a node that the backward does not run.
  int32_t position(const Edge& edge) const {
    auto found = positions_.find(edge.function.get());
    return found == positions_.end() ? -1 : found->second;
  }
  // Edges by position, layouts of gradients and what observes them: equal for equal graphs.
  const std::string& structure() const { return structure_; }
  // Does something besides autograd see the gradients at this node, or are they no plain tensors?
  bool is_observed(size_t position) const { return observed_[position]; }

  // Puts a node in the place of each segment; segments come in the engine's order. Returns where
  // the roots lead: the new node and its input, or an edge without a node where nothing changed.
  std::vector<Edge> splice(const std::vector<SegmentSpec>& segments);
  void restore();

 private:
  void find_needed(const std::vector<Edge>& wanted);
  void order();
  void describe(const std::vector<Edge>& wanted);

  std::vector<Edge> roots_;
  std::vector<NodePtr> nodes_;
  std::unordered_map<torch::autograd::Node*, int32_t> positions_;
  std::vector<bool> observed_;
  std::string structure_;
  std::vector<std::pair<Edge*, Edge>> replaced_;
};

}  // namespace kiln
