// The Python face of a plan: `Executor(program, addresses, constants, explain, images)` is a
// callable without a Python frame.
#include "executor/executor_object.h"

#include <structmember.h>

#include <cstddef>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "executor/python.h"
#include "executor/python_types.h"
#include "support/collected_type.h"

namespace kiln {

namespace {

struct ExecutorObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  std::shared_ptr<const Executor> executor;
  PyObject* explain;  // (kind, value, origin, detail) -> exception
};

// Sets the Python error of the C++ exception that is being handled.
void raise_current(PyObject* explain) {
  try {
    throw;
  } catch (const PlanError& error) {
    raise_plan_error(explain, error);
  } catch (...) {
    set_python_error(std::current_exception());
  }
}

bool read_argument(PyObject* given, const Input& input, Value& value) {
  switch (input.scalar) {
    case ScalarKind::kTensor:
      if (c10::TensorImpl* tensor = tensor_of(given)) value.borrow(tensor);
      return !PyErr_Occurred();
    case ScalarKind::kInt:
      if (PyLong_Check(given)) value.set_int(PyLong_AsLongLong(given));  // a truth value too
      return !PyErr_Occurred();
    case ScalarKind::kFloat:
      if (PyFloat_Check(given)) value.set_float(PyFloat_AS_DOUBLE(given));
      return true;
    case ScalarKind::kBool:
      if (PyBool_Check(given)) value.set_bool(given == Py_True);
      return true;
  }
  return true;
}

PyObject* results_to_python(const Program& program, std::vector<Value>& outputs,
                            PyObject* const* args) {
  return make_tuple(outputs.size(), [&](size_t n) {
    const Output& output = program.outputs[n];
    bool is_input = output.layout == kNone && output.operand >= 0 &&
                    (output.kind == OutputKind::kInput ||
                     (output.kind == OutputKind::kSlot &&
                      static_cast<size_t>(output.operand) < program.inputs.size()));
    return is_input ? Py_NewRef(args[output.operand]) : value_to_python(outputs[n]);
  });
}

void release(void* lock) { static_cast<std::optional<ReleaseGil>*>(lock)->emplace(); }

PyObject* call(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
  auto* object = reinterpret_cast<ExecutorObject*>(self);
  const Executor& executor = *object->executor;
  const Program& program = executor.program();
  auto count = static_cast<size_t>(PyVectorcall_NARGS(flags));
  try {
    executor.check_count(count + (names ? static_cast<size_t>(PyTuple_GET_SIZE(names)) : 0));
    Executor::Call running(executor);
    Value* inputs = running.inputs();
    for (size_t n = 0; n < count; n++) {
      if (!read_argument(args[n], program.inputs[n], inputs[n])) return nullptr;
    }
    {
      std::optional<ReleaseGil> released;
      running.run(release, &released);
      if (program.has_views) {
        rebuild_views(program, inputs, running.results().data());
      }
    }
    return results_to_python(program, running.results(), args);
  } catch (...) {
    raise_current(object->explain);
    return nullptr;
  }
}

bool read_parameters(const char* letters, KernelImage& image) {
  for (const char* at = letters; *at; at++) {
    if (!std::strchr("pbhiqegfd", *at)) {
      PyErr_Format(PyExc_ValueError, "no type of parameters is called %c", *at);
      return false;
    }
    image.parameters.push_back(static_cast<ParameterType>(*at));
  }
  return true;
}

// From Python's dict of symbols to `Cubin.image()`; false: a Python error is set.
bool read_images(PyObject* given, KernelImages& images) {
  PyObject *symbol, *fields;
  Py_ssize_t place = 0;
  while (PyDict_Next(given, &place, &symbol, &fields)) {
    KernelImage image;
    const char *entry, *letters;
    PyObject* code;
    int status;
    long long shared, scratch;
    const char* name = PyUnicode_AsUTF8(symbol);
    if (!name || !PyArg_ParseTuple(fields, "sspiiLLiS", &entry, &letters, &status, &image.trailing,
                                   &image.threads, &shared, &scratch, &image.capability, &code)) {
      return false;
    }
    image.symbol = name;
    image.entry = entry;
    image.status = status != 0;
    image.shared = shared;
    image.scratch = scratch;
    image.code.assign(PyBytes_AS_STRING(code), static_cast<size_t>(PyBytes_GET_SIZE(code)));
    if (!read_parameters(letters, image)) return false;
    images.emplace(name, std::move(image));
  }
  return true;
}

bool read_constants(PyObject* given, std::vector<TensorPtr>& constants) {
  PyObject* items = PySequence_Fast(given, "constants must be a sequence of tensors");
  if (!items) return false;
  bool good = true;
  for (Py_ssize_t n = 0; good && n < PySequence_Fast_GET_SIZE(items); n++) {
    c10::TensorImpl* tensor = tensor_of(PySequence_Fast_GET_ITEM(items, n));
    good = tensor != nullptr;
    if (good) constants.push_back(TensorPtr::reclaim_copy(tensor));
  }
  Py_DECREF(items);
  if (!good && !PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a constant is no tensor");
  return good;
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  Py_buffer bytes;
  PyObject *addresses, *constants, *explain, *given_images = nullptr;
  if (!PyArg_ParseTuple(args, "y*O!OO|O!", &bytes, &PyDict_Type, &addresses, &constants, &explain,
                        &PyDict_Type, &given_images)) {
    return nullptr;
  }
  PyObject* self = nullptr;
  try {
    auto program =
        decode_program(static_cast<const char*>(bytes.buf), static_cast<size_t>(bytes.len));
    std::vector<TensorPtr> tensors;
    Kernels kernels;
    kernels.find_cpp = [&](const char* symbol) {
      PyObject* address = PyDict_GetItemString(addresses, symbol);
      return address ? PyLong_AsVoidPtr(address) : nullptr;
    };
    if (read_constants(constants, tensors) &&
        (!given_images || read_images(given_images, kernels.images))) {
      auto executor = std::make_shared<Executor>(std::move(program), std::move(tensors), kernels);
      self = type->tp_alloc(type, 0);
      if (self) {
        auto* object = reinterpret_cast<ExecutorObject*>(self);
        new (&object->executor) std::shared_ptr<const Executor>(std::move(executor));
        object->vectorcall = call;
        object->explain = Py_NewRef(explain);
      }
    }
  } catch (...) {
    raise_current(explain);
  }
  PyBuffer_Release(&bytes);
  return self;
}

PyObject* name(PyObject* self, void*) {
  const std::string& text = reinterpret_cast<ExecutorObject*>(self)->executor->program().name;
  return PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
}

PyGetSetDef properties[] = {
    {"name", name, nullptr, "Name of the plan.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyTypeObject executor_type = [] {
  PyTypeObject type = collected_type<ExecutorObject, &ExecutorObject::explain>(
      "kiln.native._executor.Executor",
      "Executor(program, addresses, constants, explain, images): runs a plan.", make);
  type.tp_getset = properties;
  return type;
}();

}  // namespace

void raise_plan_error(PyObject* explain, const PlanError& error) {
  PyObject* made = PyObject_CallFunction(explain, "iLss", static_cast<int>(error.kind),
                                         static_cast<long long>(error.value), error.origin.c_str(),
                                         error.detail.c_str());
  if (!made) return;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made)), made);
  Py_DECREF(made);
}

bool add_executor_type(PyObject* module) { return PyModule_AddType(module, &executor_type) == 0; }

std::shared_ptr<const Executor> executor_of(PyObject* object) {
  if (!PyObject_TypeCheck(object, &executor_type)) return nullptr;
  return reinterpret_cast<ExecutorObject*>(object)->executor;
}

PyObject* explain_of(PyObject* object) {
  return reinterpret_cast<ExecutorObject*>(object)->explain;
}

}  // namespace kiln
