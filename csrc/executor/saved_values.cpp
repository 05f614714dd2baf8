#include "executor/saved_values.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace kiln {

namespace {

namespace ag = torch::autograd;

void share_version(const Value& view, const Value& base) {
  if (!view.is_tensor() || !base.is_tensor() || view.tensor()->is_inference()) return;
  ag::impl::set_version_counter(view.as<at::Tensor>(),
                                ag::impl::version_counter(base.as<at::Tensor>()));
}

}  // namespace

bool any_of(const std::vector<int32_t>& numbers, const std::vector<bool>& given) {
  return std::any_of(numbers.begin(), numbers.end(),
                     [&](int32_t number) { return given[static_cast<size_t>(number)]; });
}

void PartialBackwards::begin(const RegionState& state, const ag::variable_list& tangents) {
  size_t count = tangents.size();
  bool apart = !state.ends.empty();
  given_.resize(count);
  finished_.resize(count);
  ended_.resize(count);
  finishing_ = finished_;
  ending_ = ended_;
  for (size_t n = 0; n < count; n++) {
    given_[n] = tangents[n].defined();
    if (given_[n] && ended_[n]) throw std::runtime_error(ag::ERR_BACKWARD_TWICE);
    if (!given_[n] && apart) continue;
    finishing_[n] = true;
    if (!apart) continue;
    for (int32_t other : state.ends[n]) finishing_[other] = ending_[other] = true;
  }
}

bool PartialBackwards::end() {
  finished_ = finishing_;
  ended_ = ending_;
  bool all = given_.empty() || finishes_all();
  given_.clear();  // the next release may be that of a graph that goes away
  return all;
}

bool PartialBackwards::reads_last(const SavedEntry& entry) const {
  if (entry.always_read) return finishes_all();
  return std::all_of(entry.readers.begin(), entry.readers.end(),
                     [&](int32_t tangent) { return finishing_[tangent]; });
}

bool PartialBackwards::finishes_all() const {
  return std::find(finishing_.begin(), finishing_.end(), false) == finishing_.end();
}

void SavedValues::Kept::set(const Value& value, bool output) {
  is_tensor = value.is_tensor();
  is_output = output;
  if (is_tensor) {
    tensor = ag::SavedVariable(value.as<at::Tensor>(), is_output);
  } else {
    number = const_cast<Value&>(value).hand_over();
  }
}

Value SavedValues::Kept::get(const NodePtr& node) {
  if (!is_tensor) return number.hand_over();
  Value made;
  made.set_tensor(tensor.unpack(is_output ? node : NodePtr()).unsafeReleaseIntrusivePtr());
  return made;
}

void SavedValues::Input::watch(const Value& input) {
  value = input.copy();
  version = WatchedVersion::of(value);
}

void SavedValues::Input::watch_unowned(const Value& input) {
  watch(input);
  unowned.emplace(TensorPtr::reclaim_copy(value.tensor()));
  value = Value();
}

Value SavedValues::Input::get(const std::string& name) {
  Value held;
  if (unowned) {
    TensorPtr found = unowned->lock();
    if (!found) throw std::runtime_error(ag::ERR_BACKWARD_TWICE);
    held.set_tensor(std::move(found));
  }
  if (!may_change) version.check(name, "an input");
  return (unowned ? held : value).copy();
}

void SavedValues::keep(const RegionState& state, const std::vector<Value>& inputs,
                       std::vector<Value>& results) {
  saved_.resize(state.saved.size());
  if (state.differentiate) inputs_.resize(inputs.size());
  for (size_t n = 0; n < saved_.size(); n++) {
    const SavedEntry& entry = state.saved[n];
    auto index = static_cast<size_t>(entry.index);
    bool is_input = entry.kind == SavedKind::kInput;
    bool is_output = entry.kind == SavedKind::kOutput;
    const Value& value = is_input ? inputs.at(index) : results.at(index);
    if (entry.base != BaseKind::kNone) {
      const auto& bases = entry.base == BaseKind::kInput ? inputs : results;
      share_version(value, bases.at(static_cast<size_t>(entry.base_index)));
    }
    saved_[n].set(value, is_output && state.results[index].differentiable);
    if (is_input && state.differentiate) inputs_[index].saved = &saved_[n];
  }
  for (size_t n = 0; n < inputs_.size(); n++) {
    if (!inputs_[n].saved) inputs_[n].watch(inputs[n]);
  }
  for (const WatchedEntry& entry : state.watched) {
    const auto& values = entry.kind == SavedKind::kInput ? inputs : results;
    watched_.push_back(WatchedVersion::of(values.at(static_cast<size_t>(entry.index))));
  }
  if (!state.differentiate) return;
  for (int32_t n : state.unread) inputs_[static_cast<size_t>(n)].may_change = true;
}

void SavedValues::check(const RegionState& state, const PartialBackwards& turns,
                        const std::vector<bool>& wanted) const {
  for (size_t n = 0; n < watched_.size(); n++) {
    const WatchedEntry& entry = state.watched[n];
    if (!watched_[n].is_changed() || !turns.reads(entry) || !any_of(entry.gradients, wanted))
      continue;
    watched_[n].check(state.name, entry.kind == SavedKind::kInput ? "an input" : "a result");
  }
}

std::vector<Value> SavedValues::read(const RegionState& state, const PartialBackwards& turns,
                                     const NodePtr& node, bool keep_graph, bool& donate) {
  std::vector<Value> values;
  values.reserve(saved_.size() + turns.given().size());
  for (size_t n = 0; n < saved_.size(); n++) {
    const SavedEntry& entry = state.saved[n];
    if (!turns.reads(entry)) continue;
    values.push_back(saved_[n].get(node));
    if (keep_graph || !saved_[n].is_tensor) continue;
    if (!turns.reads_last(entry)) {
      donate = false;
      continue;
    }
    saved_[n].tensor.reset_data();
    if (turns.finishes_all() || !state.differentiate || entry.kind != SavedKind::kInput) continue;
    // A replay for other results runs the whole region, also what this input was for.
    Input& input = inputs_[static_cast<size_t>(entry.index)];
    input.saved = nullptr;
    input.watch_unowned(values.back());
  }
  return values;
}

SavedValues::Given SavedValues::for_replay(const RegionState& state, const NodePtr& node,
                                           const PartialBackwards* turns) {
  Given given;
  if (released_) throw std::runtime_error(ag::ERR_BACKWARD_TWICE);
  for (Input& input : inputs_) {
    given.inputs.push_back(input.saved ? input.saved->get(node) : input.get(state.name));
  }
  given.saved.resize(saved_.size());
  auto is_read = [&](size_t n) { return turns && turns->reads(state.saved[n]); };
  for (size_t n = 0; n < saved_.size(); n++) {
    if (is_read(n)) given.saved[n] = saved_[n].get(node);  // raises if it is gone or has changed
  }
  for (int32_t number : state.drawn) {
    auto n = static_cast<size_t>(number);
    if (!is_read(n)) given.saved[n] = saved_.at(n).get(node);
  }
  return given;
}

void SavedValues::release(const RegionState& state, PartialBackwards& turns) {
  bool all = turns.end();
  for (size_t n = 0; n < saved_.size(); n++) {
    if (all || turns.reads_last(state.saved[n])) saved_[n].tensor.reset_data();
  }
  if (!all) return;
  for (Input& input : inputs_) input.value = Value();
  released_ = true;
}

}  // namespace kiln
