#include "executor/memory_heap.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>

namespace kiln {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kSegment = size_t{64} << 20;

size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

void* Heap::take(size_t bytes) {
  size_t size = rounded(bytes, kPage);
  auto block = fitting(size);
  if (block == blocks_.end()) {
    if (!reserve(size)) return nullptr;
    block = fitting(size);
  }
  if (block->second.state == State::kAbsent) {
    // New pages: first drop others if the limit would be exceeded.
    size_t most = std::max(limit(), in_use_ + size);
    shrink(most - size);
    block = fitting(size);  // dropped blocks may have been merged with it
  }
  remove_free(block);
  cut(block, size);
  block->second.state = State::kUsed;
  in_use_ += size;
  peak_ = std::max(peak_, in_use_);
  return block->first;
}

void Heap::give_back(void* address) {
  auto block = blocks_.find(static_cast<char*>(address));
  in_use_ -= block->second.size;
  add_free(block, State::kResident);
  shrink(limit());
}

bool Heap::owns(void* address) const {
  auto block = blocks_.find(static_cast<char*>(address));
  return block != blocks_.end() && block->second.state == State::kUsed;
}

void Heap::age() {
  last_peak_ = peak_;
  peak_ = in_use_;
  shrink(limit());
}

size_t Heap::release() {
  size_t bytes = kept_;
  shrink(0);
  return bytes;
}

// The most bytes to hold: the recent peak, and a quarter more for fragmentation.
size_t Heap::limit() const {
  size_t peak = std::max(peak_, last_peak_);
  return peak + peak / 4;
}

// The smallest free block that is large enough, a resident one if there is one.
Heap::Blocks::iterator Heap::fitting(size_t size) {
  for (FreeSet* set : {&resident_, &absent_}) {
    auto found = set->lower_bound({size, nullptr});
    if (found != set->end()) return blocks_.find(found->second);
  }
  return blocks_.end();
}

bool Heap::reserve(size_t size) {
  size_t bytes = std::max({rounded(size, kSegment), kSegment, rounded(reserved_ / 2, kSegment)});
  void* start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return false;
  auto* address = static_cast<char*>(start);
  reserved_ += bytes;
  segments_.push_back(address);
  auto block = blocks_.emplace(address, Block{bytes, State::kUsed}).first;
  add_free(block, State::kAbsent);
  return true;
}

// Leaves `size` bytes in the block; the rest becomes a free block of the same state.
void Heap::cut(Blocks::iterator block, size_t size) {
  size_t rest = block->second.size - size;
  if (rest == 0) return;
  State state = block->second.state;
  block->second.size = size;
  auto made = blocks_.emplace_hint(std::next(block), block->first + size, Block{rest, state});
  made->second.state = State::kUsed;
  block->second.state = State::kUsed;  // so that its rest is not merged with it
  add_free(made, state);
  block->second.state = state;
}

// Frees the block into `state`, merged with neighbours of that state; returns the merged block.
Heap::Blocks::iterator Heap::add_free(Blocks::iterator block, State state) {
  auto next = std::next(block);
  if (next != blocks_.end() && next->second.state == state && !is_segment_start(next->first) &&
      block->first + block->second.size == next->first) {
    remove_free(next);
    block->second.size += next->second.size;
    blocks_.erase(next);
  }
  if (block != blocks_.begin() && !is_segment_start(block->first)) {
    auto previous = std::prev(block);
    if (previous->second.state == state) {
      remove_free(previous);
      previous->second.size += block->second.size;
      blocks_.erase(block);
      block = previous;
    }
  }
  block->second.state = state;
  free_set(state).emplace(block->second.size, block->first);
  if (state == State::kResident) kept_ += block->second.size;
  return block;
}

void Heap::remove_free(Blocks::iterator block) {
  free_set(block->second.state).erase({block->second.size, block->first});
  if (block->second.state == State::kResident) kept_ -= block->second.size;
}

// Adjacent reservations are not merged.
bool Heap::is_segment_start(char* address) const {
  return std::find(segments_.begin(), segments_.end(), address) != segments_.end();
}

// Gives free memory back until at most `most` bytes are held: each time the smallest block that
// suffices.
void Heap::shrink(size_t most) {
  while (!resident_.empty() && in_use_ + kept_ > most) {
    size_t excess = rounded(in_use_ + kept_ - most, kPage);
    auto found = resident_.lower_bound({excess, nullptr});
    if (found == resident_.end()) --found;
    auto block = blocks_.find(found->second);
    remove_free(block);
    cut(block, std::min(excess, block->second.size));
    drop(block);
  }
}

void Heap::drop(Blocks::iterator block) {
  madvise(block->first, block->second.size, MADV_DONTNEED);
  block->second.state = State::kUsed;
  add_free(block, State::kAbsent);
}

}  // namespace kiln
