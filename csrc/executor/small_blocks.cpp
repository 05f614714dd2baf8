#include "executor/small_blocks.h"

#include <c10/core/alignment.h>
#include <c10/core/impl/alloc_cpu.h>

#include <array>
#include <bit>
#include <utility>

namespace kiln {

namespace {

constexpr size_t kSmallestBits = 6;  // of 64 bytes: the alignment of torch's allocator
constexpr size_t kClasses = std::bit_width(kLargestSmall) - kSmallestBits;
constexpr int kMostKept = 32;  // of a class

struct FreeBlock {
  FreeBlock* next;
};

// The free blocks of a thread.
struct Lists {
  std::array<FreeBlock*, kClasses> first{};
  std::array<int, kClasses> count{};
};

// Blocks are also freed by destructors that run after those of this thread's variables.
__attribute__((tls_model("initial-exec"))) thread_local Lists* lists = nullptr;
__attribute__((tls_model("initial-exec"))) thread_local bool is_ending = false;

struct AtExit {
  ~AtExit() {
    is_ending = true;
    for (FreeBlock* block : lists->first) {
      while (block) c10::free_cpu(std::exchange(block, block->next));
    }
    delete std::exchange(lists, nullptr);
  }
};

// Null while the thread ends.
Lists* make_lists() {
  if (is_ending) return nullptr;
  thread_local AtExit at_exit;
  (void)&at_exit;
  return lists = new Lists();
}

template <size_t Class>
void free_small(void* block) {
  Lists* here = lists ? lists : make_lists();
  if (!here || here->count[Class] == kMostKept) return c10::free_cpu(block);
  here->first[Class] = new (block) FreeBlock{here->first[Class]};
  here->count[Class]++;
}

template <size_t... Classes>
constexpr std::array<c10::DeleterFnPtr, kClasses> deleters(std::index_sequence<Classes...>) {
  return {&free_small<Classes>...};
}
constexpr auto kDeleters = deleters(std::make_index_sequence<kClasses>());

}  // namespace

c10::DataPtr allocate_small(size_t bytes) {
  size_t bits = std::max<size_t>(std::bit_width(bytes - 1), kSmallestBits);
  size_t number = bits - kSmallestBits;
  void* block = lists ? lists->first[number] : nullptr;
  if (block) {
    lists->first[number] = static_cast<FreeBlock*>(block)->next;
    lists->count[number]--;
  } else {
    block = c10::alloc_cpu(size_t{1} << bits);
  }
  return {block, block, kDeleters[number], c10::Device(c10::DeviceType::CPU)};
}

}  // namespace kiln
