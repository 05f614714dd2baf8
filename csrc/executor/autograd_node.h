// Nodes of autograd, whose pointers differ between versions of torch.
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace kiln {

// std::shared_ptr up to torch 2.12, c10::intrusive_ptr from 2.13.
using NodePtr = decltype(torch::autograd::Edge::function);

template <typename T, typename... Args>
auto new_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>) {
    return std::make_shared<T>(std::forward<Args>(args)...);
  } else {
    return c10::make_intrusive<T>(std::forward<Args>(args)...);
  }
}

}  // namespace kiln
