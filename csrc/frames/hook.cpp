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
#elif PY_VERSION_HEX < 0x030F0000
#include "frames/cpython_314.h"
#define KILN_HAS_HOOK 1
#else
#define KILN_HAS_HOOK 0
#endif

#if KILN_HAS_HOOK
#include <vector>

namespace kiln {
namespace {

// The extra of a code object that is never asked about again is the era in which that was answered.
Py_ssize_t extra_index = -1;
uintptr_t era = 1;
PyObject* skip_always = nullptr;
PyCodeObject* stub = nullptr;
_PyFrameEvalFunction previous = nullptr;
bool in_chain = false;  // our function is installed, or called by another hook
Py_ssize_t wanted = 0;  // callbacks of all threads

struct ThreadHook {
  std::vector<PyObject*> callbacks;  // owned
  bool inside = false;               // the callback is running
};
thread_local ThreadHook hook;

bool is_skipped(PyCodeObject* code) {
  void* extra = nullptr;
  PyUnstable_Code_GetExtra(reinterpret_cast<PyObject*>(code), extra_index, &extra);
  return reinterpret_cast<uintptr_t>(extra) == era;
}

#if PY_VERSION_HEX < 0x030E0000  // cpython_314.h has its own
// The first slots of a frame that was not started, as plain references.
struct FrameSlots {
  FrameSlots(Frame* frame, int) : slots(frame->localsplus) {}
  operator PyObject* const*() const { return slots; }
  PyObject* const* slots;
};
#endif

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

// Calls the function with the callback as the hook of this thread; None: without a hook.
PyObject* call_under(PyObject* callback, PyObject* function, PyObject* const* arguments,
                     Py_ssize_t count) {
  hook.callbacks.push_back(own(callback));
  if (wanted++ == 0) install();
  PyObject* result = PyObject_Vectorcall(function, arguments, count, nullptr);
  hook.callbacks.pop_back();
  if (--wanted == 0) uninstall();
  Py_DECREF(callback);
  return result;
}

PyObject* locals_of(Frame* frame) {
  PyCodeObject* code = frame_code(frame);
  PyObject* locals = PyDict_New();
  FrameSlots slots(frame, slot_count(code));
  for (int i = 0; locals && i < slot_count(code); i++) {
    PyObject* name = PyTuple_GET_ITEM(code->co_localsplusnames, i);
    if (PyDict_SetItem(locals, name, slots[i]) < 0) Py_CLEAR(locals);
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
  PyCodeObject* code = frame_code(frame);
  if (is_skipped(code)) return run_default(thread, frame, 0);
  PyObject* answer = ask(thread, frame);
  if (answer == nullptr) return frame_finish(thread, frame, stub, nullptr);
  if (answer == skip_always) {
    PyUnstable_Code_SetExtra(reinterpret_cast<PyObject*>(code), extra_index,
                             reinterpret_cast<void*>(era));
  }
  if (answer == Py_None || answer == skip_always) {
    Py_DECREF(answer);
    return run_default(thread, frame, 0);
  }
  PyObject* result =
      call_under(Py_None, answer, FrameSlots(frame, slot_count(code)), slot_count(code));
  Py_DECREF(answer);
  return frame_finish(thread, frame, stub, result);
}

PyObject* hook_call(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count < 2) return PyErr_Format(PyExc_TypeError, "needs a callback and a function");
  if (!PyCallable_Check(arguments[0]))
    return PyErr_Format(PyExc_TypeError, "the callback is not callable");
  return call_under(arguments[0], arguments[1], arguments + 2, count - 2);
}

PyObject* hook_wanted(PyObject*, PyObject*) { return PyLong_FromSsize_t(wanted); }

PyObject* forget_codes(PyObject*, PyObject*) {
  era++;
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"hook_call", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(hook_call)),
     METH_FASTCALL, "Calls a function with arguments while a callback catches frames."},
    {"hook_wanted", hook_wanted, METH_NOARGS, "How many calls of hook_call have not ended."},
    {"forget_codes", forget_codes, METH_NOARGS, "Asks about every code object again."},
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
  extra_index = PyUnstable_Eval_RequestCodeExtraIndex(nullptr);
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
