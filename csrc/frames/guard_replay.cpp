// Replays: what is remembered of a successful check, and how the next one uses it.
//
// A word may only dereference what the words before it have shown to be alive: an instance is reached
// from a root that was just fetched, its dict through its slot, the dict's items because the dict's
// version says that it has held the same references ever since.
#include "frames/global_state.h"
#include "frames/guard_tree.h"

namespace kiln {
namespace {

constexpr size_t kMaxReplays = 64;

bool type_can_change(PyObject* value) {
  return PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_HEAPTYPE) != 0;
}

// A value whose own words prove its state even when only its address is known to be equal.
bool can_anchor(PyObject* value, Access access) {
  if (access == Access::kGlobals) return true;
  if (PyType_Check(value)) return true;
  if (PyDict_Check(value) || PyFunction_Check(value) || is_tensor(value)) return false;
  return dict_slot(value) != nullptr;
}

uint32_t live_type_version(PyTypeObject* type) {
  uint32_t version = type_version(type);
  if (version != 0) return version;
  static PyObject* const name = PyUnicode_InternFromString("__class__");
  _PyType_Lookup(type, name);  // assigns one
  return type_version(type);
}

}  // namespace

// Turns the values of a full check into words.
class Recorder {
 public:
  Recorder(GuardTree& tree, Replay& replay) : tree_(tree), replay_(replay) {}

  void run() {
    size_t size = tree_.nodes_.size();
    replay_.values = tree_.values_;
    replay_.via = tree_.via_;
    replay_.verified.assign(size, 0);
    replay_.anchors.clear();
    replay_.words.clear();
    replay_.tensors.clear();
    identity_.assign(size, 0);
    covered_.assign(size, 0);
    for (int i = 0; i < static_cast<int>(size);) i = record(i);
    replay_.loose.clear();
    for (size_t i = 0; i < tree_.collect_.size(); i++) {
      if (!identity_[tree_.collect_[i]]) replay_.loose.push_back(static_cast<int>(i));
    }
  }

 private:
  // Records node `at`; the next node to look at.
  int record(int at) {
    const Node& node = tree_.nodes_[at];
    PyObject* value = replay_.values[at];
    identity_[at] = reached_by_words(at, node);
    if (!identity_[at]) {
      bool plain = value == nullptr || node.end == at + 1 || !can_anchor(value, node.access);
      if (plain || replay_.via[at] == Via::kTemporary) {
        push({Step::kFull, at});
        return node.end;
      }
      Word fetch{Step::kFetch, at, value};
      (node.parent < 0 ? replay_.anchors : replay_.words).push_back(fetch);
    }
    if (value != nullptr) record_checks(at, node, value);
    return at + 1;
  }

  // Emits the words that prove that the parent still leads here; false where nothing can.
  bool reached_by_words(int at, const Node& node) {
    switch (replay_.via[at]) {
      case Via::kFixed: return true;
      case Via::kDict: return PyDict_CheckExact(value(node.parent)) || node.access == Access::kItem
                                  ? cover_dict(node.parent)
                                  : false;
      case Via::kPart: return identity_[node.parent];
      case Via::kTypeOf: return cover_instance(node.parent) && cover_type(Py_TYPE(value(node.parent)), at);
      case Via::kInstanceDict:
        return cover_instance(node.parent) && has_dict(node.parent) &&
               (node.access == Access::kDictAttr || cover_type(Py_TYPE(value(node.parent)), node.parent));
      case Via::kTypeAttr: return covered_type_attr(node);
      default: return false;
    }
  }

  bool covered_type_attr(const Node& node) {
    PyObject* parent = value(node.parent);
    if (PyType_Check(parent)) return cover_type(reinterpret_cast<PyTypeObject*>(parent), node.parent);
    return cover_instance(node.parent) && cover_type(Py_TYPE(parent), node.parent);
  }

  void record_checks(int at, const Node& node, PyObject* value) {
    bool tensor = false, check = false, instance = false, dict = false;
    for (int i = node.first_check; i < node.last_check; i++) {
      const Check& one = tree_.checks_[i];
      if (one.kind == Kind::kTensor) {
        replay_.tensors.push_back({value, one.tensor.get(), i});
        tensor = true;
      } else if (PyDict_Check(value) && proven_by_dict(one.kind, value)) {
        dict = true;
      } else if (proven_by_instance(one.kind, value)) {
        instance = true;
      } else if (!proven_by_identity(one.kind, at, value)) {
        check = true;
      }
    }
    if (tensor) replay_.verified[at] = 1;
    if (dict && !cover_dict(at)) check = true;
    if (instance && !(cover_instance(at) && cover_type(Py_TYPE(value), at))) check = true;
    if (PyType_Check(value) && !identity_[at]) cover_type(reinterpret_cast<PyTypeObject*>(value), at);
    if (check) push({Step::kCheck, at});
  }

  static bool proven_by_dict(Kind kind, PyObject* value) {
    return kind == Kind::kLength || kind == Kind::kEmptyDict ||
           (kind == Kind::kDictKeys && !PyODict_Check(value));
  }

  static bool proven_by_instance(Kind kind, PyObject* value) {
    if (kind == Kind::kHasAttr || kind == Kind::kNoAttr) return !PyType_Check(value);
    return kind == Kind::kTypeIs && type_can_change(value);
  }

  // Whether an immutable value that is known to be the same object needs no second look.
  bool proven_by_identity(Kind kind, int at, PyObject* value) {
    if (kind == Kind::kIs) return true;  // the tree holds the object, so its address is its own
    if (!identity_[at]) return false;
    if (kind == Kind::kTypeIs) return !type_can_change(value);
    if (kind == Kind::kEquals) return true;
    return kind == Kind::kLength && (PyTuple_Check(value) || PyUnicode_Check(value) || PyBytes_Check(value));
  }

  bool cover_dict(int at) {
    if (covered_[at]) return true;
    PyObject* dict = value(at);
    covered_[at] = replay_.verified[at] = 1;
    push({Step::kDict, at, dict, nullptr, nullptr, dict, dict_version(dict)});
    return true;
  }

  bool cover_instance(int at) {
    if (covered_[at]) return true;
    PyObject* object = value(at);
    if (PyDict_Check(object) || PyType_Check(object)) return false;
    PyObject** slot = dict_slot(object);
    covered_[at] = replay_.verified[at] = 1;
    PyObject* dict = slot ? *slot : nullptr;
    push({Step::kObject, at, object, Py_TYPE(object), slot, dict, dict ? dict_version(dict) : 0});
    return true;
  }

  bool has_dict(int at) { return dict_slot(value(at)) != nullptr; }

  bool cover_type(PyTypeObject* type, int at) {
    uint32_t version = live_type_version(type);
    if (version == 0) return false;
    PyObject* object = reinterpret_cast<PyObject*>(type);
    for (const Word& word : replay_.words) {
      if (word.step == Step::kType && word.object == object) return true;
    }
    push({Step::kType, at, object, nullptr, nullptr, nullptr, version});
    return true;
  }

  PyObject* value(int at) { return replay_.values[at]; }
  void push(Word word) { replay_.words.push_back(word); }

  GuardTree& tree_;
  Replay& replay_;
  std::vector<uint8_t> identity_;  // by node: the words prove it to be the same object, held all the time
  std::vector<uint8_t> covered_;   // by node: has a kDict or kObject word
};

Verdict GuardTree::run_word(Replay& replay, Word& word, const Scope& scope) {
  const Node& node = nodes_[word.node];
  switch (word.step) {
    case Step::kFetch: {
      Found found = fetch(node, node.parent < 0 ? nullptr : replay.values[node.parent], scope);
      if (found.via == Via::kTemporary) temporaries_.push_back(found.value);
      return found.value == word.object ? Verdict::kPass : Verdict::kUnknown;
    }
    case Step::kObject:
      if (Py_TYPE(word.object) != word.type) return Verdict::kUnknown;
      if (word.slot == nullptr) return Verdict::kPass;
      if (*word.slot != word.dict) return Verdict::kUnknown;
      if (kHasDictVersions && dict_version(word.dict) == word.version) return Verdict::kPass;
      return revalidate(replay, word, scope) ? Verdict::kPass : Verdict::kUnknown;
    case Step::kDict:
      if (kHasDictVersions && dict_version(word.dict) == word.version) return Verdict::kPass;
      return revalidate(replay, word, scope) ? Verdict::kPass : Verdict::kUnknown;
    case Step::kType: {
      uint32_t version = type_version(reinterpret_cast<PyTypeObject*>(word.object));
      return version != 0 && version == word.version ? Verdict::kPass : Verdict::kUnknown;
    }
    case Step::kFull:
      return walk(word.node, node.end, scope, replay.values.data(), replay.via.data()) ? Verdict::kPass
                                                                                       : Verdict::kFail;
    case Step::kCheck:
      return evaluate_node(word.node, replay.values[word.node]) ? Verdict::kPass : Verdict::kFail;
  }
  return Verdict::kUnknown;
}

// A dict changed, but perhaps not where we look: fetch its items again. Whatever a word of its own
// proves needs only the same address; anything else has to pass its checks anew.
bool GuardTree::revalidate(Replay& replay, Word& word, const Scope& scope) {
  revalidated++;
  PyObject* value = replay.values[word.node];
  if (!evaluate_node(word.node, value)) return false;
  const Node& node = nodes_[word.node];
  for (int child = word.node + 1; child < node.end; child = nodes_[child].end) {
    if (!revalidate_child(replay, child, value, scope)) return false;
  }
  word.version = dict_version(word.dict);
  return true;
}

bool GuardTree::revalidate_child(Replay& replay, int child, PyObject* parent, const Scope& scope) {
  Via via = replay.via[child];
  // These have words of their own that fetch them or follow from the type of the parent.
  if (via == Via::kVolatile || via == Via::kTemporary || via == Via::kTypeOf || via == Via::kFixed) return true;
  Found found = fetch(nodes_[child], parent, scope);
  if (found.via == Via::kTemporary) temporaries_.push_back(found.value);
  if (found.via != via || !evaluate_node(child, found.value)) return false;
  if (found.value == replay.values[child] && (found.value == nullptr || replay.verified[child])) return true;
  // The address tells nothing here. Collected objects are held, so theirs does.
  if (collected_[child]) return found.value == replay.values[child] && nodes_[child].end == child + 1;
  if (nodes_[child].end != child + 1 || replay.verified[child]) return false;
  replay.values[child] = found.value;
  return true;
}

Verdict GuardTree::replay(Replay& replay, const Scope& scope) {
  if (replay.bindings == nullptr) return Verdict::kUnknown;
  for (Word& word : replay.anchors) {
    if (run_word(replay, word, scope) != Verdict::kPass) return Verdict::kUnknown;
  }
  for (Word& word : replay.words) {
    Verdict verdict = run_word(replay, word, scope);
    if (C10_UNLIKELY(verdict != Verdict::kPass)) return verdict;
  }
  for (const TensorWord& word : replay.tensors) {
    if (C10_UNLIKELY(!check_tensor(*word.expected, word.object))) {
      failed_ = checks_[word.check].guard;
      return Verdict::kFail;
    }
  }
  if (!evaluate_whole(replay.values.data())) return Verdict::kFail;
  for (int position : replay.loose) {
    if (PyTuple_GET_ITEM(replay.bindings, position) != replay.values[collect_[position]]) {
      if (!collect(&replay, replay.values.data())) return Verdict::kUnknown;
      break;
    }
  }
  replayed++;
  if (bindings_ != replay.bindings) publish(replay.bindings);
  return Verdict::kPass;
}

bool GuardTree::collect(Replay* replay, PyObject* const* values) {
  Py_ssize_t size = static_cast<Py_ssize_t>(collect_.size());
  PyObject* bindings = PyTuple_New(size);
  if (bindings == nullptr) {
    PyErr_Clear();
    return false;
  }
  for (Py_ssize_t i = 0; i < size; i++) {
    PyTuple_SET_ITEM(bindings, i, own(values[collect_[i]] ? values[collect_[i]] : Py_None));
  }
  if (replay->bindings != nullptr) temporaries_.push_back(replay->bindings);
  replay->bindings = bindings;
  return true;
}

void GuardTree::publish(PyObject* bindings) {
  if (bindings_ != nullptr) temporaries_.push_back(bindings_);
  bindings_ = own(bindings);
}

Replay* GuardTree::next_replay() {
  for (size_t i = 0; i < replays_.size(); i++) {
    bool same = replays_[i]->bindings == nullptr;  // dead
    if (!same && !replays_[i]->anchors.empty()) {
      same = true;
      for (const Word& word : replays_[i]->anchors) same &= values_[word.node] == word.object;
    } else if (!same) {
      same = true;
    }
    if (same) return latest_ = i, replays_[i].get();
  }
  if (replays_.size() < kMaxReplays) {
    replays_.push_back(std::make_unique<Replay>());
    latest_ = replays_.size() - 1;
  } else {
    latest_ = (latest_ + 1) % replays_.size();
  }
  return replays_[latest_].get();
}

void GuardTree::record() {
  Replay* replay = next_replay();
  Recorder(*this, *replay).run();
  if (!collect(replay, values_.data())) return;
  for (PyObject* owner : replay->owners) temporaries_.push_back(owner);
  replay->owners.clear();
  if (!collect_.empty()) watch_owners(replay);
  publish(replay->bindings);
}

// The bindings must not keep a model alive that its user dropped: watch the topmost instances over
// what is collected.
void GuardTree::watch_owners(Replay* replay) {
  if (on_death_ == nullptr) return;
  std::vector<PyObject*> seen;
  for (int node : collect_) {
    PyObject* owner = nullptr;
    for (int at = nodes_[node].parent; at >= 0; at = nodes_[at].parent) {
      PyObject* value = replay->values[at];
      bool weak = value != nullptr && !PyType_Check(value) && !PyModule_Check(value) && !PyFunction_Check(value);
      if (weak && replay->verified[at] && PyType_SUPPORTS_WEAKREFS(Py_TYPE(value))) owner = value;
    }
    bool known = owner == nullptr;
    for (PyObject* one : seen) known |= one == owner;
    if (known) continue;
    seen.push_back(owner);
    PyObject* reference = PyWeakref_NewRef(owner, on_death_);
    if (reference == nullptr) PyErr_Clear();
    if (reference != nullptr) replay->owners.push_back(reference);
  }
}

void GuardTree::forget(PyObject* reference) {
  std::vector<PyObject*> dead;
  for (auto& replay : replays_) {
    bool mine = false;
    for (PyObject* owner : replay->owners) mine |= owner == reference;
    if (!mine) continue;
    if (bindings_ == replay->bindings) std::swap(bindings_, dead.emplace_back(nullptr));
    std::swap(replay->bindings, dead.emplace_back(nullptr));
    for (PyObject* owner : replay->owners) dead.push_back(owner);
    replay->owners.clear();
  }
  for (PyObject* one : dead) Py_XDECREF(one);
}

}  // namespace kiln
