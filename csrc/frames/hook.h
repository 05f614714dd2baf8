// The frame evaluation hook: catches frames of functions without a dispatcher.
//
// Installed only while some thread needs it (an idle hook slows call-heavy Python down), and
// chained to the hook installed before. cpython_3xx.h has the internals of a CPython version; a
// version without such a file has no hook (`hook_supported` is false).
#pragma once

#include "frames/cpython.h"

namespace kiln {

bool add_hook(PyObject* module);

}  // namespace kiln
