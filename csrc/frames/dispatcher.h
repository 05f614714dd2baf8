// Dispatcher, Entry and BoundCall: they choose and call a compiled variant of a function.
#pragma once

#include "frames/guard_tree.h"

namespace kiln {

// A compiled variant: its guards, and what to call if they hold.
struct Entry {
  PyObject_HEAD PyObject* tree;  // GuardTree, or None: always
  PyObject* callable;
  PyObject* info;  // any object, for the report
  uint64_t hits;
  PyObject* sample;    // called in place of `callable` by hit number `sample_at`, once; or null
  uint64_t sample_at;  // 0: never
};

// The parameters of a function as slots in co_varnames order: positional, keyword-only, *args,
// **kwargs.
struct Signature {
  PyObject* names;  // owned tuple, co_varnames
  int positional, positional_only, keyword_only;
  bool var_args, var_kwargs;

  int plain() const { return positional + keyword_only; }
  int slots() const { return plain() + var_args + var_kwargs; }
};

// Fills `slots` with borrowed references; new objects go to `made`. False if the call does not fit
// the signature: the function itself then raises the right TypeError.
bool bind_arguments(const Signature& signature, PyFunctionObject* function, PyObject* const* args,
                    Py_ssize_t nargs, PyObject* kwnames, PyObject** slots, PyObject* made[2]);

void read_signature(PyCodeObject* code, Signature* out);

// Whether its guards hold; never for a cleared entry.
inline bool entry_holds(Entry* entry, const Scope& scope) {
  if (entry->tree == Py_None || entry->tree == nullptr) return entry->tree == Py_None;
  return reinterpret_cast<GuardTreeObject*>(entry->tree)->tree.check(scope);
}

bool add_dispatcher(PyObject* module);
bool add_entry(PyObject* module);
extern PyTypeObject EntryType;

}  // namespace kiln
