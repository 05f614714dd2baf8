// Frames of CPython 3.14, for hook.cpp. Other versions have files with the same functions.
#pragma once

#define Py_BUILD_CORE
extern "C" {
#include <internal/pycore_ceval.h>
#include <internal/pycore_frame.h>
#include <internal/pycore_interpframe.h>
}
#undef Py_BUILD_CORE

namespace kiln {

using Frame = _PyInterpreterFrame;

inline PyObject* untagged(_PyStackRef reference) { return PyStackRef_AsPyObjectBorrow(reference); }

inline PyCodeObject* frame_code(Frame* frame) {
  return reinterpret_cast<PyCodeObject*>(untagged(frame->f_executable));
}
inline PyFunctionObject* frame_function(Frame* frame) {
  return reinterpret_cast<PyFunctionObject*>(untagged(frame->f_funcobj));
}
inline PyObject* frame_globals(Frame* frame) { return frame->f_globals; }

// The first slots of a frame that was not started, as plain references. The frame's own have a tag
// if they do not count, because the caller holds the object, or it is immortal.
class FrameSlots {
 public:
  FrameSlots(Frame* frame, int count) : slots_(count <= kMost ? few_ : new PyObject*[count]) {
    for (int i = 0; i < count; i++) slots_[i] = untagged(frame->localsplus[i]);
  }
  ~FrameSlots() {
    if (slots_ != few_) delete[] slots_;
  }
  FrameSlots(const FrameSlots&) = delete;
  FrameSlots& operator=(const FrameSlots&) = delete;
  operator PyObject* const*() const { return slots_; }

 private:
  static constexpr int kMost = 8;
  PyObject* few_[kMost];
  PyObject** slots_;
};

// Not started, on the thread's data stack, and without a frame object.
inline bool frame_is_fresh(Frame* frame) {
  return frame->owner == FRAME_OWNED_BY_THREAD && frame->frame_obj == nullptr &&
         frame->instr_ptr == _PyCode_CODE(frame_code(frame)) &&
         PyFunction_Check(untagged(frame->f_funcobj));
}

// Ends a frame that never ran with `result`, or with the current error if null.
inline PyObject* frame_finish(PyThreadState* thread, Frame* frame, PyCodeObject* stub,
                              PyObject* result) {
  _PyEval_FrameClearAndPop(thread, frame);
  return result;
}

}  // namespace kiln
