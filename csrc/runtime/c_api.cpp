// The C functions of kiln/runtime.h.
#include <ATen/DLConvertor.h>

#include <cstring>
#include <memory>

#include "runtime/errors.h"

struct KilnPackage {
  kiln::Package package;
};

namespace {

struct Deleter {
  void operator()(DLManagedTensor* tensor) const {
    if (tensor && tensor->deleter) tensor->deleter(tensor);
  }
};
using Owned = std::unique_ptr<DLManagedTensor, Deleter>;

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
    std::vector<Owned> owned(arguments, arguments + num_arguments), made;
    std::vector<at::Tensor> given;
    for (Owned& argument : owned) {
      given.push_back(at::fromDLPack(argument.get()));
      argument.release();
    }
    auto room = static_cast<size_t>(*num_results);
    *num_results = 0;
    for (const c10::IValue& leaf : package->package.run(given)) {
      if (leaf.isTensor()) made.emplace_back(at::toDLPack(leaf.toTensor()));
    }
    if (made.size() > room) {
      kiln::wrong_input("there is no room for " + std::to_string(made.size()) + " results");
    }
    for (Owned& result : made) results[(*num_results)++] = result.release();
  });
}

}  // extern "C"
