// The places that guards look at, as numbers: equal paths get equal numbers.
//
//   self.__dict__['_modules']['0']      0  local 'self'
//   self.__dict__['_modules']['1']  =>  1    dict_attr '_modules'
//                                       2      item '0'
//                                       3      item '1'
//
// A source is a Python object that names its base; a table by type says how to take the step from
// there. The numbers tell which guards others imply, and become the nodes of a guard tree. All of a
// first call's guards pass here: once for what they imply, once for the tree.
#pragma once

#include <unordered_map>
#include <vector>

#include "frames/guard_tree.h"

namespace kiln {

// How to take the step of a type of sources: the fields with the key and the index, or a callable
// that gives (access, key, index) for each of one or more steps.
struct StepForm {
  int access;
  PyObject* key;       // name of the field, or null; owned
  PyObject* index;     // likewise
  PyObject* callable;  // or null; owned
};

struct PathStep {
  int access;
  int parent;     // -1: a root
  PyObject* key;  // owned; None if there is none
  Py_ssize_t index;
};

// What tells steps apart. Keys are compared by address: equal ones are replaced by the first.
struct StepKey {
  int access;
  int parent;
  PyObject* key;
  Py_ssize_t index;
  bool operator==(const StepKey&) const = default;
};

struct StepHash {
  size_t operator()(const StepKey& step) const {
    size_t mixed = reinterpret_cast<size_t>(step.key) >> 4;
    mixed = mixed * 0x9E3779B97F4A7C15u + static_cast<size_t>(step.parent);
    mixed = mixed * 0x9E3779B97F4A7C15u + static_cast<size_t>(step.index);
    return mixed * 31 + static_cast<size_t>(step.access);
  }
};

// What a kind of guards implies of others on the same path.
struct KindForm {
  uint32_t bit;
  uint32_t implied;  // bits of the kinds that it makes redundant
  bool several;      // several on one path differ by `expected`
  bool absent;       // implied by the keys of the dict that the path looks in
  bool keys;
  bool identifies;  // does not imply the type of an object whose class can be set
};

class GuardPaths {
 public:
  ~GuardPaths() { clear(); }
  bool read_forms(PyObject* table);

  // The number of a source, or -1 with an exception.
  int number(PyObject* source);
  // A list of the guards that no other guard of the list implies, each once.
  PyObject* needed(PyObject* guards, PyObject* kinds);
  // (nodes, checks, node of each path): the rows of a guard tree. Checks come as (kind, guard,
  // path, payload).
  PyObject* rows(PyObject* checks);

  int traverse(visitproc visit, void* arg);
  void clear();

 private:
  const StepForm* form_of(PyObject* source);
  int take(PyObject* source, const StepForm& form);
  int take_all(int parent, PyObject* steps);
  int find(int access, int parent, PyObject* key, Py_ssize_t index);
  PyObject* canonical(PyObject* key);  // borrowed, or null with an exception

  std::unordered_map<PyTypeObject*, StepForm> forms_;
  std::unordered_map<PyObject*, int> known_;  // by source; owned
  std::unordered_map<StepKey, int, StepHash> numbers_;
  std::vector<PathStep> steps_;
  PyObject* keys_ = nullptr;  // dict: (type, key) -> the first equal key
};

struct GuardPathsObject {
  PyObject_HEAD GuardPaths paths;
};

bool add_guard_paths(PyObject* module);

}  // namespace kiln
