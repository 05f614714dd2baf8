// A differentiable region: a forward callable, and a node of autograd that runs the backward
// callable.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "executor/callable.h"

namespace kiln {

// As in kiln/runtime/autograd.py.
enum class SavedKind : uint8_t { kInput, kOutput, kExtra };
enum class BaseKind : uint8_t { kNone, kInput, kOutput };

struct SavedEntry {
  SavedKind kind;
  int32_t index;
  // An extra that is a view of an input or output shares its version.
  BaseKind base;
  int32_t base_index;
  // The tangents whose backward gets it.
  bool always_read = true;
  std::vector<int32_t> readers = {};
};

// An input or result that eager saves and the region does not: it must not change before a backward
// for one of these inputs and tangents.
struct WatchedEntry {
  SavedKind kind;
  int32_t index;
  bool always_read = true;
  std::vector<int32_t> readers = {};
  std::vector<int32_t> gradients = {};
};

struct ResultEntry {
  bool differentiable;
  // A result that is, or is a view of, an input or another output, rebuilt outside the node.
  BaseKind base;
  int32_t base_index;
  bool is_view;
  // Why eager forbids to change it in place (torch's `CreationMeta`): 0 if it may be changed.
  uint8_t creation = 0;
};

struct RegionState {
  std::string name;
  size_t num_inputs = 0;
  std::vector<ResultEntry> results;
  // Results without a gradient that are views of tensors with one.
  std::vector<int32_t> detached;
  // Inputs on which results depend differentiably, in the order in which leaves get their gradients
  // in eager. The engine must not follow the history of others.
  std::vector<int32_t> reached;
  // Saved values that are random numbers: a replay needs them.
  std::vector<int32_t> drawn;
  std::vector<SavedEntry> saved;
  // For each tangent those for which no backward can follow, once the graph is freed; empty: all.
  std::vector<std::vector<int32_t>> ends;
  // For each result those from which it is computed, without another in between; empty: none.
  std::vector<std::vector<int32_t>> depends;
  // For each input the part of the backward in which its gradient is handed over; empty: one part.
  std::vector<int32_t> parts;
  // Inputs whose contents a second derivative does not need.
  std::vector<int32_t> unread;
  std::vector<WatchedEntry> watched;
  // The results, each behind those from which it is computed or of which it is a view.
  std::vector<int32_t> order;
  // Inputs that get the value of a result written into them, seen by autograd.
  std::vector<std::pair<int32_t, int32_t>> written;
  Callable forward;
  std::shared_ptr<PyObject> make_backward;  // (mask) -> callable
  std::shared_ptr<PyObject> differentiate;  // `SecondDerivative` of kiln/runtime/autograd.py
  // (*tangents) -> does the backward take tangents of these classes? None: plain tensors only.
  std::shared_ptr<PyObject> accepts;
  // Messages of errors that only the node can find.
  std::string no_second_derivative;
  std::string no_wrapped_tangents;
  std::string no_forward_mode;
  std::string no_inner_gradient;
  std::string no_second_hooks;

  // Does `make_backward` also take the mask of defined tangents?
  bool optional_tangents = false;

  // The callable for a mask: the inputs that need a gradient, then the tangents that are defined.
  // Compiled on first use; empty if the gradients come from `differentiate`.
  const Callable& backward(const std::vector<bool>& wanted);

  // The gradients that a backward makes: those of the inputs that lead to what it is asked for
  // (`needed`). Programs may ask for many selections: then those of all inputs with a history.
  std::vector<bool> mask(const std::vector<bool>& connected, const std::vector<bool>& needed);

  // For Python's garbage collector: visits, or drops, the Python objects.
  int visit(visitproc visit, void* arg) const;
  void drop();

 private:
  std::mutex mutex_;
  std::map<std::vector<bool>, Callable> backwards_;
  std::set<std::vector<bool>> selections_;
};

// With the interpreter lock.
PyObject* mask_to_python(const std::vector<bool>& mask);

// With or without the interpreter lock. `inputs` are borrowed from the caller; the results are the
// user's outputs.
std::vector<Value> call_region(const std::shared_ptr<RegionState>& state,
                               std::vector<Value>& inputs);

}  // namespace kiln
