// The module kiln.native._executor.
#include <Python.h>

#include "executor/executor_object.h"
#include "executor/graphs.h"
#include "executor/memory_pool.h"
#include "executor/python.h"
#include "executor/region_object.h"

namespace {

PyObject* release_memory(PyObject*, PyObject*) { return PyLong_FromLongLong(kiln::release_pool()); }

PyObject* held_memory(PyObject*, PyObject*) {
  kiln::PoolBytes bytes = kiln::pool_bytes();
  return Py_BuildValue("LL", static_cast<long long>(bytes.in_use),
                       static_cast<long long>(bytes.kept));
}

PyMethodDef methods[] = {
    {"release_memory", release_memory, METH_NOARGS,
     "Free the memory kept for the next calls; returns its bytes."},
    {"held_memory", held_memory, METH_NOARGS, "Bytes (in use, kept) of the memory pool."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "_executor",
    "Runs plans.",
    -1,
    methods,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__executor() {
  if (!kiln::find_tensor_field()) return nullptr;
  PyObject* module = PyModule_Create(&definition);
  if (module && (!kiln::add_executor_type(module) || !kiln::add_region_type(module) ||
                 !kiln::add_replay_type(module))) {
    Py_CLEAR(module);
  }
  return module;
}
