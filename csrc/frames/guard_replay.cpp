// Replays: what is kept of a successful check, and how the next one uses it.
//
// A word may only follow pointers that the words before it have proved alive: an instance is
// reached from a root that was just fetched, its dict through its slot, the dict's items because
// its version proves that it has held the same references since.
#include <algorithm>

#include "frames/dict_versions.h"
#include "frames/guard_tree.h"

namespace kiln {

Verdict GuardTree::run_probes(Replay& replay, const Part& part, const Scope& scope) {
  const Probe* probes = replay.probes.data();
  for (int i = part.begin; i < part.end; i++) {
    if (C10_LIKELY(*probes[i].address == probes[i].expected)) continue;
    ProbeInfo info = replay.infos[i];
    if (info.means == Changed::kReplay) return Verdict::kUnknown;
    count_changes(probes[i].address);
    Verdict verdict = revalidate(replay, info.node, scope);
    if (verdict != Verdict::kPass) return verdict;
    replay.probes[i].expected = *probes[i].address;
  }
  return Verdict::kPass;
}

Verdict GuardTree::run_part(Replay& replay, const Part& part, const Scope& scope) {
  const Node* node = nodes_.data() + part.begin;  // not of probes
  if (part.allocates) pause_->begin();
  switch (part.step) {
    case Step::kProbes:
      return run_probes(replay, part, scope);
    case Step::kFetch: {
      Found found = fetch(*node, node->parent < 0 ? nullptr : replay.values[node->parent], scope);
      if (found.via == Via::kTemporary) temporaries_.push_back(found.value);
      return found.value == part.value ? Verdict::kPass : Verdict::kUnknown;
    }
    case Step::kFull: {
      bool holds = walk(part.begin, part.end, scope, replay.values.data(), replay.via.data());
      return holds ? Verdict::kPass : Verdict::kFail;
    }
    case Step::kCheck:
      return evaluate_node(part.begin, replay.values[part.begin]) ? Verdict::kPass : Verdict::kFail;
    case Step::kLook:
      return revalidate(replay, part.begin, scope);
  }
  return Verdict::kUnknown;
}

// A dict changed, but perhaps not in the items that matter: fetch them again. Items with words of
// their own only need the same address; others must pass their checks again. A failing check is
// final, because the words before it have led to the value it checked.
Verdict GuardTree::revalidate(Replay& replay, int at, const Scope& scope) {
  revalidated++;
  if (allocates_below_[at]) pause_->begin();
  PyObject* value = replay.values[at];
  if (!evaluate_node(at, value)) return Verdict::kFail;
  int end = nodes_[at].end;
  for (int child = at + 1; child < end; child = nodes_[child].end) {
    Verdict verdict = revalidate_child(replay, child, value, scope);
    if (verdict != Verdict::kPass) return verdict;
  }
  return Verdict::kPass;
}

Verdict GuardTree::revalidate_child(Replay& replay, int child, PyObject* parent,
                                    const Scope& scope) {
  Via via = replay.via[child];
  // They are fetched by their own words, or follow from the type of the parent.
  if (via == Via::kVolatile || via == Via::kTemporary || via == Via::kTypeOf ||
      via == Via::kFixed) {
    return Verdict::kPass;
  }
  Found found = fetch(nodes_[child], parent, scope);
  if (found.via == Via::kTemporary) temporaries_.push_back(found.value);
  if (!evaluate_node(child, found.value)) return Verdict::kFail;
  if (found.via != via) return Verdict::kUnknown;
  bool same = found.value == replay.values[child];
  if (same && (found.value == nullptr || replay.verified[child])) return Verdict::kPass;
  // An equal address proves nothing here.
  bool leaf = nodes_[child].end == child + 1;
  if (!leaf || replay.verified[child]) return Verdict::kUnknown;
  replay.values[child] = found.value;
  return Verdict::kPass;
}

Verdict GuardTree::run_tensors(const Replay& replay) {
  bool watch_storage = !replay.aliases.empty();
  for (const TensorWord& word : replay.tensors) {
    if (C10_UNLIKELY(!check_tensor(*word.expected, word.object))) {
      failed_ = checks_[word.check].guard;
      return Verdict::kFail;
    }
    if (watch_storage && tensor_storage(word.object) != word.storage) return Verdict::kUnknown;
  }
  return Verdict::kPass;
}

// The covered members are unchanged. Every other one must share with the members of its own group
// and with no others.
bool GuardTree::aliases_hold(const AliasWord& word, PyObject* const* values) {
  const Check& check = *word.check;
  bool by_storage = check.numbers[0] != 0, foreign = word.foreign;
  ++alias_stamp_;
  for (int at : word.loose) alias_first_[check.groups[at]] = nullptr;
  for (int at : word.loose) {
    const void* key = alias_key(values[check.nodes[at]], by_storage);
    int group = check.groups[at];
    if (key == nullptr) continue;
    auto equal =
        std::lower_bound(word.stable.begin(), word.stable.end(), std::make_pair(key, INT_MIN));
    bool found = equal != word.stable.end() && equal->first == key;
    if (found && equal->second != group) return false;
    if (!found && word.grouped[group]) return false;
    if (!joins_group(key, group)) return false;
    foreign |= by_storage && is_foreign(key);
  }
  return !foreign || memory_is_apart(check, values);
}

Verdict GuardTree::run_tree_checks(const Replay& replay) {
  size_t alias = 0;
  for (const Check& check : tree_checks_) {
    const AliasWord* aliases = check.kind == Kind::kAliases ? &replay.aliases[alias++] : nullptr;
    if (leave_calls_ && check.on_calls) continue;
    bool holds = aliases ? aliases_hold(*aliases, replay.values.data())
                         : evaluate_tree_check(check, replay.values.data());
    if (!holds) return failed_ = check.guard, failed_node_ = -1, Verdict::kFail;
  }
  return Verdict::kPass;
}

Verdict GuardTree::replay(Replay& replay, const Scope& scope) {
  if (!replay.valid) return Verdict::kUnknown;
  for (const Part& part : replay.anchors) {
    if (run_part(replay, part, scope) != Verdict::kPass) return Verdict::kUnknown;
  }
  for (const Part& part : replay.fronts) {
    Verdict verdict = run_part(replay, part, scope);
    if (verdict != Verdict::kPass) return verdict;
  }
  for (const TypeWord& word : replay.types) {
    if (C10_UNLIKELY(type_version(word.type) != word.version)) return Verdict::kUnknown;
  }
  for (const Part& part : replay.parts) {
    Verdict verdict = run_part(replay, part, scope);
    if (C10_UNLIKELY(verdict != Verdict::kPass)) return verdict;
  }
  Verdict verdict = run_tensors(replay);
  if (verdict == Verdict::kPass) verdict = run_tree_checks(replay);
  if (verdict != Verdict::kPass || leave_calls_) return verdict;
  replayed++;
  if (!is_bound()) bind(replay.values.data());
  return Verdict::kPass;
}

}  // namespace kiln
