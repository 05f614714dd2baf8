// The words of a program: what kiln/plan/encode.py writes and program.cpp reads.
// Written by tools/plan_header.py from kiln/plan/program_format.py; a test compares them.
// clang-format off
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

namespace kiln {

class AtenCall;      // aten.h
class DeviceKernel;  // device.h
struct Argument;     // program.h
struct Program;

using Slot = int32_t;
using Register = int32_t;
using LayoutIndex = int32_t;
using DeviceIndex = int8_t;  // -1: the current device
inline constexpr int32_t kNone = -1;

struct DevicePlace {
  int8_t type;
  DeviceIndex index;
};

inline constexpr int64_t kMagic = 0x4e4c494b;
inline constexpr int64_t kFormat = 0x6a57b594;

// An argument of an ATen step: what the words behind the kind are.
enum class ArgumentKind : int8_t { kNone = 0, kSlot, kInt, kIntRegister, kFloat, kFloatRegister,
  kBool, kBoolRegister, kString, kDtype, kDevice, kList, kInts, kMemoryFormat, kLayout };
// An output of the plan; the last three name a slot, an input or an earlier output, or a view of it.
enum class OutputKind : int8_t { kNone = 0, kInt, kFloat, kBool, kSlot, kInput, kOutput };
// Arithmetic on registers: target, a, b.
enum class OperationKind : int8_t { kAdd = 0, kMul, kFloorDiv, kMod, kMin, kMax, kMov, kIntToFloat,
  kFloatMov };
// What of an input tensor a symbol is.
enum class BindingKind : int8_t { kSize = 0, kStride, kOffset };
// Type of an input or of a number read on the host.
enum class ScalarKind : int8_t { kTensor = -1, kInt, kFloat, kBool };
// How a difference must compare with 0.
enum class RelationKind : int8_t { kEq = 0, kNe, kLe };

// Steps. `fields`: those that are in the words, in that order.
struct AllocateStep {
  Slot out;
  LayoutIndex layout;
  Slot reuse;
  auto fields() { return std::tie(out, layout, reuse); }
};
struct RawAllocateStep {
  Slot out;
  LayoutIndex layout;
  Slot ended;
  int32_t buffer;
  auto fields() { return std::tie(out, layout, ended, buffer); }
};
struct ViewStep {
  Slot out, base;
  LayoutIndex layout;
  Register shift;
  auto fields() { return std::tie(out, base, layout, shift); }
};
struct CopyStep {
  Slot target, source;
  auto fields() { return std::tie(target, source); }
};
struct ConstantStep {
  Slot out;
  int32_t index;
  auto fields() { return std::tie(out, index); }
};
struct FreeStep {
  std::vector<Slot> slots;
  auto fields() { return std::tie(slots); }
};
struct HandOverStep {
  std::vector<int32_t> outputs;
  auto fields() { return std::tie(outputs); }
};
struct LaunchStep {
  int32_t kernel;
  std::vector<Slot> tensors;
  Register ints, floats, units, grain, scratch, grid;
  int32_t grid_rank, num_ints;
  Register rows;
  int32_t num_rows;
  DeviceIndex device;
  std::shared_ptr<DeviceKernel> loaded;
  int32_t report;
  auto fields() { return std::tie(kernel, tensors, ints, floats, units, grain, scratch, grid,
    grid_rank, num_ints, rows, num_rows, device); }
};
struct AtenStep {
  std::string target;
  std::vector<Argument> args;
  std::vector<std::pair<std::string, Argument>> kwargs;
  std::vector<Slot> outs;
  std::vector<LayoutIndex> layouts;
  std::shared_ptr<const AtenCall> resolved;
  auto fields() { return std::tie(target, args, kwargs, outs, layouts); }
};
struct RandomSeedStep {
  Slot out;
  DevicePlace device;
  Register increment;
  auto fields() { return std::tie(out, device, increment); }
};
struct WaitStep {
  Slot source;
  auto fields() { return std::tie(source); }
};
struct HostReadStep {
  Slot source;
  ScalarKind kind;
  Register target;
  int32_t segment;
  auto fields() { return std::tie(source, kind, target, segment); }
};
struct CheckRelationStep {
  RelationKind relation;
  Register difference;
  std::string message;
  auto fields() { return std::tie(relation, difference, message); }
};
struct CheckTensorStep {
  Slot condition;
  std::string message;
  auto fields() { return std::tie(condition, message); }
};
struct BranchStep {
  Slot condition;
  std::vector<Slot> args;
  Register sizes;
  int32_t num_sizes;
  std::vector<Slot> outs;
  std::unique_ptr<Program> if_true, if_false;
  auto fields() { return std::tie(condition, args, sizes, num_sizes, outs, if_true, if_false); }
};
struct LoopStep {
  std::vector<std::unique_ptr<Program>> test;
  std::unique_ptr<Program> body;
  Register count;
  std::vector<Slot> carried, rows, args;
  Register sizes;
  int32_t num_sizes;
  std::vector<Slot> outs;
  std::vector<LayoutIndex> layouts;
  auto fields() { return std::tie(test, body, count, carried, rows, args, sizes, num_sizes, outs,
    layouts); }
};
// In the order of the numbers that stand for them.
using StepData = std::variant<AllocateStep, RawAllocateStep, ViewStep, CopyStep, ConstantStep,
    FreeStep, HandOverStep, LaunchStep, AtenStep, RandomSeedStep, WaitStep, HostReadStep,
    CheckRelationStep, CheckTensorStep, BranchStep, LoopStep>;

}  // namespace kiln
