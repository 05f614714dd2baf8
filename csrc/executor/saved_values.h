// What a call of a region keeps for its backward, and for which of its results backwards have run.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <optional>
#include <string>
#include <vector>

#include "executor/autograd_node.h"
#include "executor/region.h"
#include "executor/value.h"
#include "executor/watched_version.h"

namespace kiln {

// Is one of these numbers given?
bool any_of(const std::vector<int32_t>& numbers, const std::vector<bool>& given);

// A program may run a backward for some of the results and later one for others. Each reads, and
// frees, only what its tangents need. All vectors are by tangent.
class PartialBackwards {
 public:
  // A backward for the defined tangents begins. Throws where an earlier one has freed what they
  // need.
  void begin(const RegionState& state, const torch::autograd::variable_list& tangents);
  // The present backward frees the graph. Has everything been freed now?
  bool end();

  const std::vector<bool>& given() const { return given_; }
  template <typename Entry>
  bool reads(const Entry& entry) const {
    return entry.always_read || any_of(entry.readers, given_);
  }
  // Will no later backward read it?
  bool reads_last(const SavedEntry& entry) const;
  bool finishes_all() const;

 private:
  std::vector<bool> given_;  // those of the present backward
  // Those whose backward has freed what it needed; the same once the present backward has.
  std::vector<bool> finished_, finishing_;
  // Those whose backward would read what is freed, and so raises; the same as above.
  std::vector<bool> ended_, ending_;
};

class SavedValues {
 public:
  struct Given {
    std::vector<Value> inputs, saved;
  };

  // To be called after the results have the node as their history.
  void keep(const RegionState& state, const std::vector<Value>& inputs,
            std::vector<Value>& results);

  // Throws eager's error where something that is not saved here was changed in place, and the
  // present backward, for the inputs in `wanted`, would read it in eager.
  void check(const RegionState& state, const PartialBackwards& turns,
             const std::vector<bool>& wanted) const;

  // What the present backward reads. Unless the graph is kept, what no later backward reads is
  // given away, so that the plan frees it, or reuses its memory, at its last use; `donate` becomes
  // false if something stays.
  std::vector<Value> read(const RegionState& state, const PartialBackwards& turns,
                          const NodePtr& node, bool keep_graph, bool& donate);

  // What the region runs again with, by eager operators: its inputs and random numbers; with
  // `turns` also the saved values that the present backward reads.
  Given for_replay(const RegionState& state, const NodePtr& node,
                   const PartialBackwards* turns = nullptr);

  // Frees what no later backward reads.
  void release(const RegionState& state, PartialBackwards& turns);

 private:
  struct Kept {
    torch::autograd::SavedVariable tensor;
    Value number;
    bool is_tensor = false;
    bool is_output = false;

    void set(const Value& value, bool is_output);
    Value get(const NodePtr& node);
  };

  // An input that only the second derivative needs. It is no saved variable, since eager would not
  // save it, and saved-tensor hooks must not see it.
  struct Input {
    Kept* saved = nullptr;  // where it is saved all the same
    Value value;
    WatchedVersion version;
    bool may_change = false;
    // Instead of the value, where eager has freed it: it may go on as long as others hold it.
    std::optional<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> unowned;

    void watch(const Value& input);
    void watch_unowned(const Value& input);
    Value get(const std::string& name);
  };

  std::vector<Kept> saved_;
  std::vector<Input> inputs_;  // empty if there is no second derivative
  std::vector<WatchedVersion> watched_;
  bool released_ = false;
};

}  // namespace kiln
