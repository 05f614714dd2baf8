// The errors of packages, as kiln/packages/errors.py has them.
#pragma once

#include <string>

#include "kiln/runtime.h"

namespace kiln {

[[noreturn]] inline void damaged(const std::string& problem) {
  throw PackageError("KILN6103  the file is not a package that this version can load: " + problem);
}

[[noreturn]] inline void foreign(const std::string& needed, const std::string& found) {
  throw PackageError("KILN6104  the package needs " + needed + ", here is " + found);
}

[[noreturn]] inline void untrusted(const std::string& problem) {
  throw PackageError("KILN6105  the package is not loaded: " + problem);
}

[[noreturn]] inline void wrong_input(const std::string& problem) {
  throw PackageError("KILN5104  " + problem);
}

}  // namespace kiln
