// The module kiln.native._executor.
#include <Python.h>

#include "executor/cuda_runtime.h"
#include "executor/memory_pool.h"
#include "executor/null_runtime.h"
#include "executor/python.h"
#include "executor/python_types.h"

namespace {

PyObject* release_memory(PyObject*, PyObject*) { return PyLong_FromLongLong(kiln::release_pool()); }

PyObject* held_memory(PyObject*, PyObject*) {
  kiln::PoolBytes bytes = kiln::pool_bytes();
  return Py_BuildValue("LL", static_cast<long long>(bytes.in_use),
                       static_cast<long long>(bytes.kept));
}

PyObject* text(const std::string& made) {
  return PyUnicode_FromStringAndSize(made.data(), static_cast<Py_ssize_t>(made.size()));
}

PyObject* cuda_problem(PyObject*, PyObject*) { return text(kiln::install_cuda_runtime()); }

PyObject* current_stream(PyObject*, PyObject* index) {
  long number = PyLong_AsLong(index);
  if (number == -1 && PyErr_Occurred()) return nullptr;
  return kiln::guarded(
      [&] { return PyLong_FromVoidPtr(kiln::current_cuda_stream(static_cast<int8_t>(number))); });
}

PyObject* use_null_device(PyObject*, PyObject* used) {
  int answer = PyObject_IsTrue(used);
  if (answer < 0) return nullptr;
  kiln::use_null_device(answer != 0);
  Py_RETURN_NONE;
}

PyObject* take_null_log(PyObject*, PyObject*) { return text(kiln::take_null_log()); }

PyObject* set_null_status(PyObject*, PyObject* code) {
  long long number = PyLong_AsLongLong(code);
  if (number == -1 && PyErr_Occurred()) return nullptr;
  kiln::set_null_status(number);
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"release_memory", release_memory, METH_NOARGS,
     "Free the memory kept for the next calls; returns its bytes."},
    {"held_memory", held_memory, METH_NOARGS, "Bytes (in use, kept) of the memory pool."},
    {"cuda_problem", cuda_problem, METH_NOARGS,
     "Opens the CUDA driver; why it cannot be used, or an empty string."},
    {"current_stream", current_stream, METH_O, "Raw CUDA stream that torch has selected."},
    {"use_null_device", use_null_device, METH_O, "CUDA kernels of new executors are only noted."},
    {"take_null_log", take_null_log, METH_NOARGS,
     "What the null device noted since the last call."},
    {"set_null_status", set_null_status, METH_O, "As if a kernel had reported the code."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_executor",
    .m_doc = "Runs plans.",
    .m_size = -1,
    .m_methods = methods,
};

}  // namespace

PyMODINIT_FUNC PyInit__executor() {
  if (!kiln::find_tensor_field()) return nullptr;
  PyObject* module = PyModule_Create(&definition);
  if (module && (PyModule_AddStringConstant(module, "sources", KILN_SOURCES) != 0 ||
                 !kiln::add_executor_type(module) || !kiln::add_region_type(module) ||
                 !kiln::add_graph_replay_type(module) || !kiln::add_autograd_graph_type(module))) {
    Py_CLEAR(module);
  }
  return module;
}
