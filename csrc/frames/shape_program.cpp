#include "frames/shape_program.h"

#include <algorithm>

namespace kiln {
namespace {

bool load(const ShapeOperand& operand, PyObject* const* values, int64_t* out) {
  PyObject* value = values[operand.node];
  if (value == nullptr) return false;
  if (operand.kind < 3)
    return tensor_extent(value, static_cast<Extent>(operand.kind), operand.dim, out);
  if (!PyLong_CheckExact(value) && !PyBool_Check(value)) return false;
  int overflow = 0;
  *out = PyLong_AsLongLongAndOverflow(value, &overflow);
  return overflow == 0;
}

int64_t floor_div(int64_t a, int64_t b) {
  int64_t quotient = a / b;
  return quotient - ((a % b != 0) && ((a % b < 0) != (b < 0)));
}

// False on overflow and division by zero.
bool combine(ShapeOp op, int64_t a, int64_t b, int64_t* out) {
  switch (op) {
    case ShapeOp::kAdd:
      return !__builtin_add_overflow(a, b, out);
    case ShapeOp::kSub:
      return !__builtin_sub_overflow(a, b, out);
    case ShapeOp::kMul:
      return !__builtin_mul_overflow(a, b, out);
    case ShapeOp::kFloorDiv:
    case ShapeOp::kMod:
      if (b == 0 || (a == INT64_MIN && b == -1)) return false;
      return *out = op == ShapeOp::kMod ? a - floor_div(a, b) * b : floor_div(a, b), true;
    case ShapeOp::kMin:
      return *out = std::min(a, b), true;
    case ShapeOp::kMax:
      return *out = std::max(a, b), true;
    case ShapeOp::kEq:
      return *out = a == b, true;
    case ShapeOp::kNe:
      return *out = a != b, true;
    case ShapeOp::kLt:
      return *out = a < b, true;
    case ShapeOp::kLe:
      return *out = a <= b, true;
    case ShapeOp::kGt:
      return *out = a > b, true;
    case ShapeOp::kGe:
      return *out = a >= b, true;
    case ShapeOp::kAnd:
      return *out = a && b, true;
    case ShapeOp::kOr:
      return *out = a || b, true;
    default:
      return false;
  }
}

// How many values an op takes. Parsing checks the stack depth of the program.
int arity(ShapeOp op) {
  if (op == ShapeOp::kConstant || op == ShapeOp::kOperand) return 0;
  return op == ShapeOp::kNot || op == ShapeOp::kNegate ? 1 : 2;
}

}  // namespace

bool ShapeProgram::holds(PyObject* const* values) const {
  int64_t stack[kMaxShapeStack];
  int top = 0;
  for (const ShapeStep& step : steps) {
    switch (step.op) {
      case ShapeOp::kConstant:
        stack[top++] = step.number;
        break;
      case ShapeOp::kOperand:
        if (!load(operands[step.number], values, &stack[top++])) return false;
        break;
      case ShapeOp::kNot:
        stack[top - 1] = !stack[top - 1];
        break;
      case ShapeOp::kNegate:
        if (!combine(ShapeOp::kSub, 0, stack[top - 1], &stack[top - 1])) return false;
        break;
      default:
        top--;
        if (!combine(step.op, stack[top - 1], stack[top], &stack[top - 1])) return false;
    }
  }
  return stack[0] != 0;
}

bool parse_shape_program(PyObject* steps, PyObject* operands, ShapeProgram* out) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(operands); i++) {
    ShapeOperand operand;
    long long dim;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(operands, i), "iiL", &operand.kind, &operand.node, &dim))
      return false;
    operand.dim = dim;
    out->operands.push_back(operand);
  }
  int depth = 0;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(steps); i++) {
    int op;
    long long number;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(steps, i), "iL", &op, &number)) return false;
    ShapeStep step{static_cast<ShapeOp>(op), number};
    bool bad_operand =
        step.op == ShapeOp::kOperand && (number < 0 || number >= (long long)out->operands.size());
    if (op < 0 || op > static_cast<int>(ShapeOp::kNegate) || bad_operand ||
        depth < arity(step.op)) {
      PyErr_SetString(PyExc_ValueError, "malformed shape program");
      return false;
    }
    depth += 1 - arity(step.op);
    if (depth > kMaxShapeStack) {
      PyErr_SetString(PyExc_ValueError, "shape relation nested too deep");
      return false;
    }
    out->steps.push_back(step);
  }
  if (depth != 1) PyErr_SetString(PyExc_ValueError, "malformed shape program");
  return depth == 1;
}

}  // namespace kiln
