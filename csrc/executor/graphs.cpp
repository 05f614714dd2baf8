// What a call of a recorded graph needs besides the replay itself: do the arguments fit the
// recording, does somebody still hold the last results, and new results over the graph's memory.
//
// Results are lent: a fresh storage whose memory is the graph's. The lease keeps that memory alive
// and tells lent storages from others. A held storage gets other memory (`move`), which all its
// tensors see: views, detached and saved ones.
#include "executor/graphs.h"

#include <c10/core/StorageImpl.h>

#include <exception>
#include <utility>
#include <vector>

#include "executor/aten.h"
#include "executor/check.h"
#include "executor/device.h"
#include "executor/python.h"
#include "executor/value.h"

namespace kiln {

namespace {

using StoragePtr = c10::intrusive_ptr<c10::StorageImpl>;
using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

// Numbers of kiln/runtime/cuda_graphs/recording.py.
enum Verdict { kFits, kHeld, kMoved, kOther };

struct Shape {
  Shape() = default;
  explicit Shape(const c10::TensorImpl& tensor)
      : meta(tensor.dtype()),
        sizes(tensor.sizes().vec()),
        strides(tensor.strides().vec()),
        offset(tensor.storage_offset()) {}

  // Elements from the first to the last, gaps included.
  int64_t span() const {
    int64_t last = 0;
    for (size_t dim = 0; dim < sizes.size(); dim++) {
      if (sizes[dim] == 0) return 0;
      last += (sizes[dim] - 1) * strides[dim];
    }
    return last + 1;
  }

  caffe2::TypeMeta meta;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset = 0;
};

struct Lease {
  StoragePtr memory;
};

void end_lease(void* lease) { delete static_cast<Lease*>(lease); }

// Memory of the graph that results stand in, and the storage by which it was lent last.
struct Memory {
  StoragePtr own;
  WeakStorage lent;

  StoragePtr lend() {
    c10::DataPtr data(own->mutable_data(), new Lease{own}, end_lease, own->device());
    auto made =
        c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), own->nbytes(),
                                              std::move(data), own->allocator(), true);
    lent = WeakStorage(made);
    return made;
  }

  // The lent storage, if somebody holds it and it has not got other memory. The address tells, not
  // the lease: torch puts its own owner around memory that it shares with other processes.
  StoragePtr held() const {
    if (lent.expired() || own->nbytes() == 0) return StoragePtr();
    StoragePtr found = lent.lock();
    return found && found->data() == own->data() ? std::move(found) : StoragePtr();
  }
};

struct Argument {
  bool is_tensor = false;
  Value number;
  uint64_t keys = 0;
  Shape shape;
  const void* address = nullptr;
  bool copied = false;
};

enum class ResultKind { kObject, kArgument, kViewOfArgument, kMemory };

struct Result {
  ResultKind kind = ResultKind::kObject;
  PyObject* object = nullptr;  // owned: what is the same in each call
  int32_t index = 0;           // of the argument, or of the memory
  int32_t base = -1;           // the first result in the same memory, where it is an earlier one
  Shape shape;                 // `offset` of a view counts from the argument's own
};

const void* address_of(const c10::TensorImpl& tensor) {
  const auto* start = static_cast<const char*>(tensor.unsafe_storage().data());
  return start + tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
}

bool same_layout(const c10::TensorImpl& tensor, const Argument& recorded) {
  if (tensor.key_set().raw_repr() != recorded.keys || tensor.dtype() != recorded.shape.meta) {
    return false;
  }
  c10::IntArrayRef sizes = tensor.sizes();
  if (sizes != c10::IntArrayRef(recorded.shape.sizes)) return false;
  c10::IntArrayRef strides = tensor.strides();
  for (size_t dim = 0; dim < sizes.size(); dim++) {
    if (sizes[dim] != 1 && strides[dim] != recorded.shape.strides[dim]) return false;
  }
  return true;
}

bool same_number(PyObject* given, const Value& recorded) {
  Value value;
  if (!value_from_python(given, value)) {
    PyErr_Clear();
    return false;
  }
  if (value.tag() != recorded.tag() || value.is_tensor()) return false;
  if (value.tag() == Value::Tag::kNone) return true;
  return value.integer() == recorded.integer();  // of a float: its bits
}

TensorPtr tensor_over(const StoragePtr& storage, const Shape& shape, c10::DispatchKeySet keys) {
  auto made = c10::make_intrusive<c10::TensorImpl, c10::UndefinedTensorImpl>(c10::Storage(storage),
                                                                             keys, shape.meta);
  made->set_sizes_and_strides(shape.sizes, shape.strides, shape.offset);
  return made;
}

// Key set of a plain new tensor on the storage's device.
c10::DispatchKeySet plain_keys(const c10::StorageImpl& storage) {
  bool cpu = storage.device().is_cpu();
  return c10::DispatchKeySet(cpu ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA);
}

PyObject* wrapped(TensorPtr tensor) {
  Value value;
  value.set_tensor(std::move(tensor));
  return value_to_python(value);
}

TensorPtr flat_over(const StoragePtr& storage, const Shape& shape, int64_t offset) {
  Shape flat;
  flat.meta = shape.meta;
  flat.sizes = {shape.span()};
  flat.strides = {1};
  flat.offset = offset;
  return tensor_over(storage, flat, plain_keys(*storage));
}

StoragePtr storage_of(const c10::TensorImpl& tensor) {
  return tensor.unsafe_storage().getWeakStorageImpl().lock();
}

class Replay {
 public:
  Replay() = default;
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;
  ~Replay() {
    for (Result& result : results_) Py_XDECREF(result.object);
  }

  // False: a Python error is set.
  bool record(PyObject* given, PyObject* used, PyObject* results, PyObject* constants,
              PyObject* mutated, bool standalone);

  Verdict check(PyObject* args) const;
  PyObject* moved(PyObject* args) const;
  PyObject* sources(PyObject* args) const;
  PyObject* held() const;
  int64_t held_bytes() const;
  bool move(size_t index, const c10::TensorImpl& fresh);
  PyObject* hand_out(PyObject* args);

 private:
  bool add_argument(PyObject* given, PyObject* used);
  void add_result(PyObject* object, PyObject* used, PyObject* constants);
  bool stands_in_argument(const c10::TensorImpl& tensor, PyObject* used, Result& result) const;
  TensorPtr view_of_argument(const Result& result, const c10::TensorImpl& base) const;
  PyObject* make(const Result& result, PyObject* args, const std::vector<StoragePtr>& lent,
                 PyObject* made) const;

  std::vector<Argument> arguments_;
  std::vector<size_t> copied_;  // numbers of arguments, in order
  std::vector<size_t> mutated_;
  std::vector<Result> results_;
  std::vector<Memory> memories_;
  bool standalone_ = false;
};

bool Replay::add_argument(PyObject* given, PyObject* used) {
  Argument made;
  c10::TensorImpl* tensor = tensor_of(given);
  if (tensor) {
    KILN_CHECK(tensor->has_storage(), "only strided tensors can be arguments of a graph");
    made.is_tensor = true;
    made.keys = tensor->key_set().raw_repr();
    made.shape = Shape(*tensor);
    made.copied = given != used;
    if (made.copied) copied_.push_back(arguments_.size());
    made.address = address_of(*tensor);
  } else if (PyErr_Occurred() || !value_from_python(given, made.number)) {
    return false;
  }
  arguments_.push_back(std::move(made));
  return true;
}

bool Replay::stands_in_argument(const c10::TensorImpl& tensor, PyObject* used,
                                Result& result) const {
  int32_t sharing = -1;
  for (size_t n = 0; n < arguments_.size(); n++) {
    if (!arguments_[n].is_tensor) continue;
    const c10::TensorImpl& one = *tensor_of(PyTuple_GET_ITEM(used, static_cast<Py_ssize_t>(n)));
    if (&one == &tensor) {
      result.kind = ResultKind::kArgument;
      result.index = static_cast<int32_t>(n);
      return true;
    }
    if (sharing < 0 && one.unsafe_storage().is_alias_of(tensor.unsafe_storage())) {
      sharing = static_cast<int32_t>(n);
      result.shape.offset = tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize()) -
                            one.storage_offset() * static_cast<int64_t>(one.itemsize());
    }
  }
  if (sharing < 0) return false;
  // In bytes until here: a view may have another dtype.
  result.shape.offset /= static_cast<int64_t>(tensor.itemsize());
  result.kind = ResultKind::kViewOfArgument;
  result.index = sharing;
  return true;
}

bool is_among(const c10::TensorImpl& tensor, PyObject* constants) {
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(constants); n++) {
    const c10::TensorImpl* one = tensor_of(PyTuple_GET_ITEM(constants, n));
    if (one && one->unsafe_storage().is_alias_of(tensor.unsafe_storage())) return true;
  }
  return false;
}

void Replay::add_result(PyObject* object, PyObject* used, PyObject* constants) {
  Result made;
  const c10::TensorImpl* tensor = tensor_of(object);
  if (!tensor || is_among(*tensor, constants)) {
    made.object = Py_NewRef(object);
    results_.push_back(std::move(made));
    return;
  }
  made.shape = Shape(*tensor);
  if (!stands_in_argument(*tensor, used, made)) {
    made.kind = ResultKind::kMemory;
    StoragePtr storage = storage_of(*tensor);
    size_t place = 0;
    while (place < memories_.size() && memories_[place].own != storage) place++;
    if (place == memories_.size()) {
      memories_.push_back({storage, WeakStorage(storage)});
      memories_.back().lent.reset();
    }
    made.index = static_cast<int32_t>(place);
    for (size_t n = 0; n < results_.size() && made.base < 0; n++) {
      const Result& earlier = results_[n];
      if (earlier.kind == ResultKind::kMemory && earlier.index == made.index) {
        made.base = static_cast<int32_t>(n);
      }
    }
  }
  results_.push_back(std::move(made));
}

bool Replay::record(PyObject* given, PyObject* used, PyObject* results, PyObject* constants,
                    PyObject* mutated, bool standalone) {
  standalone_ = standalone;
  if (PyTuple_GET_SIZE(given) != PyTuple_GET_SIZE(used)) {
    PyErr_SetString(PyExc_ValueError, "the recording ran on another number of arguments");
    return false;
  }
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(given); n++) {
    if (!add_argument(PyTuple_GET_ITEM(given, n), PyTuple_GET_ITEM(used, n))) return false;
  }
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(results); n++) {
    add_result(PyTuple_GET_ITEM(results, n), used, constants);
    if (PyErr_Occurred()) return false;
  }
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(mutated); n++) {
    size_t place = PyLong_AsSize_t(PyTuple_GET_ITEM(mutated, n));
    if (PyErr_Occurred()) return false;
    if (arguments_.at(place).is_tensor) mutated_.push_back(place);
  }
  return true;
}

Verdict Replay::check(PyObject* args) const {
  if (PyTuple_GET_SIZE(args) != static_cast<Py_ssize_t>(arguments_.size())) return kOther;
  bool moved = false;
  for (size_t n = 0; n < arguments_.size(); n++) {
    const Argument& recorded = arguments_[n];
    PyObject* given = PyTuple_GET_ITEM(args, static_cast<Py_ssize_t>(n));
    if (!recorded.is_tensor) {
      if (!same_number(given, recorded.number)) return kOther;
      continue;
    }
    const c10::TensorImpl* tensor = tensor_of(given);
    if (!tensor || tensor->has_symbolic_sizes_strides() || !same_layout(*tensor, recorded)) {
      PyErr_Clear();
      return kOther;
    }
    moved = moved || (!recorded.copied && address_of(*tensor) != recorded.address);
  }
  if (moved) return kMoved;
  for (const Memory& memory : memories_) {
    if (memory.held()) return kHeld;
  }
  return kFits;
}

// Arguments in other memory than recorded; of arguments that fit or have moved.
PyObject* Replay::moved(PyObject* args) const {
  PyObject* found = PyList_New(0);
  for (size_t n = 0; found && n < arguments_.size(); n++) {
    const Argument& recorded = arguments_[n];
    if (!recorded.is_tensor || recorded.copied) continue;
    const c10::TensorImpl* tensor = tensor_of(PyTuple_GET_ITEM(args, static_cast<Py_ssize_t>(n)));
    if (!tensor || address_of(*tensor) == recorded.address) continue;
    PyObject* number = PyLong_FromSize_t(n);
    if (!number || PyList_Append(found, number) != 0) Py_CLEAR(found);
    Py_XDECREF(number);
  }
  return found;
}

// The memory of the arguments that are copied, as flat tensors without a history.
PyObject* Replay::sources(PyObject* args) const {
  PyObject* found = PyList_New(0);
  for (size_t n : copied_) {
    const c10::TensorImpl& tensor = *tensor_of(PyTuple_GET_ITEM(args, static_cast<Py_ssize_t>(n)));
    PyObject* flat =
        wrapped(flat_over(storage_of(tensor), arguments_[n].shape, tensor.storage_offset()));
    if (!flat || !found || PyList_Append(found, flat) != 0) Py_CLEAR(found);
    Py_XDECREF(flat);
    if (!found) break;
  }
  return found;
}

PyObject* Replay::held() const {
  PyObject* found = PyList_New(0);
  for (size_t n = 0; found && n < memories_.size(); n++) {
    StoragePtr storage = memories_[n].held();
    if (!storage) continue;
    Shape bytes;
    bytes.meta = caffe2::TypeMeta::Make<uint8_t>();
    bytes.sizes = {static_cast<int64_t>(storage->nbytes())};
    bytes.strides = {1};
    PyObject* flat = wrapped(tensor_over(storage, bytes, plain_keys(*storage)));
    PyObject* pair = flat ? Py_BuildValue("nN", static_cast<Py_ssize_t>(n), flat) : nullptr;
    if (!pair || PyList_Append(found, pair) != 0) Py_CLEAR(found);
    Py_XDECREF(pair);
  }
  return found;
}

int64_t Replay::held_bytes() const {
  int64_t bytes = 0;
  for (const Memory& memory : memories_) {
    if (StoragePtr storage = memory.held()) bytes += static_cast<int64_t>(storage->nbytes());
  }
  return bytes;
}

// The storage takes over the memory of `fresh`, which has its contents. False: a Python error is
// set.
bool take_memory(c10::StorageImpl& storage, const c10::TensorImpl& fresh) {
  c10::StorageImpl& from = *fresh.unsafe_storage().unsafeGetStorageImpl();
  if (from.nbytes() != storage.nbytes() || fresh.storage_offset() != 0) {
    PyErr_SetString(PyExc_ValueError, "the new memory has another size");
    return false;
  }
  c10::DataPtr memory = from.set_data_ptr(c10::DataPtr(nullptr, from.device()));
  from.set_nbytes(0);
  storage.set_data_ptr_noswap(std::move(memory));
  return true;
}

bool Replay::move(size_t index, const c10::TensorImpl& fresh) {
  if (index >= memories_.size()) {
    PyErr_SetString(PyExc_IndexError, "there is no such memory");
    return false;
  }
  StoragePtr storage = memories_[index].held();
  if (!storage) return true;
  if (!take_memory(*storage, fresh)) return false;
  memories_[index].lent.reset();
  return true;
}

TensorPtr Replay::view_of_argument(const Result& result, const c10::TensorImpl& base) const {
  Shape shape = result.shape;
  shape.offset += base.storage_offset() * static_cast<int64_t>(base.itemsize()) /
                  static_cast<int64_t>(shape.meta.itemsize());
  if (standalone_ && base.dtype() == shape.meta) {
    return view_of(base, shape.sizes, shape.strides, shape.offset);
  }
  return tensor_over(storage_of(base), shape, base.key_set());
}

PyObject* Replay::make(const Result& result, PyObject* args, const std::vector<StoragePtr>& lent,
                       PyObject* made) const {
  switch (result.kind) {
    case ResultKind::kObject:
      return Py_NewRef(result.object);
    case ResultKind::kArgument:
      return Py_NewRef(PyTuple_GET_ITEM(args, result.index));
    case ResultKind::kViewOfArgument:
      return wrapped(view_of_argument(result, *tensor_of(PyTuple_GET_ITEM(args, result.index))));
    case ResultKind::kMemory:
      break;
  }
  if (standalone_ && result.base >= 0) {
    const c10::TensorImpl& base = *tensor_of(PyTuple_GET_ITEM(made, result.base));
    if (base.dtype() == result.shape.meta) {
      const Shape& shape = result.shape;
      return wrapped(view_of(base, shape.sizes, shape.strides, shape.offset));
    }
  }
  const StoragePtr& storage = lent[static_cast<size_t>(result.index)];
  return wrapped(tensor_over(storage, result.shape, plain_keys(*storage)));
}

// The results of the replay that was just issued.
PyObject* Replay::hand_out(PyObject* args) {
  std::vector<StoragePtr> lent;
  lent.reserve(memories_.size());
  for (Memory& memory : memories_) lent.push_back(memory.lend());
  for (size_t n : mutated_) {
    c10::TensorImpl& tensor = *tensor_of(PyTuple_GET_ITEM(args, static_cast<Py_ssize_t>(n)));
    if (!tensor.is_inference()) tensor.bump_version();
  }
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(results_.size()));
  for (size_t n = 0; tuple && n < results_.size(); n++) {
    PyObject* made = make(results_[n], args, lent, tuple);
    if (made) {
      PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(n), made);
    } else {
      Py_CLEAR(tuple);
    }
  }
  return tuple;
}

struct ReplayObject {
  PyObject_HEAD Replay replay;
};

Replay& replay_of(PyObject* self) { return reinterpret_cast<ReplayObject*>(self)->replay; }

// `body` with C++ errors as Python's.
template <typename Body>
PyObject* guarded(Body&& body) {
  try {
    return body();
  } catch (...) {
    set_python_error(std::current_exception());
    return nullptr;
  }
}

bool is_call_of(PyObject* self, PyObject* args) {
  if (PyTuple_Check(args)) return true;
  PyErr_SetString(PyExc_TypeError, "the arguments must be a tuple");
  return false;
}

PyObject* make_replay(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *given, *used, *results, *constants, *mutated;
  int standalone;
  if (!PyArg_ParseTuple(args, "O!O!O!O!O!p", &PyTuple_Type, &given, &PyTuple_Type, &used,
                        &PyTuple_Type, &results, &PyTuple_Type, &constants, &PyTuple_Type, &mutated,
                        &standalone)) {
    return nullptr;
  }
  PyObject* self = type->tp_alloc(type, 0);
  if (!self) return nullptr;
  new (&replay_of(self)) Replay();
  PyObject* done = guarded([&]() -> PyObject* {
    bool good = replay_of(self).record(given, used, results, constants, mutated, standalone != 0);
    return good ? self : nullptr;
  });
  if (!done) Py_DECREF(self);
  return done;
}

void dealloc(PyObject* self) {
  replay_of(self).~Replay();
  Py_TYPE(self)->tp_free(self);
}

PyObject* check(PyObject* self, PyObject* args) {
  if (!is_call_of(self, args)) return nullptr;
  return guarded([&] { return PyLong_FromLong(replay_of(self).check(args)); });
}

PyObject* moved(PyObject* self, PyObject* args) {
  if (!is_call_of(self, args)) return nullptr;
  return guarded([&] { return replay_of(self).moved(args); });
}

PyObject* sources(PyObject* self, PyObject* args) {
  if (!is_call_of(self, args)) return nullptr;
  return guarded([&] { return replay_of(self).sources(args); });
}

PyObject* held(PyObject* self, PyObject*) {
  return guarded([&] { return replay_of(self).held(); });
}

PyObject* held_bytes(PyObject* self, PyObject*) {
  return PyLong_FromLongLong(replay_of(self).held_bytes());
}

PyObject* move(PyObject* self, PyObject* args) {
  Py_ssize_t index;
  PyObject* fresh;
  if (!PyArg_ParseTuple(args, "nO", &index, &fresh)) return nullptr;
  const c10::TensorImpl* tensor = tensor_of(fresh);
  if (!tensor) return PyErr_Format(PyExc_TypeError, "the new memory must be a tensor");
  return guarded([&]() -> PyObject* {
    if (!replay_of(self).move(static_cast<size_t>(index), *tensor)) return nullptr;
    Py_RETURN_NONE;
  });
}

PyObject* hand_out(PyObject* self, PyObject* args) {
  if (!is_call_of(self, args)) return nullptr;
  return guarded([&] { return replay_of(self).hand_out(args); });
}

PyMethodDef replay_methods[] = {
    {"check", check, METH_O, "0: fits; 1: a result is held; 2: arguments moved; 3: others."},
    {"moved", moved, METH_O, "Numbers of the arguments in other memory than recorded."},
    {"sources", sources, METH_O, "Flat tensors over the arguments that are copied."},
    {"held", held, METH_NOARGS, "(memory, its bytes as a tensor) of results that are held."},
    {"held_bytes", held_bytes, METH_NOARGS, "Bytes of results that are held."},
    {"move", move, METH_VARARGS, "Give a held storage the memory of a tensor."},
    {"hand_out", hand_out, METH_O, "The results of the last replay."},
    {nullptr, nullptr, 0, nullptr},
};

PyTypeObject replay_type = {
    .ob_base = PyVarObject_HEAD_INIT(nullptr, 0).tp_name = "kiln.native._executor.Replay",
    .tp_basicsize = sizeof(ReplayObject),
    .tp_dealloc = dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Replay(given, used, results, constants, mutated, standalone): calls of a recording.",
    .tp_methods = replay_methods,
    .tp_new = make_replay,
};

PyObject* is_lent(PyObject*, PyObject* object) {
  const c10::TensorImpl* tensor = tensor_of(object);
  if (!tensor) {
    if (PyErr_Occurred()) return nullptr;
    Py_RETURN_FALSE;
  }
  bool strided = tensor->has_storage() && tensor->unsafe_storage();
  return PyBool_FromLong(strided && tensor->unsafe_storage().data_ptr().get_deleter() == end_lease);
}

// What kernels of earlier replays reported; an executor looks for it where its run begins, a replay
// has none.
PyObject* take_status(PyObject*, PyObject* index) {
  long number = PyLong_AsLong(index);
  if (number == -1 && PyErr_Occurred()) return nullptr;
  DeviceRuntime* runtime = device_runtime(static_cast<int8_t>(c10::DeviceType::CUDA));
  if (!runtime) return PyLong_FromLong(0);
  return guarded([&] {
    std::unique_ptr<DeviceScope> scope = runtime->scope();
    scope->enter(static_cast<int8_t>(number));
    return PyLong_FromLongLong(scope->take_status());
  });
}

PyObject* give_memory(PyObject*, PyObject* args) {
  PyObject *held, *fresh;
  if (!PyArg_ParseTuple(args, "OO", &held, &fresh)) return nullptr;
  const c10::TensorImpl* tensor = tensor_of(held);
  const c10::TensorImpl* memory = tensor_of(fresh);
  if (!tensor || !memory) return PyErr_Format(PyExc_TypeError, "expected two tensors");
  return guarded([&]() -> PyObject* {
    bool good = take_memory(*tensor->unsafe_storage().unsafeGetStorageImpl(), *memory);
    return good ? Py_NewRef(Py_None) : nullptr;
  });
}

PyMethodDef functions[] = {
    {"give_memory", give_memory, METH_VARARGS, "Give a tensor's storage the memory of another."},
    {"take_status", take_status, METH_O, "What kernels on a CUDA device reported; 0: nothing."},
    {"is_lent", is_lent, METH_O, "Whether a tensor stands in the memory of a recorded graph."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_replay_type(PyObject* module) {
  return PyType_Ready(&replay_type) == 0 && PyModule_AddFunctions(module, functions) == 0 &&
         PyModule_AddObjectRef(module, "Replay", reinterpret_cast<PyObject*>(&replay_type)) == 0;
}

}  // namespace kiln
