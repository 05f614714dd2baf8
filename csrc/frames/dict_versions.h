// Versions of dicts. They are unique over all dicts and times, so an equal version at an equal
// address means the same dict that has held the same references throughout.
#pragma once

#include "frames/cpython.h"

namespace kiln {

#if PY_VERSION_HEX < 0x030E0000

constexpr bool has_dict_versions() { return true; }

// Where the version of a dict is.
inline const uint64_t* dict_version(PyObject* dict) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  return &reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
#pragma GCC diagnostic pop
}

// Asked before a dict is looked at again whose version, which is read there, has changed.
inline void count_changes(const uint64_t* version) {}

inline bool add_dict_versions() { return true; }

#else  // dict_versions.cpp

// Without a free watcher of CPython's eight there are none, and every dict is looked at again.
bool has_dict_versions();
const uint64_t* dict_version(PyObject* dict);
void count_changes(const uint64_t* version);
bool add_dict_versions();

#endif

}  // namespace kiln
