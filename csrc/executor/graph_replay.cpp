// The Python type `GraphReplay`: what a call of a recorded graph does besides the launch. It
// compares the arguments with the recording, gives other memory to results of the last call that
// are still held, and makes the results.
//
// Results are lent: each call makes new storages over the graph's memory. A lease keeps that memory
// alive and marks lent storages. A storage that is still held is given other memory
// (`give_memory`), which all its tensors see: views, detached and saved ones.
#include <Python.h>
#include <c10/core/StorageImpl.h>

#include <utility>
#include <vector>

#include "executor/aten.h"
#include "executor/check.h"
#include "executor/device.h"
#include "executor/python.h"
#include "executor/python_types.h"
#include "executor/tensors.h"
#include "executor/value.h"

namespace kiln {

namespace {

using StoragePtr = c10::intrusive_ptr<c10::StorageImpl>;
using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

// As in kiln/runtime/cuda_graphs/recording.py.
enum Verdict { kFits, kHeld, kMoved, kOther };

struct Shape {
  Shape() = default;
  explicit Shape(const c10::TensorImpl& tensor)
      : meta(tensor.dtype()),
        sizes(tensor.sizes().vec()),
        strides(tensor.strides().vec()),
        offset(tensor.storage_offset()) {}
  // One dimension without gaps.
  Shape(caffe2::TypeMeta meta, int64_t size, int64_t offset)
      : meta(meta), sizes{size}, strides{1}, offset(offset) {}

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

// Memory of the graph that holds results, and the storage that was last lent over it.
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

  // The lent storage, if it is alive and still over this memory. That is decided by the address,
  // not by the lease: torch wraps memory that it shares with other processes in an owner of its
  // own.
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
  PyObject* object = nullptr;  // owned: the same in each call
  int32_t index = 0;           // of the argument, or of the memory
  int32_t base = -1;           // an earlier result in the same memory
  uint32_t version = 0;        // of memory that is made
  Shape shape;                 // `offset` of a view of an argument counts from the argument's own
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

PyObject* wrapped(TensorPtr tensor) {
  Value value;
  value.set_tensor(std::move(tensor));
  return value_to_python(value);
}

PyObject* object_over(const StoragePtr& storage, const Shape& shape, c10::DispatchKeySet keys) {
  return wrapped(tensor_over(c10::Storage(storage), keys, shape.meta, shape.sizes, shape.strides,
                             shape.offset));
}

PyObject* plain_over(const StoragePtr& storage, const Shape& shape) {
  return object_over(storage, shape, plain_keys(*storage));
}

// A view that autograd tracks as one.
PyObject* view_over(const c10::TensorImpl& base, const Shape& shape) {
  return wrapped(view_of(base, shape.meta, shape.sizes, shape.strides, shape.offset));
}

StoragePtr storage_of(const c10::TensorImpl& tensor) {
  return tensor.unsafe_storage().getWeakStorageImpl().lock();
}

// nullptr where item `n` of the tuple is no tensor.
c10::TensorImpl* tensor_at(PyObject* args, size_t n) {
  return tensor_of(PyTuple_GET_ITEM(args, static_cast<Py_ssize_t>(n)));
}

// Appends `item` and drops the caller's reference to it. Where that fails, or either is nullptr,
// `list` becomes nullptr, with a Python error set.
void append(PyObject*& list, PyObject* item) {
  if (!list || !item || PyList_Append(list, item) != 0) Py_CLEAR(list);
  Py_XDECREF(item);
}

class GraphReplay {
 public:
  GraphReplay() = default;
  GraphReplay(const GraphReplay&) = delete;
  GraphReplay& operator=(const GraphReplay&) = delete;
  ~GraphReplay() {
    for (Result& result : results_) Py_XDECREF(result.object);
  }

  // False: a Python error is set.
  bool record(PyObject* given, PyObject* used, PyObject* results, PyObject* constants,
              PyObject* bumped, bool standalone);

  PyObject* check(PyObject* args) const { return PyLong_FromLong(verdict(args)); }
  PyObject* moved(PyObject* args) const;
  PyObject* sources(PyObject* args) const;
  PyObject* held() const;
  PyObject* hand_out(PyObject* args);

 private:
  Verdict verdict(PyObject* args) const;
  bool add_argument(PyObject* given, PyObject* used);
  void add_result(PyObject* object, PyObject* used, PyObject* constants);
  bool stands_in_argument(const c10::TensorImpl& tensor, PyObject* used, Result& result) const;
  PyObject* view_of_argument(const Result& result, const c10::TensorImpl& base) const;
  PyObject* make(const Result& result, PyObject* args, const std::vector<StoragePtr>& lent,
                 PyObject* made) const;

  std::vector<Argument> arguments_;
  std::vector<size_t> copied_;  // numbers of arguments, in order
  std::vector<size_t> bumped_;
  std::vector<Result> results_;
  std::vector<Memory> memories_;
  bool standalone_ = false;
};

bool GraphReplay::add_argument(PyObject* given, PyObject* used) {
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

bool GraphReplay::stands_in_argument(const c10::TensorImpl& tensor, PyObject* used,
                                     Result& result) const {
  int32_t sharing = -1;
  for (size_t n = 0; n < arguments_.size(); n++) {
    if (!arguments_[n].is_tensor) continue;
    const c10::TensorImpl& argument = *tensor_at(used, n);
    if (&argument == &tensor) {
      result.kind = ResultKind::kArgument;
      result.index = static_cast<int32_t>(n);
      return true;
    }
    if (sharing < 0 && argument.unsafe_storage().is_alias_of(tensor.unsafe_storage())) {
      sharing = static_cast<int32_t>(n);
      result.shape.offset = tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize()) -
                            argument.storage_offset() * static_cast<int64_t>(argument.itemsize());
    }
  }
  if (sharing < 0) return false;
  // Until here in bytes, since a view may have another dtype.
  result.shape.offset /= static_cast<int64_t>(tensor.itemsize());
  result.kind = ResultKind::kViewOfArgument;
  result.index = sharing;
  return true;
}

bool is_among(const c10::TensorImpl& tensor, PyObject* constants) {
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(constants); n++) {
    const c10::TensorImpl* constant = tensor_of(PyTuple_GET_ITEM(constants, n));
    if (constant && constant->unsafe_storage().is_alias_of(tensor.unsafe_storage())) return true;
  }
  return false;
}

void GraphReplay::add_result(PyObject* object, PyObject* used, PyObject* constants) {
  Result made;
  c10::TensorImpl* tensor = tensor_of(object);
  if (!tensor || is_among(*tensor, constants)) {
    made.object = Py_NewRef(object);
    results_.push_back(std::move(made));
    return;
  }
  made.shape = Shape(*tensor);
  if (!tensor->is_inference()) made.version = tensor->version_counter().current_version();
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

bool GraphReplay::record(PyObject* given, PyObject* used, PyObject* results, PyObject* constants,
                         PyObject* bumped, bool standalone) {
  standalone_ = standalone;
  if (PyTuple_GET_SIZE(given) != PyTuple_GET_SIZE(used)) {
    PyErr_SetString(PyExc_ValueError, "the graph was recorded with another number of arguments");
    return false;
  }
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(given); n++) {
    if (!add_argument(PyTuple_GET_ITEM(given, n), PyTuple_GET_ITEM(used, n))) return false;
  }
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(results); n++) {
    add_result(PyTuple_GET_ITEM(results, n), used, constants);
    if (PyErr_Occurred()) return false;
  }
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(bumped); n++) {
    size_t place = PyLong_AsSize_t(PyTuple_GET_ITEM(bumped, n));
    if (PyErr_Occurred()) return false;
    if (arguments_.at(place).is_tensor) bumped_.push_back(place);
  }
  return true;
}

Verdict GraphReplay::verdict(PyObject* args) const {
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

// Arguments in other memory than recorded; for arguments that fit or have moved.
PyObject* GraphReplay::moved(PyObject* args) const {
  PyObject* found = PyList_New(0);
  for (size_t n = 0; found && n < arguments_.size(); n++) {
    const Argument& recorded = arguments_[n];
    if (!recorded.is_tensor || recorded.copied) continue;
    const c10::TensorImpl* tensor = tensor_at(args, n);
    if (tensor && address_of(*tensor) != recorded.address) append(found, PyLong_FromSize_t(n));
  }
  return found;
}

// The memory of the arguments that are copied, as flat tensors without a history.
PyObject* GraphReplay::sources(PyObject* args) const {
  PyObject* found = PyList_New(0);
  for (size_t n : copied_) {
    const c10::TensorImpl& tensor = *tensor_at(args, n);
    const Shape& recorded = arguments_[n].shape;
    Shape flat(recorded.meta, recorded.span(), tensor.storage_offset());
    append(found, plain_over(storage_of(tensor), flat));
  }
  return found;
}

// The memory of results that are held, as bytes.
PyObject* GraphReplay::held() const {
  static const auto byte = caffe2::TypeMeta::Make<uint8_t>();
  PyObject* found = PyList_New(0);
  for (const Memory& memory : memories_) {
    StoragePtr storage = memory.held();
    if (!storage) continue;
    append(found, plain_over(storage, Shape(byte, static_cast<int64_t>(storage->nbytes()), 0)));
  }
  return found;
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

PyObject* GraphReplay::view_of_argument(const Result& result, const c10::TensorImpl& base) const {
  Shape shape = result.shape;
  shape.offset += base.storage_offset() * static_cast<int64_t>(base.itemsize()) /
                  static_cast<int64_t>(shape.meta.itemsize());
  if (standalone_) return view_over(base, shape);
  return object_over(storage_of(base), shape, base.key_set());
}

PyObject* GraphReplay::make(const Result& result, PyObject* args,
                            const std::vector<StoragePtr>& lent, PyObject* made) const {
  switch (result.kind) {
    case ResultKind::kObject:
      return Py_NewRef(result.object);
    case ResultKind::kArgument:
      return Py_NewRef(PyTuple_GET_ITEM(args, result.index));
    case ResultKind::kViewOfArgument:
      return view_of_argument(result, *tensor_of(PyTuple_GET_ITEM(args, result.index)));
    case ResultKind::kMemory:
      break;
  }
  if (standalone_ && result.base >= 0) {
    return view_over(*tensor_of(PyTuple_GET_ITEM(made, result.base)), result.shape);
  }
  PyObject* object = plain_over(lent[static_cast<size_t>(result.index)], result.shape);
  if (object && result.version) {
    tensor_of(object)->set_version_counter(c10::VariableVersion(result.version));
  }
  return object;
}

// The results of the replay that was just issued.
PyObject* GraphReplay::hand_out(PyObject* args) {
  std::vector<StoragePtr> lent;
  lent.reserve(memories_.size());
  for (Memory& memory : memories_) lent.push_back(memory.lend());
  for (size_t n : bumped_) {
    c10::TensorImpl& tensor = *tensor_at(args, n);
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

struct GraphReplayObject {
  PyObject_HEAD GraphReplay replay;
};

GraphReplay& replay_of(PyObject* self) {
  return reinterpret_cast<GraphReplayObject*>(self)->replay;
}

PyObject* make_replay(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *given, *used, *results, *constants, *bumped;
  int standalone;
  if (!PyArg_ParseTuple(args, "O!O!O!O!O!p", &PyTuple_Type, &given, &PyTuple_Type, &used,
                        &PyTuple_Type, &results, &PyTuple_Type, &constants, &PyTuple_Type, &bumped,
                        &standalone)) {
    return nullptr;
  }
  PyObject* self = type->tp_alloc(type, 0);
  if (!self) return nullptr;
  new (&replay_of(self)) GraphReplay();
  PyObject* done = guarded([&]() -> PyObject* {
    bool good = replay_of(self).record(given, used, results, constants, bumped, standalone != 0);
    return good ? self : nullptr;
  });
  if (!done) Py_DECREF(self);
  return done;
}

void dealloc(PyObject* self) {
  replay_of(self).~GraphReplay();
  Py_TYPE(self)->tp_free(self);
}

// A method whose argument is the tuple of a call's arguments.
template <auto method>
PyObject* on_arguments(PyObject* self, PyObject* args) {
  if (!PyTuple_Check(args)) return PyErr_Format(PyExc_TypeError, "the arguments must be a tuple");
  return guarded([&] { return (replay_of(self).*method)(args); });
}

PyObject* held(PyObject* self, PyObject*) {
  return guarded([&] { return replay_of(self).held(); });
}

PyMethodDef replay_methods[] = {
    {"check", on_arguments<&GraphReplay::check>, METH_O,
     "0: the arguments fit; 1: a result is held; 2: arguments have moved; 3: they do not fit."},
    {"moved", on_arguments<&GraphReplay::moved>, METH_O,
     "Numbers of the arguments in other memory than recorded."},
    {"sources", on_arguments<&GraphReplay::sources>, METH_O,
     "Flat tensors over the arguments that are copied."},
    {"held", held, METH_NOARGS, "The memory of results that are held, as tensors of bytes."},
    {"hand_out", on_arguments<&GraphReplay::hand_out>, METH_O, "The results of the last replay."},
    {nullptr, nullptr, 0, nullptr},
};

PyTypeObject replay_type = {
    .ob_base = PyVarObject_HEAD_INIT(nullptr, 0).tp_name = "kiln.native._executor.GraphReplay",
    .tp_basicsize = sizeof(GraphReplayObject),
    .tp_dealloc = dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "GraphReplay(given, used, results, constants, bumped, standalone): calls of a graph.",
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

// Raises what kernels of earlier replays reported, as an executor does at the start of a run.
PyObject* take_report(PyObject*, PyObject* index) {
  long number = PyLong_AsLong(index);
  if (number == -1 && PyErr_Occurred()) return nullptr;
  DeviceRuntime* runtime = device_runtime(static_cast<int8_t>(c10::DeviceType::CUDA));
  if (!runtime) return Py_BuildValue("is", 0, "");
  return guarded([&] {
    std::unique_ptr<DeviceScope> scope = runtime->scope();
    scope->enter(static_cast<int8_t>(number));
    Report report = scope->take_report();
    return Py_BuildValue("Ls", static_cast<long long>(report.code), report.where.c_str());
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
    {"give_memory", give_memory, METH_VARARGS,
     "Give a tensor's storage the memory of another, which has its contents."},
    {"take_report", take_report, METH_O,
     "Code and place of the first error that kernels on a CUDA device have reported; 0: nothing."},
    {"is_lent", is_lent, METH_O, "Is it a tensor in the memory of a recorded graph?"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_graph_replay_type(PyObject* module) {
  return PyModule_AddType(module, &replay_type) == 0 &&
         PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace kiln
