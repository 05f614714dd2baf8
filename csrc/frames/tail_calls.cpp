// Calls of resume functions: TailCall, Driven, and ExpectedToRaise.
//
//     loop body breaks     resume_1(...) -> TailCall(resume_2, ...) -> TailCall(resume_1, ...)
//                          called by one Driven: the stack does not grow with the breaks

#include "frames/moved_arguments.h"
#include "support/collected_type.h"

namespace kiln {

struct Given {
  PyObject** args;
  Py_ssize_t count;
  bool taken;
};

thread_local constinit Given* pending = nullptr;

namespace {

bool is_immortal(PyObject* object) {
#if PY_VERSION_HEX >= 0x030C0000
  return _Py_IsImmortal(object);
#else
  return object == nullptr;
#endif
}

// Of a Python function that nobody has given another one. CPython does not export its name.
vectorcallfunc function_vectorcall = nullptr;

bool find_function_vectorcall() {
  PyObject* globals = PyDict_New();
  auto* code = reinterpret_cast<PyObject*>(PyCode_NewEmpty("", "", 0));
  PyObject* function = globals && code ? PyFunction_New(code, globals) : nullptr;
  if (function) function_vectorcall = reinterpret_cast<PyFunctionObject*>(function)->vectorcall;
  Py_XDECREF(function);
  Py_XDECREF(code);
  Py_XDECREF(globals);
  return function_vectorcall != nullptr;
}

bool is_python_function(PyObject* callable) {
  return PyFunction_Check(callable) &&
         reinterpret_cast<PyFunctionObject*>(callable)->vectorcall == function_vectorcall;
}

// The frame of a Python function takes a reference to each argument first of all: without these
// here it has the only ones.
void give(Given& given) {
  given.taken = true;
  pending = nullptr;
  for (Py_ssize_t i = 0; i < given.count; i++) {
    PyObject* arg = given.args[i];
    if (!is_immortal(arg)) Py_SET_REFCNT(arg, Py_REFCNT(arg) - 1);
  }
}

// --- TailCall ---

struct TailCall {
  PyObject_VAR_HEAD PyObject* function;
  PyObject* args[1];  // owned
};

PyObject* tail_call_new(PyObject* type, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  Py_ssize_t count = PyVectorcall_NARGS(nargsf) - 1;
  if (count < 0 || kwnames != nullptr)
    return PyErr_Format(PyExc_TypeError, "TailCall(function, *arguments)");
  auto* self = reinterpret_cast<TailCall*>(
      PyType_GenericAlloc(reinterpret_cast<PyTypeObject*>(type), count));
  if (self == nullptr) return nullptr;
  self->function = own(args[0]);
  for (Py_ssize_t i = 0; i < count; i++) self->args[i] = own(args[i + 1]);
  return reinterpret_cast<PyObject*>(self);
}

void tail_call_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<TailCall*>(object);
  for (Py_ssize_t i = 0; i < Py_SIZE(self); i++) Py_CLEAR(self->args[i]);
  Py_CLEAR(self->function);
  Py_TYPE(object)->tp_free(object);
}

PyTypeObject TailCallType = {
    .ob_base = PyVarObject_HEAD_INIT(nullptr, 0).tp_name = "kiln.native._frames.TailCall",
    .tp_basicsize = offsetof(TailCall, args),
    .tp_itemsize = sizeof(PyObject*),
    .tp_dealloc = tail_call_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "TailCall(function, *arguments): the call that ends a resume function.",
    .tp_vectorcall = tail_call_new,
};

// Makes the call (a reference to which it takes), and those that follow it.
PyObject* finish(PyObject* result) {
  while (result != nullptr && Py_TYPE(result) == &TailCallType) {
    auto* call = reinterpret_cast<TailCall*>(result);
    Py_ssize_t count = Py_SIZE(call);
    Py_SET_SIZE(call, 0);
    result = call_giving(call->function, call->args, count);
    Py_DECREF(call);
  }
  return result;
}

// --- Driven ---

struct Driven {
  PyObject_HEAD PyObject* function;
  vectorcallfunc vectorcall;
};

// Driven(function)([a, b]): the list is emptied, so its items belong to the call.
PyObject* driven_call(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  if (PyVectorcall_NARGS(nargsf) != 1 || kwnames != nullptr || !PyList_CheckExact(args[0]))
    return PyErr_Format(PyExc_TypeError, "a Driven takes a list of arguments");
  auto* list = reinterpret_cast<PyListObject*>(args[0]);
  Py_ssize_t count = PyList_GET_SIZE(list);
  PyObject** items = list->ob_item;
  list->ob_item = nullptr;
  list->allocated = 0;
  Py_SET_SIZE(list, 0);
  PyObject* function = own(reinterpret_cast<Driven*>(object)->function);
  PyObject* result = call_giving(function, items, count);
  Py_DECREF(function);
  PyMem_Free(items);
  return finish(result);
}

extern PyTypeObject DrivenType;

// Equal if their functions are the same object: equal breaks share their resume functions.
PyObject* driven_compare(PyObject* left, PyObject* right, int op) {
  if (Py_TYPE(right) != &DrivenType || (op != Py_EQ && op != Py_NE)) Py_RETURN_NOTIMPLEMENTED;
  bool same =
      reinterpret_cast<Driven*>(left)->function == reinterpret_cast<Driven*>(right)->function;
  return PyBool_FromLong(same == (op == Py_EQ));
}

Py_hash_t driven_hash(PyObject* object) {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_HashPointer(reinterpret_cast<Driven*>(object)->function);
#else
  return _Py_HashPointer(reinterpret_cast<Driven*>(object)->function);
#endif
}

PyMemberDef driven_members[] = {
    {"function", T_OBJECT, offsetof(Driven, function), READONLY, "the resume function"},
    {nullptr, 0, 0, 0, nullptr}};

PyTypeObject DrivenType = [] {
  PyTypeObject type = collected_type<Driven, &Driven::function>(
      "kiln.native._frames.Driven",
      "Driven(function)([arguments]): calls a resume function and those that follow it.",
      make_from_fields<Driven, driven_call, &Driven::function>);
  type.tp_hash = driven_hash;
  type.tp_richcompare = driven_compare;
  type.tp_members = driven_members;
  return type;
}();

// --- ExpectedToRaise ---

struct ExpectedToRaise {
  PyObject_HEAD PyObject* original;
  PyObject* on_return;
  vectorcallfunc vectorcall;
};

PyObject* expected_call(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  auto* self = reinterpret_cast<ExpectedToRaise*>(object);
  PyObject* on_return = own(self->on_return);
  PyObject* result = call_passing_on(self->original, args, args, nargsf, kwnames);
  PyObject* told = result ? PyObject_CallNoArgs(on_return) : nullptr;
  if (told == nullptr) Py_CLEAR(result);
  Py_XDECREF(told);
  Py_DECREF(on_return);
  return result;
}

PyTypeObject ExpectedToRaiseType =
    collected_type<ExpectedToRaise, &ExpectedToRaise::original, &ExpectedToRaise::on_return>(
        "kiln.native._frames.ExpectedToRaise",
        "ExpectedToRaise(original, on_return): calls the original, then `on_return`.",
        make_from_fields<ExpectedToRaise, expected_call, &ExpectedToRaise::original,
                         &ExpectedToRaise::on_return>);

}  // namespace

PyObject* call_giving(PyObject* function, PyObject** args, Py_ssize_t count) {
  Given given{args, count, false};
  Given* outer = pending;
  pending = &given;
  PyObject* result = call_passing_on(function, args, args, count, nullptr);
  pending = outer;
  for (Py_ssize_t i = 0; !given.taken && i < count; i++) Py_DECREF(args[i]);
  return result;
}

void give_pending(PyObject* callable, PyObject* const* args) {
  if (pending->args == args && is_python_function(callable)) give(*pending);
}

bool add_tail_calls(PyObject* module) {
  return find_function_vectorcall() && PyModule_AddType(module, &TailCallType) == 0 &&
         PyModule_AddType(module, &DrivenType) == 0 &&
         PyModule_AddType(module, &ExpectedToRaiseType) == 0;
}

}  // namespace kiln
