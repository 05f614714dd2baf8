#include "frames/global_state.h"

#include <ATen/SavedTensorHooks.h>
#include <Python.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace kiln {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

struct Foreign {
  c10::ScalarType (*autocast_dtype)(c10::DeviceType);
  int64_t (*function_modes)();
  int (*torch_function_off)();
  void* (*context)();
  bool (*deterministic)(const void*);
  bool (*warn_only)(const void*);
  const at::impl::SavedTensorDefaultHooksTLS& (*saved_hooks)();
  bool (*attention[5])(const void*);
} foreign;
const void* context;  // at::globalContext(), one for the process
std::atomic<const c10::impl::DeviceGuardImplInterface*> cuda{nullptr};

// A back end that this torch does not have cannot be disabled.
constexpr const char* kAttention[] = {
    "_ZNK2at7Context18userEnabledMathSDPEv",         "_ZNK2at7Context19userEnabledFlashSDPEv",
    "_ZNK2at7Context26userEnabledMemEfficientSDPEv", "_ZNK2at7Context19userEnabledCuDNNSDPEv",
    "_ZNK2at7Context26userEnabledOverrideableSDPEv",
};

struct Symbol {
  void** where;
  const char* name;
};

// Torch 2.11 excludes named tensors while a backward runs; 2.13 no longer has that key.
template <class Key>
auto key_of_names(int) -> decltype(DispatchKeySet(Key::Named)) {
  return DispatchKeySet(Key::Named);
}
template <class Key>
DispatchKeySet key_of_names(...) {
  return {};
}

// Counts function modes and Python dispatch modes; reads autograd and autocast.
const DispatchKeySet kKnown =
    key_of_names<DispatchKey>(0) |
    DispatchKeySet({DispatchKey::ADInplaceOrView, DispatchKey::Python,
                    DispatchKey::PythonTLSSnapshot, DispatchKey::AutocastCPU,
                    DispatchKey::AutocastCUDA, DispatchKey::FuncTorchDynamicLayerFrontMode,
                    DispatchKey::FuncTorchDynamicLayerBackMode});

uint64_t unknown_modes(const c10::impl::PODLocalDispatchKeySet& raw, bool inference) {
  uint64_t known = kKnown.raw_repr();
  // Only inference mode excludes autograd at a frame's entry.
  uint64_t excluded = raw.excluded_ & ~known;
  if (inference) excluded &= ~c10::autograd_dispatch_keyset.raw_repr();
  uint64_t other = (raw.included_ & ~known) | excluded;
  if (other == 0) return 0;
  uint64_t mixed = (other * 0x9E3779B97F4A7C15ull) >> 48;
  return mixed ? mixed : 1;
}

// At most 15, which four bits hold.
uint64_t counted(int64_t modes) { return static_cast<uint64_t>(std::min<int64_t>(modes, 15)); }

uint64_t autocast(const DispatchKeySet& excluded, DispatchKey key, c10::DeviceType device) {
  return excluded.has(key) ? 0 : static_cast<uint64_t>(foreign.autocast_dtype(device)) + 1;
}

// Torch's own hooks (checkpoint, save_on_cpu) and those marked by their author give back what they
// get; any other hook must see, and may replace, what eager saves.
bool preserves_values(PyObject* pack) {
  PyObject* module = PyObject_GetAttrString(pack, "__module__");
  const char* name = module && PyUnicode_Check(module) ? PyUnicode_AsUTF8(module) : nullptr;
  bool preserves = name && std::strncmp(name, "torch.", 6) == 0;
  Py_XDECREF(module);
  if (!preserves) {
    PyErr_Clear();
    PyObject* mark = PyObject_GetAttrString(pack, "preserves_values");
    preserves = mark && PyObject_IsTrue(mark) == 1;
    Py_XDECREF(mark);
  }
  PyErr_Clear();
  return preserves;
}

bool any_saved_hooks() {
  const at::impl::SavedTensorDefaultHooksTLS& hooks = foreign.saved_hooks();
  if (hooks.stack.empty() || hooks.is_tracing) return false;
  const c10::SafePyObject& pack = hooks.stack.top().first;
  return !preserves_values(pack.ptr(&pack.pyinterpreter()));
}

}  // namespace

std::string probe_global_state() {
  void* library = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
  const Symbol symbols[] = {
      {reinterpret_cast<void**>(&foreign.autocast_dtype),
       "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE"},
      {reinterpret_cast<void**>(&foreign.saved_hooks),
       "_ZN2at23SavedTensorDefaultHooks13get_tls_stateEv"},
      {reinterpret_cast<void**>(&foreign.function_modes),
       "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv"},
      {reinterpret_cast<void**>(&foreign.torch_function_off),
       "_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv"},
      {reinterpret_cast<void**>(&foreign.context), "_ZN2at13globalContextEv"},
      {reinterpret_cast<void**>(&foreign.deterministic),
       "_ZNK2at7Context23deterministicAlgorithmsEv"},
      {reinterpret_cast<void**>(&foreign.warn_only),
       "_ZNK2at7Context31deterministicAlgorithmsWarnOnlyEv"},
  };
  for (const Symbol& symbol : symbols) {
    *symbol.where = dlsym(library ? library : RTLD_DEFAULT, symbol.name);
    if (*symbol.where == nullptr) return std::string("torch has no ") + symbol.name;
  }
  for (size_t n = 0; n < std::size(kAttention); n++) {
    void* found = dlsym(library ? library : RTLD_DEFAULT, kAttention[n]);
    foreign.attention[n] = reinterpret_cast<bool (*)(const void*)>(found);
  }
  context = foreign.context();
  return "";
}

uint64_t global_state() {
  const c10::AutogradState& autograd = c10::AutogradState::get_tls_state();
  const c10::impl::PODLocalDispatchKeySet& raw = c10::impl::raw_local_dispatch_key_set;
  bool inference = autograd.get_inference_mode();
  uint64_t word = autograd.get_grad_mode() | (uint64_t{inference} << 1);
  if (foreign.deterministic(context)) word |= 4 | uint64_t{foreign.warn_only(context)} << 3;
  word |= static_cast<uint64_t>(foreign.torch_function_off()) << 4;
  word |= uint64_t{raw.included().has(DispatchKey::FuncTorchDynamicLayerFrontMode)} << 6;
  word |= uint64_t{any_saved_hooks()} << 7;
  if (raw.excluded_ != 0) {
    DispatchKeySet excluded = raw.excluded();
    word |= autocast(excluded, DispatchKey::AutocastCPU, c10::kCPU) << 8;
    word |= autocast(excluded, DispatchKey::AutocastCUDA, c10::kCUDA) << 14;
  }
  word |= static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()) << 20;
  if (const auto* guard = cuda.load(std::memory_order_relaxed)) {
    word |= static_cast<uint64_t>(guard->getDevice().index()) << 26;
  }
  word |= counted(foreign.function_modes()) << 32;
  for (size_t n = 0; n < std::size(foreign.attention); n++) {
    if (foreign.attention[n] && !foreign.attention[n](context)) word |= uint64_t{1} << (40 + n);
  }
  if (raw.excluded_ | raw.included_) {  // a dispatch mode includes the Python key
    word |= counted(c10::impl::TorchDispatchModeTLS::stack_len()) << 36;
    word |= unknown_modes(raw, inference) << 48;
  }
  return word;
}

void watch_cuda_device() {
  if (c10::impl::hasDeviceGuardImpl(c10::kCUDA)) cuda = c10::impl::getDeviceGuardImpl(c10::kCUDA);
}

}  // namespace kiln
