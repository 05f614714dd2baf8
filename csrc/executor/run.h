// Runs a decoded plan. Thread-safe and re-entrant: all state of a call is in its frame.
#pragma once

#include <atomic>
#include <memory>
#include <unordered_map>

#include "executor/arena.h"
#include "executor/brevity.h"
#include "executor/connect.h"
#include "executor/program.h"
#include "executor/value.h"

namespace kiln {

// State of one call; kept between calls, so that a call allocates nothing but results.
struct Frame {
  explicit Frame(const Program& program);

  void clear_inputs(size_t count) {
    for (size_t n = 0; n < count; n++) slots[n].clear();
  }

  std::vector<Value> slots;
  std::vector<int64_t> ints;
  std::vector<double> floats;
  std::vector<Value> results;
  std::vector<void*> pointers;       // tensor arguments of the launch at hand
  std::vector<uint64_t> known_keys;  // key sets of the inputs that passed the full check
  Placement placement;
  std::unordered_map<const Program*, std::unique_ptr<Frame>> nested;  // made on demand
};

// Makes the outputs that are views into views of `inputs` and `outputs` in the eyes of autograd.
void rebuild_views(const Program& program, const Value* inputs, Value* outputs);

class Executor {
 public:
  // `constants` in the order of the plan. Throws PlanError.
  Executor(std::unique_ptr<Program> program, std::vector<TensorPtr> constants,
           const Kernels& kernels);
  ~Executor();

  const Program& program() const { return *program_; }
  // Are its calls over too soon to release the interpreter lock for them?
  bool is_brief() const { return brevity_.always(); }

  // Throws PlanError if a call has another number of arguments than the plan.
  void check_count(size_t given) const;

  // One call whose inputs and results stand in a frame.
  class Call {
   public:
    explicit Call(const Executor& executor);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    // Where the arguments go, in order, before `run`.
    Value* inputs() { return frame_->slots.data(); }
    std::vector<Value>& results() { return frame_->results; }
    // As Executor::run; `inputs` stay in their slots. Before work that is worth it `unlock(lock)`
    // releases the interpreter lock.
    void run(void (*unlock)(void*), void* lock);

   private:
    friend class Executor;
    const Executor& executor_;
    std::unique_ptr<Frame> frame_;
  };

  // A call that pauses where its plan hands results over, so that the caller can use them before it
  // goes on; in any thread, one at a time.
  class Paused {
   public:
    // At the first step. `executor` has to live as long. Takes over the tensors that `inputs` own.
    Paused(const Executor& executor, Value* inputs, bool donate);
    ~Paused();
    // Goes on to the next hand-over, whose results it leaves in `outputs`, or to the end, with all
    // others.
    void go_on(Value* outputs);

   private:
    struct Work;
    Call call_;
    std::unique_ptr<Work> work_;
  };

  // Runs below autograd and autocast. Takes over the tensors that `inputs` own and leaves
  // the results in `outputs`; a result that is a view of an input or of another output is one that
  // autograd does not know, see `rebuild_views`. Without `donate` the memory of inputs is never
  // reused.
  void run(Value* inputs, Value* outputs, bool donate) const;

 private:
  std::unique_ptr<Frame> take_frame() const;
  void give_back(std::unique_ptr<Frame> frame) const;

  std::unique_ptr<Program> program_;
  std::vector<TensorPtr> constants_;
  Brevity brevity_;
  mutable std::atomic<Frame*> idle_{nullptr};
};

}  // namespace kiln
