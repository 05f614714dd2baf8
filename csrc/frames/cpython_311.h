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

// Not started, on the thread's data stack, and without a frame object.
inline bool frame_is_fresh(Frame* frame) {
  return frame->owner == FRAME_OWNED_BY_THREAD && frame->frame_obj == nullptr &&
         frame->prev_instr == _PyCode_CODE(frame->f_code) - 1;
}

// Ends a frame that never ran with `result`, or with the current error if null. The caller of the
// evaluation function clears the frame.
inline PyObject* frame_finish(PyThreadState*, Frame*, PyCodeObject* stub, PyObject* result) {
  return result;
}

}  // namespace kiln
