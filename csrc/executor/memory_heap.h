// A heap of whole pages whose free blocks stay in memory, up to a limit that adapts to recent use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace kiln {

// Blocks are cut from large reservations of address space; free neighbours are merged.
// A free block is resident (its pages hold memory) or absent (given back to the system). Not
// thread-safe.
class Heap {
 public:
  // Page-aligned memory, or nullptr where the system has none.
  void* take(size_t bytes);
  void give_back(void* block);
  // Is `block` a block of this heap in use?
  bool owns(void* block) const;

  // Ends a window of calls; memory is kept for the peak of the last two windows.
  void age();
  // Gives all free memory back; returns the bytes.
  size_t release();

  size_t in_use() const { return in_use_; }
  size_t kept() const { return kept_; }

 private:
  enum class State : uint8_t { kUsed, kResident, kAbsent };
  struct Block {
    size_t size;
    State state;
  };
  using Blocks = std::map<char*, Block>;
  using FreeSet = std::set<std::pair<size_t, char*>>;  // by size, then address

  bool reserve(size_t size);
  FreeSet& free_set(State state) { return state == State::kResident ? resident_ : absent_; }
  Blocks::iterator fitting(size_t size);
  void cut(Blocks::iterator block, size_t size);
  Blocks::iterator add_free(Blocks::iterator block, State state);
  void remove_free(Blocks::iterator block);
  bool is_segment_start(char* address) const;
  size_t limit() const;
  void shrink(size_t most);
  void drop(Blocks::iterator block);

  Blocks blocks_;
  FreeSet resident_, absent_;
  std::vector<char*> segments_;
  size_t reserved_ = 0, in_use_ = 0, kept_ = 0, peak_ = 0, last_peak_ = 0;
};

}  // namespace kiln
