#include "frames/dispatcher.h"

namespace kiln {

void read_signature(PyCodeObject* code, Signature* out) {
  out->names = PyObject_GetAttrString(reinterpret_cast<PyObject*>(code), "co_varnames");
  out->positional = code->co_argcount;
  out->positional_only = code->co_posonlyargcount;
  out->keyword_only = code->co_kwonlyargcount;
  out->var_args = code->co_flags & CO_VARARGS;
  out->var_kwargs = code->co_flags & CO_VARKEYWORDS;
}

namespace {

// Index of the parameter named `key`, or -1. Names are almost always interned.
int find_parameter(const Signature& signature, PyObject* key) {
  for (int i = signature.positional_only; i < signature.plain(); i++) {
    if (PyTuple_GET_ITEM(signature.names, i) == key) return i;
  }
  for (int i = signature.positional_only; i < signature.plain(); i++) {
    if (PyUnicode_Compare(PyTuple_GET_ITEM(signature.names, i), key) == 0) return i;
  }
  return -1;
}

bool bind_keywords(const Signature& signature, PyObject* const* values, PyObject* kwnames,
                   PyObject** slots, PyObject* var_kwargs) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kwnames); i++) {
    PyObject* key = PyTuple_GET_ITEM(kwnames, i);
    int at = find_parameter(signature, key);
    if (at >= 0) {
      if (slots[at] != nullptr) return false;  // given twice
      slots[at] = values[i];
    } else if (var_kwargs == nullptr || PyDict_SetItem(var_kwargs, key, values[i]) < 0) {
      PyErr_Clear();
      return false;
    }
  }
  return true;
}

bool fill_defaults(const Signature& signature, PyFunctionObject* function, PyObject** slots) {
  PyObject* defaults = function->func_defaults;
  Py_ssize_t count = defaults ? PyTuple_GET_SIZE(defaults) : 0;
  for (int i = 0; i < signature.positional; i++) {
    if (slots[i] != nullptr) continue;
    Py_ssize_t at = i - (signature.positional - count);
    if (at < 0) return false;
    slots[i] = PyTuple_GET_ITEM(defaults, at);
  }
  for (int i = signature.positional; i < signature.plain(); i++) {
    if (slots[i] != nullptr) continue;
    PyObject* dict = function->func_kwdefaults;
    slots[i] = dict ? PyDict_GetItemWithError(dict, PyTuple_GET_ITEM(signature.names, i)) : nullptr;
    if (slots[i] == nullptr) return PyErr_Clear(), false;
  }
  return true;
}

}  // namespace

bool bind_arguments(const Signature& signature, PyFunctionObject* function, PyObject* const* args,
                    Py_ssize_t nargs, PyObject* kwnames, PyObject** slots, PyObject* made[2]) {
  int plain = signature.plain();
  Py_ssize_t given = nargs < signature.positional ? nargs : signature.positional;
  if (nargs > given && !signature.var_args) return false;
  for (Py_ssize_t i = 0; i < given; i++) slots[i] = args[i];
  for (int i = static_cast<int>(given); i < plain; i++) slots[i] = nullptr;
  if (signature.var_args) {
    made[0] = PyTuple_New(nargs - given);
    if (made[0] == nullptr) return PyErr_Clear(), false;
    for (Py_ssize_t i = given; i < nargs; i++) PyTuple_SET_ITEM(made[0], i - given, own(args[i]));
    slots[plain] = made[0];
  }
  if (signature.var_kwargs) {
    made[1] = PyDict_New();
    if (made[1] == nullptr) return PyErr_Clear(), false;
    slots[plain + signature.var_args] = made[1];
  }
  if (kwnames != nullptr && !bind_keywords(signature, args + nargs, kwnames, slots, made[1]))
    return false;
  return fill_defaults(signature, function, slots);
}

}  // namespace kiln
