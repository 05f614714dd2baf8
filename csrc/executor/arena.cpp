#include "executor/arena.h"

#include <algorithm>
#include <numeric>

#include "executor/program.h"

namespace kiln {

namespace {

constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t bytes) {
  return (std::max<int64_t>(bytes, 0) + kAlignment - 1) / kAlignment * kAlignment;
}

bool live_together(const RawBuffer& a, const RawBuffer& b) {
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
  // Largest first, each at the lowest offset that is free during its life.
  std::vector<size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });
  offsets.assign(buffers.size(), 0);
  total = 0;
  std::vector<size_t> placed;  // by offset
  for (size_t buffer : order) {
    int64_t offset = 0;
    for (size_t other : placed) {
      if (!live_together(buffers[buffer], buffers[other])) continue;
      if (offsets[other] - offset >= sizes[buffer]) break;
      offset = std::max(offset, offsets[other] + sizes[other]);
    }
    offsets[buffer] = offset;
    total = std::max(total, offset + sizes[buffer]);
    auto place = std::upper_bound(placed.begin(), placed.end(), offset,
                                  [&](int64_t at, size_t other) { return at < offsets[other]; });
    placed.insert(place, buffer);
  }
}

}  // namespace kiln
