#include "frames/guard_paths.h"

#include <algorithm>

#include "support/collected_type.h"

namespace kiln {
namespace {

constexpr int kSource = 0, kGuardKind = 1, kExpected = 2;  // fields of a guard, a tuple

struct Names {
  PyObject* base = PyUnicode_InternFromString("base");
  PyObject* value = PyUnicode_InternFromString("value");
};

const Names& names() {
  static const Names made;
  return made;
}

using Kinds = std::unordered_map<PyObject*, KindForm>;

bool read_kinds(PyObject* table, Kinds* kinds) {
  PyObject *kind, *form;
  Py_ssize_t at = 0;
  while (PyDict_Next(table, &at, &kind, &form)) {
    unsigned int bit, implied;
    int several, absent, keys, identifies;
    if (!PyArg_ParseTuple(form, "IIpppp", &bit, &implied, &several, &absent, &keys, &identifies))
      return false;
    (*kinds)[kind] = {bit, implied, several != 0, absent != 0, keys != 0, identifies != 0};
  }
  return true;
}

// Whether the program may set `__class__` of the object that a guard refers to.
bool class_can_change(PyObject* expected) {
  PyObject* value = PyObject_GetAttr(expected, names().value);
  if (value == nullptr) {
    PyErr_Clear();
    return false;
  }
  bool found = PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_HEAPTYPE) && !PyType_Check(value);
  Py_DECREF(value);
  return found;
}

bool is_guard(PyObject* guard) { return PyTuple_Check(guard) && PyTuple_GET_SIZE(guard) > 2; }

// Adds (path, kind, text of what is expected) to `seen`; 1 if it was there, -1 on an error.
int add_detail(PyObject* seen, int path, PyObject* guard) {
  PyObject* text = PyObject_Repr(PyTuple_GET_ITEM(guard, kExpected));
  PyObject* key =
      text ? Py_BuildValue("(iON)", path, PyTuple_GET_ITEM(guard, kGuardKind), text) : nullptr;
  int found = key ? PySet_Contains(seen, key) : -1;
  if (found == 0 && PySet_Add(seen, key) < 0) found = -1;
  Py_XDECREF(key);
  return found;
}

// A preorder of the paths with their checks, as Python rows.
class RowWriter {
 public:
  RowWriter(const std::vector<PathStep>& steps, PyObject* checks)
      : steps_(steps), children_(steps.size()), checks_(steps.size()), number_(steps.size()) {
    nodes_ = PyList_New(static_cast<Py_ssize_t>(steps.size()));
    written_ = PyList_New(0);
    fine_ = nodes_ && written_ && sort(checks);
  }
  ~RowWriter() {
    Py_XDECREF(nodes_);
    Py_XDECREF(written_);
  }

  PyObject* run() {
    for (size_t i = 0; i < steps_.size() && fine_; i++) {
      if (steps_[i].parent < 0) visit(static_cast<int>(i), -1);
    }
    PyObject* order = fine_ ? PyList_New(static_cast<Py_ssize_t>(steps_.size())) : nullptr;
    if (order == nullptr) return nullptr;
    for (size_t i = 0; i < steps_.size(); i++)
      PyList_SET_ITEM(order, static_cast<Py_ssize_t>(i), PyLong_FromLong(number_[i]));
    return Py_BuildValue("(OON)", nodes_, written_, order);
  }

 private:
  struct Row {
    int kind, guard;
    PyObject* payload;  // borrowed
  };

  bool sort(PyObject* checks) {
    for (size_t i = 0; i < steps_.size(); i++) {
      if (steps_[i].parent >= 0) children_[steps_[i].parent].push_back(static_cast<int>(i));
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(checks); i++) {
      Row row;
      int path;
      if (!PyArg_ParseTuple(PyList_GET_ITEM(checks, i), "iiiO", &row.kind, &row.guard, &path,
                            &row.payload))
        return false;
      if (path < 0 || static_cast<size_t>(path) >= steps_.size()) {
        PyErr_SetString(PyExc_ValueError, "a check of no path");
        return false;
      }
      checks_[path].push_back(row);
    }
    for (std::vector<Row>& rows : checks_) {
      std::stable_sort(rows.begin(), rows.end(),
                       [](const Row& left, const Row& right) { return left.kind < right.kind; });
    }
    return true;
  }

  void visit(int path, int parent) {
    int node = number_[path] = count_++;
    Py_ssize_t first = PyList_GET_SIZE(written_);
    for (const Row& row : checks_[path]) {
      PyObject* made = Py_BuildValue("(iiiO)", row.kind, row.guard, node, row.payload);
      fine_ = fine_ && made && PyList_Append(written_, made) == 0;
      Py_XDECREF(made);
    }
    Py_ssize_t last = PyList_GET_SIZE(written_);
    for (int child : children_[path]) visit(child, node);
    const PathStep& step = steps_[path];
    PyObject* row =
        Py_BuildValue("(iiinnOn)", step.access, parent, count_, first, last, step.key, step.index);
    fine_ = fine_ && row;
    PyList_SET_ITEM(nodes_, node, row);
  }

  const std::vector<PathStep>& steps_;
  std::vector<std::vector<int>> children_;
  std::vector<std::vector<Row>> checks_;
  std::vector<int> number_;
  PyObject *nodes_, *written_;
  int count_ = 0;
  bool fine_;
};

}  // namespace

bool GuardPaths::read_forms(PyObject* table) {
  keys_ = PyDict_New();
  PyObject *type, *form;
  Py_ssize_t at = 0;
  while (keys_ && PyDict_Next(table, &at, &type, &form)) {
    StepForm& made = forms_[reinterpret_cast<PyTypeObject*>(type)];
    made = {0, nullptr, nullptr, nullptr};
    if (PyTuple_Check(form)) {
      PyObject *key, *index;
      if (!PyArg_ParseTuple(form, "iOO", &made.access, &key, &index)) return false;
      made.key = key == Py_None ? nullptr : own(key);
      made.index = index == Py_None ? nullptr : own(index);
    } else {
      made.callable = own(form);
    }
  }
  return keys_ != nullptr;
}

const StepForm* GuardPaths::form_of(PyObject* source) {
  auto found = forms_.find(Py_TYPE(source));
  if (found == forms_.end()) found = forms_.find(Py_TYPE(Py_None));
  if (found != forms_.end()) return &found->second;
  PyErr_Format(PyExc_ValueError, "no step for a %s", Py_TYPE(source)->tp_name);
  return nullptr;
}

int GuardPaths::number(PyObject* source) {
  auto known = known_.find(source);
  if (known != known_.end()) return known->second;
  const StepForm* form = form_of(source);
  int found = form ? take(source, *form) : -1;
  if (found >= 0) known_.emplace(own(source), found);
  return found;
}

int GuardPaths::take(PyObject* source, const StepForm& form) {
  int parent = -1;
  PyObject* base = PyObject_GetAttr(source, names().base);
  if (base != nullptr) {
    parent = number(base);
    Py_DECREF(base);
    if (parent < 0) return -1;
  } else {
    PyErr_Clear();
  }
  if (form.callable != nullptr) {
    PyObject* steps = PyObject_CallOneArg(form.callable, source);
    int found = steps ? take_all(parent, steps) : -1;
    Py_XDECREF(steps);
    return found;
  }
  PyObject* key = form.key ? PyObject_GetAttr(source, form.key) : own(Py_None);
  PyObject* index = key && form.index ? PyObject_GetAttr(source, form.index) : nullptr;
  Py_ssize_t position = index ? PyLong_AsSsize_t(index) : 0;
  int found = PyErr_Occurred() ? -1 : find(form.access, parent, key, position);
  Py_XDECREF(index);
  Py_XDECREF(key);
  return found;
}

int GuardPaths::take_all(int parent, PyObject* steps) {
  if (!PyTuple_Check(steps)) {
    PyErr_SetString(PyExc_TypeError, "steps must be a tuple");
    return -1;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(steps); i++) {
    int access;
    PyObject* key;
    Py_ssize_t index;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(steps, i), "iOn", &access, &key, &index)) return -1;
    parent = find(access, parent, key, index);
    if (parent < 0) return -1;
  }
  return parent;
}

int GuardPaths::find(int access, int parent, PyObject* key, Py_ssize_t index) {
  PyObject* same = canonical(key);
  if (same == nullptr) return -1;
  if (access == static_cast<int>(Access::kItem) && PyLong_CheckExact(same)) {
    index = PyLong_AsSsize_t(same);  // of a list or tuple
    if (index == -1 && PyErr_Occurred()) {
      PyErr_Clear();
      index = 0;
    }
  }
  int count = static_cast<int>(steps_.size());
  auto [found, added] = numbers_.try_emplace({access, parent, same, index}, count);
  if (added) steps_.push_back({access, parent, own(same), index});
  return found->second;
}

PyObject* GuardPaths::canonical(PyObject* key) {
  if (key == Py_None || PyBool_Check(key) || PyType_Check(key)) return key;
  if (PyUnicode_CheckExact(key) && PyUnicode_CHECK_INTERNED(key)) return key;
  // Equal tuples may hold 1 and True: the key of a code object's constants tells them apart at
  // every depth.
  PyObject* pair = PyTuple_CheckExact(key)
                       ? _PyCode_ConstantKey(key)
                       : PyTuple_Pack(2, reinterpret_cast<PyObject*>(Py_TYPE(key)), key);
  PyObject* first = pair ? PyDict_SetDefault(keys_, pair, key) : nullptr;
  Py_XDECREF(pair);
  if (first == nullptr && PyErr_ExceptionMatches(PyExc_TypeError)) {
    PyErr_Clear();  // it cannot be hashed: a namespace; the step keeps it alive
    return key;
  }
  return first;
}

PyObject* GuardPaths::needed(PyObject* guards, PyObject* table) {
  Kinds kinds;
  if (!read_kinds(table, &kinds)) return nullptr;
  Py_ssize_t count = PyList_GET_SIZE(guards);
  std::vector<int> paths;
  std::vector<const KindForm*> forms;
  std::vector<uint32_t> implied;
  std::vector<bool> keyed;
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject* guard = PyList_GET_ITEM(guards, i);
    auto form = is_guard(guard) ? kinds.find(PyTuple_GET_ITEM(guard, kGuardKind)) : kinds.end();
    if (form == kinds.end()) return PyErr_Format(PyExc_TypeError, "not a guard");
    int path = number(PyTuple_GET_ITEM(guard, kSource));
    if (path < 0) return nullptr;
    implied.resize(steps_.size());
    keyed.resize(steps_.size());
    const KindForm& kind = form->second;
    uint32_t weaker = kind.implied;
    if (kind.identifies && class_can_change(PyTuple_GET_ITEM(guard, kExpected))) weaker &= ~1u;
    implied[path] |= weaker;
    if (kind.keys) keyed[path] = true;
    paths.push_back(path);
    forms.push_back(&kind);
  }
  std::vector<uint32_t> seen(steps_.size());
  PyObject* details = PySet_New(nullptr);
  PyObject* kept = details ? PyList_New(0) : nullptr;
  for (Py_ssize_t i = 0; kept && i < count; i++) {
    PyObject* guard = PyList_GET_ITEM(guards, i);
    int path = paths[i];
    const KindForm& kind = *forms[i];
    const PathStep& step = steps_[path];
    bool in_keyed =
        step.access == static_cast<int>(Access::kItem) && step.parent >= 0 && keyed[step.parent];
    if ((implied[path] & kind.bit) || (kind.absent && in_keyed)) continue;
    int known = kind.several ? add_detail(details, path, guard) : (seen[path] & kind.bit) != 0;
    seen[path] |= kind.bit;
    if (known < 0 || (known == 0 && PyList_Append(kept, guard) < 0)) Py_CLEAR(kept);
  }
  Py_XDECREF(details);
  return kept;
}

PyObject* GuardPaths::rows(PyObject* checks) { return RowWriter(steps_, checks).run(); }

int GuardPaths::traverse(visitproc visit, void* arg) {
  for (auto& [type, form] : forms_) Py_VISIT(form.callable);
  for (auto& [source, number] : known_) Py_VISIT(source);
  for (PathStep& step : steps_) Py_VISIT(step.key);
  Py_VISIT(keys_);
  return 0;
}

void GuardPaths::clear() {
  std::vector<PyObject*> dead{std::exchange(keys_, nullptr)};
  for (auto& [type, form] : forms_) dead.insert(dead.end(), {form.key, form.index, form.callable});
  for (auto& [source, number] : known_) dead.push_back(source);
  for (PathStep& step : steps_) dead.push_back(step.key);
  forms_.clear();
  known_.clear();
  numbers_.clear();
  steps_.clear();
  for (PyObject* object : dead) Py_XDECREF(object);
}

namespace {

GuardPaths* paths_of(PyObject* self) { return &reinterpret_cast<GuardPathsObject*>(self)->paths; }

PyObject* paths_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  PyObject* forms;
  if (!PyArg_ParseTuple(args, "O!", &PyDict_Type, &forms)) return nullptr;
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  if (!std::construct_at(paths_of(self))->read_forms(forms)) Py_CLEAR(self);
  return self;
}

PyObject* paths_number(PyObject* self, PyObject* source) {
  int found = paths_of(self)->number(source);
  return found < 0 ? nullptr : PyLong_FromLong(found);
}

PyObject* paths_needed(PyObject* self, PyObject* args) {
  PyObject *guards, *kinds;
  if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &guards, &PyDict_Type, &kinds)) return nullptr;
  return paths_of(self)->needed(guards, kinds);
}

PyObject* paths_rows(PyObject* self, PyObject* checks) {
  if (!PyList_Check(checks)) return PyErr_Format(PyExc_TypeError, "checks must be a list");
  return paths_of(self)->rows(checks);
}

PyMethodDef methods[] = {
    {"number", paths_number, METH_O, "The number of a source."},
    {"needed", paths_needed, METH_VARARGS, "The guards that no other guard implies."},
    {"rows", paths_rows, METH_O, "The rows of a guard tree."},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject GuardPathsType = [] {
  PyTypeObject type = collected_type<GuardPathsObject, &GuardPathsObject::paths>(
      "kiln.native._frames.GuardPaths", "Numbers of the places that guards look at.", paths_new);
  type.tp_methods = methods;
  return type;
}();

}  // namespace

bool add_guard_paths(PyObject* module) { return PyModule_AddType(module, &GuardPathsType) == 0; }

}  // namespace kiln
