// Python types of C++ structs that the garbage collector knows.
//
//   struct Driven {
//     PyObject_HEAD PyObject* function;
//     vectorcallfunc vectorcall;  // by this name, if its objects can be called
//   };
//   PyTypeObject DrivenType = collected_type<Driven, &Driven::function>(name, doc, make);
//
// A field is a PyObject* that the object owns, or holds such ones and has `traverse` and `clear`.
#pragma once

#include <Python.h>

#include <cstddef>
#include <memory>
#include <utility>

namespace kiln {

inline int visit_field(PyObject* field, visitproc visit, void* arg) {
  return field ? visit(field, arg) : 0;
}
template <typename Content>
int visit_field(Content& field, visitproc visit, void* arg) {
  return field.traverse(visit, arg);
}

// A call may still arrive while a cycle is cleared: it finds None.
inline void clear_field(PyObject*& field) { Py_XDECREF(std::exchange(field, Py_NewRef(Py_None))); }
template <typename Content>
void clear_field(Content& field) {
  field.clear();
}

inline void drop_field(PyObject* field) { Py_XDECREF(field); }
template <typename Content>
void drop_field(Content&) {}

template <typename Object, auto... fields>
int traverse_fields(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Object*>(object);
  int status = 0;
  ((status = status ? status : visit_field(self->*fields, visit, arg)), ...);
  return status;
}

template <typename Object, auto... fields>
int clear_fields(PyObject* object) {
  (clear_field(reinterpret_cast<Object*>(object)->*fields), ...);
  return 0;
}

template <typename Object, auto... fields>
void deallocate(PyObject* object) {
  PyObject_GC_UnTrack(object);
  auto* self = reinterpret_cast<Object*>(object);
  (drop_field(self->*fields), ...);
  std::destroy_at(self);
  Py_TYPE(object)->tp_free(object);
}

// The constructor of an object that is called by `call` and takes its fields, in order.
template <typename Object, vectorcallfunc call, auto... fields>
PyObject* make_from_fields(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  if (kwargs || PyTuple_GET_SIZE(args) != sizeof...(fields)) {
    return PyErr_Format(PyExc_TypeError, "%s takes %zu arguments", type->tp_name,
                        sizeof...(fields));
  }
  PyObject* object = type->tp_alloc(type, 0);
  if (!object) return nullptr;
  auto* self = reinterpret_cast<Object*>(object);
  Py_ssize_t at = 0;
  ((self->*fields = Py_NewRef(PyTuple_GET_ITEM(args, at++))), ...);
  self->vectorcall = call;
  return object;
}

template <typename Object, auto... fields>
PyTypeObject collected_type(const char* name, const char* doc, newfunc make) {
  PyTypeObject type = {
      .ob_base = PyVarObject_HEAD_INIT(nullptr, 0).tp_name = name,
      .tp_basicsize = sizeof(Object),
      .tp_dealloc = deallocate<Object, fields...>,
      .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
      .tp_doc = doc,
      .tp_traverse = traverse_fields<Object, fields...>,
      .tp_clear = clear_fields<Object, fields...>,
      .tp_new = make,
  };
  if constexpr (requires { &Object::vectorcall; }) {
    type.tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
    type.tp_vectorcall_offset = offsetof(Object, vectorcall);
    type.tp_call = PyVectorcall_Call;
  }
  return type;
}

}  // namespace kiln
