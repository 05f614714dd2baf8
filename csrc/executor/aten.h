// The dispatcher behind types that need no ATen header; only aten.cpp includes those.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <memory>
#include <utility>

#include "executor/program.h"
#include "executor/value.h"

namespace kiln {

// Registers and slots of a running call, as far as ATen steps use them.
struct CallView {
  const Program* program;
  Value* slots;
  const int64_t* ints;
  const double* floats;
};

// An ATen step with its operator and constant arguments looked up.
class AtenCall {
 public:
  virtual ~AtenCall() = default;
  virtual void run(const CallView& call) const = 0;
};

// Throws PlanError(kOperator) for an operator that does not exist or does not take the arguments.
std::shared_ptr<const AtenCall> resolve(const AtenStep& step);

TensorPtr empty_strided(const Layout& layout, const int64_t* ints);
void copy_into(const c10::TensorImpl& target, const c10::TensorImpl& source);
// A copy with the same strides, whose first element starts the memory.
TensorPtr copy_of_span(c10::Allocator& allocator, const c10::TensorImpl& source);
// Through the whole dispatcher: autograd sees the view where it is on.
TensorPtr view_of(const c10::TensorImpl& base, caffe2::TypeMeta dtype, c10::IntArrayRef sizes,
                  c10::IntArrayRef strides, int64_t offset);
int64_t read_int(const c10::TensorImpl& tensor);
double read_float(const c10::TensorImpl& tensor);
bool read_bool(const c10::TensorImpl& tensor);
// Until the collective that writes the tensor has ended.
void wait_for(const c10::TensorImpl& tensor);
// (seed, offset) of a CUDA device, drawn as kiln.plan.random.draw_seed does: the generator's
// state on the host. An index of -1 is the current device.
std::pair<int64_t, int64_t> draw_seed(int32_t device_index, int64_t increment);
// A random seed and offset 0, written by operators on the device of `pair`, an int64[2].
void draw_seed_into(TensorPtr pair);
// Torch's allocator for the device; nullptr if its tensors have none.
c10::Allocator* allocator_of(c10::Device device);

using RangeFunction = void (*)(const void* context, int64_t begin, int64_t end);
// at::parallel_for: on torch's own threads.
void parallel_range(int64_t units, int64_t grain, RangeFunction function, const void* context);

}  // namespace kiln
