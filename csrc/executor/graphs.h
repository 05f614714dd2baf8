// The Python type `Replay`.
#pragma once

#include <Python.h>

namespace kiln {

// Adds the type and `is_lent` to the module; false: a Python error is set.
bool add_replay_type(PyObject* module);

}  // namespace kiln
