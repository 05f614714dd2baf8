#include "frames/tensor.h"

#include <c10/core/ScalarType.h>

#include <cstring>
#include <string>

namespace kiln {

Py_ssize_t tensor_offset = 0;
PyTypeObject* tensor_base_type = nullptr;

namespace {

PyObject* is_leaf_getter = nullptr;  // the getset descriptor of torch._C.TensorBase

// Scans the object for the address, because its layout is private to torch.
Py_ssize_t find_address(PyObject* object, void* address) {
  Py_ssize_t size = Py_TYPE(object)->tp_basicsize;
  for (Py_ssize_t at = sizeof(PyObject); at + (Py_ssize_t)sizeof(void*) <= size;
       at += sizeof(void*)) {
    if (std::memcmp(reinterpret_cast<char*>(object) + at, &address, sizeof(address)) == 0)
      return at;
  }
  return 0;
}

// A non-contiguous view that requires grad must read back as it was made.
std::string test_reading(PyObject* tensor) {
  c10::TensorImpl* impl = tensor_impl(tensor);
  if (impl->dim() != 2 || impl->size(0) != 3 || impl->size(1) != 2) return "sizes";
  if (impl->stride(0) != 1 || impl->stride(1) != 3) return "strides";
  if (impl->storage_offset() != 0 || impl->numel() != 6) return "offset";
  if (c10::typeMetaToScalarType(impl->dtype()) != c10::ScalarType::Double) return "dtype";
  if (!impl->device().is_cpu() || !impl->requires_grad()) return "device or requires_grad";
  if (!impl->key_set().has(c10::DispatchKey::AutogradCPU)) return "dispatch keys";
  return "";
}

}  // namespace

std::string probe_tensor_layout(PyObject* torch) {
  PyObject* scope = PyDict_New();
  PyDict_SetItemString(scope, "torch", torch);
  const char* code =
      "t = torch.zeros((2, 3), dtype=torch.float64, device='cpu').t().requires_grad_()\n"
      "address = t._cdata\nbase = torch._C.TensorBase\nleaf = base.__dict__['is_leaf']\n";
  PyDict_SetItemString(scope, "__builtins__", PyEval_GetBuiltins());
  PyObject* done = PyRun_String(code, Py_file_input, scope, scope);
  std::string problem = "cannot make a tensor";
  if (done != nullptr) {
    PyObject* tensor = PyDict_GetItemString(scope, "t");
    void* address = PyLong_AsVoidPtr(PyDict_GetItemString(scope, "address"));
    tensor_offset = find_address(tensor, address);
    tensor_base_type = reinterpret_cast<PyTypeObject*>(own(PyDict_GetItemString(scope, "base")));
    is_leaf_getter = own(PyDict_GetItemString(scope, "leaf"));
    problem = tensor_offset == 0 ? "the address of the tensor is not in its object"
                                 : test_reading(tensor);
    Py_DECREF(done);
  }
  PyErr_Clear();
  Py_DECREF(scope);
  return problem;
}

static int64_t extent(PyObject* item) {
  return item == Py_None ? kAnySize : PyLong_AsLongLong(item);
}

static bool parse_extents(PyObject* sizes, PyObject* strides, TensorExpectation* out) {
  Py_ssize_t dims = PyTuple_GET_SIZE(sizes);
  bool has_strides = PyTuple_Check(strides);
  if (dims > 64 || (has_strides && PyTuple_GET_SIZE(strides) != dims)) return false;
  out->dims = static_cast<uint8_t>(dims);
  for (Py_ssize_t i = 0; i < dims; i++) {
    Extents one{extent(PyTuple_GET_ITEM(sizes, i)),
                has_strides ? extent(PyTuple_GET_ITEM(strides, i)) : kAnySize};
    if (dims <= 3) {
      out->few[i] = one;
    } else {
      out->many.push_back(one);
    }
  }
  return !PyErr_Occurred();
}

bool parse_tensor_expectation(PyObject* spec, TensorExpectation* out) {
  PyObject *type, *sizes, *strides;
  unsigned long long keys;
  int dtype, requires_grad, is_leaf;
  const char* device;
  if (!PyArg_ParseTuple(spec, "O!KispiO!O", &PyType_Type, &type, &keys, &dtype, &device,
                        &requires_grad, &is_leaf, &PyTuple_Type, &sizes, &strides)) {
    return false;
  }
  out->type = reinterpret_cast<PyTypeObject*>(own(type));
  out->keys = keys;
  out->dtype = static_cast<c10::ScalarType>(dtype);
  try {
    out->device = c10::Device(device);
  } catch (const std::exception& error) {
    PyErr_Format(PyExc_ValueError, "not a device: %s", device);
    return false;
  }
  out->requires_grad = requires_grad;
  out->is_leaf = static_cast<int8_t>(is_leaf);
  c10::DispatchKeySet set(c10::DispatchKeySet::RAW, keys);
  out->dense_keys = keys != 0 && set.has(c10::DispatchKey::Dense) &&
                    !set.has(c10::DispatchKey::NestedTensor) &&
                    !set.has(c10::DispatchKey::Sparse) && !set.has(c10::DispatchKey::SparseCsr);
  return parse_extents(sizes, strides, out);
}

static bool leaf_is(PyObject* tensor, bool expected) {
  PyObject* leaf =
      Py_TYPE(is_leaf_getter)
          ->tp_descr_get(is_leaf_getter, tensor, reinterpret_cast<PyObject*>(Py_TYPE(tensor)));
  if (leaf == nullptr) PyErr_Clear();
  bool equal = leaf == (expected ? Py_True : Py_False);
  Py_XDECREF(leaf);
  return equal;
}

// sizes() of a symbolic or nested tensor calls back into Python or throws.
static bool has_plain_sizes(c10::TensorImpl* impl) {
  return !impl->has_symbolic_sizes_strides() && impl->layout() == c10::kStrided &&
         !impl->key_set().has(c10::DispatchKey::NestedTensor);
}

static bool extents_match(const TensorExpectation& expected, c10::TensorImpl* impl) {
  if (expected.dense_keys ? impl->has_symbolic_sizes_strides() : !has_plain_sizes(impl))
    return false;
  c10::IntArrayRef sizes = impl->sizes();
  size_t dims = expected.dims;
  if (sizes.size() != dims) return false;
  const int64_t* strides = impl->strides().data();
  const Extents* want = expected.extents();
  for (size_t i = 0; i < dims; i++) {
    if (sizes[i] != want[i].size && want[i].size != kAnySize) return false;
    if (strides[i] != want[i].stride && want[i].stride != kAnySize) return false;
  }
  return true;
}

bool check_tensor(const TensorExpectation& expected, PyObject* object) {
  if (Py_TYPE(object) != expected.type) return false;
  c10::TensorImpl* impl = tensor_impl(object);
  if (impl == nullptr) return false;
  if (expected.keys != 0 && impl->key_set().raw_repr() != expected.keys) return false;
  if (c10::typeMetaToScalarType(impl->dtype()) != expected.dtype) return false;
  if (impl->device() != expected.device) return false;
  if (impl->requires_grad() != expected.requires_grad) return false;
  if (!extents_match(expected, impl)) return false;
  return expected.is_leaf < 0 || leaf_is(object, expected.is_leaf != 0);
}

bool tensor_extent(PyObject* object, Extent what, int64_t dim, int64_t* out) {
  if (object == nullptr || !is_tensor(object)) return false;
  c10::TensorImpl* impl = tensor_impl(object);
  if (!has_plain_sizes(impl)) return false;
  if (what == Extent::kOffset) {
    *out = impl->storage_offset();
    return true;
  }
  c10::IntArrayRef extents = what == Extent::kSize ? impl->sizes() : impl->strides();
  if (dim < 0) dim += static_cast<int64_t>(extents.size());
  if (dim < 0 || dim >= static_cast<int64_t>(extents.size())) return false;
  *out = extents[dim];
  return true;
}

// No stream: a second C++ library in the process may not have initialised its locale.
std::string extents_text(c10::IntArrayRef extents) {
  std::string text = "[";
  for (size_t i = 0; i < extents.size(); i++) {
    text += (i ? ", " : "") + std::to_string(extents[i]);
  }
  return text + "]";
}

std::string describe_tensor(PyObject* tensor) {
  c10::TensorImpl* impl = tensor_impl(tensor);
  std::string text = Py_TYPE(tensor)->tp_name;
  text += std::string(" of ") + c10::toString(c10::typeMetaToScalarType(impl->dtype())) + " on " +
          c10::DeviceTypeName(impl->device().type(), true);
  if (impl->device().has_index()) text += ":" + std::to_string(impl->device().index());
  if (has_plain_sizes(impl)) {
    text += ", sizes " + extents_text(impl->sizes()) + ", strides " + extents_text(impl->strides());
  }
  if (impl->requires_grad()) text += ", requires grad";
  return text;
}

}  // namespace kiln
