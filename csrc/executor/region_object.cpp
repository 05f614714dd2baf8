// The Python type `Region`.
#include <Python.h>

#include <cstddef>
#include <exception>
#include <optional>

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

bool read_numbers(PyObject* numbers, std::vector<int32_t>& made) {
  PyObject* items = PySequence_Fast(numbers, "expected a sequence of numbers");
  if (!items) return false;
  for (Py_ssize_t n = 0; n < PySequence_Fast_GET_SIZE(items); n++) {
    made.push_back(static_cast<int32_t>(PyLong_AsLong(PySequence_Fast_GET_ITEM(items, n))));
  }
  Py_DECREF(items);
  return !PyErr_Occurred();
}

// A sequence of sequences of small integers, each of `width` (0: any number).
bool read_rows(PyObject* rows, size_t width, std::vector<std::vector<int32_t>>& made) {
  PyObject* items = PySequence_Fast(rows, "expected a sequence of sequences");
  if (!items) return false;
  made.assign(static_cast<size_t>(PySequence_Fast_GET_SIZE(items)), {});
  for (size_t n = 0; n < made.size() && !PyErr_Occurred(); n++) {
    bool read = read_numbers(PySequence_Fast_GET_ITEM(items, static_cast<Py_ssize_t>(n)), made[n]);
    if (read && width && made[n].size() != width) {
      PyErr_Format(PyExc_ValueError, "expected %zu numbers in a row", width);
    }
  }
  Py_DECREF(items);
  return !PyErr_Occurred();
}

// For each saved value the numbers of its readers, or None; for each tangent those that it ends.
bool read_tangents(PyObject* readers, PyObject* ends, RegionState& state) {
  std::vector<SavedEntry>& saved = state.saved;
  for (size_t n = 0; n < saved.size(); n++) {
    PyObject* row = PySequence_GetItem(readers, static_cast<Py_ssize_t>(n));
    saved[n].always_read = row == Py_None;
    bool good = row && (saved[n].always_read || read_numbers(row, saved[n].readers));
    Py_XDECREF(row);
    if (!good) return false;
  }
  return read_rows(ends, 0, state.ends);
}

bool read_spec(PyObject* results, PyObject* saved, PyObject* written, RegionState& state) {
  std::vector<std::vector<int32_t>> rows;
  if (!read_rows(results, 5, rows)) return false;
  for (const auto& row : rows) {
    state.results.push_back({row[0] != 0, static_cast<BaseKind>(row[1]), row[2], row[3] != 0,
                             static_cast<uint8_t>(row[4])});
  }
  if (!read_rows(saved, 4, rows)) return false;
  for (const auto& row : rows) {
    state.saved.push_back(
        {static_cast<SavedKind>(row[0]), row[1], static_cast<BaseKind>(row[2]), row[3]});
  }
  if (!read_rows(written, 2, rows)) return false;
  for (const auto& row : rows) state.written.emplace_back(row[0], row[1]);
  return true;
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  const char *name, *no_second_derivative, *no_wrapped_tangents, *no_forward_mode,
      *no_inner_gradient, *no_second_hooks;
  int optional_tangents;
  Py_ssize_t num_inputs;
  PyObject *forward, *results, *saved, *written, *backward, *differentiate, *detached, *reached;
  PyObject *readers, *ends, *depends, *order, *drawn, *parts, *unread;
  PyObject* accepts = Py_None;
  if (!PyArg_ParseTuple(args, "snOOOOOOOOOOssssspOOOOO|O", &name, &num_inputs, &forward, &results,
                        &saved, &readers, &ends, &depends, &order, &written, &backward,
                        &differentiate, &no_second_derivative, &no_wrapped_tangents,
                        &no_forward_mode, &no_inner_gradient, &no_second_hooks, &optional_tangents,
                        &detached, &reached, &drawn, &parts, &unread, &accepts)) {
    return nullptr;
  }
  auto state = std::make_shared<RegionState>();
  state->name = name;
  state->num_inputs = static_cast<size_t>(num_inputs);
  if (!read_spec(results, saved, written, *state)) return nullptr;
  if (!read_tangents(readers, ends, *state)) return nullptr;
  if (!read_rows(depends, 0, state->depends)) return nullptr;
  if (!read_numbers(order, state->order)) return nullptr;
  if (!read_numbers(detached, state->detached)) return nullptr;
  if (!read_numbers(reached, state->reached)) return nullptr;
  if (!read_numbers(drawn, state->drawn)) return nullptr;
  if (!read_numbers(parts, state->parts)) return nullptr;
  if (!read_numbers(unread, state->unread)) return nullptr;
  state->forward = Callable(forward);
  state->make_backward = share_object(backward);
  if (differentiate != Py_None) state->differentiate = share_object(differentiate);
  if (accepts != Py_None) state->accepts = share_object(accepts);
  state->no_second_derivative = no_second_derivative;
  state->no_wrapped_tangents = no_wrapped_tangents;
  state->no_forward_mode = no_forward_mode;
  state->no_inner_gradient = no_inner_gradient;
  state->no_second_hooks = no_second_hooks;
  state->optional_tangents = optional_tangents != 0;
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
