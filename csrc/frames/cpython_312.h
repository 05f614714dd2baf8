// Frames of CPython 3.12, for hook.cpp. Other versions have files with the same functions.
#pragma once

#define Py_BUILD_CORE
extern "C" {
#include <internal/pycore_frame.h>
}
#undef Py_BUILD_CORE

namespace kiln {

using Frame = _PyInterpreterFrame;

inline PyCodeObject* frame_code(Frame* frame) { return frame->f_code; }
inline PyFunctionObject* frame_function(Frame* frame) {
  return reinterpret_cast<PyFunctionObject*>(frame->f_funcobj);
}
inline PyObject* frame_globals(Frame* frame) { return frame->f_globals; }

// Not started, on the thread's data stack, and without a frame object.
inline bool frame_is_fresh(Frame* frame) {
  return frame->owner == FRAME_OWNED_BY_THREAD && frame->frame_obj == nullptr &&
         frame->prev_instr == _PyCode_CODE(frame->f_code) - 1 && PyFunction_Check(frame->f_funcobj);
}

// Ends a frame that never ran with `result`, or with the current error if null. The evaluation
// function must clear and pop it, which only the interpreter's own can do: it runs the RETURN_VALUE
// of `stub`, a code without locals.
inline PyObject* frame_finish(PyThreadState* thread, Frame* frame, PyCodeObject* stub,
                              PyObject* result) {
  PyCodeObject* before = frame->f_code;
  for (int i = 0; i < before->co_nlocalsplus; i++) Py_CLEAR(frame->localsplus[i]);
  Py_INCREF(stub);
  frame->f_code = stub;
  frame->stacktop = 0;
  frame->prev_instr = _PyCode_CODE(stub) - 1;
  Py_DECREF(before);
  if (result == nullptr) return _PyEval_EvalFrameDefault(thread, frame, 1);
  _Py_CODEUNIT* code = _PyCode_CODE(stub);
  int last = static_cast<int>(Py_SIZE(stub)) - 1;
  frame->prev_instr = code + last - 1;  // the last instruction is RETURN_VALUE
  frame->localsplus[0] = result;
  frame->stacktop = 1;
  return _PyEval_EvalFrameDefault(thread, frame, 0);
}

}  // namespace kiln
