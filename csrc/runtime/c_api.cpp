// The C functions of kiln/runtime.h.
#include <ATen/DLConvertor.h>

#include <cstring>

#include "kiln/runtime.h"

struct KilnPackage {
  kiln::Package package;
};

namespace {

// The text of what goes wrong, for the caller to free.
template <typename Work>
char* reported(Work work) {
  try {
    work();
    return nullptr;
  } catch (const std::exception& error) {
    return strdup(error.what());
  } catch (...) {
    return strdup("KILN9000  an unknown error");
  }
}

}  // namespace

extern "C" {

char* kiln_load(const char* path, const char* digest, int trust, KilnPackage** package) {
  return reported([&] {
    kiln::LoadOptions options;
    options.digest = digest ? digest : "";
    options.trust = trust != 0;
    *package = new KilnPackage{kiln::Package(path, options)};
  });
}

void kiln_unload(KilnPackage* package) { delete package; }

void kiln_free_text(char* text) { free(text); }

char* kiln_run(const KilnPackage* package, DLManagedTensor** arguments, int num_arguments,
               DLManagedTensor** results, int* num_results) {
  return reported([&] {
    std::vector<at::Tensor> given;
    for (int n = 0; n < num_arguments; n++) given.push_back(at::fromDLPack(arguments[n]));
    int room = *num_results;
    *num_results = 0;
    std::vector<DLManagedTensor*> made;
    for (const c10::IValue& leaf : package->package.run(given)) {
      if (leaf.isTensor()) made.push_back(at::toDLPack(leaf.toTensor()));
    }
    if (static_cast<int>(made.size()) > room) {
      for (DLManagedTensor* tensor : made) tensor->deleter(tensor);
      throw kiln::PackageError("KILN5104  there is no room for " + std::to_string(made.size()) +
                               " results");
    }
    std::copy(made.begin(), made.end(), results);
    *num_results = static_cast<int>(made.size());
  });
}

}  // extern "C"
