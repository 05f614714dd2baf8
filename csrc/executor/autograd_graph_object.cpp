// The Python type `AutogradGraph`.
#include <Python.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/variable.h>

#include "executor/autograd_graph.h"
#include "executor/python.h"
#include "executor/python_types.h"

namespace kiln {

namespace {

namespace ag = torch::autograd;

struct GraphObject {
  PyObject_HEAD std::unique_ptr<AutogradGraph> graph;
};

AutogradGraph& graph_of(PyObject* self) { return *reinterpret_cast<GraphObject*>(self)->graph; }

// The gradient edges of a tuple of tensors. False: a Python error is set.
bool read_edges(PyObject* tensors, std::vector<ag::Edge>& edges) {
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(tensors); n++) {
    c10::TensorImpl* impl = tensor_of(PyTuple_GET_ITEM(tensors, n));
    if (!impl) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "expected tensors");
      return false;
    }
    at::Tensor tensor(TensorPtr::reclaim_copy(impl));
    edges.push_back(tensor.requires_grad() ? ag::impl::gradient_edge(tensor) : ag::Edge());
  }
  return true;
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  PyObject *roots, *wanted;
  if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &roots, &PyTuple_Type, &wanted)) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    std::vector<ag::Edge> root_edges, wanted_edges;
    if (!read_edges(roots, root_edges) || !read_edges(wanted, wanted_edges)) return nullptr;
    auto graph = std::make_unique<AutogradGraph>(std::move(root_edges), wanted_edges);
    PyObject* self = type->tp_alloc(type, 0);
    if (self) {
      new (&reinterpret_cast<GraphObject*>(self)->graph)
          std::unique_ptr<AutogradGraph>(std::move(graph));
    }
    return self;
  });
}

void deallocate(PyObject* self) {
  reinterpret_cast<GraphObject*>(self)->graph.~unique_ptr();
  Py_TYPE(self)->tp_free(self);
}

PyObject* nodes(PyObject* self, void*) {
  const auto& found = graph_of(self).nodes();
  return make_tuple(found.size(), [&](size_t n) { return ag::functionToPyObject(found[n]); });
}

PyObject* roots(PyObject* self, void*) {
  AutogradGraph& graph = graph_of(self);
  return make_tuple(graph.roots().size(), [&](size_t n) {
    const ag::Edge& root = graph.roots()[n];
    return Py_BuildValue("iI", graph.position(root), root.input_nr);
  });
}

PyObject* structure(PyObject* self, void*) {
  const std::string& text = graph_of(self).structure();
  return PyBytes_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
}

PyObject* observed_nodes(PyObject* self, void*) {
  AutogradGraph& graph = graph_of(self);
  return make_tuple(graph.nodes().size(),
                    [&](size_t n) { return PyBool_FromLong(graph.is_observed(n)); });
}

bool read_pairs(PyObject* rows, std::vector<std::pair<int32_t, uint32_t>>& made) {
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(rows); n++) {
    int position;
    unsigned int input;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, n), "iI", &position, &input)) return false;
    made.emplace_back(position, input);
  }
  return true;
}

bool read_segment(PyObject* row, SegmentSpec& spec) {
  PyObject *members, *slots, *targets, *prepare;
  if (!PyArg_ParseTuple(row, "O!O!O!O", &PyTuple_Type, &members, &PyTuple_Type, &slots,
                        &PyTuple_Type, &targets, &prepare)) {
    return false;
  }
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(members); n++) {
    spec.members.push_back(static_cast<int32_t>(PyLong_AsLong(PyTuple_GET_ITEM(members, n))));
  }
  spec.prepare = share_object(prepare);
  return read_pairs(slots, spec.slots) && read_pairs(targets, spec.targets) && !PyErr_Occurred();
}

PyObject* splice(PyObject* self, PyObject* rows) {
  if (!PyTuple_Check(rows)) return PyErr_Format(PyExc_TypeError, "expected a tuple of segments");
  return guarded([&]() -> PyObject* {
    std::vector<SegmentSpec> segments(static_cast<size_t>(PyTuple_GET_SIZE(rows)));
    for (size_t n = 0; n < segments.size(); n++) {
      if (!read_segment(PyTuple_GET_ITEM(rows, static_cast<Py_ssize_t>(n)), segments[n])) {
        return nullptr;
      }
    }
    std::vector<ag::Edge> roots = graph_of(self).splice(segments);
    return make_tuple(roots.size(), [&](size_t n) -> PyObject* {
      if (!roots[n].is_valid()) Py_RETURN_NONE;
      return Py_BuildValue("NI", ag::functionToPyObject(roots[n].function), roots[n].input_nr);
    });
  });
}

PyObject* restore(PyObject* self, PyObject*) {
  graph_of(self).restore();
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"splice", splice, METH_O, "Puts a node in the place of each segment."},
    {"restore", restore, METH_NOARGS, "Undoes `splice`."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef properties[] = {
    {"nodes", nodes, nullptr, "The nodes in the order of the engine.", nullptr},
    {"roots", roots, nullptr, "(node, input) of each root; -1 if it is not run.", nullptr},
    {"structure", structure, nullptr, "Edges, layouts and observers, as bytes.", nullptr},
    {"observed", observed_nodes, nullptr, "For each node: must the engine run it itself?", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyTypeObject graph_type = {
    .ob_base = PyVarObject_HEAD_INIT(nullptr, 0).tp_name = "kiln.native._executor.AutogradGraph",
    .tp_basicsize = sizeof(GraphObject),
    .tp_dealloc = deallocate,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "AutogradGraph(roots, wanted): what a backward runs.",
    .tp_methods = methods,
    .tp_getset = properties,
    .tp_new = make,
};

// How much was registered on the node that accumulates a leaf's gradient.
PyObject* leaf_observers(PyObject*, PyObject* object) {
  c10::TensorImpl* impl = tensor_of(object);
  if (impl == nullptr) return PyLong_FromLong(0);
  return guarded([&] {
    at::Tensor leaf(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(impl));
    auto node = torch::autograd::impl::try_get_grad_accumulator(leaf);
    return PyLong_FromSize_t(node ? node->pre_hooks().size() + node->post_hooks().size() : 0);
  });
}

PyMethodDef functions[] = {
    {"leaf_observers", leaf_observers, METH_O,
     "How many hooks the node has that accumulates the tensor's gradient."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_autograd_graph_type(PyObject* module) {
  return PyModule_AddType(module, &graph_type) == 0 &&
         PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace kiln
