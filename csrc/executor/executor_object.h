// The Python type `Executor`.
#pragma once

#include <Python.h>

#include <memory>

#include "executor/run.h"

namespace kiln {

// Adds the type to the module; false: a Python error is set.
bool add_executor_type(PyObject* module);

// nullptr where `object` is no Executor.
std::shared_ptr<const Executor> executor_of(PyObject* object);
// Borrowed; of an Executor.
PyObject* explain_of(PyObject* object);

// Kernels of a device from Python's dict of `kiln.build.cubins.Cubin.image()`; false: a Python
// error is set.
bool read_images(PyObject* given, KernelImages& images);

// Sets the Python error that `explain` makes of the plan's error.
void raise_plan_error(PyObject* explain, const PlanError& error);

}  // namespace kiln
