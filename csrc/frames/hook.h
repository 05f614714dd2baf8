// The frame evaluation hook: catches frames of functions that nobody put a dispatcher in front of.
//
// Installed only while some thread wants it (an idle hook slows call-heavy Python down), chained to
// what was installed before. What a version of CPython looks like inside stands in cpython_3xx.h; a
// version without such a file has no hook (`hook_supported` is false).
#pragma once

#include "frames/cpython.h"

namespace kiln {

bool add_hook(PyObject* module);

#ifndef KILN_WITHOUT_TORCH
// Whether the guards of an entry hold; its callable in `*callable` (borrowed).
bool hook_entry_holds(PyObject* entry, PyObject* const* slots, Py_ssize_t count, PyObject* globals,
                      PyObject* closure, PyObject** callable);
#endif

}  // namespace kiln
