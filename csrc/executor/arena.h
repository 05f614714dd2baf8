// Where the buffers that only kernels touch stand in the arena of a call.
#pragma once

#include <cstdint>
#include <vector>

namespace kiln {

struct Program;

// Where each buffer of a plan stands in the arena, for given sizes.
struct Placement {
  std::vector<int64_t> sizes;  // bytes, in the order of Program::buffers
  std::vector<int64_t> offsets;
  int64_t total = 0;

  // Recomputes where the sizes differ from the last call's; buffers whose lives meet do not
  // overlap.
  void update(const Program& program, const int64_t* ints);
};

}  // namespace kiln
