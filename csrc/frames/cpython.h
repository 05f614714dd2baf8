// Parts of CPython objects that guards read and that have no public accessor.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <cstdint>

namespace kiln {

// Gives a dict a table of its own. In 3.13 the values of an instance's dict lie in the instance
// itself, and an assignment to an attribute need not change the version of the dict: 3.13.0 neither
// counts it nor tells watchers. A dict with its own table counts all changes.
inline bool own_table(PyObject* dict) {
#if PY_VERSION_HEX >= 0x030D0000 && PY_VERSION_HEX < 0x030E0000
  auto* self = reinterpret_cast<PyDictObject*>(dict);
  if (self->ma_values == nullptr) return true;
  PyObject* none = nullptr;
  if (PyDict_GET_SIZE(dict) == 0) {  // `popitem` moves the values, and needs an item
    none = PyUnicode_InternFromString("_kiln");
    if (none == nullptr || PyDict_SetItem(dict, none, Py_None) < 0) PyErr_Clear();
  }
  PyObject* last = PyObject_CallMethod(dict, "popitem", nullptr);
  bool moved = last != nullptr;
  if (moved && none == nullptr) {
    moved = PyDict_SetItem(dict, PyTuple_GET_ITEM(last, 0), PyTuple_GET_ITEM(last, 1)) == 0;
  }
  Py_XDECREF(last);
  Py_XDECREF(none);
  PyErr_Clear();
  return moved && self->ma_values == nullptr;
#else
  return true;
#endif
}

// Zero if the type was modified and not looked up since.
inline uint32_t type_version(PyTypeObject* type) {
#if PY_VERSION_HEX < 0x030D0000
  return (type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG) ? type->tp_version_tag : 0;
#else
  return type->tp_version_tag;
#endif
}

// The address of an instance's dict pointer, or null; makes the dict if there is none.
inline PyObject** dict_slot(PyObject* object) {
  PyObject** slot = _PyObject_GetDictPtr(object);
  if (slot == nullptr) return nullptr;
  if (*slot == nullptr) {
    PyObject* dict = PyObject_GenericGetDict(object, nullptr);
    if (dict == nullptr) {
      PyErr_Clear();
      return nullptr;
    }
    Py_DECREF(dict);
    slot = _PyObject_GetDictPtr(object);
  }
  return slot != nullptr && *slot != nullptr && PyDict_Check(*slot) ? slot : nullptr;
}

// A new reference to the type's own attributes.
inline PyObject* type_dict(PyTypeObject* type) {
#if PY_VERSION_HEX < 0x030C0000
  Py_XINCREF(type->tp_dict);
  return type->tp_dict;
#else
  return PyType_GetDict(type);
#endif
}

// Up to 3.11 any allocation may start the garbage collector and so run Python code. While a GcPause
// lives, borrowed references stay valid.
class GcPause {
 public:
  explicit GcPause(bool now) {
    if (now) begin();
  }
  ~GcPause() { end(); }
#if PY_VERSION_HEX < 0x030C0000
  void begin() {
    if (!was_on_) was_on_ = PyGC_Disable();
  }
  void end() {
    if (was_on_) PyGC_Enable();
    was_on_ = 0;
  }
#else
  void begin() {}
  void end() {}
#endif

 private:
  int was_on_ = 0;
};

// The mapping behind a `types.MappingProxyType`; other objects as they are.
inline PyObject* behind_proxy(PyObject* value) {
  struct Proxy {
    PyObject_HEAD PyObject* mapping;
  };
  return Py_IS_TYPE(value, &PyDictProxy_Type) ? reinterpret_cast<Proxy*>(value)->mapping : value;
}

inline PyObject* own(PyObject* object) {
  Py_XINCREF(object);
  return object;
}

}  // namespace kiln
