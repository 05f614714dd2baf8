// The module kiln.native._frames: dispatchers, guard trees, the frame hook.
//
// `usable` is false, and `problem` says why, if this torch is unknown or not the one that the
// module was built for, or the fields of a tensor are not where they are expected; then only the
// frame hook may be used.
#include <torch/version.h>

#include "frames/dict_versions.h"
#include "frames/dispatcher.h"
#include "frames/global_state.h"
#include "frames/guard_paths.h"
#include "frames/hook.h"
#include "frames/moved_arguments.h"
#include "frames/stance.h"

namespace kiln {
namespace {

PyObject* py_global_state(PyObject*, PyObject*) {
  return PyLong_FromUnsignedLongLong(global_state());
}

PyObject* py_watch_cuda_device(PyObject*, PyObject*) {
  watch_cuda_device();
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"global_state", py_global_state, METH_NOARGS, "Modes and defaults of torch as one word."},
    {"watch_cuda_device", py_watch_cuda_device, METH_NOARGS,
     "The word of global state holds the current CUDA device from now on."},
    {nullptr, nullptr, 0, nullptr}};

std::string known_torch(PyObject* torch) {
  PyObject* version = PyObject_GetAttrString(torch, "__version__");
  PyObject* text = version ? PyObject_Str(version) : nullptr;
  const char* chars = text ? PyUnicode_AsUTF8(text) : "";
  int major = 0, minor = 0;
  bool known = chars && std::sscanf(chars, "%d.%d", &major, &minor) == 2 && major == 2 &&
               minor >= 11 && minor <= 15;
  std::string problem = known ? "" : std::string("unknown torch ") + (chars ? chars : "");
  if (known && (major != TORCH_VERSION_MAJOR || minor != TORCH_VERSION_MINOR)) {
    problem = std::string("built for torch " TORCH_VERSION ", and this is torch ") + chars;
  }
  Py_XDECREF(text);
  Py_XDECREF(version);
  PyErr_Clear();
  return problem;
}

std::string probe() {
  PyObject* torch = PyImport_ImportModule("torch");
  if (torch == nullptr) return PyErr_Clear(), "torch cannot be imported";
  std::string problem = known_torch(torch);
  if (problem.empty()) problem = probe_global_state();
  if (problem.empty()) problem = probe_tensor_layout(torch);
  Py_DECREF(torch);
  return problem;
}

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "kiln.native._frames",
                          "Dispatchers, guard trees and the frame hook.", -1, functions};

}  // namespace
}  // namespace kiln

PyMODINIT_FUNC PyInit__frames() {
  PyObject* module = PyModule_Create(&kiln::definition);
  if (module == nullptr) return nullptr;
  std::string problem = kiln::probe();
  bool added = kiln::add_dict_versions() && kiln::add_guard_tree(module) &&
               kiln::add_guard_paths(module) && kiln::add_entry(module) &&
               kiln::add_dispatcher(module) && kiln::add_hook(module) && kiln::add_stance(module) &&
               kiln::add_tail_calls(module) &&
               PyModule_AddObjectRef(module, "usable", problem.empty() ? Py_True : Py_False) == 0 &&
               PyModule_AddStringConstant(module, "sources", KILN_SOURCES) == 0 &&
               PyModule_AddStringConstant(module, "problem", problem.c_str()) == 0;
  if (!added) Py_CLEAR(module);
  return module;
}
