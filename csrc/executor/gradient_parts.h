// Gradients that leave a region part by part, along a chain of autograd nodes.
//
//     RegionNode --> inputs of part 0
//         '--------> PartNode 1 --> inputs of part 1
//                        '--------> PartNode 2 --> inputs of part 2
//
// A backward plan pauses where it hands a part over. The engine runs the nodes that accumulate
// gradients before the next node of the chain: what hangs on them (DDP's reductions, an optimizer
// in a hook) is under way while the plan goes on.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "executor/callable.h"

namespace kiln {

class GradientParts : public std::enable_shared_from_this<GradientParts> {
 public:
  // `parts`: of each input.
  explicit GradientParts(const std::vector<int32_t>& parts);

  // Leaves of `edges`, one for each input, those of part 0, and adds one to the chain, whose nodes
  // it makes. `device`: where they run.
  void split(const std::string& name, torch::autograd::edge_list& edges, c10::Device device);

  // Has the input a gradient?
  const std::vector<bool>& connected() const { return connected_; }
  // Does it lead to what the present graph task is asked for?
  std::vector<bool> needed() const;

  // Starts the backward of the present graph task; returns what the region's node hands on. `call`:
  // what makes the gradients of later parts; nullptr: all are there.
  torch::autograd::variable_list begin(std::unique_ptr<PausedCall> call,
                                       torch::autograd::variable_list gradients);

  // What the node of a part hands on.
  torch::autograd::variable_list next(size_t part);

 private:
  struct Backward {
    std::unique_ptr<PausedCall> call;
    torch::autograd::variable_list gradients;
  };

  bool is_last(size_t part) const { return part + 1 == members_.size(); }
  size_t num_handed_on(size_t part) const { return members_[part].size() + !is_last(part); }
  torch::autograd::variable_list taken(torch::autograd::variable_list& gradients, size_t part);

  std::vector<std::vector<size_t>> members_;  // by part: its inputs
  std::vector<bool> connected_;
  std::vector<torch::autograd::Node*> functions_;  // to which the gradients of inputs go
  at::Tensor token_;  // handed along the chain: the engine chooses a node's thread by its tensors
  std::mutex mutex_;
  std::map<int, Backward> under_way_;  // by graph task
};

}  // namespace kiln
