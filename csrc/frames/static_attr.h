// Attribute lookup that runs no Python code.
#pragma once

#include "frames/cpython.h"

namespace kiln {

// How a value was reached: what must be watched to know that it is still there.
enum class Via : uint8_t {
  kVolatile,      // cannot be watched: locals, cells, lists, slots
  kTemporary,     // a new reference that dies with the check
  kFixed,         // held by the tree itself
  kDict,          // an item of the parent, which is a dict
  kInstanceDict,  // in the parent's __dict__, and not hidden by its type where that matters
  kTypeAttr,      // in the MRO of the parent or of its type, and not in the instance's dict
  kTypeOf,        // type(parent)
  kPart,          // part of an immutable parent: tuple, bound method
};

struct Found {
  PyObject* value = nullptr;  // borrowed, but owned by the caller where via is kTemporary
  Via via = Via::kVolatile;
};

// `object.name` without running Python code: instance dict, slots and C getters, MRO. Properties
// and __getattr__ find nothing.
Found static_attr(PyObject* object, PyObject* name);

// `type.__name__`, `__dict__`, `__mro__` and the like: what a C descriptor of the metaclass gives.
Found class_field(PyObject* type, PyObject* name);

// Whether `name` is in the instance's dict or in the MRO.
bool static_has(PyObject* object, PyObject* name);

// Equality of immutable constants: same type, same value, nan equal to nan, 0.0 different from
// -0.0.
bool same_constant(PyObject* left, PyObject* right);

}  // namespace kiln
