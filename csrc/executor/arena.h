// Offsets of the buffers that only kernels use, in the arena of a call.
#pragma once

#include <cstdint>
#include <vector>

namespace kiln {

struct Program;

// The offset of each buffer of a plan, for given sizes.
struct Placement {
  std::vector<int64_t> sizes;  // bytes, in the order of Program::buffers
  std::vector<int64_t> offsets;
  int64_t total = 0;

  // Recomputed if sizes differ from the last call's. Buffers that live at the same time do not
  // overlap.
  void update(const Program& program, const int64_t* ints);
};

}  // namespace kiln
