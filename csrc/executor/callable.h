// What a region runs: a native executor, or any Python callable that takes and returns the same
// values.
#pragma once

#include <Python.h>

#include <memory>
#include <vector>

#include "executor/run.h"
#include "executor/value.h"

namespace kiln {

// A Python error on its way through C++ code that does not hold the interpreter lock.
class RaisedError {
 public:
  // Takes the error that is set; needs the lock.
  static RaisedError fetch();
  // Sets it again; needs the lock.
  void restore() const;

 private:
  std::shared_ptr<PyObject> error_;
};

// Rethrows a Python error as the one that torch's engine carries to the caller.
[[noreturn]] void throw_to_engine(const RaisedError& error);

// A Python object that may be dropped on any thread.
std::shared_ptr<PyObject> share_object(PyObject* object);

class TakeGil {
 public:
  TakeGil() : state_(PyGILState_Ensure()) {}
  ~TakeGil() { PyGILState_Release(state_); }
  TakeGil(const TakeGil&) = delete;
  TakeGil& operator=(const TakeGil&) = delete;

 private:
  PyGILState_STATE state_;
};

class PausedCall;

class Callable {
 public:
  Callable() = default;
  // Needs the lock.
  explicit Callable(PyObject* function);

  explicit operator bool() const { return native_ || python_; }
  bool is_brief() const { return native_ && native_->is_brief(); }
  const Program* program() const { return native_ ? &native_->program() : nullptr; }

  int visit(visitproc visit, void* arg) const;

  // Without the lock. Takes over owned inputs; throws RaisedError for coded and Python errors.
  std::vector<Value> operator()(std::vector<Value>& inputs, bool donate) const;
  // The same call, paused in front of its first step; nullptr if it hands over nothing before its
  // end.
  std::unique_ptr<PausedCall> begin(std::vector<Value>& inputs, bool donate) const;

 private:
  friend class PausedCall;
  std::vector<Value> run_native(std::vector<Value>& inputs, bool donate) const;
  std::vector<Value> run_python(std::vector<Value>& inputs) const;

  std::shared_ptr<const Executor> native_;
  std::shared_ptr<PyObject> explain_;
  std::shared_ptr<PyObject> python_;
};

// A call that goes on from one hand-over of results to the next.
class PausedCall {
 public:
  PausedCall(const Callable& callable, std::vector<Value>& inputs, bool donate);
  // The results of the next part, at their places. Throws RaisedError.
  std::vector<Value> go_on();

 private:
  std::shared_ptr<const Executor> native_;
  std::shared_ptr<PyObject> explain_;
  std::unique_ptr<Executor::Paused> paused_;
};

// Python's tuple or list as values; tensors are new references. False: a Python error is set.
bool values_from_python(PyObject* sequence, std::vector<Value>& values);
PyObject* values_to_python(const std::vector<Value>& values);

}  // namespace kiln
