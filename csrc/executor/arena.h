// Memory of the buffers that only kernels touch.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>
#include <mutex>
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

struct Block {
  c10::DataPtr memory;
  int64_t bytes = 0;

  char* data() const { return static_cast<char*>(memory.get()); }
};

// Blocks that are not in use, shared by all plans of the process: what is kept is what the largest
// calls running at the same time needed.
class ArenaPool {
 public:
  static ArenaPool& instance();

  Block take(int64_t bytes);
  void give_back(Block block);
  // Frees what is not in use; returns the bytes.
  int64_t release();
  int64_t held() const;

 private:
  mutable std::mutex mutex_;
  std::vector<Block> free_;
};

}  // namespace kiln
