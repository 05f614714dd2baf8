// The Python type `Region`.
#include <Python.h>

#include <cstddef>
#include <exception>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "executor/python.h"
#include "executor/python_types.h"
#include "executor/region.h"
#include "support/collected_type.h"

namespace kiln {

PyObject* mask_to_python(const std::vector<bool>& mask) {
  return make_tuple(mask.size(), [&](size_t n) { return PyBool_FromLong(mask[n]); });
}

std::vector<bool> RegionState::mask(const std::vector<bool>& connected,
                                    const std::vector<bool>& needed) {
  constexpr size_t kMost = 4;
  if (needed == connected) return connected;
  std::lock_guard<std::mutex> lock(mutex_);
  if (selections_.count(needed)) return needed;
  if (selections_.size() == kMost) return connected;
  return *selections_.insert(needed).first;
}

const Callable& RegionState::backward(const std::vector<bool>& wanted) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = backwards_.find(wanted);
    if (found != backwards_.end()) return found->second;
  }
  // Not under the mutex: compiling runs Python, which may switch threads.
  TakeGil gil;
  auto split = wanted.begin() + static_cast<std::ptrdiff_t>(num_inputs);
  PyObject* needed = mask_to_python({wanted.begin(), split});
  PyObject* given = optional_tangents ? mask_to_python({split, wanted.end()}) : nullptr;
  PyObject* made = PyObject_CallFunctionObjArgs(make_backward.get(), needed, given, nullptr);
  Py_XDECREF(needed);
  Py_XDECREF(given);
  if (!made) throw RaisedError::fetch();
  Callable callable = made == Py_None ? Callable() : Callable(made);
  Py_DECREF(made);
  std::lock_guard<std::mutex> lock(mutex_);
  return backwards_.emplace(wanted, std::move(callable)).first->second;
}

int RegionState::visit(visitproc visit, void* arg) const {
  if (int stop = forward.visit(visit, arg)) return stop;
  for (const auto& [mask, callable] : backwards_) {
    if (int stop = callable.visit(visit, arg)) return stop;
  }
  Py_VISIT(make_backward.get());
  Py_VISIT(differentiate.get());
  Py_VISIT(accepts.get());
  return 0;
}

void RegionState::drop() {
  forward = Callable();
  backwards_.clear();
  make_backward.reset();
  differentiate.reset();
  accepts.reset();
}

namespace {

// Autograd nodes share the state, so its objects count as ours only if no node is alive.
struct SharedState : std::shared_ptr<RegionState> {
  int traverse(visitproc visit, void* arg) const {
    return use_count() == 1 ? (*this)->visit(visit, arg) : 0;
  }
  void clear() const { (*this)->drop(); }
};

struct RegionObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  SharedState state;
};

RegionState& state_of(PyObject* self) { return *reinterpret_cast<RegionObject*>(self)->state; }

PyObject* call(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
  std::shared_ptr<RegionState> state = reinterpret_cast<RegionObject*>(self)->state;
  auto count = static_cast<size_t>(PyVectorcall_NARGS(flags));
  if (count != state->num_inputs || (names && PyTuple_GET_SIZE(names))) {
    PyErr_Format(PyExc_TypeError, "%s takes %zu arguments, not %zu", state->name.c_str(),
                 state->num_inputs, count);
    return nullptr;
  }
  try {
    std::vector<Value> inputs(count);
    for (size_t n = 0; n < count; n++) {
      if (c10::TensorImpl* tensor = tensor_of(args[n])) {
        inputs[n].borrow(tensor);
      } else if (PyErr_Occurred() || !value_from_python(args[n], inputs[n])) {
        return nullptr;
      }
    }
    std::vector<Value> results;
    {
      std::optional<ReleaseGil> released;
      if (!state->forward.is_brief()) released.emplace();
      results = call_region(state, inputs);
    }
    return values_to_python(results);
  } catch (const RaisedError& error) {
    error.restore();
  } catch (...) {
    set_python_error(std::current_exception());
  }
  return nullptr;
}

// Values of a field from Python; false: a Python error is set.
bool read(PyObject* given, std::string& made) {
  const char* text = PyUnicode_AsUTF8(given);
  if (text) made = text;
  return text;
}

bool read(PyObject* given, int32_t& made) {
  made = static_cast<int32_t>(PyLong_AsLong(given));
  return !PyErr_Occurred();
}

bool read(PyObject* given, size_t& made) {
  made = PyLong_AsSize_t(given);
  return !PyErr_Occurred();
}

bool read(PyObject* given, bool& made) {
  made = PyObject_IsTrue(given) == 1;
  return !PyErr_Occurred();
}

bool read(PyObject* given, Callable& made) {
  made = Callable(given);
  return true;
}

// None: there is none.
bool read(PyObject* given, std::shared_ptr<PyObject>& made) {
  if (given != Py_None) made = share_object(given);
  return true;
}

bool read(PyObject* given, std::pair<int32_t, int32_t>& made) {
  return PyArg_ParseTuple(given, "ii", &made.first, &made.second);
}

template <typename Item>
bool read(PyObject* given, std::vector<Item>& made);

bool read(PyObject* given, ResultEntry& made) {
  int differentiable, base, is_view, creation;
  if (!PyArg_ParseTuple(given, "iiiii", &differentiable, &base, &made.base_index, &is_view,
                        &creation)) {
    return false;
  }
  made.differentiable = differentiable != 0;
  made.base = static_cast<BaseKind>(base);
  made.is_view = is_view != 0;
  made.creation = static_cast<uint8_t>(creation);
  return true;
}

// The readers are None where every backward gets the value.
bool read(PyObject* given, SavedEntry& made) {
  int kind, base;
  PyObject* readers;
  if (!PyArg_ParseTuple(given, "iiiiO", &kind, &made.index, &base, &made.base_index, &readers)) {
    return false;
  }
  made.kind = static_cast<SavedKind>(kind);
  made.base = static_cast<BaseKind>(base);
  made.always_read = readers == Py_None;
  return made.always_read || read(readers, made.readers);
}

bool read(PyObject* given, WatchedEntry& made) {
  int kind;
  PyObject *readers, *gradients;
  if (!PyArg_ParseTuple(given, "iiOO", &kind, &made.index, &readers, &gradients)) return false;
  made.kind = static_cast<SavedKind>(kind);
  made.always_read = readers == Py_None;
  return (made.always_read || read(readers, made.readers)) && read(gradients, made.gradients);
}

template <typename Item>
bool read(PyObject* given, std::vector<Item>& made) {
  PyObject* items = PySequence_Fast(given, "expected a sequence");
  if (!items) return false;
  made.resize(static_cast<size_t>(PySequence_Fast_GET_SIZE(items)));
  bool good = true;
  for (size_t n = 0; good && n < made.size(); n++) {
    good = read(PySequence_Fast_GET_ITEM(items, static_cast<Py_ssize_t>(n)), made[n]);
  }
  Py_DECREF(items);
  return good;
}

// A named argument of `Region`.
struct Field {
  const char* name;
  bool (*read)(PyObject* given, RegionState& state);
};

template <auto field>
bool read_field(PyObject* given, RegionState& state) {
  return read(given, state.*field);
}

constexpr Field kFields[] = {
    {"name", read_field<&RegionState::name>},
    {"num_inputs", read_field<&RegionState::num_inputs>},
    {"forward", read_field<&RegionState::forward>},
    {"make_backward", read_field<&RegionState::make_backward>},
    {"differentiate", read_field<&RegionState::differentiate>},
    {"accepts", read_field<&RegionState::accepts>},
    {"results", read_field<&RegionState::results>},
    {"saved", read_field<&RegionState::saved>},
    {"written", read_field<&RegionState::written>},
    {"ends", read_field<&RegionState::ends>},
    {"depends", read_field<&RegionState::depends>},
    {"order", read_field<&RegionState::order>},
    {"parts", read_field<&RegionState::parts>},
    {"detached", read_field<&RegionState::detached>},
    {"reached", read_field<&RegionState::reached>},
    {"drawn", read_field<&RegionState::drawn>},
    {"unread", read_field<&RegionState::unread>},
    {"watched", read_field<&RegionState::watched>},
    {"optional_tangents", read_field<&RegionState::optional_tangents>},
    {"no_second_derivative", read_field<&RegionState::no_second_derivative>},
    {"no_wrapped_tangents", read_field<&RegionState::no_wrapped_tangents>},
    {"no_forward_mode", read_field<&RegionState::no_forward_mode>},
    {"no_inner_gradient", read_field<&RegionState::no_inner_gradient>},
    {"no_second_hooks", read_field<&RegionState::no_second_hooks>},
};

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  if (PyTuple_GET_SIZE(args) || !kwargs || PyDict_GET_SIZE(kwargs) != std::ssize(kFields)) {
    return PyErr_Format(PyExc_TypeError, "Region takes %zd named arguments", std::ssize(kFields));
  }
  auto state = std::make_shared<RegionState>();
  for (const Field& field : kFields) {
    PyObject* given = PyDict_GetItemString(kwargs, field.name);
    if (!given) return PyErr_Format(PyExc_TypeError, "Region: %s is missing", field.name);
    if (!field.read(given, *state)) return nullptr;
  }
  PyObject* self = type->tp_alloc(type, 0);
  if (!self) return nullptr;
  auto* object = reinterpret_cast<RegionObject*>(self);
  new (&object->state) SharedState{std::move(state)};
  object->vectorcall = call;
  return self;
}

PyObject* name(PyObject* self, void*) { return PyUnicode_FromString(state_of(self).name.c_str()); }

PyGetSetDef properties[] = {
    {"name", name, nullptr, "Name of its node in the autograd graph.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyTypeObject region_type = [] {
  PyTypeObject type = collected_type<RegionObject, &RegionObject::state>(
      "kiln.native._executor.Region",
      "A differentiable region; see kiln.runtime.autograd.make_region.", make);
  type.tp_getset = properties;
  return type;
}();

}  // namespace

bool add_region_type(PyObject* module) { return PyModule_AddType(module, &region_type) == 0; }

}  // namespace kiln
