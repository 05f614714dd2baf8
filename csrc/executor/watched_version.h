// The version of a tensor that is perhaps not kept: eager refuses a backward that would read it
// after a change in place.
#pragma once

#include <c10/core/TensorImpl.h>

#include <string>

#include "executor/check.h"
#include "executor/value.h"

namespace kiln {

struct WatchedVersion {
  c10::VariableVersion counter{c10::VariableVersion::DISABLED};
  uint32_t version = 0;

  // Of a number, or a tensor of inference mode, there is none.
  static WatchedVersion of(const Value& value) {
    if (!value.is_tensor() || value.tensor()->is_inference()) return {};
    const c10::VariableVersion& counter = value.tensor()->version_counter();
    return {counter, counter.current_version()};
  }

  bool is_changed() const { return counter.enabled() && counter.current_version() != version; }

  void check(const std::string& name, const char* what) const {
    KILN_CHECK(!is_changed(), name,
               ": one of the variables needed for gradient computation has been modified by an "
               "inplace operation: ",
               what, " is at version ", counter.current_version(), "; expected version ", version,
               " instead");
  }
};

}  // namespace kiln
