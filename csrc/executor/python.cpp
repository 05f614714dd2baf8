#include "executor/python.h"

#include <ATen/core/TensorBase.h>

#include <cstring>

// Exported by libtorch_python; declared here because its headers cost ten seconds.
extern PyObject* THPVariableClass;
extern PyObject* ParameterClass;
PyObject* THPVariable_Wrap(const at::TensorBase& tensor);
namespace torch {
void translate_exception_to_python(const std::exception_ptr& error);
}

namespace kiln {

namespace {

// Bytes from a tensor object to its pointer; the layout of the object differs between torch
// versions.
Py_ssize_t tensor_field = 0;

bool find_in(PyObject* tensor) {
  PyObject* address = PyObject_GetAttrString(tensor, "_cdata");
  if (!address) return false;
  void* wanted = PyLong_AsVoidPtr(address);
  Py_DECREF(address);
  if (PyErr_Occurred()) return false;
  auto size = static_cast<Py_ssize_t>(Py_TYPE(tensor)->tp_basicsize);
  for (Py_ssize_t at = sizeof(PyObject); at + 8 <= size; at += 8) {
    void* found;
    std::memcpy(&found, reinterpret_cast<char*>(tensor) + at, sizeof found);
    if (found == wanted) {
      tensor_field = at;
      return true;
    }
  }
  PyErr_SetString(PyExc_ImportError, "the layout of torch's tensor objects is not known");
  return false;
}

}  // namespace

bool find_tensor_field() {
  PyObject* torch = PyImport_ImportModule("torch");
  if (!torch) return false;
  PyObject* tensor = PyObject_CallMethod(torch, "empty", "i", 0);
  Py_DECREF(torch);
  if (!tensor) return false;
  bool found = find_in(tensor);
  Py_DECREF(tensor);
  return found;
}

c10::TensorImpl* tensor_of(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  bool exact = type == reinterpret_cast<PyTypeObject*>(THPVariableClass) ||
               type == reinterpret_cast<PyTypeObject*>(ParameterClass);
  if (!exact) {
    int is_tensor = PyObject_IsInstance(object, THPVariableClass);
    if (is_tensor <= 0) return nullptr;
  }
  c10::TensorImpl* found;
  std::memcpy(&found, reinterpret_cast<char*>(object) + tensor_field, sizeof found);
  return found;
}

PyObject* value_to_python(const Value& value) {
  switch (value.tag()) {
    case Value::Tag::kTensor:
      return THPVariable_Wrap(at::TensorBase(value.share()));
    case Value::Tag::kInt:
      return PyLong_FromLongLong(value.integer());
    case Value::Tag::kBool:
      return PyBool_FromLong(value.integer() != 0);
    case Value::Tag::kFloat:
      return PyFloat_FromDouble(value.real());
    default:
      Py_RETURN_NONE;
  }
}

bool value_from_python(PyObject* object, Value& value) {
  if (c10::TensorImpl* tensor = tensor_of(object)) {
    value.set_tensor(TensorPtr::reclaim_copy(tensor));
  } else if (PyErr_Occurred()) {
    return false;
  } else if (PyBool_Check(object)) {
    value.set_bool(object == Py_True);
  } else if (PyLong_Check(object)) {
    value.set_int(PyLong_AsLongLong(object));
  } else if (PyFloat_Check(object)) {
    value.set_float(PyFloat_AS_DOUBLE(object));
  } else if (object != Py_None) {
    PyErr_Format(PyExc_TypeError, "expected a tensor, a number or None, got %s",
                 Py_TYPE(object)->tp_name);
  }
  return !PyErr_Occurred();
}

void set_python_error(const std::exception_ptr& error) {
  torch::translate_exception_to_python(error);
}

}  // namespace kiln
