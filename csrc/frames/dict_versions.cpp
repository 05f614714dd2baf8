// CPython 3.14 keeps no versions in its dicts: those that guards read are kept here.
//
//     dict_version(d)      watches d; its version is 7
//     d["x"] = 1           CPython calls the watcher in front of the change: version 8, d is let go
//     d["x"] = 2           costs nothing
//     count_changes(...)   watches d again, as a guard has seen that the version is another one
//
// So a dict that changes often is told to the watcher once between two checks of its guards. A
// version belongs to an address. It changes when the dict there dies, and stays readable.
#include "frames/dict_versions.h"

#if PY_VERSION_HEX >= 0x030E0000
#include <unordered_map>

namespace kiln {
namespace {

struct Watched {
  uint64_t version;  // first: `count_changes` gets its address
  PyObject* dict;    // borrowed; whoever reads the version has found the dict alive
};

int watcher = -1;
uint64_t latest = 0;

// Never shorter: the addresses in it are kept, and it is smaller than the dicts that were there.
std::unordered_map<PyObject*, Watched>& watched() {
  static auto* const all = new std::unordered_map<PyObject*, Watched>;
  return *all;
}

int before_change(PyDict_WatchEvent, PyObject* dict, PyObject*, PyObject*) {
  auto found = watched().find(dict);
  if (found == watched().end()) return 0;
  found->second.version = ++latest;
  return PyDict_Unwatch(watcher, dict);
}

}  // namespace

bool has_dict_versions() { return watcher >= 0; }

const uint64_t* dict_version(PyObject* dict) {
  Watched& found = watched().try_emplace(dict, Watched{++latest, dict}).first->second;
  count_changes(&found.version);
  return &found.version;
}

void count_changes(const uint64_t* version) {
  PyDict_Watch(watcher, reinterpret_cast<const Watched*>(version)->dict);  // cannot fail
}

bool add_dict_versions() {
  watcher = PyDict_AddWatcher(before_change);
  if (watcher < 0) PyErr_Clear();
  return true;
}

}  // namespace kiln

#endif
