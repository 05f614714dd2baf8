#include "frames/static_attr.h"

#include <cstring>

namespace kiln {
namespace {

PyObject* lookup(PyObject* dict, PyObject* key) {
  PyObject* value = PyDict_GetItemWithError(dict, key);
  if (value == nullptr && PyErr_Occurred()) PyErr_Clear();
  return value;
}

// Descriptors whose __get__ is in C and has no side effects.
bool binds_in_c(PyObject* descriptor) {
  PyTypeObject* type = Py_TYPE(descriptor);
  return type == &PyFunction_Type || type == &PyMethodDescr_Type || type == &PyClassMethod_Type ||
         type == &PyStaticMethod_Type || type == &PyMemberDescr_Type ||
         type == &PyGetSetDescr_Type || type == &PyWrapperDescr_Type ||
         type == &PyClassMethodDescr_Type;
}

Found bind(PyObject* descriptor, PyObject* object, PyTypeObject* owner) {
  if (Py_TYPE(descriptor)->tp_descr_get == nullptr) return {descriptor, Via::kTypeAttr};
  if (!binds_in_c(descriptor)) return {};
  PyObject* value =
      Py_TYPE(descriptor)->tp_descr_get(descriptor, object, reinterpret_cast<PyObject*>(owner));
  if (value == nullptr) {
    PyErr_Clear();
    return {};
  }
  // A static method keeps its function alive; a function looked up on a type is itself.
  if (Py_TYPE(descriptor) == &PyStaticMethod_Type || value == descriptor) {
    Py_DECREF(value);
    return {value, Via::kTypeAttr};
  }
  return {value, Via::kTemporary};
}

Found attr_of_type(PyTypeObject* type, PyObject* name) {
  PyObject* descriptor = _PyType_Lookup(type, name);
  if (descriptor == nullptr) return {nullptr, Via::kTypeAttr};
  // A property or a descriptor of the user: looked up on a class, it is the object itself.
  if (!binds_in_c(descriptor)) return {descriptor, Via::kTypeAttr};
  return bind(descriptor, nullptr, type);
}

}  // namespace

Found static_attr(PyObject* object, PyObject* name) {
  if (PyType_Check(object)) return attr_of_type(reinterpret_cast<PyTypeObject*>(object), name);
  PyTypeObject* type = Py_TYPE(object);
  PyObject* descriptor = _PyType_Lookup(type, name);
  if (descriptor != nullptr && Py_TYPE(descriptor)->tp_descr_set != nullptr) {
    return bind(descriptor, object, type);
  }
  if (PyObject** slot = dict_slot(object)) {
    if (PyObject* value = lookup(*slot, name)) return {value, Via::kInstanceDict};
  }
  if (descriptor == nullptr) return {nullptr, Via::kTypeAttr};
  return bind(descriptor, object, type);
}

Found class_field(PyObject* type, PyObject* name) {
  if (!PyType_Check(type)) return {};
  PyObject* descriptor = _PyType_Lookup(Py_TYPE(type), name);
  if (descriptor == nullptr || Py_TYPE(descriptor)->tp_descr_set == nullptr) return {};
  return bind(descriptor, type, Py_TYPE(type));
}

bool static_has(PyObject* object, PyObject* name) {
  if (PyType_Check(object)) {
    return _PyType_Lookup(reinterpret_cast<PyTypeObject*>(object), name) != nullptr;
  }
  if (_PyType_Lookup(Py_TYPE(object), name) != nullptr) return true;
  PyObject** slot = dict_slot(object);
  return slot != nullptr && lookup(*slot, name) != nullptr;
}

bool same_constant(PyObject* left, PyObject* right) {
  if (left == right) return true;
  PyTypeObject* type = Py_TYPE(left);
  if (type != Py_TYPE(right)) return false;
  if (type == &PyFloat_Type) {
    double a = PyFloat_AS_DOUBLE(left), b = PyFloat_AS_DOUBLE(right);
    return (a != a && b != b) || std::memcmp(&a, &b, sizeof(a)) == 0;
  }
  if (type == &PyComplex_Type) {
    Py_complex a = PyComplex_AsCComplex(left), b = PyComplex_AsCComplex(right);
    return std::memcmp(&a, &b, sizeof(a)) == 0;
  }
  if (type == &PyTuple_Type) {
    Py_ssize_t size = PyTuple_GET_SIZE(left);
    if (size != PyTuple_GET_SIZE(right)) return false;
    for (Py_ssize_t i = 0; i < size; i++) {
      if (!same_constant(PyTuple_GET_ITEM(left, i), PyTuple_GET_ITEM(right, i))) return false;
    }
    return true;
  }
  int equal = PyObject_RichCompareBool(left, right, Py_EQ);
  if (equal < 0) PyErr_Clear();
  return equal == 1;
}

}  // namespace kiln
