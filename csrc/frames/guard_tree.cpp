#include "frames/guard_tree.h"

#include <algorithm>

#include "frames/global_state.h"

namespace kiln {
namespace {

Found part(PyObject* value) { return {value, Via::kPart}; }

PyObject* cell_at(PyObject* closure, Py_ssize_t index) {
  if (closure == nullptr || !PyTuple_Check(closure) || index >= PyTuple_GET_SIZE(closure))
    return nullptr;
  return PyTuple_GET_ITEM(closure, index);
}

Found cell_contents(PyObject* closure, Py_ssize_t index) {
  PyObject* cell = cell_at(closure, index);
  return {cell != nullptr && PyCell_Check(cell) ? PyCell_GET(cell) : nullptr, Via::kVolatile};
}

Found dict_item(PyObject* dict, PyObject* key, Via via) {
  PyObject* value = PyDict_GetItemWithError(dict, key);
  if (value == nullptr && PyErr_Occurred()) PyErr_Clear();
  return {value, via};
}

Found item(PyObject* parent, const Node& node) {
  if (PyDict_Check(parent)) return dict_item(parent, node.key, Via::kDict);
  if (PyObject* dict = behind_proxy(parent); dict != parent) {
    return PyDict_Check(dict) ? dict_item(dict, node.key, Via::kVolatile) : Found{};
  }
  if (node.index < 0 && !PyLong_CheckExact(node.key)) return {};
  if (!PyTuple_Check(parent) && !PyList_Check(parent)) return {};
  Py_ssize_t at = node.index < 0 ? node.index + Py_SIZE(parent) : node.index;
  if (at < 0 || at >= Py_SIZE(parent)) return {};
  if (PyTuple_Check(parent)) return part(PyTuple_GET_ITEM(parent, at));
  return {PyList_GET_ITEM(parent, at), Via::kVolatile};
}

// The item at or after `*at` in the table of a set; null at its end.
PyObject* next_of_set(PyObject* set, Py_ssize_t* at) {
  auto* real = reinterpret_cast<PySetObject*>(set);
  while (*at <= real->mask) {
    const setentry& entry = real->table[(*at)++];
    if (entry.key != nullptr && entry.hash != -1) return entry.key;  // -1: a deleted entry
  }
  return nullptr;
}

Found set_item(PyObject* set, Py_ssize_t index) {
  PyObject* found = nullptr;
  Py_ssize_t at = 0;
  for (Py_ssize_t n = 0; n <= index; n++) found = next_of_set(set, &at);
  return {found, PyFrozenSet_CheckExact(set) ? Via::kPart : Via::kVolatile};
}

// An OrderedDict has an order of its own.
Found ordered_key_at(PyObject* dict, Py_ssize_t index) {
  PyObject* keys = PyODict_Type.tp_iter(dict);
  PyObject* key = nullptr;
  for (Py_ssize_t n = 0; keys != nullptr && n <= index; n++) {
    Py_XDECREF(key);
    key = PyIter_Next(keys);
    if (key == nullptr) break;
  }
  Py_XDECREF(keys);
  Py_XDECREF(key);  // the dict holds it
  if (PyErr_Occurred()) PyErr_Clear();
  return {key, Via::kVolatile};
}

// Whether no entry was deleted, so that entries stand at their numbers.
bool is_dense(PyObject* dict) {
  PyObject *key, *item;
  Py_ssize_t at = PyDict_GET_SIZE(dict) - 1;
  return at >= 0 && PyDict_Next(dict, &at, &key, &item) && at == PyDict_GET_SIZE(dict) &&
         !PyDict_Next(dict, &at, &key, &item);
}

// The nth key and value of a dict; null if there are fewer.
std::pair<PyObject*, PyObject*> entry_at(PyObject* dict, Py_ssize_t index) {
  PyObject *key, *item;
  bool dense = is_dense(dict);
  Py_ssize_t at = dense ? index : 0, n = dense ? index : 0;
  while (PyDict_Next(dict, &at, &key, &item)) {
    if (n++ == index) return {key, item};
  }
  return {nullptr, nullptr};
}

Found key_at(PyObject* value, Py_ssize_t index) {
  if (PyAnySet_Check(value)) return set_item(value, index);
  PyObject* dict = behind_proxy(value);
  if (!PyDict_Check(dict)) return {};
  if (PyODict_Check(dict)) return ordered_key_at(dict, index);
  return {entry_at(dict, index).first, PyDict_CheckExact(value) ? Via::kDict : Via::kVolatile};
}

Found value_at(PyObject* value, Py_ssize_t index) {
  PyObject* dict = behind_proxy(value);
  if (!PyDict_Check(dict)) return {};
  if (!PyODict_Check(dict))
    return {entry_at(dict, index).second, PyDict_CheckExact(value) ? Via::kDict : Via::kVolatile};
  PyObject* key = ordered_key_at(dict, index).value;
  PyObject* item = key != nullptr ? PyDict_GetItemWithError(dict, key) : nullptr;
  if (PyErr_Occurred()) PyErr_Clear();
  return {item, Via::kVolatile};
}

// A step into a function object.
Found function_part(PyObject* parent, const Node& node) {
  if (!PyFunction_Check(parent)) return {};
  auto* function = reinterpret_cast<PyFunctionObject*>(parent);
  if (node.access == Access::kClosure) return cell_contents(function->func_closure, node.index);
  if (node.access == Access::kKwDefault) {
    PyObject* dict = function->func_kwdefaults;
    return dict != nullptr && PyDict_Check(dict) ? dict_item(dict, node.key, Via::kVolatile)
                                                 : Found{};
  }
  PyObject* defaults = function->func_defaults;
  bool there =
      defaults != nullptr && PyTuple_Check(defaults) && node.index < PyTuple_GET_SIZE(defaults);
  return there ? Found{PyTuple_GET_ITEM(defaults, node.index), Via::kVolatile} : Found{};
}

Found instance_item(PyObject* parent, PyObject* name) {
  if (PyType_Check(parent)) {
    PyObject* dict = type_dict(reinterpret_cast<PyTypeObject*>(parent));
    Found found = dict != nullptr ? dict_item(dict, name, Via::kTypeAttr) : Found{};
    Py_XDECREF(dict);
    return found;
  }
  PyObject** slot = dict_slot(parent);
  return slot != nullptr ? dict_item(*slot, name, Via::kInstanceDict) : Found{};
}

Found mro_item(PyObject* type, Py_ssize_t index) {
  PyObject* order = PyType_Check(type) ? reinterpret_cast<PyTypeObject*>(type)->tp_mro : nullptr;
  bool there = order != nullptr && PyTuple_Check(order) && index < PyTuple_GET_SIZE(order);
  return {there ? PyTuple_GET_ITEM(order, index) : nullptr, Via::kTypeAttr};
}

// A tensor in the memory of a NumPy array, or of a copy of a scalar; nothing for one that is
// read-only, with which torch warns.
Found array_as_tensor(PyObject* value, PyObject* from_numpy) {
  PyObject* array = PyObject_CallMethod(value, "__array__", nullptr);
  Py_buffer buffer;
  bool writable =
      array != nullptr && PyObject_GetBuffer(array, &buffer, PyBUF_STRIDES | PyBUF_WRITABLE) == 0;
  PyObject* tensor = writable ? PyObject_CallOneArg(from_numpy, array) : nullptr;
  if (writable) PyBuffer_Release(&buffer);
  PyErr_Clear();
  Py_XDECREF(array);
  return tensor != nullptr ? Found{tensor, Via::kTemporary} : Found{};
}

Found answer(PyObject* function, PyObject* value) {
  PyObject* found = PyObject_CallOneArg(function, value);
  if (found == nullptr) PyErr_Clear();
  return found != nullptr ? Found{found, Via::kTemporary} : Found{};
}

Found step_from(const Node& node, PyObject* parent) {
  switch (node.access) {
    case Access::kAttr:
      return static_attr(parent, node.key);
    case Access::kDictAttr:
      return instance_item(parent, node.key);
    case Access::kItem:
      return item(parent, node);
    case Access::kType:
      return {reinterpret_cast<PyObject*>(Py_TYPE(parent)), Via::kTypeOf};
    case Access::kMethodFunc:
      return PyMethod_Check(parent) ? part(PyMethod_GET_FUNCTION(parent)) : Found{};
    case Access::kMethodSelf:
      return PyMethod_Check(parent) ? part(PyMethod_GET_SELF(parent)) : Found{};
    case Access::kKey:
      return key_at(parent, node.index);
    case Access::kValue:
      return value_at(parent, node.index);
    case Access::kArray:
      return array_as_tensor(parent, node.key);
    case Access::kAnswer:
      return answer(node.key, parent);
    case Access::kClassField:
      return class_field(parent, node.key);
    case Access::kMro:
      return mro_item(parent, node.index);
    default:
      return function_part(parent, node);
  }
}

bool length_is(PyObject* value, int64_t expected) {
  if (PyDict_Check(value)) return PyDict_GET_SIZE(value) == expected;
  if (PyList_Check(value)) return PyList_GET_SIZE(value) == expected;
  if (PyTuple_Check(value)) return PyTuple_GET_SIZE(value) == expected;
  if (PyAnySet_Check(value)) return PySet_GET_SIZE(value) == expected;
  if (PyUnicode_Check(value)) return PyUnicode_GET_LENGTH(value) == expected;
  if (PyBytes_Check(value)) return PyBytes_GET_SIZE(value) == expected;
  if (PyObject* dict = behind_proxy(value); dict != value) return length_is(dict, expected);
  return PyRange_Check(value) && PyObject_Size(value) == expected;
}

bool ordered_keys_are(PyObject* dict, PyObject* expected) {
  PyObject* keys = PyODict_Type.tp_iter(dict);
  bool equal = keys != nullptr;
  for (Py_ssize_t i = 0; equal && i < PyTuple_GET_SIZE(expected); i++) {
    PyObject* key = PyIter_Next(keys);
    equal = key != nullptr && same_constant(key, PyTuple_GET_ITEM(expected, i));
    Py_XDECREF(key);
  }
  Py_XDECREF(keys);
  if (PyErr_Occurred()) PyErr_Clear();
  return equal;
}

bool keys_are(PyObject* value, PyObject* expected) {
  PyObject* dict = behind_proxy(value);
  if (!PyDict_Check(dict) || PyDict_GET_SIZE(dict) != PyTuple_GET_SIZE(expected)) return false;
  if (PyODict_Check(dict)) return ordered_keys_are(dict, expected);
  PyObject *key, *item;
  Py_ssize_t at = 0, n = 0;
  while (PyDict_Next(dict, &at, &key, &item)) {
    if (!same_constant(key, PyTuple_GET_ITEM(expected, n++))) return false;
  }
  return true;
}

// These items are compared by identity: a class of the program may define their equality.
bool is_opaque(PyObject* item) { return PyType_HasFeature(Py_TYPE(item), Py_TPFLAGS_HEAPTYPE); }

bool same_item(PyObject* left, PyObject* right) {
  return left == right || (!is_opaque(left) && same_constant(left, right));
}

bool one_of(PyObject* item, PyObject* expected) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(expected); i++) {
    if (same_item(item, PyTuple_GET_ITEM(expected, i))) return true;
  }
  return false;
}

// `numbers[0]`: in this order. An unchanged set usually keeps its order.
bool items_are(const Check& check, PyObject* set) {
  PyObject* expected = check.expected;
  if (!PyAnySet_Check(set) || PySet_GET_SIZE(set) != PyTuple_GET_SIZE(expected)) return false;
  Py_ssize_t at = 0, n = 0;
  while (PyObject* item = next_of_set(set, &at)) {
    if (same_item(item, PyTuple_GET_ITEM(expected, n++))) continue;
    if (check.numbers[0] || !one_of(item, expected)) return false;
  }
  return true;
}

// Its equality and its hash run no Python code.
bool is_plain(PyObject* value) {
  return PyUnicode_CheckExact(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value) ||
         PyBool_Check(value) || PyBytes_CheckExact(value) || value == Py_None;
}

// `numbers[0]`: whether the set holds the plain constant. The guard fails where another kind of
// item has its hash.
bool holds_item(const Check& check, PyObject* set) {
  if (!PyAnySet_Check(set) || !is_plain(check.expected)) return false;
  Py_hash_t hash = PyObject_Hash(check.expected);
  auto* real = reinterpret_cast<PySetObject*>(set);
  size_t mask = static_cast<size_t>(real->mask), perturb = static_cast<size_t>(hash);
  for (size_t at = perturb & mask;; at = (at * 5 + 1 + perturb) & mask) {
    size_t last = at + 9 <= mask ? at + 9 : at;  // LINEAR_PROBES of CPython
    for (size_t i = at; i <= last; i++) {
      const setentry& entry = real->table[i];
      if (entry.key == nullptr) return !check.numbers[0];
      if (entry.hash != hash) continue;
      if (!is_plain(entry.key)) return false;
      if (PyObject_RichCompareBool(entry.key, check.expected, Py_EQ) == 1) return check.numbers[0];
    }
    perturb >>= 5;  // PERTURB_SHIFT
  }
}

bool function_is(const Check& check, PyObject* value) {
  if (!PyFunction_Check(value)) return false;
  auto* function = reinterpret_cast<PyFunctionObject*>(value);
  PyObject* defaults = function->func_defaults;
  PyObject* keywords = function->func_kwdefaults;
  PyObject* closure = function->func_closure;
  return function->func_code == check.expected &&
         (defaults ? PyTuple_GET_SIZE(defaults) : 0) == check.numbers[0] &&
         (keywords ? PyDict_GET_SIZE(keywords) : 0) == check.numbers[1] &&
         (closure ? PyTuple_GET_SIZE(closure) : 0) == check.numbers[2];
}

}  // namespace

Found GuardTree::fetch(const Node& node, PyObject* parent, const Scope& scope) {
  switch (node.access) {
    case Access::kLocal:
      return {node.index < scope.num_locals ? scope.locals[node.index] : nullptr, Via::kVolatile};
    case Access::kGlobals:
      return {scope.globals, Via::kVolatile};
    case Access::kCell:
      return cell_contents(scope.closure, node.index);
    case Access::kCellObject:
      return {cell_at(scope.closure, node.index), Via::kVolatile};
    case Access::kConst:
      return {node.key, Via::kFixed};
    case Access::kCall:
      return result_of(node, parent);
    default:
      return step_from(node, parent);
  }
}

bool GuardTree::evaluate(const Check& check, PyObject* value) {
  switch (check.kind) {
    case Kind::kTypeIs:
      return reinterpret_cast<PyObject*>(Py_TYPE(value)) == check.expected;
    case Kind::kEquals:
      return same_constant(value, check.expected);
    case Kind::kIs:
      return value == check.expected;
    case Kind::kLength:
      return length_is(value, check.numbers[0]);
    case Kind::kDictKeys:
      return keys_are(value, check.expected);
    case Kind::kHasAttr:
      return static_has(value, check.expected);
    case Kind::kNoAttr:
      return !static_has(value, check.expected);
    case Kind::kAbsent:
      return false;  // there is a value
    case Kind::kEmptyDict:
      return value == Py_None || (PyDict_Check(value) && PyDict_GET_SIZE(value) == 0);
    case Kind::kTensor:
      return check_tensor(*check.tensor, value);
    case Kind::kFunctionCode:
      return function_is(check, value);
    case Kind::kSetItems:
      return items_are(check, value);
    case Kind::kSetHolds:
      return holds_item(check, value);
    default:
      return false;
  }
}

bool GuardTree::evaluate_node(int at, PyObject* value) {
  const Node& node = nodes_[at];
  if (value == nullptr) {
    bool absent = node.last_check == node.first_check + 1 && node.end == at + 1 &&
                  checks_[node.first_check].kind == Kind::kAbsent;
    if (absent) return true;
    failed_ = node.first_check < node.last_check ? checks_[node.first_check].guard : -1;
    failed_node_ = at;
    return false;
  }
  for (int i = node.first_check; i < node.last_check; i++) {
    if (C10_UNLIKELY(!evaluate(checks_[i], value))) {
      failed_ = checks_[i].guard;
      failed_node_ = at;
      return false;
    }
  }
  return true;
}

bool GuardTree::walk(int begin, int end, const Scope& scope, PyObject** values, Via* via) {
  for (int i = begin; i < end; i++) {
    const Node& node = nodes_[i];
    if (C10_UNLIKELY(leave_calls_ && asks_program(node))) {
      std::fill(values + i, values + node.end, nullptr);
      std::fill(via + i, via + node.end, Via::kTemporary);
      i = node.end - 1;
      continue;
    }
    Found found = fetch(node, node.parent < 0 ? nullptr : values[node.parent], scope);
    if (found.via == Via::kTemporary) temporaries_.push_back(found.value);
    values[i] = found.value;
    via[i] = found.via;
    if (!evaluate_node(i, found.value)) return false;
  }
  return true;
}

bool GuardTree::aliases_hold(const Check& check, PyObject* const* values) {
  // Open addressing by storage or object; stamps save clearing the table.
  bool by_storage = check.numbers[0] != 0, foreign = false;
  ++alias_stamp_;
  for (size_t i = 0; i < check.nodes.size(); i++) alias_first_[i] = nullptr;
  for (size_t i = 0; i < check.nodes.size(); i++) {
    const void* key = alias_key(values[check.nodes[i]], by_storage);
    if (key == nullptr) continue;
    if (!joins_group(key, check.groups[i])) return false;
    foreign |= by_storage && is_foreign(key);
  }
  return !foreign || memory_is_apart(check, values);
}

// Whether no memory of another library is in two storages of `check`.
bool GuardTree::memory_is_apart(const Check& check, PyObject* const* values) {
  auto memory = [&](size_t i, bool foreign, Memory* out) {
    const void* key = alias_key(values[check.nodes[i]], true);
    if (key == nullptr || is_foreign(key) != foreign) return false;
    const auto* storage = static_cast<const c10::StorageImpl*>(key);
    auto begin = reinterpret_cast<uintptr_t>(storage->data());
    *out = {begin, begin + storage->nbytes(), check.groups[i]};
    return begin != 0;
  };
  auto before = [](const Memory& left, const Memory& right) { return left.begin < right.begin; };
  std::vector<Memory>& found = foreign_memory_;
  found.clear();
  Memory one;
  for (size_t i = 0; i < check.nodes.size(); i++) {
    if (memory(i, true, &one)) found.push_back(one);
  }
  std::sort(found.begin(), found.end(), before);
  for (size_t i = 1; i < found.size(); i++) {
    if (found[i].group != found[i - 1].group && found[i].begin < found[i - 1].end) return false;
  }
  for (size_t i = 0; i < check.nodes.size(); i++) {
    if (!memory(i, false, &one)) continue;
    auto next = std::upper_bound(found.begin(), found.end(), one, before);
    if (next != found.end() && next->begin < one.end) return false;
    if (next != found.begin() && std::prev(next)->end > one.begin) return false;
  }
  return true;
}

// Whether `key` is that of the group's members so far, and of no other group's.
bool GuardTree::joins_group(const void* key, int group) {
  if (alias_first_[group] != nullptr && alias_first_[group] != key) return false;
  alias_first_[group] = key;
  size_t mask = alias_keys_.size() - 1;
  size_t at = (reinterpret_cast<uintptr_t>(key) * 0x9E3779B97F4A7C15ull >> 32) & mask;
  while (alias_stamps_[at] == alias_stamp_ && alias_keys_[at] != key) at = (at + 1) & mask;
  if (alias_stamps_[at] == alias_stamp_ && alias_groups_[at] != group) return false;
  alias_stamps_[at] = alias_stamp_;
  alias_keys_[at] = key;
  alias_groups_[at] = group;
  return true;
}

bool GuardTree::evaluate_tree_check(const Check& check, PyObject* const* values) {
  if (leave_calls_ && check.on_calls) return true;
  bool holds;
  if (check.kind == Kind::kAliases) {
    holds = aliases_hold(check, values);
  } else if (check.kind == Kind::kRelation) {
    holds = check.relation->holds(values);
  } else {
    holds = static_cast<uint64_t>(check.numbers[0]) == global_state();
  }
  if (!holds) {
    failed_ = check.guard;
    failed_node_ = -1;
  }
  return holds;
}

bool GuardTree::evaluate_tree_checks(PyObject* const* values) {
  for (const Check& check : tree_checks_) {
    if (!evaluate_tree_check(check, values)) return false;
  }
  return true;
}

void GuardTree::drop_temporaries() {
  if (temporaries_.empty()) return;
  // A destructor may run Python code that checks this tree.
  std::vector<PyObject*> mine;
  mine.swap(temporaries_);
  for (PyObject* temporary : mine) Py_DECREF(temporary);
  mine.clear();
  if (temporaries_.empty()) temporaries_.swap(mine);
}

bool GuardTree::full_check(const Scope& scope) {
  full_checks++;
  return walk(0, static_cast<int>(nodes_.size()), scope, values_.data(), via_.data()) &&
         evaluate_tree_checks(values_.data());
}

bool GuardTree::allocates(int begin, int end) const {
  auto first = allocates_.begin();
  return std::find(first + begin, first + end, 1) != first + end;
}

// Allocated before anything is borrowed: the collector may run Python code.
bool GuardTree::prepare_bindings() {
  PyObject* made = PyTuple_New(static_cast<Py_ssize_t>(collect_.size()));
  if (made == nullptr) return PyErr_Clear(), false;
  if (!collect_.empty()) PyObject_GC_UnTrack(made);
  if (spare_ != nullptr) temporaries_.push_back(made);  // the collector ran a check of this tree
  if (spare_ == nullptr) spare_ = made;
  return true;
}

void GuardTree::bind(PyObject* const* values) {
  if (bindings_ != nullptr) temporaries_.push_back(bindings_);
  bindings_ = std::exchange(spare_, nullptr);
  if (collect_.empty()) return;
  for (size_t i = 0; i < collect_.size(); i++) {
    PyObject* value = values[collect_[i]];
    PyTuple_SET_ITEM(bindings_, i, own(value != nullptr ? value : Py_None));
  }
  PyObject_GC_Track(bindings_);
}

void GuardTree::recycle(PyObject* bindings) {
  Py_ssize_t size = PyTuple_GET_SIZE(bindings);
  bool reusable = spare_ == nullptr && size > 0 && Py_REFCNT(bindings) == 1;
  if (!reusable) return Py_DECREF(bindings);
  PyObject_GC_UnTrack(bindings);
  for (Py_ssize_t i = 0; i < size; i++) {
    PyObject* item = PyTuple_GET_ITEM(bindings, i);
    PyTuple_SET_ITEM(bindings, i, nullptr);
    Py_XDECREF(item);
  }
  if (spare_ != nullptr) return Py_DECREF(bindings);  // the death of an item made a call
  spare_ = bindings;
}

Verdict GuardTree::settle(const Scope& scope) {
  GcPause pause(false);
  pause_ = &pause;
  Verdict verdict = Verdict::kUnknown;
  for (size_t tried = 0; tried < replays_.size() && verdict == Verdict::kUnknown; tried++) {
    // Layers of a model are called in the order of the last time, so begin with the next one.
    size_t at = latest_ + tried;
    if (at >= replays_.size()) at -= replays_.size();
    verdict = replay(*replays_[at], scope);
    if (verdict == Verdict::kPass) latest_ = at;
  }
  if (verdict == Verdict::kUnknown) {
    pause.begin();
    bool passed = full_check(scope);
    if (passed && !leave_calls_) {
      record();
      if (!is_bound()) bind(values_.data());
    }
    verdict = passed ? Verdict::kPass : Verdict::kFail;
  }
  pause.end();
  return verdict;
}

bool GuardTree::check(const Scope& scope) {
  if (busy_) return false;
  if (spare_ == nullptr && !is_bound() && !prepare_bindings()) return false;
  busy_ = true;
  bool fits = !may_ask_ || holds_without_calls(scope);
  if (fits && C10_UNLIKELY(!calls_.empty())) fits = run_calls(scope);
  Verdict verdict = fits ? settle(scope) : Verdict::kFail;
  busy_ = false;
  if (C10_UNLIKELY(!calls_.empty())) release_calls();
  if (!temporaries_.empty()) {
    // A destructor may check this tree for other objects; the caller needs these bindings.
    PyObject* mine = own(bindings_);
    drop_temporaries();
    if (verdict == Verdict::kPass) std::swap(mine, bindings_);
    Py_XDECREF(mine);
  }
  return verdict == Verdict::kPass;
}

int GuardTree::failure(const Scope& scope, PyObject** value) {
  *value = nullptr;
  if (busy_) return -1;
  busy_ = true;
  failed_ = failed_node_ = -1;
  leave_calls_ = may_ask_ && !holds_without_calls(scope);
  if (!leave_calls_) run_calls(scope);
  GcPause pause(true);
  failed_ = failed_node_ = -1;
  bool passed = full_check(scope);
  leave_calls_ = false;
  if (!passed && failed_node_ >= 0) *value = own(values_[failed_node_]);
  // A missing node fails the first guard in its subtree.
  for (int at = failed_node_; !passed && failed_ < 0 && at >= 0 && at < (int)nodes_.size(); at++) {
    if (nodes_[at].first_check < nodes_[at].last_check)
      failed_ = checks_[nodes_[at].first_check].guard;
  }
  pause.end();
  busy_ = false;
  release_calls();
  drop_temporaries();
  return passed ? -1 : failed_;
}

}  // namespace kiln
