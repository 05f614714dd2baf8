// From a decoded plan to one that can run: operators and C++ kernels are found, device kernels
// loaded.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "executor/device.h"
#include "executor/program.h"

namespace kiln {

using KernelImages = std::map<std::string, KernelImage>;

// The compiled kernels of a plan, by symbol.
struct Kernels {
  std::function<void*(const char* symbol)> find_cpp;  // null: there is none
  KernelImages images;
};

// Throws PlanError(kOperator), PlanError(kProgram) and PlanError(kDevice).
void connect(Program& program, const Kernels& kernels);

}  // namespace kiln
