#include "frames/stance.h"

#include "frames/dict_versions.h"

namespace kiln {
namespace {

// Torch keeps the stance in a global of a module that it loads when a stance is first set.
constexpr const char* kModule = "torch._dynamo.eval_frame";
constexpr const char* kGlobal = "_stance";

const uint64_t never_seen = 1;

PyObject* globals = nullptr;  // of the module, owned; null until it is loaded

void watch(PyObject* dict) {
  if (!has_dict_versions()) return;  // the stance is read in every call
  stance.version = dict_version(dict);
  stance.seen = *stance.version;
}

// The text of the stance (a new reference), or null.
PyObject* read_stance() {
  PyObject* value = globals ? PyDict_GetItemString(globals, kGlobal) : nullptr;
  PyObject* text = value ? PyObject_GetAttrString(value, "stance") : nullptr;
  if (text == nullptr) PyErr_Clear();
  return text;
}

// While the module is being imported it has no stance yet, and more modules follow.
void look_for_module() {
  PyObject* modules = PyImport_GetModuleDict();
  PyObject* module = PyDict_GetItemString(modules, kModule);
  PyObject* found = module && PyModule_Check(module) ? PyModule_GetDict(module) : nullptr;
  if (found && PyDict_GetItemString(found, kGlobal)) {
    globals = own(found);
  } else {
    watch(modules);
  }
}

PyObject* py_stance(PyObject*, PyObject*) {
  if (globals == nullptr) look_for_module();
  PyObject* text = read_stance();
  return text ? text : PyUnicode_FromString("default");
}

PyMethodDef functions[] = {
    {"stance", py_stance, METH_NOARGS, "The stance of torch.compiler.set_stance."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

Stance stance{&never_seen, 0, false};

bool refresh_stance() {
  if (globals == nullptr) look_for_module();
  if (globals == nullptr) return false;
  watch(globals);
  PyObject* text = read_stance();
  stance.force_eager =
      text && PyUnicode_Check(text) && PyUnicode_CompareWithASCIIString(text, "force_eager") == 0;
  Py_XDECREF(text);
  return stance.force_eager;
}

bool add_stance(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }

}  // namespace kiln
