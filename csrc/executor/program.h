// A plan as the executor holds it: decoded once from the words that kiln/plan/encode.py writes.
//
// Sizes are registers, `ints[r]`, computed on entry to a call. A vector (sizes of a layout,
// integers of a launch) is a run of neighbouring registers, which steps read in place.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/typeid.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "executor/program_format.h"

namespace kiln {

class DeviceRuntime;

// What a C++ kernel is; see kiln.plan.plan.Kernel.
using KernelFunction = void (*)(void* const* tensors, const int64_t* ints, const double* floats,
                                int64_t begin, int64_t end, void* scratch, int64_t* status);

struct Operation {
  OperationKind kind;
  Register target, a, b;
};

// Layout of a tensor; all but dtype, device and rank are registers.
struct Layout {
  c10::ScalarType dtype;
  caffe2::TypeMeta meta;
  int64_t itemsize;
  int8_t device_type;
  int8_t device_index;
  int32_t rank;
  Register sizes, strides, offset, bytes;
};

struct Input {
  std::string name;
  ScalarKind scalar;
  Register number;  // of a scalar; of a tensor: is it copied into the layout if that differs?
  LayoutIndex layout;
};

struct Binding {
  BindingKind kind;
  Slot slot;
  int32_t dim;
  Register target;
};

struct KernelEntry {
  std::string symbol;
  bool on_device;                // a GPU kernel, not a C++ function
  std::vector<uint8_t> written;  // per tensor parameter
  KernelFunction function = nullptr;
};

// A buffer of the arena, live from step `first` to step `last`.
struct RawBuffer {
  int32_t first, last;
  LayoutIndex layout;
};

struct Argument {
  ArgumentKind kind;
  int64_t value = 0;
  int64_t count = 0;
  std::string text;
  std::vector<Argument> items;
};

struct Step {
  int32_t origin;  // the user's line: number of a string
  StepData data;
};

struct Output {
  OutputKind kind;
  int32_t operand;
  LayoutIndex layout;     // of a rebuilt view
  Register shift;         // its offset, counted from the offset of the base
  bool is_early = false;  // does a step hand it over?
};

struct Program {
  Program();
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  std::string name;
  int32_t num_slots = 0;
  int32_t num_constants = 0;
  std::vector<Input> inputs;
  std::vector<Binding> bindings;
  std::vector<Layout> layouts;
  std::vector<KernelEntry> kernels;
  std::vector<RawBuffer> buffers;
  std::vector<Step> steps;
  std::vector<Output> outputs;
  bool has_views = false;                   // must an output be rebuilt as a view?
  bool hands_over = false;                  // are there results before the end?
  DeviceRuntime* runtime = nullptr;         // of the GPU, where the program uses one
  std::vector<DeviceIndex> status_devices;  // whose kernels report a status
  bool aligned = false;                     // do GPU kernels assume 16-byte alignment?
  std::vector<Slot> aligned_inputs;         // inputs that such kernels may read
  bool logged = false;                      // does the runtime log the steps?
  std::vector<int64_t> ints;
  std::vector<double> floats;
  std::vector<std::vector<Operation>> segments;
  std::vector<Slot> mutated, donated, bumped;
  std::vector<std::string> strings;
};

// Become coded errors in kiln/runtime/executor.py.
enum class ErrorKind : int { kStatus, kInput, kCheck, kOperator, kProgram, kDevice };

struct PlanError : std::exception {
  PlanError(ErrorKind kind, int64_t value, std::string detail)
      : kind(kind), value(value), detail(std::move(detail)) {}
  const char* what() const noexcept override { return detail.c_str(); }

  ErrorKind kind;
  int64_t value;
  std::string detail;
  std::string origin;
};

// Throws PlanError(kProgram) for bytes of another format.
std::unique_ptr<Program> decode_program(const char* data, size_t size);

inline int64_t floor_div(int64_t a, int64_t b) {
  int64_t quotient = a / b;
  return quotient - (a % b != 0 && ((a < 0) != (b < 0)));
}

// Fills the registers that one segment defines.
inline void compute(const std::vector<Operation>& operations, int64_t* ints, double* floats) {
  for (const Operation& op : operations) {
    switch (op.kind) {
      case OperationKind::kAdd:
        ints[op.target] = ints[op.a] + ints[op.b];
        break;
      case OperationKind::kMul:
        ints[op.target] = ints[op.a] * ints[op.b];
        break;
      case OperationKind::kFloorDiv:
      case OperationKind::kMod:
        if (ints[op.b] == 0) throw PlanError(ErrorKind::kStatus, 2, "a size expression");
        ints[op.target] = op.kind == OperationKind::kFloorDiv
                              ? floor_div(ints[op.a], ints[op.b])
                              : ints[op.a] - ints[op.b] * floor_div(ints[op.a], ints[op.b]);
        break;
      case OperationKind::kMin:
        ints[op.target] = std::min(ints[op.a], ints[op.b]);
        break;
      case OperationKind::kMax:
        ints[op.target] = std::max(ints[op.a], ints[op.b]);
        break;
      case OperationKind::kMov:
        ints[op.target] = ints[op.a];
        break;
      case OperationKind::kIntToFloat:
        floats[op.target] = static_cast<double>(ints[op.a]);
        break;
      case OperationKind::kFloatMov:
        floats[op.target] = floats[op.a];
        break;
    }
  }
}

}  // namespace kiln
