// Frames of CPython 3.13, for hook.cpp. Other versions have files with the same functions.
#pragma once

#define Py_BUILD_CORE
extern "C" {
#include <internal/pycore_ceval.h>
#include <internal/pycore_frame.h>
}
#undef Py_BUILD_CORE

namespace kiln {

using Frame = _PyInterpreterFrame;

inline PyCodeObject* frame_code(Frame* frame) {
  return reinterpret_cast<PyCodeObject*>(frame->f_executable);
}
inline PyFunctionObject* frame_function(Frame* frame) {
  return reinterpret_cast<PyFunctionObject*>(frame->f_funcobj);
}
inline PyObject* frame_globals(Frame* frame) { return frame->f_globals; }
inline PyObject** frame_slots(Frame* frame) { return frame->localsplus; }

// Not started, on the thread's data stack, and without a frame object.
inline bool frame_is_fresh(Frame* frame) {
  return frame->owner == FRAME_OWNED_BY_THREAD && frame->frame_obj == nullptr &&
         frame->instr_ptr == _PyCode_CODE(frame_code(frame)) && PyFunction_Check(frame->f_funcobj);
}

// Whether the frame can hold `code`: it is on top of the data stack, so it may grow.
inline bool frame_has_room(PyThreadState* thread, Frame* frame, PyCodeObject* code) {
  PyObject** base = reinterpret_cast<PyObject**>(frame);
  return thread->datastack_top == base + frame_code(frame)->co_framesize &&
         base + code->co_framesize < thread->datastack_limit;
}

// Turns the frame into one of `code`, keeping its first `arguments` slots.
inline void frame_become(PyThreadState* thread, Frame* frame, PyCodeObject* code, int arguments) {
  PyObject* before = frame->f_executable;
  frame->f_executable = Py_NewRef(reinterpret_cast<PyObject*>(code));
  for (int i = arguments; i < code->co_nlocalsplus; i++) frame->localsplus[i] = nullptr;
  frame->stacktop = code->co_nlocalsplus;
  frame->instr_ptr = _PyCode_CODE(code);
  thread->datastack_top = reinterpret_cast<PyObject**>(frame) + code->co_framesize;
  Py_DECREF(before);
}

// Ends a frame that never ran with `result`, or with the current error if null.
inline PyObject* frame_finish(PyThreadState* thread, Frame* frame, PyCodeObject* stub,
                              PyObject* result) {
  _PyEval_FrameClearAndPop(thread, frame);
  return result;
}

}  // namespace kiln
