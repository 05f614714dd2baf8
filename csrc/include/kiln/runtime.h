// Runs packages of Kiln (`program.package("m.kiln")` in Python) without Python, on libtorch.
//
//   kiln::Package model("m.kiln");
//   std::vector<c10::IValue> results = model.run({torch::randn({8, 64})});
//
// A package is machine code: see docs/security.md. It may be called by many threads at once. The C
// functions below it exchange tensors as DLPack.
#pragma once

#ifdef __cplusplus

#include <ATen/core/ivalue.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace kiln {

// `what()` begins with a code, as errors in Python do.
struct PackageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Who vouches for the file; without any, it is loaded if only this user or root can have written
// it.
struct LoadOptions {
  std::string digest;          // what Program.package returned
  std::string key;             // with which it was signed
  bool trust = false;          // whoever wrote it
  bool check_weights = false;  // read them all and compare; so does a digest or key
};

class Package {
 public:
  // Throws PackageError.
  explicit Package(const std::string& path, const LoadOptions& options = {});
  ~Package();
  Package(Package&&) noexcept;
  Package& operator=(Package&&) noexcept;

  const std::string& name() const;
  // The tensors that `run` takes, in order; numbers among the exported arguments are fixed.
  const std::vector<std::string>& arguments() const;
  // A parameter or buffer: calls change buffers in memory, not in the file. Throws PackageError.
  at::Tensor state(const std::string& name) const;

  // The leaves of the results, in order: tensors, sizes, constants. Computes without gradients.
  // Throws PackageError for arguments that do not fit, c10::Error from operators.
  std::vector<c10::IValue> run(const std::vector<at::Tensor>& arguments) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kiln

extern "C" {
#endif

struct DLManagedTensor;
typedef struct KilnPackage KilnPackage;

// NULL on success; else a text that `kiln_free_text` frees. `digest` may be NULL.
char* kiln_load(const char* path, const char* digest, int trust, KilnPackage** package);
void kiln_unload(KilnPackage* package);
void kiln_free_text(char* text);

// Takes over the arguments, also on failure. The caller deletes the results, which are the tensors
// among the leaves; `results` has room for `*num_results`, which becomes their number.
char* kiln_run(const KilnPackage* package, struct DLManagedTensor** arguments, int num_arguments,
               struct DLManagedTensor** results, int* num_results);

#ifdef __cplusplus
}
#endif
