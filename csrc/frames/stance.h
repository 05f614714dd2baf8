// The stance of `torch.compiler.set_stance`, which Kiln follows.
#pragma once

#include "frames/cpython.h"

namespace kiln {

// What was last read of the stance, and the version that changes before the stance can.
struct Stance {
  const uint64_t* version;
  uint64_t seen;
  bool force_eager;
};
extern Stance stance;

// Reads the stance again; whether it is "force_eager".
bool refresh_stance();

// Asked in every call: one comparison.
inline bool force_eager() {
  return *stance.version == stance.seen ? stance.force_eager : refresh_stance();
}

bool add_stance(PyObject* module);

}  // namespace kiln
