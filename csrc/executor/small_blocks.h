// Blocks of a few kilobytes for CPU tensors of plans.
//
// The C library searches its heap for each aligned block, even if the same size was just freed: a
// third of the time of a small plan. A thread keeps what it frees, by size: 64, 128, ... bytes.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>

namespace kiln {

inline constexpr size_t kLargestSmall = 8 << 10;

// `bytes`: from 1 to `kLargestSmall`. The block may be freed on any thread.
c10::DataPtr allocate_small(size_t bytes);

}  // namespace kiln
