#include "executor/arena.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <numeric>

#include "executor/program.h"

namespace kiln {

namespace {

constexpr int64_t kAlignment = 64;
constexpr size_t kMaxFreeBlocks = 8;

int64_t aligned(int64_t bytes) {
  return (std::max<int64_t>(bytes, 0) + kAlignment - 1) / kAlignment * kAlignment;
}

bool lives_meet(const RawBuffer& a, const RawBuffer& b) {
  return a.first <= b.last && b.first <= a.last;
}

}  // namespace

void Placement::update(const Program& program, const int64_t* ints) {
  const std::vector<RawBuffer>& buffers = program.buffers;
  bool changed = sizes.size() != buffers.size();
  sizes.resize(buffers.size());
  for (size_t n = 0; n < buffers.size(); n++) {
    const Layout& layout = program.layouts[static_cast<size_t>(buffers[n].layout)];
    int64_t size = aligned(ints[layout.bytes]);
    changed |= sizes[n] != size;
    sizes[n] = size;
  }
  if (!changed) return;
  // Largest first, each at the lowest offset where none that is alive at the same time stands.
  std::vector<size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });
  offsets.assign(buffers.size(), 0);
  total = 0;
  std::vector<size_t> placed;  // by offset
  for (size_t one : order) {
    int64_t offset = 0;
    for (size_t other : placed) {
      if (!lives_meet(buffers[one], buffers[other])) continue;
      if (offsets[other] - offset >= sizes[one]) break;
      offset = std::max(offset, offsets[other] + sizes[other]);
    }
    offsets[one] = offset;
    total = std::max(total, offset + sizes[one]);
    auto place = std::upper_bound(placed.begin(), placed.end(), offset,
                                  [&](int64_t at, size_t other) { return at < offsets[other]; });
    placed.insert(place, one);
  }
}

ArenaPool& ArenaPool::instance() {
  // Never destroyed: threads of torch may still run when the process ends.
  static ArenaPool* pool = new ArenaPool();
  return *pool;
}

Block ArenaPool::take(int64_t bytes) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto best = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->bytes >= bytes && (best == free_.end() || it->bytes < best->bytes)) best = it;
    }
    if (best != free_.end()) {
      Block block = std::move(*best);
      free_.erase(best);
      return block;
    }
    if (!free_.empty()) {
      // All are too small: the new one replaces the largest of them.
      free_.erase(std::max_element(free_.begin(), free_.end(), [](const Block& a, const Block& b) {
        return a.bytes < b.bytes;
      }));
    }
  }
  return Block{c10::GetCPUAllocator()->allocate(static_cast<size_t>(bytes)), bytes};
}

void ArenaPool::give_back(Block block) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (free_.size() == kMaxFreeBlocks) free_.erase(free_.begin());
  free_.push_back(std::move(block));
}

int64_t ArenaPool::release() {
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t bytes = 0;
  for (const Block& block : free_) bytes += block.bytes;
  free_.clear();
  return bytes;
}

int64_t ArenaPool::held() const {
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t bytes = 0;
  for (const Block& block : free_) bytes += block.bytes;
  return bytes;
}

}  // namespace kiln
