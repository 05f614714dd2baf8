// Calls whose arguments are given away: the callee's frame is their only owner, so that what the
// program drops in it is freed at once. In a call of C the caller keeps them until it returns.
#pragma once

#include "frames/cpython.h"

namespace kiln {

// Calls `function` with `count` owned references; they are used up. Dispatchers and what they call
// pass them on to the Python function in the end.
PyObject* call_giving(PyObject* function, PyObject** args, Py_ssize_t count);

// The arguments of the `call_giving` that no frame has yet; null without one.
struct Given;
extern __attribute__((tls_model("initial-exec"))) thread_local constinit Given* pending;

// Gives the frame of `callable` the pending arguments, if they are `args` and it is a Python
// function.
void give_pending(PyObject* callable, PyObject* const* args);

// PyObject_Vectorcall(callable, slots, nargsf, kwnames), where `slots` begin with `args`. If these
// are the arguments of a `call_giving` and `callable` is a Python function, its frame gets them.
inline PyObject* call_passing_on(PyObject* callable, PyObject* const* args, PyObject* const* slots,
                                 size_t nargsf, PyObject* kwnames) {
  if (pending != nullptr) give_pending(callable, args);
  return PyObject_Vectorcall(callable, slots, nargsf, kwnames);
}

bool add_tail_calls(PyObject* module);

}  // namespace kiln
