// Tensors by layout: made, compared, viewed. Needs c10 only.
#pragma once

#include <c10/core/Allocator.h>

#include "executor/program.h"
#include "executor/value.h"

namespace kiln {

c10::IntArrayRef sizes_of(const Layout& layout, const int64_t* ints);
c10::IntArrayRef strides_of(const Layout& layout, const int64_t* ints);

// A plain new tensor has the dispatch key of its storage's device only.
c10::DispatchKeySet plain_keys(const c10::StorageImpl& storage);
TensorPtr tensor_over(c10::Storage storage, c10::DispatchKeySet keys, caffe2::TypeMeta dtype,
                      c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset);

// Fresh memory of the allocator: of the CPU, or of CUDA's current device.
TensorPtr empty_from(c10::Allocator& allocator, caffe2::TypeMeta dtype, size_t bytes,
                     c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset);
TensorPtr empty_from(c10::Allocator& allocator, const Layout& layout, const int64_t* ints);
// Fresh CPU memory in the layout.
TensorPtr empty_cpu(const Layout& layout, const int64_t* ints);

// A tensor over the storage of `base`, starting at `offset` elements of the layout's dtype.
// Throws where it would reach beyond the storage.
TensorPtr over_storage(const c10::TensorImpl& base, const Layout& layout, const int64_t* ints,
                       int64_t offset);

// `has_layout` looks at dtype, sizes and strides only. `fits`: is this plain strided memory of the
// planned dtype, device, sizes and strides? A stride of a dimension of size 1 is never used and may
// differ.
bool has_layout(const c10::TensorImpl& tensor, const Layout& layout, const int64_t* ints);
bool fits(const c10::TensorImpl& tensor, const Layout& layout, const int64_t* ints);

// Kernels of a device read up to 16 bytes at once.
inline bool is_aligned(const void* memory) { return reinterpret_cast<uintptr_t>(memory) % 16 == 0; }

// "f32[2, 3 | 3, 1]", for messages.
std::string describe(const c10::TensorImpl& tensor);
std::string describe(const Layout& layout, const int64_t* ints);

}  // namespace kiln
