// Checks of tensors, with c10's headers only (no ATen).
#pragma once

#include <c10/core/TensorImpl.h>

#include <memory>
#include <string>
#include <vector>

#include "frames/cpython.h"

namespace kiln {

inline constexpr int64_t kAnySize = INT64_MIN;

struct Extents {
  int64_t size, stride;
};

// The check of most tensors fits in a cache line: a model has hundreds of them.
struct alignas(64) TensorExpectation {
  PyTypeObject* type = nullptr;  // owned
  uint64_t keys = 0;             // 0: any
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  bool requires_grad = false;
  int8_t is_leaf = -1;  // -1: any
  uint8_t dims = 0;
  c10::Device device = c10::kCPU;
  bool dense_keys = false;  // `keys` can only be those of a strided tensor
  Extents few[3];
  std::vector<Extents> many;  // of more dimensions than `few` holds

  const Extents* extents() const { return dims <= 3 ? few : many.data(); }
  ~TensorExpectation() { Py_XDECREF(type); }
};

// Finds where a tensor object keeps its at::Tensor, using `_cdata` of a new tensor, and tests the
// fields that the checks read. Returns "" or what is wrong.
std::string probe_tensor_layout(PyObject* torch);

extern Py_ssize_t tensor_offset;        // of the TensorImpl pointer in the object
extern PyTypeObject* tensor_base_type;  // torch._C.TensorBase

inline bool is_tensor(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  return type == tensor_base_type || PyType_IsSubtype(type, tensor_base_type);
}

inline c10::TensorImpl* tensor_impl(PyObject* tensor) {
  return *reinterpret_cast<c10::TensorImpl**>(reinterpret_cast<char*>(tensor) + tensor_offset);
}

// Fills `out` from (type, keys, dtype code, device text, requires_grad, is_leaf, sizes, strides).
bool parse_tensor_expectation(PyObject* spec, TensorExpectation* out);

bool check_tensor(const TensorExpectation& expected, PyObject* object);

// Identifies the memory of a tensor; null without storage.
inline const void* tensor_storage(PyObject* tensor) {
  c10::TensorImpl* impl = tensor_impl(tensor);
  return impl->has_storage() ? impl->unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

// Whether the memory of a storage (from `tensor_storage`) is another library's, NumPy's for
// instance: other storages may have parts of it.
inline bool is_foreign(const void* storage) {
  return !static_cast<const c10::StorageImpl*>(storage)->resizable();
}

enum class Extent : uint8_t { kSize, kStride, kOffset };

// False if the tensor has no such dimension or its sizes are not plain integers.
bool tensor_extent(PyObject* object, Extent what, int64_t dim, int64_t* out);

// A line for explanations.
std::string describe_tensor(PyObject* tensor);

}  // namespace kiln
