#include "frames/hook.h"

#if PY_VERSION_HEX < 0x030C0000
#include "frames/cpython_311.h"
#define KILN_HAS_HOOK 1
#elif PY_VERSION_HEX < 0x030D0000
#include "frames/cpython_312.h"
#define KILN_HAS_HOOK 1
#elif PY_VERSION_HEX < 0x030E0000
#include "frames/cpython_313.h"
#define KILN_HAS_HOOK 1
#else
#define KILN_HAS_HOOK 0
#endif

#if KILN_HAS_HOOK
#include <vector>

namespace kiln {
namespace {

// What is known of a code object: to skip it always, or the variants to try. `entries` is replaced
// atomically.
struct CodeCache {
  PyObject* entries;  // owned tuple or null
  bool skip;
};

Py_ssize_t extra_index = -1;
// Never freed: code objects may die after the destructors of this library have run.
std::vector<CodeCache*>& all_caches = *new std::vector<CodeCache*>;
PyObject* skip_always = nullptr;
PyCodeObject* stub = nullptr;
_PyFrameEvalFunction previous = nullptr;
bool in_chain = false;  // our function is installed, or called by another hook
Py_ssize_t wanted = 0;  // pushes of all threads

struct ThreadHook {
  std::vector<PyObject*> callbacks;  // owned
  bool inside = false;               // the callback is running
};
thread_local ThreadHook hook;

void free_cache(void* pointer) {
  auto* cache = static_cast<CodeCache*>(pointer);
  if (cache == nullptr) return;
  std::erase(all_caches, cache);
  Py_XDECREF(cache->entries);
  delete cache;
}

CodeCache* find_cache(PyCodeObject* code) {
  void* extra = nullptr;
  PyUnstable_Code_GetExtra(reinterpret_cast<PyObject*>(code), extra_index, &extra);
  return static_cast<CodeCache*>(extra);
}

CodeCache* make_cache(PyCodeObject* code) {
  CodeCache* cache = find_cache(code);
  if (cache != nullptr) return cache;
  cache = new CodeCache{nullptr, false};
  if (PyUnstable_Code_SetExtra(reinterpret_cast<PyObject*>(code), extra_index, cache) < 0) {
    delete cache;
    return nullptr;
  }
  all_caches.push_back(cache);
  return cache;
}

int slot_count(PyCodeObject* code) {
  return code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0) +
         ((code->co_flags & CO_VARKEYWORDS) != 0);
}

bool is_plain_function(PyCodeObject* code) {
  constexpr int kOthers = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE;
  return (code->co_flags & CO_OPTIMIZED) && !(code->co_flags & kOthers);
}

PyObject* run_default(PyThreadState* thread, Frame* frame, int throwing) {
  return previous == nullptr ? _PyEval_EvalFrameDefault(thread, frame, throwing)
                             : previous(thread, frame, throwing);
}

PyObject* evaluate(PyThreadState* thread, Frame* frame, int throwing);

void install() {
  PyInterpreterState* interpreter = PyInterpreterState_Get();
  if (in_chain) return;
  previous = _PyInterpreterState_GetEvalFrameFunc(interpreter);
  if (previous == _PyEval_EvalFrameDefault) previous = nullptr;
  _PyInterpreterState_SetEvalFrameFunc(interpreter, evaluate);
  in_chain = true;
}

// A hook that was installed over ours still calls it; then ours stays, idle.
void uninstall() {
  PyInterpreterState* interpreter = PyInterpreterState_Get();
  if (_PyInterpreterState_GetEvalFrameFunc(interpreter) != evaluate) return;
  _PyInterpreterState_SetEvalFrameFunc(interpreter, previous ? previous : _PyEval_EvalFrameDefault);
  in_chain = false;
}

void push(PyObject* callback) {
  hook.callbacks.push_back(own(callback));
  if (wanted++ == 0) install();
}

void pop() {
  PyObject* callback = hook.callbacks.back();
  hook.callbacks.pop_back();
  if (--wanted == 0) uninstall();
  Py_DECREF(callback);
}

// Code that takes a frame over must have the same arguments and free variables.
bool fits(PyCodeObject* before, PyCodeObject* after) {
  bool same = is_plain_function(after) && before->co_argcount == after->co_argcount &&
              before->co_kwonlyargcount == after->co_kwonlyargcount &&
              slot_count(before) == slot_count(after) &&
              before->co_nfreevars == after->co_nfreevars;
  if (!same)
    PyErr_SetString(PyExc_ValueError,
                    "code for a frame must have its arguments and free variables");
  return same;
}

// For a data stack without room: the code as a function that gets every slot.
PyObject* call_as_function(Frame* frame, PyCodeObject* code) {
  int slots = slot_count(code);
  PyObject* plain = Py_BuildValue("{s:i,s:i,s:i,s:i}", "co_argcount", slots, "co_posonlyargcount",
                                  0, "co_kwonlyargcount", 0, "co_flags",
                                  code->co_flags & ~(CO_VARARGS | CO_VARKEYWORDS));
  PyObject* replace = PyObject_GetAttrString(reinterpret_cast<PyObject*>(code), "replace");
  PyObject* none = PyTuple_New(0);
  PyObject* copy = plain && replace && none ? PyObject_Call(replace, none, plain) : nullptr;
  CodeCache* cache = copy ? make_cache(reinterpret_cast<PyCodeObject*>(copy)) : nullptr;
  if (cache != nullptr) cache->skip = true;  // the callback has already answered
  PyObject* function = cache ? PyFunction_New(copy, frame_globals(frame)) : nullptr;
  PyObject* closure = frame_function(frame)->func_closure;
  PyObject* result = nullptr;
  if (function && (closure == nullptr || PyFunction_SetClosure(function, closure) == 0)) {
    result = PyObject_Vectorcall(function, frame_slots(frame), slots, nullptr);
  }
  Py_XDECREF(function);
  Py_XDECREF(copy);
  Py_XDECREF(none);
  Py_XDECREF(replace);
  Py_XDECREF(plain);
  return result;
}

// Calls the function with the callback as the hook of this thread; None: without a hook.
PyObject* call_under(PyObject* callback, PyObject* function, PyObject* const* arguments,
                     Py_ssize_t count) {
  push(callback);
  PyObject* result = PyObject_Vectorcall(function, arguments, count, nullptr);
  pop();
  return result;
}

// Runs the frame as `what`: a code object takes it over, a callable gets every slot and runs
// without the hook.
PyObject* run_as(PyThreadState* thread, Frame* frame, PyObject* what) {
  PyCodeObject* code = frame_code(frame);
  if (!PyCode_Check(what)) {
    PyObject* result = call_under(Py_None, what, frame_slots(frame), slot_count(code));
    return frame_finish(thread, frame, stub, result);
  }
  auto* other = reinterpret_cast<PyCodeObject*>(what);
  if (!fits(code, other)) return frame_finish(thread, frame, stub, nullptr);
  if (!frame_has_room(thread, frame, other)) {
    return frame_finish(thread, frame, stub, call_as_function(frame, other));
  }
  frame_become(thread, frame, other, slot_count(code));
  return run_default(thread, frame, 0);
}

// The variant whose guards hold (new reference to its code or callable), or null.
PyObject* find_variant(Frame* frame, PyObject* entries) {
  PyObject* found = nullptr;
#ifndef KILN_WITHOUT_TORCH
  Py_INCREF(entries);
  PyObject* closure = frame_function(frame)->func_closure;
  for (Py_ssize_t i = 0; found == nullptr && i < PyTuple_GET_SIZE(entries); i++) {
    PyObject* callable;
    if (hook_entry_holds(PyTuple_GET_ITEM(entries, i), frame_slots(frame),
                         slot_count(frame_code(frame)), frame_globals(frame), closure, &callable)) {
      found = own(callable);
    }
  }
  Py_DECREF(entries);
#else
  if (PyTuple_GET_SIZE(entries) > 0) found = own(PyTuple_GET_ITEM(entries, 0));
#endif
  return found;
}

PyObject* locals_of(Frame* frame) {
  PyCodeObject* code = frame_code(frame);
  PyObject* locals = PyDict_New();
  for (int i = 0; locals && i < slot_count(code); i++) {
    PyObject* name = PyTuple_GET_ITEM(code->co_localsplusnames, i);
    if (PyDict_SetItem(locals, name, frame_slots(frame)[i]) < 0) Py_CLEAR(locals);
  }
  return locals;
}

// Asks the thread's callback: callback(code, locals, globals, closure, function).
PyObject* ask(PyThreadState* thread, Frame* frame) {
  PyObject* locals = locals_of(frame);
  if (locals == nullptr) return nullptr;
  PyFunctionObject* function = frame_function(frame);
  PyObject* closure = function->func_closure ? function->func_closure : Py_None;
  PyObject* callback = own(hook.callbacks.back());
  hook.inside = true;
  PyThreadState_EnterTracing(thread);  // hides the compiler from a user's tracer
  PyObject* answer = PyObject_CallFunctionObjArgs(
      callback, reinterpret_cast<PyObject*>(frame_code(frame)), locals, frame_globals(frame),
      closure, reinterpret_cast<PyObject*>(function), nullptr);
  PyThreadState_LeaveTracing(thread);
  hook.inside = false;
  Py_DECREF(callback);
  Py_DECREF(locals);
  return answer;
}

PyObject* evaluate(PyThreadState* thread, Frame* frame, int throwing) {
  if (throwing || hook.callbacks.empty() || hook.callbacks.back() == Py_None || hook.inside ||
      !frame_is_fresh(frame) || !is_plain_function(frame_code(frame))) {
    return run_default(thread, frame, throwing);
  }
  CodeCache* cache = find_cache(frame_code(frame));
  if (cache != nullptr && cache->skip) return run_default(thread, frame, 0);
  PyObject* what =
      cache != nullptr && cache->entries ? find_variant(frame, cache->entries) : nullptr;
  if (what == nullptr) {
    what = ask(thread, frame);
    if (what == nullptr) return frame_finish(thread, frame, stub, nullptr);
  }
  if (what == skip_always) {
    if (CodeCache* made = make_cache(frame_code(frame))) made->skip = true;
  }
  if (what == Py_None || what == skip_always) {
    Py_DECREF(what);
    return run_default(thread, frame, 0);
  }
  PyObject* result = run_as(thread, frame, what);
  Py_DECREF(what);
  return result;
}

PyObject* hook_push(PyObject*, PyObject* callback) {
  if (!PyCallable_Check(callback))
    return PyErr_Format(PyExc_TypeError, "the callback is not callable");
  push(callback);
  Py_RETURN_NONE;
}

PyObject* hook_pop(PyObject*, PyObject*) {
  if (hook.callbacks.empty())
    return PyErr_Format(PyExc_RuntimeError, "this thread has no hook to remove");
  pop();
  Py_RETURN_NONE;
}

PyObject* hook_call(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count < 2) return PyErr_Format(PyExc_TypeError, "needs a callback and a function");
  if (!PyCallable_Check(arguments[0]))
    return PyErr_Format(PyExc_TypeError, "the callback is not callable");
  return call_under(arguments[0], arguments[1], arguments + 2, count - 2);
}

PyObject* hook_wanted(PyObject*, PyObject*) { return PyLong_FromSsize_t(wanted); }

PyObject* set_code_entries(PyObject*, PyObject* args) {
  PyObject *code, *sequence;
  if (!PyArg_ParseTuple(args, "O!O", &PyCode_Type, &code, &sequence)) return nullptr;
  CodeCache* cache = make_cache(reinterpret_cast<PyCodeObject*>(code));
  if (cache == nullptr) return PyErr_NoMemory();
  PyObject* entries = sequence == skip_always ? nullptr : PySequence_Tuple(sequence);
  if (entries == nullptr && sequence != skip_always) return nullptr;
  cache->skip = sequence == skip_always;
  Py_XSETREF(cache->entries, entries);
  Py_RETURN_NONE;
}

PyObject* code_entries(PyObject*, PyObject* code) {
  if (!PyCode_Check(code)) return PyErr_Format(PyExc_TypeError, "not a code object");
  CodeCache* cache = find_cache(reinterpret_cast<PyCodeObject*>(code));
  if (cache != nullptr && cache->skip) return own(skip_always);
  return cache && cache->entries ? own(cache->entries) : PyTuple_New(0);
}

PyObject* forget_codes(PyObject*, PyObject*) {
  std::vector<PyObject*> dead;
  for (CodeCache* cache : all_caches) {
    dead.push_back(cache->entries);
    cache->entries = nullptr;
    cache->skip = false;
  }
  for (PyObject* object : dead) Py_XDECREF(object);
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"hook_push", hook_push, METH_O,
     "Catches the frames of this thread with a callback, until hook_pop."},
    {"hook_pop", hook_pop, METH_NOARGS, "Ends the last hook_push of this thread."},
    {"hook_call", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(hook_call)),
     METH_FASTCALL, "Calls a function with arguments while a callback catches frames."},
    {"hook_wanted", hook_wanted, METH_NOARGS, "How many pushes of all threads have not ended."},
    {"set_code_entries", set_code_entries, METH_VARARGS,
     "The variants of a code object, or SKIP_ALWAYS."},
    {"code_entries", code_entries, METH_O, "What set_code_entries published."},
    {"forget_codes", forget_codes, METH_NOARGS, "Forgets all code objects."},
    {nullptr, nullptr, 0, nullptr}};

// A code without locals whose last instruction is RETURN_VALUE.
PyCodeObject* make_stub() {
  PyObject* scope = PyDict_New();
  PyObject* builtins = PyEval_GetBuiltins();
  if (scope == nullptr || PyDict_SetItemString(scope, "__builtins__", builtins) < 0) return nullptr;
  PyObject* function = PyRun_String("lambda: []", Py_eval_input, scope, scope);
  PyObject* code = function ? own(PyFunction_GetCode(function)) : nullptr;
  Py_XDECREF(function);
  Py_DECREF(scope);
  return reinterpret_cast<PyCodeObject*>(code);
}

}  // namespace

bool add_hook(PyObject* module) {
  extra_index = PyUnstable_Eval_RequestCodeExtraIndex(free_cache);
  stub = make_stub();
  skip_always = PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type));
  return extra_index >= 0 && stub && skip_always && PyModule_AddFunctions(module, functions) == 0 &&
         PyModule_AddObjectRef(module, "SKIP_ALWAYS", skip_always) == 0 &&
         PyModule_AddObjectRef(module, "hook_supported", Py_True) == 0;
}

}  // namespace kiln

#else

namespace kiln {
bool add_hook(PyObject* module) {
  return PyModule_AddObjectRef(module, "hook_supported", Py_False) == 0;
}
}  // namespace kiln

#endif

#ifdef KILN_WITHOUT_TORCH
namespace {
PyModuleDef definition = {.m_base = PyModuleDef_HEAD_INIT, .m_name = "_hook", .m_size = -1};
}

PyMODINIT_FUNC PyInit__hook() {
  PyObject* module = PyModule_Create(&definition);
  if (module != nullptr && !kiln::add_hook(module)) Py_CLEAR(module);
  return module;
}
#endif
