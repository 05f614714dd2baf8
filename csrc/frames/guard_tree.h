// The guards of a compiled variant as a tree over the objects that they check.
//
//   nodes (preorder)                      checks on them
//   0  locals[0]            "self"        TYPE_IS BertLayer
//   1    .__dict__                        (dict)
//   2      ['_parameters']
//   3        ['weight']                   TENSOR float32 cpu [768, 768]
//   4  locals[1]            "x"           TENSOR float32 cpu [*, 768]
//
// A full check fetches every node once, top down, and evaluates its checks (guard_tree.cpp). After
// a success the path is kept as a Replay (guard_replay.cpp): (dict, version), (type, version) and
// instance words that, if equal, prove that every stable node is unchanged. Nothing here runs
// Python code of the user or allocates, except for results and new replays. C functions that the
// program asks for a setting or a cached result are called first (guard_calls.cpp): a miss of a
// cache runs Python, so nothing may be borrowed then. Cached functions of the program are asked
// only where everything else holds, so that a variant that does not fit leaves no result.
#pragma once

#include <climits>
#include <memory>
#include <utility>
#include <vector>

#include "frames/shape_program.h"
#include "frames/static_attr.h"
#include "frames/tensor.h"

namespace kiln {

enum class Access : uint8_t {
  kLocal,      // index: slot of the bound locals
  kGlobals,    // the globals of the function, a dict
  kCell,       // index into the function's closure; the contents
  kConst,      // key: an object owned by the tree
  kAttr,       // key: name
  kDictAttr,   // key: name, in the instance's dict only
  kItem,       // key: of a dict; index: of a list or tuple
  kDefault,    // index into __defaults__
  kKwDefault,  // key into __kwdefaults__
  kClosure,    // index into __closure__; the contents
  kType,
  kMethodFunc,
  kMethodSelf,
  kKey,         // index: the nth key of a dict, or item of a set
  kMro,         // index into the MRO of a type
  kCellObject,  // index into the function's closure; the cell itself
  kCall,        // key: (arguments, keywords or None); what the parent answers
  kValue,       // index: the nth value of a dict
  kArray,       // key: torch.from_numpy; a tensor in the memory of a NumPy array
  kClassField,  // key: name; of a class, by a C descriptor of its metaclass
  kAnswer,      // key: a function, which is called with the parent
};

enum class Kind : uint8_t {
  kTypeIs,
  kEquals,
  kIs,
  kLength,
  kDictKeys,
  kHasAttr,
  kNoAttr,
  kAbsent,
  kEmptyDict,
  kTensor,
  kFunctionCode,
  kSetItems,
  kSetHolds,  // numbers[0]: whether `expected` is in the set
  kAliases,
  kRelation,
  kGlobalState,  // not of one node
};

struct Node {
  Access access;
  int parent;  // -1: a root
  int end;     // one past the last node of the subtree
  int first_check, last_check;
  PyObject* key;  // owned
  Py_ssize_t index;
};

struct Check {
  Kind kind;
  int guard;  // its index among the guards
  int node;
  PyObject* expected;  // owned
  int64_t numbers[3];
  std::unique_ptr<TensorExpectation> tensor;
  std::unique_ptr<ShapeProgram> relation;
  std::vector<int> nodes, groups;  // of kAliases
  bool on_calls = false;           // reads what a call answers
};

// What a check is evaluated on; all borrowed.
struct Scope {
  PyObject* const* locals;
  Py_ssize_t num_locals;
  PyObject* globals;
  PyObject* closure;  // tuple of cells or null
};

// A word that must not have changed: a type pointer, a dict pointer, the version of a dict.
struct Probe {
  const uint64_t* address;
  uint64_t expected;
};

// What a changed probe means: other objects, or other contents of a dict.
enum class Changed : uint8_t { kReplay, kDict };

struct ProbeInfo {
  Changed means;
  int node;
};

// A part of a replay, in the order of the nodes. `kProbes` and `kFetch` say whether the replay
// still fits, `kFull` and `kCheck` evaluate guards, `kLook` inspects a dict without a version.
enum class Step : uint8_t { kProbes, kFetch, kFull, kCheck, kLook };

struct Part {
  Step step;
  int begin;  // a probe, or the node
  int end;
  PyObject* value;  // what kFetch must find; only compared until it is found
  bool allocates;   // makes an object, so that the collector might run
};

struct TensorWord {
  PyObject* object;
  const TensorExpectation* expected;
  const void* storage;
  int check;
};

struct TypeWord {
  PyTypeObject* type;  // owned
  uint32_t version;
};

// An alias guard in a replay: the groups of storages that the words cover, sorted, and the others.
struct AliasWord {
  const struct Check* check;
  std::vector<std::pair<const void*, int>> stable;
  std::vector<int> loose;        // positions in check->nodes
  std::vector<uint8_t> grouped;  // by group: whether one of its members is stable
  bool foreign = false;          // whether a stable member has memory of another library
};

struct Replay {
  std::vector<PyObject*> values;  // by node, borrowed
  std::vector<Via> via;
  std::vector<uint8_t> verified;  // by node: the words of this replay prove the value's state
  std::vector<TypeWord> types;
  std::vector<Part> anchors;  // fetches of roots: the objects that this replay is for
  std::vector<Part> fronts;   // full checks of roots: arguments change more often than models
  std::vector<Part> parts;
  std::vector<Probe> probes;
  std::vector<ProbeInfo> infos;  // of the probes
  std::vector<TensorWord> tensors;
  std::vector<AliasWord> aliases;
  std::vector<PyObject*> owners;  // weak references to what `values` are reached from; owned
  bool valid = false;

  // Empties it; objects to release go to `dead`.
  void reset(std::vector<PyObject*>* dead);
};

// What aliases share: the object or its storage; null if it has none.
inline const void* alias_key(PyObject* value, bool by_storage) {
  if (!by_storage || value == nullptr) return value;
  return is_tensor(value) ? tensor_storage(value) : nullptr;
}

// Memory of a storage, of which the tensors of `group` are views.
struct Memory {
  uintptr_t begin;
  uintptr_t end;
  int group;
};

// A node whose value is the result of a call, and both of the current check; owned.
struct Call {
  int node;
  PyObject* function;
  PyObject* result;
};

enum class Verdict : uint8_t { kPass, kFail, kUnknown };

class Recorder;

class GuardTree {
 public:
  ~GuardTree();
  bool parse(PyObject* nodes, PyObject* checks, PyObject* collect);

  // Whether all guards hold. After a success `bindings()` holds the collected objects, until they
  // are taken: between calls nothing keeps them alive but the program.
  bool check(const Scope& scope);
  PyObject* bindings() const { return bindings_; }
  PyObject* take_bindings() { return std::exchange(bindings_, nullptr); }
  // Gives back what was taken, whose reference is stolen.
  void recycle(PyObject* bindings);

  // The guard that fails, or -1, and the value it checked (borrowed, may be null).
  int failure(const Scope& scope, PyObject** value);

  bool busy() const { return busy_; }
  int traverse(visitproc visit, void* arg);
  void clear();
  // An owner of values of a replay died.
  void forget(PyObject* owner);

  // Counts for tests.
  uint64_t full_checks = 0, replayed = 0, revalidated = 0;

 private:
  friend class Recorder;

  // guard_tree.cpp
  Found fetch(const Node& node, PyObject* parent, const Scope& scope);
  bool evaluate(const Check& check, PyObject* value);
  bool evaluate_node(int node, PyObject* value);
  bool walk(int begin, int end, const Scope& scope, PyObject** values, Via* via);
  bool evaluate_tree_checks(PyObject* const* values);
  bool evaluate_tree_check(const Check& check, PyObject* const* values);
  bool aliases_hold(const Check& check, PyObject* const* values);
  bool joins_group(const void* key, int group);
  bool memory_is_apart(const Check& check, PyObject* const* values);
  bool full_check(const Scope& scope);
  Verdict settle(const Scope& scope);
  bool allocates(int begin, int end) const;
  // The empty tuple of a tree that collects nothing is made once.
  bool is_bound() const { return collect_.empty() && bindings_ != nullptr; }
  bool prepare_bindings();
  void bind(PyObject* const* values);
  void drop_temporaries();

  // guard_calls.cpp
  bool run_calls(const Scope& scope);
  static bool asks_program(const Node& node);
  void note_calls();
  bool holds_without_calls(const Scope& scope);
  void release_calls();
  PyObject* callable_of(int node, const Scope& scope);
  Found result_of(const Node& node, PyObject* function);

  // guard_replay.cpp
  Verdict replay(Replay& replay, const Scope& scope);
  Verdict run_part(Replay& replay, const Part& part, const Scope& scope);
  Verdict run_probes(Replay& replay, const Part& part, const Scope& scope);
  Verdict run_tensors(const Replay& replay);
  Verdict run_tree_checks(const Replay& replay);
  bool aliases_hold(const AliasWord& word, PyObject* const* values);
  Verdict revalidate(Replay& replay, int node, const Scope& scope);
  Verdict revalidate_child(Replay& replay, int child, PyObject* parent, const Scope& scope);

  // guard_record.cpp
  Replay* next_replay();
  void record();
  void watch_owners(Replay* replay);

  std::vector<Node> nodes_;
  std::vector<Check> checks_;       // those of one node, ordered by node
  std::vector<Check> tree_checks_;  // aliases, relations, global state
  std::vector<int> collect_;
  std::vector<Call> calls_;
  bool may_ask_ = false;       // some node asks a function of the program, as far as is known
  bool asks_methods_ = false;  // it is a method
  bool leave_calls_ = false;   // nodes below calls are left out for now

  std::vector<PyObject*> values_;  // scratch of a full check, by node
  std::vector<Via> via_;
  std::vector<PyObject*> temporaries_;
  std::vector<const void*> alias_first_;  // by group: its key
  std::vector<Memory> foreign_memory_;
  std::vector<const void*> alias_keys_;  // hash table, size a power of two
  std::vector<int> alias_groups_;
  std::vector<uint32_t> alias_stamps_;
  uint32_t alias_stamp_ = 0;

  std::vector<std::unique_ptr<Replay>> replays_;
  size_t latest_ = 0;
  PyObject* bindings_ = nullptr;
  PyObject* spare_ = nullptr;     // an empty tuple for the next bindings, unknown to the collector
  PyObject* on_death_ = nullptr;  // callback of the weak references
  GuardTree** box_ = nullptr;     // held by the callback; emptied when the tree dies
  int failed_ = -1;
  int failed_node_ = -1;
  bool busy_ = false;
  std::vector<uint8_t> allocates_;        // by node: reaching or checking it makes an object
  std::vector<uint8_t> allocates_below_;  // by node: so does one of its subtree
  GcPause* pause_ = nullptr;              // of the check that runs
};

extern PyTypeObject GuardTreeType;
struct GuardTreeObject {
  PyObject_HEAD GuardTree tree;
};

bool add_guard_tree(PyObject* module);

}  // namespace kiln
