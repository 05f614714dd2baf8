// The Python type `Executor`, for other files.
#pragma once

#include <Python.h>

#include <memory>

#include "executor/run.h"

namespace kiln {

// nullptr where `object` is no Executor.
std::shared_ptr<const Executor> executor_of(PyObject* object);
// The `explain` of an Executor; borrowed.
PyObject* explain_of(PyObject* object);

// Sets the Python error that `explain` makes of the plan's error.
void raise_plan_error(PyObject* explain, const PlanError& error);

}  // namespace kiln
