#include "frames/dispatcher.h"

#include "frames/moved_arguments.h"
#include "frames/stance.h"
#include "support/collected_type.h"

namespace kiln {
namespace {

struct Dispatcher {
  PyObject_HEAD PyObject* function;
  PyObject* miss;
  PyObject* entries;  // tuple of Entry, replaced atomically
  PyObject* moved;    // or null; see `has_moved`
  PyObject* dict;
  PyObject* weakrefs;
  Signature signature;
  PyObject* signature_code;  // the code whose signature was read; owned
  vectorcallfunc vectorcall;
  uint64_t misses, stale;
  uint32_t unguarded_in_row;  // calls that only the last entry, which has no guards, held for
  bool compiling;
};

// After so many calls in a row that no guarded entry held for, one call in `kAskEvery` asks them.
constexpr uint32_t kUnguardedInRow = 64, kAskEvery = 16;

// Dispatchers call the originals while the compiler runs in this thread.
__attribute__((tls_model("initial-exec"))) thread_local bool enabled = true;

constexpr int kOnStack = 32;

// The arguments of a call as given, and as slots.
struct Call {
  PyObject* const* args;
  size_t nargsf;
  PyObject* kwnames;
  PyObject* const* slots;
  size_t slotsf;  // count, with the offset flag if `slots` are the caller's own
};

PyObject* call_original(Dispatcher* self, const Call& call) {
  PyObject* function = own(self->function);
  PyObject* result = call_passing_on(function, call.args, call.args, call.nargsf, call.kwnames);
  Py_DECREF(function);
  return result;
}

PyObject* call_slots(PyObject* callable, const Call& call) {
  Py_INCREF(callable);
  PyObject* result = call_passing_on(callable, call.slots, call.slots, call.slotsf, nullptr);
  Py_DECREF(callable);
  return result;
}

Scope scope_of(Dispatcher* self, const Call& call) {
  auto* function = reinterpret_cast<PyFunctionObject*>(self->function);
  return {call.slots, PyVectorcall_NARGS(call.slotsf), function->func_globals,
          function->func_closure};
}

// The entry to try first: past those that have not held for long, where the last one always holds.
// Such a program has a new value in every call, and would pay for all guards each time.
Py_ssize_t first_to_ask(Dispatcher* self, PyObject* entries) {
  uint32_t in_row = self->unguarded_in_row;
  bool asks = in_row < kUnguardedInRow || in_row % kAskEvery == 0;
  Py_ssize_t last = PyTuple_GET_SIZE(entries) - 1;
  return asks || last < 0 ? 0 : last;
}

// The first entry whose guards hold (new reference), or null.
Entry* find_entry(Dispatcher* self, const Call& call) {
  PyObject* entries = self->entries;
  Scope scope = scope_of(self, call);
  Py_INCREF(entries);  // releasing a temporary may run code that replaces them
  Entry* found = nullptr;
  for (Py_ssize_t i = first_to_ask(self, entries); i < PyTuple_GET_SIZE(entries) && !found; i++) {
    auto* entry = reinterpret_cast<Entry*>(PyTuple_GET_ITEM(entries, i));
    if (!entry_holds(entry, scope)) continue;
    found = reinterpret_cast<Entry*>(own(reinterpret_cast<PyObject*>(entry)));
    self->unguarded_in_row = i > 0 && entry->tree == Py_None ? self->unguarded_in_row + 1 : 0;
  }
  Py_DECREF(entries);
  return found;
}

PyObject* call_entry(Entry* entry, const Call& call) {
  bool sampled = ++entry->hits == entry->sample_at;
  PyObject* result = call_slots(sampled ? entry->sample : entry->callable, call);
  Py_DECREF(entry);  // last: nothing may run between the check and the call
  return result;
}

PyObject* locals_dict(Dispatcher* self, const Call& call) {
  PyObject* locals = PyDict_New();
  for (Py_ssize_t i = 0; locals && i < PyVectorcall_NARGS(call.slotsf); i++) {
    if (PyDict_SetItem(locals, PyTuple_GET_ITEM(self->signature.names, i), call.slots[i]) < 0)
      Py_CLEAR(locals);
  }
  return locals;
}

// Calls `miss`; a new reference, or null with an error set.
PyObject* ask(Dispatcher* self, const Call& call) {
  PyObject* locals = locals_dict(self, call);
  if (locals == nullptr) return nullptr;
  PyThreadState* thread = PyThreadState_Get();
  PyObject* miss = own(self->miss);
  self->misses++;
  self->compiling = true;
  enabled = false;
  PyThreadState_EnterTracing(thread);  // hides the compiler from a user's tracer
  PyObject* answer =
      PyObject_CallFunctionObjArgs(miss, reinterpret_cast<PyObject*>(self), locals, nullptr);
  PyThreadState_LeaveTracing(thread);
  enabled = true;
  self->compiling = false;
  Py_DECREF(miss);
  Py_DECREF(locals);
  return answer;
}

PyObject* missed(Dispatcher* self, const Call& call) {
  if (self->compiling) return call_original(self, call);  // another thread is compiling
  PyObject* answer = ask(self, call);
  if (answer == nullptr) return nullptr;
  PyObject* result;
  if (answer == Py_None) {
    result = call_original(self, call);
  } else if (Py_TYPE(answer) != &EntryType) {
    result = call_slots(answer, call);
  } else if (entry_holds(reinterpret_cast<Entry*>(answer), scope_of(self, call))) {
    result = call_entry(reinterpret_cast<Entry*>(own(answer)), call);
  } else {
    // The guards of the new variant do not hold for the arguments it was made from: a bug, counted
    // in `stale`. The call must still be right.
    self->stale++;
    result = call_original(self, call);
  }
  Py_DECREF(answer);
  return result;
}

PyObject* dispatch(Dispatcher* self, const Call& call) {
  if (Entry* entry = find_entry(self, call)) return call_entry(entry, call);
  return missed(self, call);
}

PyObject* dispatch_bound(Dispatcher* self, Call call) {
  const Signature& signature = self->signature;
  int count = signature.slots();
  PyObject* small[kOnStack];
  PyObject** slots = count < kOnStack ? small : new PyObject*[count + 1];
  PyObject* made[2] = {nullptr, nullptr};
  call.slots = slots + 1;
  call.slotsf = count | PY_VECTORCALL_ARGUMENTS_OFFSET;
  bool fits =
      bind_arguments(signature, reinterpret_cast<PyFunctionObject*>(self->function), call.args,
                     PyVectorcall_NARGS(call.nargsf), call.kwnames, slots + 1, made);
  // Defaults are borrowed from the function, and may be replaced during the call.
  for (int i = 0; fits && i < signature.plain(); i++) Py_INCREF(call.slots[i]);
  PyObject* result = fits ? dispatch(self, call) : call_original(self, call);
  for (int i = 0; fits && i < signature.plain(); i++) Py_DECREF(call.slots[i]);
  Py_XDECREF(made[0]);
  Py_XDECREF(made[1]);
  if (slots != small) delete[] slots;
  return result;
}

// Reads the signature again if the code of the function was replaced, and drops the variants of the
// code that it had. The code of a resume function is replaced when it is assembled: it means the
// same.
bool refresh_signature(Dispatcher* self) {
  auto* function = reinterpret_cast<PyFunctionObject*>(self->function);
  PyObject* code = function->func_code;
  if (C10_LIKELY(code == self->signature_code)) return true;
  if (!function->func_dict || !PyDict_GetItemString(function->func_dict, "_kiln_resumed")) {
    PyObject* none = PyTuple_New(0);
    if (none == nullptr) return false;
    Py_SETREF(self->entries, none);
    self->unguarded_in_row = 0;
  }
  Py_XSETREF(self->signature_code, own(code));
  Py_CLEAR(self->signature.names);
  read_signature(reinterpret_cast<PyCodeObject*>(code), &self->signature);
  return self->signature.names != nullptr;
}

// Of a dispatcher that stands for calls of objects: has the class of the called object another
// `__call__` by now?
bool has_moved(Dispatcher* self, PyObject* const* args, size_t nargsf) {
  static PyObject* const name = PyUnicode_InternFromString("__call__");
  if (PyVectorcall_NARGS(nargsf) == 0) return false;
  PyObject* found = _PyType_Lookup(Py_TYPE(args[0]), name);
  return found != self->function && found != reinterpret_cast<PyObject*>(self);
}

PyObject* dispatcher_call(PyObject* object, PyObject* const* args, size_t nargsf,
                          PyObject* kwnames) {
  auto* self = reinterpret_cast<Dispatcher*>(object);
  if (self->moved != nullptr && has_moved(self, args, nargsf)) {
    PyObject* moved = own(self->moved);
    PyObject* result = call_passing_on(moved, args, args, nargsf, kwnames);
    Py_DECREF(moved);
    return result;
  }
  Call call{args, nargsf, kwnames, args, nargsf};
  if (!enabled || force_eager()) return call_original(self, call);
  if (!refresh_signature(self)) return nullptr;
  Py_INCREF(object);
  const Signature& signature = self->signature;
  bool exact = kwnames == nullptr && PyVectorcall_NARGS(nargsf) == signature.slots() &&
               signature.slots() == signature.positional;
  PyObject* result = exact ? dispatch(self, call) : dispatch_bound(self, call);
  Py_DECREF(object);
  return result;
}

PyObject* entries_tuple(PyObject* sequence) {
  PyObject* entries = PySequence_Tuple(sequence);
  for (Py_ssize_t i = 0; entries && i < PyTuple_GET_SIZE(entries); i++) {
    if (Py_TYPE(PyTuple_GET_ITEM(entries, i)) == &EntryType) continue;
    PyErr_SetString(PyExc_TypeError, "entries must be Entry objects");
    Py_CLEAR(entries);
  }
  return entries;
}

PyObject* dispatcher_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"function", "miss", nullptr};
  PyObject *function, *miss;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O", const_cast<char**>(names), &PyFunction_Type,
                                   &function, &miss)) {
    return nullptr;
  }
  auto* self = reinterpret_cast<Dispatcher*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->function = own(function);
  self->miss = own(miss);
  self->entries = PyTuple_New(0);
  self->vectorcall = dispatcher_call;
  if (self->entries == nullptr || !refresh_signature(self)) Py_CLEAR(self);
  return reinterpret_cast<PyObject*>(self);
}

int dispatcher_clear(PyObject* object) {
  // The function stays: a finalizer in the same cycle may still call this dispatcher.
  auto* self = reinterpret_cast<Dispatcher*>(object);
  Py_XSETREF(self->miss, own(Py_None));
  Py_XSETREF(self->entries, PyTuple_New(0));
  Py_CLEAR(self->moved);
  Py_CLEAR(self->dict);
  return 0;
}

void dispatcher_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Dispatcher*>(object);
  PyObject_GC_UnTrack(object);
  if (self->weakrefs != nullptr) PyObject_ClearWeakRefs(object);
  Py_CLEAR(self->signature.names);
  Py_CLEAR(self->signature_code);
  deallocate<Dispatcher, &Dispatcher::function, &Dispatcher::miss, &Dispatcher::entries,
             &Dispatcher::moved, &Dispatcher::dict>(object);
}

PyObject* dispatcher_get(PyObject* self, PyObject* object, PyObject* type) {
  return object == nullptr ? own(self) : PyMethod_New(self, object);
}

PyObject* set_entries(PyObject* object, PyObject* sequence) {
  PyObject* entries = entries_tuple(sequence);
  if (entries == nullptr) return nullptr;
  Py_SETREF(reinterpret_cast<Dispatcher*>(object)->entries, entries);
  reinterpret_cast<Dispatcher*>(object)->unguarded_in_row = 0;
  Py_RETURN_NONE;
}

// Like a function, it is not copied with the objects that hold it.
PyObject* dispatcher_copy(PyObject* self, PyObject*) { return own(self); }

PyMethodDef methods[] = {{"set_entries", set_entries, METH_O, "Replaces all entries at once."},
                         {"__copy__", dispatcher_copy, METH_NOARGS, "Itself."},
                         {"__deepcopy__", dispatcher_copy, METH_O, "Itself."},
                         {nullptr, nullptr, 0, nullptr}};

PyMemberDef members[] = {
    {"function", T_OBJECT, offsetof(Dispatcher, function), READONLY, "the original"},
    {"__wrapped__", T_OBJECT, offsetof(Dispatcher, function), READONLY, "the original"},
    {"miss", T_OBJECT, offsetof(Dispatcher, miss), READONLY, "called when no entry holds"},
    {"entries", T_OBJECT, offsetof(Dispatcher, entries), READONLY,
     "tuple of entries, tried in order"},
    {"moved", T_OBJECT, offsetof(Dispatcher, moved), 0,
     "called instead if the class of the first argument has another `__call__`"},
    {"misses", T_ULONGLONG, offsetof(Dispatcher, misses), READONLY, "how often `miss` was called"},
    {"stale", T_ULONGLONG, offsetof(Dispatcher, stale), READONLY,
     "new entries whose guards did not hold"},
    {"__dictoffset__", T_PYSSIZET, offsetof(Dispatcher, dict), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyGetSetDef getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyTypeObject DispatcherType = [] {
  PyTypeObject type = collected_type<Dispatcher, &Dispatcher::function, &Dispatcher::miss,
                                     &Dispatcher::entries, &Dispatcher::moved, &Dispatcher::dict>(
      "kiln.native._frames.Dispatcher",
      "Dispatcher(function, miss): calls the first entry whose guards hold.", dispatcher_new);
  type.tp_dealloc = dispatcher_dealloc;
  type.tp_flags |= Py_TPFLAGS_METHOD_DESCRIPTOR;
  type.tp_clear = dispatcher_clear;
  type.tp_weaklistoffset = offsetof(Dispatcher, weakrefs);
  type.tp_methods = methods;
  type.tp_members = members;
  type.tp_getset = getset;
  type.tp_descr_get = dispatcher_get;
  type.tp_dictoffset = offsetof(Dispatcher, dict);
  return type;
}();

PyObject* set_enabled(PyObject*, PyObject* flag) {
  int on = PyObject_IsTrue(flag);
  if (on < 0) return nullptr;
  bool before = enabled;
  enabled = on;
  return PyBool_FromLong(before);
}

PyMethodDef functions[] = {
    {"set_enabled", set_enabled, METH_O,
     "Enables or disables this thread's dispatchers; returns the old value."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool add_dispatcher(PyObject* module) {
  return PyModule_AddFunctions(module, functions) == 0 &&
         PyModule_AddType(module, &DispatcherType) == 0;
}

}  // namespace kiln
