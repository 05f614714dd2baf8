// Frames of CPython 3.11, for hook.cpp. Other versions have files with the same functions.
#pragma once

#define Py_BUILD_CORE
extern "C" {
#include <internal/pycore_frame.h>
}
#undef Py_BUILD_CORE

namespace kiln {

using Frame = _PyInterpreterFrame;

// By their names of 3.12.
inline constexpr auto* PyUnstable_Code_GetExtra = &_PyCode_GetExtra;
inline constexpr auto* PyUnstable_Code_SetExtra = &_PyCode_SetExtra;
inline constexpr auto* PyUnstable_Eval_RequestCodeExtraIndex = &_PyEval_RequestCodeExtraIndex;

inline PyCodeObject* frame_code(Frame* frame) { return frame->f_code; }
inline PyFunctionObject* frame_function(Frame* frame) { return frame->f_func; }
inline PyObject* frame_globals(Frame* frame) { return frame->f_globals; }
inline PyObject** frame_slots(Frame* frame) { return frame->localsplus; }

// Not started, on the thread's data stack, and without a frame object.
inline bool frame_is_fresh(Frame* frame) {
  return frame->owner == FRAME_OWNED_BY_THREAD && frame->frame_obj == nullptr &&
         frame->prev_instr == _PyCode_CODE(frame->f_code) - 1;
}

inline Py_ssize_t frame_size(PyCodeObject* code) {
  return code->co_nlocalsplus + code->co_stacksize + FRAME_SPECIALS_SIZE;
}

// Whether the frame can hold `code`: it is on top of the data stack, so it may grow.
inline bool frame_has_room(PyThreadState* thread, Frame* frame, PyCodeObject* code) {
  PyObject** base = reinterpret_cast<PyObject**>(frame);
  return thread->datastack_top == base + frame_size(frame->f_code) &&
         base + frame_size(code) < thread->datastack_limit;
}

// Turns the frame into one of `code`, keeping its first `arguments` slots.
inline void frame_become(PyThreadState* thread, Frame* frame, PyCodeObject* code, int arguments) {
  PyCodeObject* before = frame->f_code;
  Py_INCREF(code);
  frame->f_code = code;
  for (int i = arguments; i < code->co_nlocalsplus; i++) frame->localsplus[i] = nullptr;
  frame->stacktop = code->co_nlocalsplus;
  frame->prev_instr = _PyCode_CODE(code) - 1;
  thread->datastack_top = reinterpret_cast<PyObject**>(frame) + frame_size(code);
  Py_DECREF(before);
}

// Ends a frame that never ran with `result`, or with the current error if null. The caller of the
// evaluation function clears the frame.
inline PyObject* frame_finish(PyThreadState*, Frame*, PyCodeObject* stub, PyObject* result) {
  return result;
}

}  // namespace kiln
