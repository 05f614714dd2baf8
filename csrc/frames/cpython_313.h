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

// Not started, on the thread's data stack, and without a frame object.
inline bool frame_is_fresh(Frame* frame) {
  return frame->owner == FRAME_OWNED_BY_THREAD && frame->frame_obj == nullptr &&
         frame->instr_ptr == _PyCode_CODE(frame_code(frame)) && PyFunction_Check(frame->f_funcobj);
}

// Ends a frame that never ran with `result`, or with the current error if null.
inline PyObject* frame_finish(PyThreadState* thread, Frame* frame, PyCodeObject* stub,
                              PyObject* result) {
  _PyEval_FrameClearAndPop(thread, frame);
  return result;
}

}  // namespace kiln
