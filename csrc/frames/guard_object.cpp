// The Python type GuardTree: parsing, garbage collection, methods.

#include "frames/guard_tree.h"
#include "support/collected_type.h"

namespace kiln {
namespace {

GuardTree* tree_of(PyObject* self) { return &reinterpret_cast<GuardTreeObject*>(self)->tree; }

bool parse_node(PyObject* row, Node* node) {
  int access;
  PyObject* key;
  if (!PyArg_ParseTuple(row, "iiiiiOn", &access, &node->parent, &node->end, &node->first_check,
                        &node->last_check, &key, &node->index)) {
    return false;
  }
  node->access = static_cast<Access>(access);
  if (PyUnicode_CheckExact(key)) {
    Py_INCREF(key);
    PyUnicode_InternInPlace(&key);
    node->key = key;
  } else {
    node->key = own(key);
  }
  return true;
}

bool int_list(PyObject* tuple, std::vector<int>* out) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
    out->push_back(static_cast<int>(PyLong_AsLong(PyTuple_GET_ITEM(tuple, i))));
  }
  return !PyErr_Occurred();
}

bool parse_payload(Check* check, PyObject* payload) {
  switch (check->kind) {
    case Kind::kLength:
      check->numbers[0] = PyLong_AsLongLong(payload);
      return !PyErr_Occurred();
    case Kind::kGlobalState:
      check->numbers[0] = static_cast<int64_t>(PyLong_AsUnsignedLongLong(payload));
      return !PyErr_Occurred();
    case Kind::kTensor:
      check->tensor = std::make_unique<TensorExpectation>();
      return parse_tensor_expectation(payload, check->tensor.get());
    case Kind::kFunctionCode: {
      PyObject* code;
      long long* n = reinterpret_cast<long long*>(check->numbers);
      if (!PyArg_ParseTuple(payload, "OLLL", &code, n, n + 1, n + 2)) return false;
      check->expected = own(code);
      return true;
    }
    case Kind::kSetHolds: {
      PyObject* item;
      int held;
      if (!PyArg_ParseTuple(payload, "Op", &item, &held)) return false;
      check->numbers[0] = held;
      check->expected = own(item);
      return true;
    }
    case Kind::kSetItems: {
      PyObject* items;
      int ordered;
      if (!PyArg_ParseTuple(payload, "pO!", &ordered, &PyTuple_Type, &items)) return false;
      check->numbers[0] = ordered;
      check->expected = own(items);
      return true;
    }
    case Kind::kAliases: {
      PyObject *nodes, *groups;
      int by_storage;
      if (!PyArg_ParseTuple(payload, "pO!O!", &by_storage, &PyTuple_Type, &nodes, &PyTuple_Type,
                            &groups))
        return false;
      check->numbers[0] = by_storage;
      if (!int_list(nodes, &check->nodes) || !int_list(groups, &check->groups)) return false;
      return true;
    }
    case Kind::kRelation: {
      PyObject *steps, *operands;
      if (!PyArg_ParseTuple(payload, "O!O!", &PyTuple_Type, &steps, &PyTuple_Type, &operands))
        return false;
      check->relation = std::make_unique<ShapeProgram>();
      return parse_shape_program(steps, operands, check->relation.get());
    }
    default:
      check->expected = own(payload);
      return true;
  }
}

PyObject* owner_died(PyObject* capsule, PyObject* reference) {
  auto** box = static_cast<GuardTree**>(PyCapsule_GetPointer(capsule, nullptr));
  if (box != nullptr && *box != nullptr) (*box)->forget(reference);
  Py_RETURN_NONE;
}

PyMethodDef owner_died_def = {"owner_died", owner_died, METH_O, nullptr};

void free_box(PyObject* capsule) {
  delete static_cast<GuardTree**>(PyCapsule_GetPointer(capsule, nullptr));
}

}  // namespace

bool GuardTree::parse(PyObject* nodes, PyObject* checks, PyObject* collect) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(nodes); i++) {
    nodes_.emplace_back();
    nodes_.back().key = nullptr;
    if (!parse_node(PyList_GET_ITEM(nodes, i), &nodes_.back())) return false;
  }
  size_t most_aliases = 0;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(checks); i++) {
    int kind, guard, node;
    PyObject* payload;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(checks, i), "iiiO", &kind, &guard, &node, &payload))
      return false;
    auto& into = kind >= static_cast<int>(Kind::kAliases) ? tree_checks_ : checks_;
    Check& check = into.emplace_back();
    check.kind = static_cast<Kind>(kind);
    check.guard = guard;
    check.node = node;
    check.expected = nullptr;
    if (!parse_payload(&check, payload)) return false;
    most_aliases = std::max(most_aliases, check.nodes.size());
  }
  if (!int_list(collect, &collect_)) return false;
  size_t size = nodes_.size(), table = 1;
  while (table < 2 * most_aliases) table *= 2;
  alias_first_.resize(most_aliases);
  alias_keys_.resize(table);
  alias_groups_.resize(table);
  alias_stamps_.resize(table);
  values_.resize(size);
  via_.resize(size);
  for (size_t i = 0; i < size; i++) {
    if (nodes_[i].access != Access::kCall) continue;
    PyObject* key = nodes_[i].key;
    bool fits = PyTuple_Check(key) && PyTuple_GET_SIZE(key) == 2 &&
                PyTuple_Check(PyTuple_GET_ITEM(key, 0)) &&
                (PyTuple_GET_ITEM(key, 1) == Py_None || PyDict_Check(PyTuple_GET_ITEM(key, 1)));
    if (!fits) return false;
    calls_.push_back({static_cast<int>(i), nullptr, nullptr});
  }
  note_calls();
  for (const Node& node : nodes_) {
    bool found = node.access == Access::kAttr || node.access == Access::kDictAttr ||
                 node.access == Access::kClassField || node.access == Access::kArray ||
                 node.access == Access::kAnswer;
    for (int i = node.first_check; i < node.last_check; i++) {
      Kind kind = checks_[i].kind;
      found |= kind == Kind::kDictKeys || kind == Kind::kHasAttr || kind == Kind::kNoAttr;
    }
    allocates_.push_back(found);
  }
  for (size_t i = 0; i < size; i++)
    allocates_below_.push_back(allocates(static_cast<int>(i), nodes_[i].end));
  temporaries_.reserve(8);
  box_ = new GuardTree*(this);
  PyObject* capsule = PyCapsule_New(box_, nullptr, free_box);
  on_death_ = capsule ? PyCFunction_New(&owner_died_def, capsule) : nullptr;
  Py_XDECREF(capsule);
  return on_death_ != nullptr;
}

// Which checks of several nodes read what a call answers.
void GuardTree::note_calls() {
  std::vector<bool> below(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); i++) {
    int parent = nodes_[i].parent;
    below[i] = asks_program(nodes_[i]) || (parent >= 0 && below[parent]);
    may_ask_ |= below[i];
    asks_methods_ |= below[i] && nodes_[i].access == Access::kAnswer;
  }
  for (Check& check : tree_checks_) {
    for (int node : check.nodes) check.on_calls |= below[node];
    if (!check.relation) continue;
    for (const ShapeOperand& operand : check.relation->operands)
      check.on_calls |= below[operand.node];
  }
}

GuardTree::~GuardTree() { clear(); }

void GuardTree::clear() {
  std::vector<PyObject*> dead;
  if (box_ != nullptr) *box_ = nullptr;  // the callback may outlive the tree
  box_ = nullptr;
  std::swap(on_death_, dead.emplace_back(nullptr));
  std::swap(bindings_, dead.emplace_back(nullptr));
  std::swap(spare_, dead.emplace_back(nullptr));
  for (auto& replay : replays_) replay->reset(&dead);
  replays_.clear();
  for (Node& node : nodes_) dead.push_back(node.key);
  for (Check& check : checks_) dead.push_back(check.expected);
  for (Check& check : tree_checks_) dead.push_back(check.expected);
  for (Call& call : calls_) {
    dead.push_back(call.function);
    dead.push_back(call.result);
  }
  calls_.clear();
  nodes_.clear();
  checks_.clear();
  tree_checks_.clear();
  collect_.clear();
  // A cleared tree must hold for no call.
  busy_ = true;
  for (PyObject* object : dead) Py_XDECREF(object);
}

int GuardTree::traverse(visitproc visit, void* arg) {
  for (Node& node : nodes_) Py_VISIT(node.key);
  for (Check& check : checks_) {
    Py_VISIT(check.expected);
    if (check.tensor) Py_VISIT(check.tensor->type);
  }
  for (Call& call : calls_) {
    Py_VISIT(call.function);
    Py_VISIT(call.result);
  }
  for (auto& replay : replays_) {
    for (PyObject* owner : replay->owners) Py_VISIT(owner);
    for (TypeWord& word : replay->types) Py_VISIT(word.type);
  }
  Py_VISIT(bindings_);
  Py_VISIT(on_death_);
  return 0;
}

namespace {

PyObject* tree_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  PyObject *nodes, *checks, *collect;
  if (!PyArg_ParseTuple(args, "O!O!O!", &PyList_Type, &nodes, &PyList_Type, &checks, &PyTuple_Type,
                        &collect)) {
    return nullptr;
  }
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  auto* tree = std::construct_at(tree_of(self));
  if (!tree->parse(nodes, checks, collect)) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "malformed guard tree");
    Py_DECREF(self);
    return nullptr;
  }
  return self;
}

// locals (sequence in slot order), globals=None, closure=None
bool parse_scope(PyObject* args, PyObject* kwargs, PyObject** keep, Scope* scope) {
  static const char* names[] = {"locals", "globals", "closure", nullptr};
  PyObject *locals, *globals = Py_None, *closure = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OO", const_cast<char**>(names), &locals,
                                   &globals, &closure)) {
    return false;
  }
  *keep = PySequence_Tuple(locals);
  if (*keep == nullptr) return false;
  scope->locals = &PyTuple_GET_ITEM(*keep, 0);
  scope->num_locals = PyTuple_GET_SIZE(*keep);
  scope->globals = PyDict_Check(globals) ? globals : nullptr;
  scope->closure = PyTuple_Check(closure) ? closure : nullptr;
  return true;
}

PyObject* tree_check(PyObject* self, PyObject* args, PyObject* kwargs) {
  PyObject* keep;
  Scope scope;
  if (!parse_scope(args, kwargs, &keep, &scope)) return nullptr;
  bool holds = tree_of(self)->check(scope);
  Py_DECREF(keep);
  return PyBool_FromLong(holds);
}

bool is_plain(PyObject* value) {
  return value == Py_None || value == Py_Ellipsis || PyBool_Check(value) ||
         PyLong_CheckExact(value) || PyFloat_CheckExact(value) || PyComplex_CheckExact(value) ||
         PyUnicode_CheckExact(value) || PyBytes_CheckExact(value);
}

bool all_plain(PyObject* tuple) {
  if (!PyTuple_CheckExact(tuple) || PyTuple_GET_SIZE(tuple) > 16) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
    if (!is_plain(PyTuple_GET_ITEM(tuple, i))) return false;
  }
  return true;
}

PyObject* describe_dict(PyObject* dict) {
  PyObject* keys = PyDict_Keys(dict);
  PyObject* tuple = keys != nullptr ? PyList_AsTuple(keys) : nullptr;
  Py_XDECREF(keys);
  if (tuple == nullptr) return nullptr;
  PyObject* text = all_plain(tuple)
                       ? PyUnicode_FromFormat("a dict with the keys %R", tuple)
                       : PyUnicode_FromFormat("a dict of %zd items", PyDict_GET_SIZE(dict));
  Py_DECREF(tuple);
  return text;
}

// Runs no code of the program and prints no data of tensors.
PyObject* describe(PyObject* value) {
  if (value == nullptr) return PyUnicode_FromString("nothing");
  if (is_tensor(value)) return PyUnicode_FromString(describe_tensor(value).c_str());
  if (PyDict_Check(behind_proxy(value))) return describe_dict(behind_proxy(value));
  if (PyType_Check(value))
    return PyUnicode_FromFormat("class %s", reinterpret_cast<PyTypeObject*>(value)->tp_name);
  if (PyFunction_Check(value))
    return PyUnicode_FromFormat("function %U",
                                reinterpret_cast<PyFunctionObject*>(value)->func_qualname);
  if (PyList_Check(value))
    return PyUnicode_FromFormat("a list of %zd items", PyList_GET_SIZE(value));
  if (PyTuple_Check(value) && !all_plain(value))
    return PyUnicode_FromFormat("a tuple of %zd items", PyTuple_GET_SIZE(value));
  if (PyAnySet_Check(value))
    return PyUnicode_FromFormat("a set of %zd items", PySet_GET_SIZE(value));
  if (!is_plain(value) && !PyTuple_CheckExact(value))
    return PyUnicode_FromFormat("a %s", Py_TYPE(value)->tp_name);
  PyObject* text = PyObject_Repr(value);
  if (text == nullptr) {
    PyErr_Clear();
    return PyUnicode_FromFormat("a %s", Py_TYPE(value)->tp_name);
  }
  if (PyUnicode_GET_LENGTH(text) > 200) Py_SETREF(text, PyUnicode_Substring(text, 0, 200));
  return text;
}

PyObject* tree_explain(PyObject* self, PyObject* args, PyObject* kwargs) {
  PyObject *keep, *value;
  Scope scope;
  if (!parse_scope(args, kwargs, &keep, &scope)) return nullptr;
  int guard = tree_of(self)->failure(scope, &value);
  Py_DECREF(keep);
  if (guard < 0) {
    Py_XDECREF(value);
    Py_RETURN_NONE;
  }
  PyObject* text = describe(value);
  Py_XDECREF(value);
  return text ? Py_BuildValue("(iN)", guard, text) : nullptr;
}

PyObject* tree_counts(PyObject* self, PyObject*) {
  GuardTree* tree = tree_of(self);
  return Py_BuildValue("{s:K,s:K,s:K}", "full", (unsigned long long)tree->full_checks, "replayed",
                       (unsigned long long)tree->replayed, "revalidated",
                       (unsigned long long)tree->revalidated);
}

PyObject* tree_bindings(PyObject* self, void*) {
  PyObject* bindings = tree_of(self)->bindings();
  return own(bindings ? bindings : Py_None);
}

// Methods with keywords have another type than the table; CPython distinguishes them by flags.
PyCFunction with_keywords(PyCFunctionWithKeywords function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef methods[] = {
    {"check", with_keywords(tree_check), METH_VARARGS | METH_KEYWORDS, "Whether all guards hold."},
    {"explain", with_keywords(tree_explain), METH_VARARGS | METH_KEYWORDS,
     "(index of the failing guard, text of the value) or None."},
    {"counts", tree_counts, METH_NOARGS,
     "How often the tree was checked in full, replayed, revalidated."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef getset[] = {{"bindings", tree_bindings, nullptr,
                         "The objects collected by the last successful check, a tuple.", nullptr},
                        {nullptr, nullptr, nullptr, nullptr, nullptr}};

}  // namespace

PyTypeObject GuardTreeType = [] {
  PyTypeObject type = collected_type<GuardTreeObject, &GuardTreeObject::tree>(
      "kiln.native._frames.GuardTree",
      "Native guards of one variant; made by kiln.runtime.guards.tree.", tree_new);
  type.tp_methods = methods;
  type.tp_getset = getset;
  return type;
}();

bool add_guard_tree(PyObject* module) { return PyModule_AddType(module, &GuardTreeType) == 0; }

}  // namespace kiln
