// Tensors and errors between Python and C++, without torch's Python headers.
#pragma once

#include <Python.h>

#include <exception>

#include "executor/value.h"

namespace kiln {

// Finds where a Python tensor keeps its C++ tensor; to be called once, at import. False: a Python
// error is set.
bool find_tensor_field();

// Borrowed; nullptr without a Python error where `object` is no tensor.
c10::TensorImpl* tensor_of(PyObject* object);

// A new reference, or nullptr with a Python error.
PyObject* value_to_python(const Value& value);

// A new reference to a tensor, or a number, or None. False: a Python error is set.
bool value_from_python(PyObject* object, Value& value);

// As torch would raise it.
void set_python_error(const std::exception_ptr& error);

// `body()`; nullptr with a Python error where it throws.
template <typename Body>
PyObject* guarded(Body&& body) {
  try {
    return body();
  } catch (...) {
    set_python_error(std::current_exception());
    return nullptr;
  }
}

// A tuple of `make(0)`, `make(1)`, ...; nullptr with a Python error where one of them is nullptr.
template <typename Make>
PyObject* make_tuple(size_t count, Make&& make) {
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(count));
  for (size_t n = 0; tuple && n < count; n++) {
    PyObject* item = make(n);
    if (item) {
      PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(n), item);
    } else {
      Py_CLEAR(tuple);
    }
  }
  return tuple;
}

class ReleaseGil {
 public:
  ReleaseGil() : state_(PyEval_SaveThread()) {}
  ~ReleaseGil() { PyEval_RestoreThread(state_); }
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace kiln
