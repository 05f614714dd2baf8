// A relation between integers as a postfix program.
#pragma once

#include <vector>

#include "frames/tensor.h"

namespace kiln {

enum class ShapeOp : uint8_t {
  kConstant,
  kOperand,
  kAdd,
  kSub,
  kMul,
  kFloorDiv,
  kMod,
  kMin,
  kMax,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kAnd,
  kOr,
  kNot,
  kNegate,
};

struct ShapeStep {
  ShapeOp op;
  int64_t number;  // the constant, or the index of the operand
};

struct ShapeOperand {
  int kind;  // an Extent, or 3: the node's value is a Python int
  int node;
  int64_t dim;
};

struct ShapeProgram {
  std::vector<ShapeStep> steps;
  std::vector<ShapeOperand> operands;

  // `values` are the nodes' values. Also false on overflow, division by zero and missing operands.
  bool holds(PyObject* const* values) const;
};

inline constexpr int kMaxShapeStack = 64;

// From ((op, number), ...) and ((kind, node, dim), ...).
bool parse_shape_program(PyObject* steps, PyObject* operands, ShapeProgram* out);

}  // namespace kiln
