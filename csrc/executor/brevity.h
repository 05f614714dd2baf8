// Calls that are over so soon that the interpreter lock is not released for them: releasing it and
// taking it again costs as much as a kernel of a thousand elements.
#pragma once

#include <cstdint>
#include <vector>

#include "executor/program.h"
#include "executor/value.h"

namespace kiln {

class Brevity {
 public:
  Brevity(const Program& program, const std::vector<TensorPtr>& constants);

  // Are all calls brief?
  bool always() const { return answer_ == Answer::kAlways; }
  // Is a call with these registers?
  bool holds(const Program& program, const int64_t* ints) const {
    return always() || (answer_ == Answer::kBySize && is_little_work(program, ints));
  }

 private:
  enum class Answer : uint8_t { kNever, kBySize, kAlways };

  bool is_little_work(const Program& program, const int64_t* ints) const;

  Answer answer_ = Answer::kNever;
  int32_t calls_ = 0;  // of ATen
  std::vector<const LaunchStep*> launches_;
};

}  // namespace kiln
