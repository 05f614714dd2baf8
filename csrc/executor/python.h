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
