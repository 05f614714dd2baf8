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

bool is_c_function(PyObject* value) {
  return PyCFunction_Check(value) || PyWeakref_CheckRefExact(value) ||
         std::strcmp(Py_TYPE(value)->tp_name, "functools._lru_cache_wrapper") == 0;
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

void GuardTree::run_calls(const Scope& scope) {
  for (Call& call : calls_) {
    call.function = callable_of(call.node, scope);
    if (call.function == nullptr) continue;
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
      return;
    }
    call.result = result;
  }
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
