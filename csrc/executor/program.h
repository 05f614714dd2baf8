// A plan as the executor holds it: decoded once from the words that kiln/plan/encode.py writes.
//
// Sizes are registers: `ints[r]`, filled by operations at the entry of a call. A vector (sizes of a
// layout, integers of a launch) is a run of neighbouring registers, so a step reads it in place.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/typeid.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace kiln {

class DeviceKernel;
class DeviceRuntime;
struct KernelImage;

using Slot = int32_t;
using Register = int32_t;
inline constexpr int32_t kNone = -1;

// What a C++ kernel is; see kiln.plan.plan.Kernel.
using KernelFunction = void (*)(void* const* tensors, const int64_t* ints, const double* floats,
                                int64_t begin, int64_t end, void* scratch, int64_t* status);

// Numbers of kiln/plan/encode.py, in its order.
enum class StepKind : uint8_t {
  kAllocate,
  kAllocateReuse,
  kRawAllocate,
  kLaunch,
  kCallAten,
  kView,
  kRawView,
  kCopy,
  kConstant,
  kHostRead,
  kCheckRelation,
  kCheckTensor,
  kRandomSeed,
  kFree,
  kBranch,
};
enum class ArgumentKind : uint8_t {
  kNone,
  kSlot,
  kInt,
  kIntRegister,
  kFloat,
  kFloatRegister,
  kBool,
  kBoolRegister,
  kString,
  kDtype,
  kDevice,
  kList,
  kInts,
  kMemoryFormat,
  kLayout,
};
enum class OutputKind : uint8_t { kNone, kSlot, kInt, kFloat, kBool, kInput, kOutput };
enum class OperationKind : uint8_t {
  kAdd,
  kMul,
  kFloorDiv,
  kMod,
  kMin,
  kMax,
  kMov,
  kIntToFloat,
  kFloatMov,
};
enum class BindingKind : uint8_t { kSize, kStride, kOffset };
enum class ScalarKind : int8_t { kTensor = -1, kInt, kFloat, kBool };
enum class RelationKind : uint8_t { kEq, kNe, kLe };

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
  Register
      number;  // where a scalar goes; of a tensor: is it copied into the layout on a difference?
  int32_t layout;
};

struct Binding {
  BindingKind kind;
  Slot slot;
  int32_t dim;
  Register target;
};

struct KernelEntry {
  std::string symbol;
  bool on_device;                // not a C++ function
  std::vector<uint8_t> written;  // per tensor parameter
  KernelFunction function = nullptr;
};

// A buffer of the arena: it lives from step `first` to step `last`.
struct RawBuffer {
  Slot slot;
  int32_t first, last;
  int32_t layout = kNone;
};

// What the letters mean is said where each kind of step runs (run.cpp).
struct Step {
  StepKind kind;
  int32_t origin;
  int32_t a = kNone, b = kNone, c = kNone, d = kNone;
};

struct Launch {
  int32_t kernel;
  std::vector<Slot> tensors;
  Register ints, floats, units, grain, scratch, grid;
  int32_t grid_rank;
  int32_t num_ints;
  int8_t device;                         // index, or -1 for the current one
  std::shared_ptr<DeviceKernel> loaded;  // of a kernel that is no C++ function
};

struct Argument {
  ArgumentKind kind;
  int64_t value = 0;
  int64_t count = 0;
  std::string text;
  std::vector<Argument> items;
};

class AtenCall;  // resolved against the dispatcher, see aten.h

struct CallSpec {
  std::string target;
  std::vector<Argument> args;
  std::vector<std::pair<std::string, Argument>> kwargs;
  std::vector<Slot> outs;
  std::vector<int32_t> layouts;
};

struct Program;

struct Branch {
  std::vector<Slot> args, outs;
  std::unique_ptr<Program> if_true, if_false;
};

struct Output {
  OutputKind kind;
  int32_t operand;
  int32_t layout;  // of a rebuilt view
  Register shift;  // its offset, counted from the offset of the base
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
  std::vector<Launch> launches;
  std::vector<CallSpec> calls;
  std::vector<std::shared_ptr<const AtenCall>> resolved;
  std::vector<std::vector<Slot>> frees;
  std::vector<Branch> branches;
  std::vector<Output> outputs;
  bool has_views = false;              // does an output have to be rebuilt?
  DeviceRuntime* runtime = nullptr;    // of the device of kernels that are no C++ functions
  std::vector<int8_t> status_devices;  // where such kernels report
  bool aligned = false;                // do such kernels take memory to start at 16 bytes?
  std::vector<Slot> aligned_inputs;    // the inputs that they may read
  bool noted = false;                  // does the runtime write down the steps?
  std::vector<int64_t> ints;
  std::vector<double> floats;
  std::vector<std::vector<Operation>> segments;
  std::vector<Slot> mutated, donated;
  std::vector<std::string> strings;
};

// Where the kinds of errors are turned into coded ones: kiln/runtime/executor.py.
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
  for (const Operation& one : operations) {
    switch (one.kind) {
      case OperationKind::kAdd:
        ints[one.target] = ints[one.a] + ints[one.b];
        break;
      case OperationKind::kMul:
        ints[one.target] = ints[one.a] * ints[one.b];
        break;
      case OperationKind::kFloorDiv:
      case OperationKind::kMod:
        if (ints[one.b] == 0) throw PlanError(ErrorKind::kStatus, 2, "a size expression");
        ints[one.target] = one.kind == OperationKind::kFloorDiv
                               ? floor_div(ints[one.a], ints[one.b])
                               : ints[one.a] - ints[one.b] * floor_div(ints[one.a], ints[one.b]);
        break;
      case OperationKind::kMin:
        ints[one.target] = std::min(ints[one.a], ints[one.b]);
        break;
      case OperationKind::kMax:
        ints[one.target] = std::max(ints[one.a], ints[one.b]);
        break;
      case OperationKind::kMov:
        ints[one.target] = ints[one.a];
        break;
      case OperationKind::kIntToFloat:
        floats[one.target] = static_cast<double>(ints[one.a]);
        break;
      case OperationKind::kFloatMov:
        floats[one.target] = floats[one.a];
        break;
    }
  }
}

}  // namespace kiln
