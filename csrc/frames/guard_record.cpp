// Makes a replay from the values of a successful full check.
#include <algorithm>

#include "frames/dict_versions.h"
#include "frames/guard_tree.h"

namespace kiln {
namespace {

constexpr size_t kMaxReplays = 64;
constexpr int kManyChecks = 64;

bool type_can_change(PyObject* value) {
  return PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_HEAPTYPE) != 0;
}

// A value whose own words prove its state once its address is known to be equal.
bool can_anchor(PyObject* value, Access access) {
  if (access == Access::kGlobals || PyType_Check(value)) return true;
  if (PyDict_Check(value) || PyFunction_Check(value) || is_tensor(value)) return false;
  return dict_slot(value) != nullptr;
}

// A dict whose version is worth more than that its object may be another one in the next call.
bool is_large_dict(PyObject* value) {
  return has_dict_versions() && PyDict_CheckExact(value) && PyDict_GET_SIZE(value) > kManyChecks;
}

uint32_t live_type_version(PyTypeObject* type) {
  uint32_t version = type_version(type);
  if (version != 0) return version;
  static PyObject* const name = PyUnicode_InternFromString("__class__");
  _PyType_Lookup(type, name);  // assigns one
  return type_version(type);
}

template <class T>
uint64_t as_word(T pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}

}  // namespace

class Recorder {
 public:
  Recorder(GuardTree& tree, Replay& replay) : tree_(tree), replay_(replay) {}

  void run() {
    size_t size = tree_.nodes_.size();
    replay_.values = tree_.values_;
    replay_.via = tree_.via_;
    replay_.verified.assign(size, 0);
    identity_.assign(size, 0);
    covered_.assign(size, 0);
    for (int i = 0; i < static_cast<int>(size);) i = record(i);
    for (const Check& check : tree_.tree_checks_) {
      if (check.kind == Kind::kAliases) record_aliases(check);
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
      plain = plain && !(value != nullptr && is_large_dict(value) && checks_items(at, node));
      if (plain || replay_.via[at] == Via::kTemporary) {
        (node.parent < 0 ? replay_.fronts : replay_.parts)
            .push_back({Step::kFull, at, node.end, nullptr, tree_.allocates(at, node.end)});
        return node.end;
      }
      (node.parent < 0 ? replay_.anchors : replay_.parts)
          .push_back({Step::kFetch, at, at, value, tree_.allocates(at, at + 1)});
      if (PyDict_CheckExact(value)) {  // the words below read its version: it must be a dict still
        probe(&value->ob_type, as_word(Py_TYPE(value)), Changed::kReplay, at);
        cover_dict(at);
        identity_[at] = 1;  // the address, and a version that no other dict has had
      }
    }
    if (value != nullptr) record_checks(at, node, value);
    return at + 1;
  }

  // Whether the checks on a dict and below look at many of its items.
  bool checks_items(int at, const Node& node) const {
    if (node.end - at > kManyChecks) return true;
    for (int i = node.first_check; i < node.last_check; i++) {
      if (tree_.checks_[i].kind == Kind::kDictKeys) return true;
    }
    return false;
  }

  // Emits the words that prove that the parent still leads here; false if nothing can.
  bool reached_by_words(int at, const Node& node) {
    switch (replay_.via[at]) {
      case Via::kFixed:
        return true;
      case Via::kDict:
        cover_dict(node.parent);
        return true;
      case Via::kPart:
        return identity_[node.parent];
      case Via::kTypeOf:
        return cover_instance(node.parent) && cover_type(Py_TYPE(value(node.parent)));
      case Via::kInstanceDict:
        return cover_instance(node.parent) &&
               (node.access == Access::kDictAttr || cover_type(Py_TYPE(value(node.parent))));
      case Via::kTypeAttr:
        return covered_type_attr(node);
      default:
        return false;
    }
  }

  bool covered_type_attr(const Node& node) {
    PyObject* parent = value(node.parent);
    if (PyType_Check(parent)) return cover_type(reinterpret_cast<PyTypeObject*>(parent));
    return cover_instance(node.parent) && cover_type(Py_TYPE(parent));
  }

  void record_checks(int at, const Node& node, PyObject* value) {
    bool check = false, instance = false, dict = false;
    for (int i = node.first_check; i < node.last_check; i++) {
      const Check& guard = tree_.checks_[i];
      if (guard.kind == Kind::kTensor) {
        replay_.tensors.push_back({value, guard.tensor.get(), tensor_storage(value), i});
        replay_.verified[at] = 1;
      } else if (PyDict_Check(value) && proven_by_dict(guard.kind, value)) {
        dict = true;
      } else if (proven_by_instance(guard.kind, value)) {
        instance = true;
      } else if (!proven_by_identity(guard.kind, at, value)) {
        check = true;
      }
    }
    if (dict) cover_dict(at);
    if (instance && !(cover_instance(at) && cover_type(Py_TYPE(value)))) check = true;
    if (PyType_Check(value) && !identity_[at]) cover_type(reinterpret_cast<PyTypeObject*>(value));
    if (check)
      replay_.parts.push_back({Step::kCheck, at, at, nullptr, tree_.allocates(at, at + 1)});
  }

  static bool proven_by_dict(Kind kind, PyObject* value) {
    return kind == Kind::kLength || kind == Kind::kEmptyDict ||
           (kind == Kind::kDictKeys && !PyODict_Check(value));
  }

  static bool proven_by_instance(Kind kind, PyObject* value) {
    if (kind == Kind::kHasAttr || kind == Kind::kNoAttr) return !PyType_Check(value);
    return kind == Kind::kTypeIs && type_can_change(value);
  }

  // Whether an immutable value that is known to be the same object needs no further check.
  bool proven_by_identity(Kind kind, int at, PyObject* value) {
    if (kind == Kind::kIs) return true;  // the tree owns the object, so its address is unique
    if (!identity_[at]) return false;
    if (kind == Kind::kTypeIs) return !type_can_change(value);
    if (kind == Kind::kEquals) return true;
    if (kind == Kind::kSetItems || kind == Kind::kSetHolds) return PyFrozenSet_Check(value);
    return kind == Kind::kLength &&
           (PyTuple_Check(value) || PyUnicode_Check(value) || PyBytes_Check(value));
  }

  void cover_dict(int at) {
    if (covered_[at]) return;
    covered_[at] = replay_.verified[at] = 1;
    probe_version(value(at), at);
  }

  bool cover_instance(int at) {
    if (covered_[at]) return true;
    PyObject* object = value(at);
    if (PyDict_Check(object) || PyType_Check(object)) return false;
    PyObject** slot = dict_slot(object);
    covered_[at] = replay_.verified[at] = 1;
    probe(&object->ob_type, as_word(Py_TYPE(object)), Changed::kReplay, at);
    if (slot == nullptr) return true;
    probe(slot, as_word(*slot), Changed::kReplay, at);
    probe_version(*slot, at);
    return true;
  }

  bool cover_type(PyTypeObject* type) {
    uint32_t version = live_type_version(type);
    if (version == 0) return false;
    for (const TypeWord& word : replay_.types) {
      if (word.type == type) return true;
    }
    Py_INCREF(type);
    replay_.types.push_back({type, version});
    return true;
  }

  void probe_version(PyObject* dict, int at) {
    if (has_dict_versions() && own_table(dict)) {
      const uint64_t* version = dict_version(dict);
      probe(version, *version, Changed::kDict, at);
    } else {
      replay_.parts.push_back({Step::kLook, at, at, nullptr, false});
    }
  }

  void probe(const void* address, uint64_t expected, Changed means, int at) {
    int count = static_cast<int>(replay_.probes.size());
    replay_.probes.push_back({static_cast<const uint64_t*>(address), expected});
    replay_.infos.push_back({means, at});
    if (replay_.parts.empty() || replay_.parts.back().step != Step::kProbes) {
      replay_.parts.push_back({Step::kProbes, count, count, nullptr, false});
    }
    replay_.parts.back().end = count + 1;
  }

  void record_aliases(const Check& check) {
    AliasWord word{&check, {}, {}, std::vector<uint8_t>(check.nodes.size())};
    bool by_storage = check.numbers[0] != 0;
    for (size_t i = 0; i < check.nodes.size(); i++) {
      int node = check.nodes[i];
      bool stable = identity_[node] && (!by_storage || replay_.verified[node]);
      if (!stable) {
        word.loose.push_back(static_cast<int>(i));
        continue;
      }
      const void* key = alias_key(value(node), by_storage);
      if (key != nullptr) {
        word.stable.emplace_back(key, check.groups[i]);
        word.grouped[check.groups[i]] = 1;
        word.foreign |= by_storage && is_foreign(key);
      }
      // Another object here invalidates `stable`, even if nothing else of the node is checked.
      if (!by_storage) replay_.verified[node] = 1;
    }
    std::sort(word.stable.begin(), word.stable.end());
    word.stable.erase(std::unique(word.stable.begin(), word.stable.end()), word.stable.end());
    replay_.aliases.push_back(std::move(word));
  }

  PyObject* value(int at) { return replay_.values[at]; }

  GuardTree& tree_;
  Replay& replay_;
  std::vector<uint8_t>
      identity_;  // by node: the words prove it to be the same object, alive throughout
  std::vector<uint8_t> covered_;  // by node: has probes on its dict or instance
};

void Replay::reset(std::vector<PyObject*>* dead) {
  for (TypeWord& word : types) dead->push_back(reinterpret_cast<PyObject*>(word.type));
  for (PyObject* owner : owners) dead->push_back(owner);
  valid = false;
  types.clear();
  owners.clear();
  anchors.clear();
  fronts.clear();
  parts.clear();
  probes.clear();
  infos.clear();
  tensors.clear();
  aliases.clear();
}

// The replay to overwrite: that of the same objects, an invalid one, a new one, or the oldest.
Replay* GuardTree::next_replay() {
  for (size_t i = 0; i < replays_.size(); i++) {
    bool same = true;
    for (const Part& part : replays_[i]->anchors) same &= values_[part.begin] == part.value;
    if (same || !replays_[i]->valid) return replays_[latest_ = i].get();
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
  replay->reset(&temporaries_);
  Recorder(*this, *replay).run();
  replay->valid = true;
  if (!collect_.empty()) watch_owners(replay);
}

// A replay of objects that died is of no use: watch the topmost instances above collected nodes.
void GuardTree::watch_owners(Replay* replay) {
  std::vector<PyObject*> seen;
  for (int node : collect_) {
    PyObject* owner = nullptr;
    for (int at = nodes_[node].parent; at >= 0; at = nodes_[at].parent) {
      PyObject* value = replay->values[at];
      bool weak = value != nullptr && !PyType_Check(value) && !PyModule_Check(value) &&
                  !PyFunction_Check(value);
      if (weak && replay->verified[at] && PyType_SUPPORTS_WEAKREFS(Py_TYPE(value))) owner = value;
    }
    if (owner == nullptr || std::find(seen.begin(), seen.end(), owner) != seen.end()) continue;
    seen.push_back(owner);
    PyObject* reference = PyWeakref_NewRef(owner, on_death_);
    if (reference == nullptr) PyErr_Clear();
    if (reference != nullptr) replay->owners.push_back(reference);
  }
}

void GuardTree::forget(PyObject* reference) {
  std::vector<PyObject*> dead;
  for (auto& replay : replays_) {
    bool mine =
        std::find(replay->owners.begin(), replay->owners.end(), reference) != replay->owners.end();
    if (!mine) continue;
    std::swap(bindings_, dead.emplace_back(nullptr));
    replay->reset(&dead);
  }
  for (PyObject* object : dead) Py_XDECREF(object);
}

}  // namespace kiln
