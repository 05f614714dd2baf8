#include "executor/tensors.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <string>

#include "executor/check.h"

namespace kiln {

namespace {

// Tensors whose sizes and strides do not describe their memory.
constexpr c10::DispatchKeySet kOpaque({
    c10::DispatchKey::Conjugate,
    c10::DispatchKey::Negative,
    c10::DispatchKey::ZeroTensor,
    c10::DispatchKey::Python,
    c10::DispatchKey::Functionalize,
    c10::DispatchKey::FuncTorchBatched,
    c10::DispatchKey::FuncTorchGradWrapper,
    c10::DispatchKey::NestedTensor,
});

bool same_strides(c10::IntArrayRef sizes, c10::IntArrayRef actual, const int64_t* planned) {
  for (size_t dim = 0; dim < sizes.size(); dim++) {
    if (sizes[dim] != 1 && actual[dim] != planned[dim]) {
      return std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
    }
  }
  return true;
}

std::string describe(c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  return joined(c10::toString(dtype), sizes, " strides ", strides);
}

// Bytes from the start of the storage to the end of the last element.
int64_t reach(const Layout& layout, const int64_t* ints, int64_t offset) {
  int64_t last = offset;
  for (int32_t dim = 0; dim < layout.rank; dim++) {
    if (ints[layout.sizes + dim] == 0) return 0;
    last += (ints[layout.sizes + dim] - 1) * ints[layout.strides + dim];
  }
  return (last + 1) * layout.itemsize;
}

}  // namespace

c10::IntArrayRef sizes_of(const Layout& layout, const int64_t* ints) {
  return {ints + layout.sizes, static_cast<size_t>(layout.rank)};
}

c10::IntArrayRef strides_of(const Layout& layout, const int64_t* ints) {
  return {ints + layout.strides, static_cast<size_t>(layout.rank)};
}

c10::DispatchKeySet plain_keys(const c10::StorageImpl& storage) {
  bool cpu = storage.device_type() == c10::DeviceType::CPU;
  return c10::DispatchKeySet(cpu ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA);
}

TensorPtr tensor_over(c10::Storage storage, c10::DispatchKeySet keys, caffe2::TypeMeta dtype,
                      c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset) {
  auto made = c10::make_intrusive<c10::TensorImpl, c10::UndefinedTensorImpl>(std::move(storage),
                                                                             keys, dtype);
  made->set_sizes_and_strides(sizes, strides, offset);
  return made;
}

TensorPtr empty_from(c10::Allocator& allocator, caffe2::TypeMeta dtype, size_t bytes,
                     c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       allocator.allocate(bytes), &allocator, true);
  c10::DispatchKeySet keys = plain_keys(*storage);
  return tensor_over(std::move(storage), keys, dtype, sizes, strides, offset);
}

TensorPtr empty_from(c10::Allocator& allocator, const Layout& layout, const int64_t* ints) {
  size_t bytes = static_cast<size_t>(std::max<int64_t>(ints[layout.bytes], 0));
  return empty_from(allocator, layout.meta, bytes, sizes_of(layout, ints), strides_of(layout, ints),
                    ints[layout.offset]);
}

TensorPtr empty_cpu(const Layout& layout, const int64_t* ints) {
  return empty_from(*c10::GetCPUAllocator(), layout, ints);
}

TensorPtr over_storage(const c10::TensorImpl& base, const Layout& layout, const int64_t* ints,
                       int64_t offset) {
  const c10::Storage& storage = base.storage();
  KILN_CHECK(offset >= 0 && reach(layout, ints, offset) <= static_cast<int64_t>(storage.nbytes()),
             "a view of the plan does not fit into its storage of ", storage.nbytes(), " bytes");
  return tensor_over(storage, base.key_set(), layout.meta, sizes_of(layout, ints),
                     strides_of(layout, ints), offset);
}

bool has_layout(const c10::TensorImpl& tensor, const Layout& layout, const int64_t* ints) {
  if (tensor.dtype() != layout.meta || tensor.has_symbolic_sizes_strides()) return false;
  c10::IntArrayRef sizes = tensor.sizes();
  if (sizes != sizes_of(layout, ints)) return false;
  return same_strides(sizes, tensor.strides(), ints + layout.strides);
}

bool fits(const c10::TensorImpl& tensor, const Layout& layout, const int64_t* ints) {
  if (tensor.dtype() != layout.meta || tensor.key_set().has_any(kOpaque)) return false;
  if (tensor.has_symbolic_sizes_strides() || tensor.layout() != c10::kStrided) return false;
  c10::Device device = tensor.device();
  if (static_cast<int8_t>(device.type()) != layout.device_type) return false;
  if (layout.device_index >= 0 && device.index() != layout.device_index) return false;
  return has_layout(tensor, layout, ints);
}

std::string describe(const c10::TensorImpl& tensor) {
  if (tensor.has_symbolic_sizes_strides() || tensor.layout() != c10::kStrided) {
    return "a tensor that is not strided memory";
  }
  return describe(c10::typeMetaToScalarType(tensor.dtype()), tensor.sizes(), tensor.strides());
}

std::string describe(const Layout& layout, const int64_t* ints) {
  return describe(layout.dtype, sizes_of(layout, ints), strides_of(layout, ints));
}

}  // namespace kiln
