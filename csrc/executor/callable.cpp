#include "executor/callable.h"

#include <torch/csrc/Exceptions.h>

#include "executor/executor_object.h"
#include "executor/python.h"

namespace kiln {

std::shared_ptr<PyObject> share_object(PyObject* object) {
  return {Py_NewRef(object), [](PyObject* held) {
            if (!Py_IsInitialized()) return;
            TakeGil gil;
            Py_DECREF(held);
          }};
}

RaisedError RaisedError::fetch() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  RaisedError made;
  made.error_ = share_object(value);
  Py_DECREF(value);
  return made;
}

void RaisedError::restore() const {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error_.get())), error_.get());
}

void throw_to_engine(const RaisedError& error) {
  TakeGil gil;
  error.restore();
  python_error carried;
  carried.persist();
  throw carried;
}

Callable::Callable(PyObject* function) {
  native_ = executor_of(function);
  if (native_) {
    explain_ = share_object(explain_of(function));
  } else {
    python_ = share_object(function);
  }
}

int Callable::visit(visitproc visit, void* arg) const {
  Py_VISIT(explain_.get());
  Py_VISIT(python_.get());
  return 0;
}

std::vector<Value> Callable::operator()(std::vector<Value>& inputs, bool donate) const {
  return native_ ? run_native(inputs, donate) : run_python(inputs);
}

namespace {

// Runs `work`; an error of the plan becomes the Python error that `explain` makes of it.
template <typename Work>
void explained(PyObject* explain, const Work& work) {
  try {
    work();
  } catch (const PlanError& error) {
    TakeGil gil;
    raise_plan_error(explain, error);
    throw RaisedError::fetch();
  }
}

}  // namespace

std::vector<Value> Callable::run_native(std::vector<Value>& inputs, bool donate) const {
  std::vector<Value> outputs(native_->program().outputs.size());
  explained(explain_.get(), [&] {
    native_->check_count(inputs.size());
    native_->run(inputs.data(), outputs.data(), donate);
  });
  return outputs;
}

std::unique_ptr<PausedCall> Callable::begin(std::vector<Value>& inputs, bool donate) const {
  if (!native_ || !native_->program().hands_over) return nullptr;
  return std::make_unique<PausedCall>(*this, inputs, donate);
}

PausedCall::PausedCall(const Callable& callable, std::vector<Value>& inputs, bool donate)
    : native_(callable.native_), explain_(callable.explain_) {
  explained(explain_.get(), [&] {
    native_->check_count(inputs.size());
    paused_ = std::make_unique<Executor::Paused>(*native_, inputs.data(), donate);
  });
}

std::vector<Value> PausedCall::go_on() {
  std::vector<Value> outputs(native_->program().outputs.size());
  explained(explain_.get(), [&] { paused_->go_on(outputs.data()); });
  return outputs;
}

std::vector<Value> Callable::run_python(std::vector<Value>& inputs) const {
  TakeGil gil;
  PyObject* args = values_to_python(inputs);
  inputs.clear();
  PyObject* result = args ? PyObject_CallObject(python_.get(), args) : nullptr;
  Py_XDECREF(args);
  std::vector<Value> outputs;
  bool good = result && values_from_python(result, outputs);
  Py_XDECREF(result);
  if (!good) throw RaisedError::fetch();
  return outputs;
}

bool values_from_python(PyObject* sequence, std::vector<Value>& values) {
  PyObject* items = PySequence_Fast(sequence, "a region must return a tuple");
  if (!items) return false;
  for (Py_ssize_t n = 0; n < PySequence_Fast_GET_SIZE(items); n++) {
    values.emplace_back();
    if (!value_from_python(PySequence_Fast_GET_ITEM(items, n), values.back())) break;
  }
  Py_DECREF(items);
  return !PyErr_Occurred();
}

PyObject* values_to_python(const std::vector<Value>& values) {
  return make_tuple(values.size(), [&](size_t n) { return value_to_python(values[n]); });
}

}  // namespace kiln
