#include "executor/memory_pool.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include <atomic>
#include <mutex>

#include "executor/memory_heap.h"
#include "executor/small_blocks.h"

namespace kiln {

namespace {

constexpr size_t kSmallest = size_t{32} << 10;  // smaller ones never leave the C library's heap
constexpr uint64_t kWindow = 64;                // calls per window of the heap

__attribute__((tls_model("initial-exec"))) thread_local int plans_here = 0;
// Does a profiler count what is allocated?
__attribute__((tls_model("initial-exec"))) thread_local bool counted = false;

// A heap in front of torch's allocator.
struct Pool {
  explicit Pool(c10::Allocator* below) : below(below) {}

  c10::Allocator* below;
  std::mutex mutex;
  Heap heap;
};

// Never destroyed: tensors may be freed after the end of main.
Pool* pool = nullptr;

// `use(heap)` while no other thread uses it.
template <typename Use>
auto with_heap(Use use) {
  std::lock_guard<std::mutex> lock(pool->mutex);
  return use(pool->heap);
}

void give_back(void* block) {
  with_heap([&](Heap& heap) { heap.give_back(block); });
}
// For callers that take raw memory (oneDNN's scratchpads): inside a plan it may be the heap's.
// Small blocks are the C library's.
void free_any(void* block) {
  bool freed = with_heap([&](Heap& heap) {
    bool owned = heap.owns(block);
    if (owned) heap.give_back(block);
    return owned;
  });
  if (!freed) pool->below->raw_deallocate(block);
}

class PooledAllocator final : public c10::Allocator {
 public:
  explicit PooledAllocator(c10::Allocator* below) : below_(below) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (plans_here == 0) return below_->allocate(bytes);
    if (bytes <= kLargestSmall && bytes > 0 && !counted) return allocate_small(bytes);
    if (bytes < kSmallest) return below_->allocate(bytes);
    void* block = with_heap([&](Heap& heap) { return heap.take(bytes); });
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

PlanScope::PlanScope(bool profiled) {
  plans_here++;
  counted = profiled;
}

PlanScope::~PlanScope() {
  if (--plans_here == 0 && pool && calls.fetch_add(1, std::memory_order_relaxed) % kWindow == 0) {
    with_heap([](Heap& heap) { heap.age(); });
  }
}

void install_memory_pool() {
  static std::once_flag once;
  std::call_once(once, [] {
    c10::Allocator* below = c10::GetCPUAllocator();
    if (!below->raw_deleter()) return;  // an allocator of the user's, whose blocks cannot be kept
    pool = new Pool(below);
    // A child process must not inherit the mutex locked by a thread that it does not have.
    pthread_atfork([] { pool->mutex.lock(); }, [] { pool->mutex.unlock(); },
                   [] { pool->mutex.unlock(); });
    c10::SetCPUAllocator(new PooledAllocator(below));
  });
}

PoolBytes pool_bytes() {
  if (!pool) return {0, 0};
  return with_heap([](Heap& heap) {
    return PoolBytes{static_cast<int64_t>(heap.in_use()), static_cast<int64_t>(heap.kept())};
  });
}

int64_t release_pool() {
  if (!pool) return 0;
  return with_heap([](Heap& heap) { return static_cast<int64_t>(heap.release()); });
}

}  // namespace kiln
