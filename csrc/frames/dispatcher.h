// Dispatcher, Entry and BoundCall: what stands in front of a compiled function.
#pragma once

#include "frames/guard_tree.h"

namespace kiln {

// One compiled variant: its guards and what to call while they hold.
struct Entry {
  PyObject_HEAD PyObject* tree;  // GuardTree, or None: always
  PyObject* callable;
  PyObject* info;  // anything; for the report
  uint64_t hits;
};

// The parameters of a function as slots: co_varnames order, so positional, keyword-only, *args,
// **kwargs.
struct Signature {
  PyObject* names;  // owned tuple, co_varnames
  int positional, positional_only, keyword_only;
  bool var_args, var_kwargs;

  int plain() const { return positional + keyword_only; }
  int slots() const { return plain() + var_args + var_kwargs; }
};

// Fills `slots` (borrowed references; what had to be made is pushed to `made`). False where the
// call does not fit the signature: the function itself then raises the right TypeError.
bool bind_arguments(const Signature& signature, PyFunctionObject* function, PyObject* const* args,
                    Py_ssize_t nargs, PyObject* kwnames, PyObject** slots, PyObject* made[2]);

void read_signature(PyCodeObject* code, Signature* out);

bool add_dispatcher(PyObject* module);
bool add_entry(PyObject* module);
extern PyTypeObject EntryType;

}  // namespace kiln
