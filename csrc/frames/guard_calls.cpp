// Guards on what C functions and weak references answer: torch.get_num_threads(), a function under
// lru_cache.
//
// They are called before anything is borrowed, since a cache that misses runs the Python function
// behind it, as the program itself would.
#include <cstring>
#include <utility>

#include "frames/guard_tree.h"

namespace kiln {
namespace {

bool is_cached(PyObject* value) {
  return std::strcmp(Py_TYPE(value)->tp_name, "functools._lru_cache_wrapper") == 0;
}

bool is_c_function(PyObject* value) {
  return PyCFunction_Check(value) || PyWeakref_CheckRefExact(value) || is_cached(value);
}

}  // namespace

// The function that is called at `node`, or null; a new reference.
PyObject* GuardTree::callable_of(int node, const Scope& scope) {
  std::vector<int> path;
  for (int at = nodes_[node].parent; at >= 0; at = nodes_[at].parent) path.push_back(at);
  PyObject* value = nullptr;
  for (size_t i = path.size(); i-- > 0;) {
    const Node& step = nodes_[path[i]];
    bool lost = step.access == Access::kCall || (step.parent >= 0 && value == nullptr);
    if (lost) return nullptr;
    Found found = fetch(step, value, scope);
    if (found.via == Via::kTemporary) temporaries_.push_back(found.value);
    value = found.value;
  }
  return value != nullptr && is_c_function(value) ? own(value) : nullptr;
}

// Whether a function of the program may run: one under lru_cache, or a method of that kind.
bool GuardTree::asks_program(const Node& node) {
  if (node.access == Access::kCall) return true;
  return node.access == Access::kAnswer &&
         std::strcmp(Py_TYPE(node.key)->tp_name, "operator.methodcaller") == 0;
}

// Whether all guards hold that no call decides.
bool GuardTree::holds_without_calls(const Scope& scope) {
  leave_calls_ = true;
  bool holds = settle(scope) == Verdict::kPass;
  leave_calls_ = false;
  return holds;
}

// False: one of them answers otherwise, and those behind it are not called.
bool GuardTree::run_calls(const Scope& scope) {
  if (!asks_methods_) may_ask_ = false;
  for (Call& call : calls_) {
    call.function = callable_of(call.node, scope);
    if (call.function == nullptr) continue;
    may_ask_ |= is_cached(call.function);
    PyObject* key = nodes_[call.node].key;
    PyObject* keywords = PyTuple_GET_ITEM(key, 1);
    PyObject* arguments = own(PyTuple_GET_ITEM(key, 0));
    PyObject* named = keywords == Py_None ? nullptr : own(keywords);
    PyObject* result = PyObject_Call(call.function, arguments, named);
    if (result == nullptr) PyErr_Clear();
    Py_DECREF(arguments);
    Py_XDECREF(named);
    if (calls_.empty()) {  // the tree was cleared meanwhile
      Py_XDECREF(result);
      return false;
    }
    call.result = result;
    if (result != nullptr && !evaluate_node(call.node, result)) return false;
  }
  return true;
}

// Between checks nothing is kept alive: a weak reference answers with the object of the program.
void GuardTree::release_calls() {
  for (Call& call : calls_) {
    for (PyObject** held : {&call.function, &call.result}) {
      if (*held != nullptr) temporaries_.push_back(std::exchange(*held, nullptr));
    }
  }
}

Found GuardTree::result_of(const Node& node, PyObject* function) {
  for (Call& call : calls_) {
    if (&nodes_[call.node] != &node) continue;
    bool same = call.function == function && call.result != nullptr;
    return same ? Found{own(call.result), Via::kTemporary} : Found{};
  }
  return {};
}

}  // namespace kiln
