// The Python types of kiln.native._executor, each added by the file that defines it.
#pragma once

#include <Python.h>

namespace kiln {

// False: a Python error is set. `add_graph_replay_type` adds the functions on lent results, too,
// `add_autograd_graph_type` those on autograd's nodes.
bool add_executor_type(PyObject* module);
bool add_region_type(PyObject* module);
bool add_graph_replay_type(PyObject* module);
bool add_autograd_graph_type(PyObject* module);

}  // namespace kiln
