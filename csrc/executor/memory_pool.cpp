#include "executor/memory_pool.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include <atomic>
#include <mutex>

#include "executor/memory_heap.h"

namespace kiln {

namespace {

constexpr size_t kSmallest = size_t{32} << 10;  // smaller blocks never leave the C library's heap
constexpr uint64_t kWindow = 64;                // calls over which the need is remembered

thread_local int plans_here = 0;

// The heap behind a mutex.
class Pool {
 public:
  explicit Pool(c10::Allocator* below) : below_(below) {}

  // nullptr where the heap cannot grow.
  void* take(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    return heap_.take(bytes);
  }
  void give_back(void* block) {
    std::lock_guard<std::mutex> lock(mutex_);
    heap_.give_back(block);
  }
  // Of a block of whatever kind.
  void free_any(void* block) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (heap_.owns(block)) return heap_.give_back(block);
    }
    below_->raw_deallocate(block);
  }
  void age() {
    std::lock_guard<std::mutex> lock(mutex_);
    heap_.age();
  }
  size_t release() {
    std::lock_guard<std::mutex> lock(mutex_);
    return heap_.release();
  }
  PoolBytes bytes() {
    std::lock_guard<std::mutex> lock(mutex_);
    return {static_cast<int64_t>(heap_.in_use()), static_cast<int64_t>(heap_.kept())};
  }

  std::mutex& mutex() { return mutex_; }

 private:
  c10::Allocator* below_;
  std::mutex mutex_;
  Heap heap_;
};

// Never destroyed: tensors may be freed after the end of main.
Pool* pool = nullptr;

void give_back(void* block) { pool->give_back(block); }
// For who took raw memory (oneDNN's scratchpads): inside a plan it may be the pool's.
void free_any(void* block) { pool->free_any(block); }

class PooledAllocator final : public c10::Allocator {
 public:
  explicit PooledAllocator(c10::Allocator* below) : below_(below) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (plans_here == 0 || bytes < kSmallest) return below_->allocate(bytes);
    void* block = pool->take(bytes);
    if (!block) return below_->allocate(bytes);
    return {block, block, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_any; }
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

int64_t release_pool() { return pool ? static_cast<int64_t>(pool->release()) : 0; }

}  // namespace kiln
