// Operators of our own for oneDNN's recurrent layers. What they compute depends on whether
// gradients are enabled, which they never are within a plan.
//
//   kiln::mkldnn_rnn_layer            aten's, with the workspace that its backward reads
//   kiln::mkldnn_rnn_layer_backward   aten's, which runs the layer again for its workspace
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

namespace {

constexpr const char* kForward =
    "mkldnn_rnn_layer(Tensor input, Tensor weight0, Tensor weight1, Tensor weight2, Tensor weight3,"
    " Tensor hx_, Tensor cx_, bool reverse, int[] batch_sizes, int mode, int hidden_size,"
    " int num_layers, bool has_biases, bool bidirectional, bool batch_first, bool train)"
    " -> (Tensor, Tensor, Tensor, Tensor)";
constexpr const char* kBackward =
    "mkldnn_rnn_layer_backward(Tensor input, Tensor weight1, Tensor weight2, Tensor weight3,"
    " Tensor weight4, Tensor hx_, Tensor cx_tmp, Tensor output, Tensor hy_, Tensor cy_,"
    " Tensor? grad_output, Tensor? grad_hy, Tensor? grad_cy, bool reverse, int mode,"
    " int hidden_size, int num_layers, bool has_biases, bool train, bool bidirectional,"
    " int[] batch_sizes, bool batch_first)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)";

// Where the arguments of the layer are among those of its backward, in the order of the layer.
constexpr size_t kLayer[] = {0, 1, 2, 3, 4, 5, 6, 13, 20, 14, 15, 16, 17, 19, 21, 18};

const c10::OperatorHandle& layer() {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::mkldnn_rnn_layer", "");
  return op;
}

void forward(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  c10::AutoGradMode enabled(true);
  layer().callBoxed(*stack);
}

void backward(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::mkldnn_rnn_layer_backward", "");
  size_t first = stack->size() - op.schema().arguments().size() + 1;
  torch::jit::Stack again;
  for (size_t place : kLayer) again.push_back((*stack)[first + place]);
  {
    c10::AutoGradMode enabled(true);
    layer().callBoxed(again);
  }
  stack->push_back(again.back());
  op.callBoxed(*stack);
}

}  // namespace

TORCH_LIBRARY(kiln, library) {
  library.def(kForward);
  library.def(kBackward);
}

TORCH_LIBRARY_IMPL(kiln, CPU, library) {
  library.impl("mkldnn_rnn_layer", torch::CppFunction::makeFromBoxedFunction<&forward>());
  library.impl("mkldnn_rnn_layer_backward", torch::CppFunction::makeFromBoxedFunction<&backward>());
}
