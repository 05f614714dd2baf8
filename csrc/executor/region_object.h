// The Python type `Region`.
#pragma once

#include <Python.h>

namespace kiln {

// Adds the type to the module; false: a Python error is set.
bool add_region_type(PyObject* module);

}  // namespace kiln
