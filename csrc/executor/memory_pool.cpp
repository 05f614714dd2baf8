#include "executor/memory_pool.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <mutex>
#include <unordered_map>

namespace kiln {

namespace {

constexpr size_t kSmallest = size_t{32} << 10;  // smaller blocks never leave the C library's heap
constexpr size_t kPage = 4096;
constexpr uint64_t kWindow = 64;  // calls over which the need is remembered

thread_local int plans_here = 0;

size_t rounded(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

class Pool {
 public:
  explicit Pool(c10::Allocator* below) : below_(below) {}

  void* take(size_t bytes) {
    size_t size = rounded(bytes);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto found = free_.lower_bound(size);
      // A much larger block would be missed by the request it was made for.
      if (found != free_.end() && found->first <= size + size / 8) {
        void* block = found->second;
        kept_ -= found->first;
        hand_out(block, found->first);
        free_.erase(found);
        return block;
      }
      shrink_to(limit() > size ? limit() - size : 0);
    }
    void* block = below_->raw_allocate(size);
    std::lock_guard<std::mutex> lock(mutex_);
    hand_out(block, size);
    return block;
  }

  void give_back(void* block) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = used_.find(block);
    size_t size = found->second;
    used_.erase(found);
    in_use_ -= size;
    kept_ += size;
    free_.emplace(size, block);
    shrink_to(limit());
  }

  // What no recent call needed at once is not kept.
  void age() {
    std::lock_guard<std::mutex> lock(mutex_);
    last_peak_ = peak_;
    peak_ = in_use_;
    shrink_to(limit());
  }

  int64_t release() {
    std::lock_guard<std::mutex> lock(mutex_);
    size_t bytes = kept_;
    while (!free_.empty()) drop(free_.begin());
    return static_cast<int64_t>(bytes);
  }

  PoolBytes bytes() {
    std::lock_guard<std::mutex> lock(mutex_);
    return {static_cast<int64_t>(in_use_), static_cast<int64_t>(kept_)};
  }

  std::mutex& mutex() { return mutex_; }

 private:
  void hand_out(void* block, size_t size) {
    used_[block] = size;
    in_use_ += size;
    peak_ = std::max(peak_, in_use_);
  }

  // Bytes that may be held in all: an eighth more than was needed at once, for blocks that fit no
  // request.
  size_t limit() const {
    size_t peak = std::max(peak_, last_peak_);
    return peak + peak / 8;
  }

  // Frees the largest blocks until all that is held is at most `bytes`.
  void shrink_to(size_t bytes) {
    while (!free_.empty() && in_use_ + kept_ > bytes) drop(std::prev(free_.end()));
  }

  void drop(std::multimap<size_t, void*>::iterator block) {
    kept_ -= block->first;
    below_->raw_deallocate(block->second);
    free_.erase(block);
  }

  c10::Allocator* below_;
  std::mutex mutex_;
  std::multimap<size_t, void*> free_;
  std::unordered_map<void*, size_t> used_;
  size_t in_use_ = 0, kept_ = 0, peak_ = 0, last_peak_ = 0;
};

// Never destroyed: tensors may be freed after the end of main.
Pool* pool = nullptr;

void give_back(void* block) { pool->give_back(block); }

class PooledAllocator final : public c10::Allocator {
 public:
  explicit PooledAllocator(c10::Allocator* below) : below_(below) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (plans_here == 0 || bytes < kSmallest) return below_->allocate(bytes);
    void* block = pool->take(bytes);
    return {block, block, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return below_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    below_->copy_data(to, from, bytes);
  }

 private:
  c10::Allocator* below_;
};

std::atomic<uint64_t> calls{0};

}  // namespace

PlanScope::PlanScope() { plans_here++; }

PlanScope::~PlanScope() {
  if (--plans_here == 0 && pool && calls.fetch_add(1, std::memory_order_relaxed) % kWindow == 0) {
    pool->age();
  }
}

void install_memory_pool() {
  static std::once_flag once;
  std::call_once(once, [] {
    c10::Allocator* below = c10::GetCPUAllocator();
    if (!below->raw_deleter()) return;  // an allocator of the user's, whose blocks cannot be kept
    pool = new Pool(below);
    // A child process must not inherit the mutex locked by a thread that it does not have.
    pthread_atfork([] { pool->mutex().lock(); }, [] { pool->mutex().unlock(); },
                   [] { pool->mutex().unlock(); });
    c10::SetCPUAllocator(new PooledAllocator(below));
  });
}

PoolBytes pool_bytes() { return pool ? pool->bytes() : PoolBytes{0, 0}; }

int64_t release_pool() { return pool ? pool->release() : 0; }

}  // namespace kiln
