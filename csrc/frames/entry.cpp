// The Python types Entry (a variant) and BoundCall (a call that gets the collected objects).

#include "frames/dispatcher.h"
#include "frames/moved_arguments.h"
#include "support/collected_type.h"

namespace kiln {
namespace {

// --- Entry ---

PyObject* entry_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"tree", "callable", "info", nullptr};
  PyObject *tree, *callable, *info = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O", const_cast<char**>(names), &tree,
                                   &callable, &info)) {
    return nullptr;
  }
  if (tree != Py_None && Py_TYPE(tree) != &GuardTreeType) {
    PyErr_SetString(PyExc_TypeError, "tree must be a GuardTree or None");
    return nullptr;
  }
  auto* self = reinterpret_cast<Entry*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->tree = own(tree);
  self->callable = own(callable);
  self->info = own(info);
  self->hits = 0;
  self->sample = nullptr;
  self->sample_at = 0;
  return reinterpret_cast<PyObject*>(self);
}

int entry_clear(PyObject* object) {
  auto* self = reinterpret_cast<Entry*>(object);
  Py_CLEAR(self->tree);
  Py_CLEAR(self->callable);
  Py_CLEAR(self->info);
  self->sample_at = 0;
  Py_CLEAR(self->sample);
  return 0;
}

PyObject* sample_after(PyObject* object, PyObject* args) {
  unsigned long long calls;
  PyObject* sample;
  if (!PyArg_ParseTuple(args, "KO", &calls, &sample)) return nullptr;
  auto* self = reinterpret_cast<Entry*>(object);
  self->sample_at = self->hits + calls;
  Py_XSETREF(self->sample, own(sample));
  Py_RETURN_NONE;
}

PyMethodDef entry_methods[] = {
    {"sample_after", sample_after, METH_VARARGS,
     "sample_after(calls, callable): that call, counted from the next, calls it instead."},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef entry_members[] = {
    {"tree", T_OBJECT, offsetof(Entry, tree), READONLY, "the guards, or None"},
    {"callable", T_OBJECT, offsetof(Entry, callable), READONLY,
     "called with every slot positional"},
    {"info", T_OBJECT, offsetof(Entry, info), READONLY, "any object, for the report"},
    {"hits", T_ULONGLONG, offsetof(Entry, hits), READONLY, "how often it was called"},
    {nullptr, 0, 0, 0, nullptr}};

// --- BoundCall ---

struct BoundCall {
  PyObject_HEAD PyObject* tree;
  PyObject* target;
  vectorcallfunc vectorcall;
};

constexpr Py_ssize_t kOnStack = 32;

// target(*args, bindings). The tuple is taken before anything else can run, so that no other thread
// can check the same tree in between.
PyObject* bound_call(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  auto* self = reinterpret_cast<BoundCall*>(object);
  PyObject* tree = own(self->tree);
  PyObject* bindings = reinterpret_cast<GuardTreeObject*>(tree)->tree.take_bindings();
  if (bindings == nullptr || kwnames != nullptr) {
    Py_XDECREF(bindings);
    Py_DECREF(tree);
    PyErr_SetString(PyExc_RuntimeError, kwnames ? "a BoundCall takes no keywords"
                                                : "the guards of this call have not been checked");
    return nullptr;
  }
  Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
  PyObject* small[kOnStack];
  PyObject** all = small;
  if (nargs + 2 > kOnStack) {
    all = static_cast<PyObject**>(PyMem_Malloc((nargs + 2) * sizeof(PyObject*)));
    if (all == nullptr) return Py_DECREF(bindings), Py_DECREF(tree), PyErr_NoMemory();
  }
  PyObject** out = all + 1;  // the slot before the arguments belongs to the callee
  for (Py_ssize_t i = 0; i < nargs; i++) out[i] = args[i];
  out[nargs] = bindings;
  PyObject* target = own(self->target);
  PyObject* result =
      call_passing_on(target, args, out, (nargs + 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  Py_DECREF(target);
  reinterpret_cast<GuardTreeObject*>(tree)->tree.recycle(bindings);
  Py_DECREF(tree);
  if (all != small) PyMem_Free(all);
  return result;
}

PyObject* bound_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  if (PyTuple_GET_SIZE(args) && Py_TYPE(PyTuple_GET_ITEM(args, 0)) != &GuardTreeType) {
    return PyErr_Format(PyExc_TypeError, "tree must be a GuardTree");
  }
  return make_from_fields<BoundCall, bound_call, &BoundCall::tree, &BoundCall::target>(type, args,
                                                                                       kwargs);
}

// The tree stays: a call may still arrive while a cycle is cleared.
int bound_clear(PyObject* object) { return clear_fields<BoundCall, &BoundCall::target>(object); }

PyMemberDef bound_members[] = {
    {"tree", T_OBJECT, offsetof(BoundCall, tree), READONLY, "whose bindings are passed"},
    {"target", T_OBJECT, offsetof(BoundCall, target), READONLY, "what is called"},
    {nullptr, 0, 0, 0, nullptr}};

}  // namespace

PyTypeObject EntryType = [] {
  PyTypeObject type =
      collected_type<Entry, &Entry::tree, &Entry::callable, &Entry::info, &Entry::sample>(
          "kiln.native._frames.Entry", "Entry(tree, callable, info=None): one compiled variant.",
          entry_new);
  type.tp_clear = entry_clear;
  type.tp_methods = entry_methods;
  type.tp_members = entry_members;
  return type;
}();

static PyTypeObject BoundCallType = [] {
  PyTypeObject type = collected_type<BoundCall, &BoundCall::tree, &BoundCall::target>(
      "kiln.native._frames.BoundCall",
      "BoundCall(tree, target): calls target(*args, tree.bindings).", bound_new);
  type.tp_clear = bound_clear;
  type.tp_members = bound_members;
  return type;
}();

bool add_entry(PyObject* module) {
  return PyModule_AddType(module, &EntryType) == 0 && PyModule_AddType(module, &BoundCallType) == 0;
}

}  // namespace kiln
