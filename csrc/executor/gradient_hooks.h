// Does the engine of autograd show a gradient to anybody on its way?
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

namespace kiln {

// By rising need: a hook that sees the gradient of a gradient cannot be called by a copy of the
// graph.
enum class Observed : uint8_t { kNo, kAskedFor, kHooked };

// In the present backward: was the gradient of the tensor at this edge asked for, or is there a
// hook on it, or on its node, or does it retain its gradient?
Observed observed(const torch::autograd::Edge& edge);

// Does the node store gradients in a leaf? And is there a hook that sees when it does?
bool is_leaf(const torch::autograd::Node& node);
bool is_hooked_leaf(torch::autograd::Node& node);

}  // namespace kiln
