// From a decoded plan to one that can run: operators are looked up, device kernels loaded.
#pragma once

#include <map>
#include <string>

#include "executor/device.h"
#include "executor/program.h"

namespace kiln {

using KernelImages = std::map<std::string, KernelImage>;

// Throws PlanError(kOperator) and PlanError(kDevice).
void connect(Program& program, const KernelImages& images);

}  // namespace kiln
