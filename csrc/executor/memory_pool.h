// CPU buffers, kept between the calls of plans.
//
// The C library returns large blocks to the system, and gets fresh pages that the system has to
// clear: for activations that costs more than the arithmetic of a pointwise kernel.
// While a plan runs in a thread, what torch's allocator hands out there (results of ATen steps
// included) comes from a heap of our own; outside of plans nothing changes. Buffers of a few
// kilobytes come from lists of each thread, since the C library is slow to align them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kiln {

// While an object of it lives, this thread runs a plan; a profiler may count what it allocates.
class PlanScope {
 public:
  explicit PlanScope(bool profiled);
  ~PlanScope();
  PlanScope(const PlanScope&) = delete;
  PlanScope& operator=(const PlanScope&) = delete;
};

struct PoolBytes {
  int64_t in_use;  // handed out and not freed yet
  int64_t kept;    // ready for the next call
};

// Puts the pool in front of torch's CPU allocator, once.
void install_memory_pool();
PoolBytes pool_bytes();
// Frees what is kept; returns the bytes.
int64_t release_pool();

}  // namespace kiln
