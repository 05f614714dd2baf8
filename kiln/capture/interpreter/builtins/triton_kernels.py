"""Triton kernels of the program: a launch is one operator, whose effects are read off the kernel's source.

    add_kernel[grid](x, y, out, n, BLOCK=64)    =>    kiln_triton.launch("ops:add_kernel", call, [out], [x, y], [n])

A tensor is written if a pointer that is computed from it is given to a store or an atomic operation, or to a function
that is not Triton's. The grid is computed while tracing, for each configuration of an autotuned kernel.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import textwrap
import types
from collections.abc import Iterator
from typing import cast

import torch

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.core import HANDLERS, Args, CaptureState, Kwargs, Value, handles
from kiln.capture.interpreter.outside_reads import DEFINITIONS
from kiln.capture.interpreter.polyfills import launch_kernel
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.sequence import List, all_items
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.capture.interpreter.variables.tensor import Tensor
from kiln.plan.triton_operator import KERNELS, TritonKernel, kernel_at
from kiln.runtime.guards.guard import GuardKind

MODULES = {"triton.runtime.jit": "JITFunction", "triton.runtime.interpreter": "InterpretedFunction",
           "triton.runtime.autotuner": "Autotuner"}  # fmt: skip
BASES = "KernelInterface", "JITCallable"
"""Of kernels, and of functions such as `triton.cdiv`."""
BUILTINS = frozenset(("range", "min", "max", "int", "float", "bool", "len", "print", "static_range"))


def register_triton() -> None:
    """Fill the table of handlers, once the program has imported Triton."""
    for module, name in MODULES.items():
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and kind.run not in HANDLERS:
            handles(kind.run)(launch)
            DEFINITIONS.extend(getattr(sys.modules["triton.runtime.jit"], base) for base in BASES)


@handles(torch.library.wrap_triton)
def wrapped(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """For torch's compilers the wrapper marks a kernel."""
    return args[0]


def launch(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    kernel = cast(TritonKernel, args[0].real())
    if args[0].source is None or kwargs["warmup"].truth(s) or any(getattr(kernel, "pre_run_hooks", ())):
        raise UnsupportedCall(function="a Triton kernel", why="it is made inside, warmed up or has hooks")
    s.guard(args[0].source, GuardKind.IS, s.reference(kernel))
    inner, path = kernel.fn, args[0].get_attr(s, "fn")
    while not isinstance(inner, types.FunctionType):
        inner, path = inner.fn, path.get_attr(s, "fn")
    path.constant(s)  # its code is guarded
    parameters = inspect.signature(inner).parameters
    defaults = {name: s.const(arg.default) for name, arg in parameters.items() if arg.default is not arg.empty}
    given = {name: value for name, value in kwargs.items() if name not in ("grid", "warmup")}
    named = {**defaults, **dict(zip(kernel.arg_names, args[1:], strict=False)), **given}
    fixed = [name for name, arg in parameters.items() if str(arg.annotation).endswith("constexpr")]
    lists: dict[str, list[Value]] = {"written": [], "read": [], "int": []}
    written = written_parameters(inner)
    changed = [value for name, value in named.items() if isinstance(value, Tensor) and name in written]

    def described(value: Value, is_fixed: bool = False) -> object:
        if isinstance(value, Tensor):
            kind = "written" if any(value is other for other in changed) else "read"
        elif isinstance(value, Symbolic) and value.python_type() is int and not is_fixed:
            kind = "int"
        else:
            return constant(s, value)
        values = lists[kind]
        if not any(value is other for other in values):
            values.append(value)
        return {kind: next(number for number, other in enumerate(values) if other is value)}

    described_arguments = {name: described(value, name in fixed) for name, value in named.items()}
    configs = [config.kwargs for config in getattr(kernel, "configs", ())] or [{}]
    grids = []
    for config in configs:
        sizes = kwargs["grid"]
        if not issubclass(sizes.python_type(), tuple | list):
            meta = {**named, **{name: Constant(value) for name, value in config.items()}}
            sizes = sizes.call(s, [Dict({name: (Constant(name), value) for name, value in meta.items()})], {})
        grids.append([config, [described(size) for size in all_items(s, sizes)]])
    call = json.dumps({"grids": grids, "arguments": described_arguments})
    operands = [Constant(name_of(kernel, inner)), Constant(call), *[List(values) for values in lists.values()]]
    return s.wrap(launch_kernel, None).call(s, operands, {})


def constant(s: CaptureState, value: Value) -> object:
    found: object = value.constant(s)
    if type(found).__module__ == "triton.language.core" and type(found).__name__ == "dtype":
        return {"dtype": str(found)}
    if not isinstance(found, int | float | str | None):
        raise UnsupportedCall(function="a Triton kernel", why=f"it gets a {type(found).__name__}")
    return found


def name_of(kernel: TritonKernel, function: types.FunctionType) -> str:
    """Its import path, if it has one."""
    path = f"{function.__module__}:{function.__qualname__}"
    try:
        is_global = kernel_at(path) is kernel
    except (ImportError, AttributeError):
        is_global = False
    name = path if is_global else f"{path}@{id(kernel)}"
    KERNELS[name] = kernel
    return name


def written_parameters(function: types.FunctionType) -> frozenset[str]:
    """The parameters of a kernel through which it may write."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    behind = {arg.arg: {arg.arg} for arg in (*tree.args.args, *tree.args.kwonlyargs)}
    if "pointer_type" in ast.dump(tree):  # pointers in memory
        return frozenset(behind)

    def parameters(node: ast.AST) -> set[str]:
        """What a value may point to: what was loaded points to nothing."""
        if isinstance(node, ast.Call) and called(node) == "load":
            return set()
        found = behind.get(node.id, set()) if isinstance(node, ast.Name) else set()
        return found.union(*map(parameters, ast.iter_child_nodes(node)))

    assigned = list(assignments(tree))
    for _ in assigned:  # at most so many steps lead from a parameter to a store
        for target, value in assigned:
            behind.setdefault(target, set()).update(parameters(value))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return frozenset().union(*[set().union(*map(parameters, written_operands(node, function))) for node in calls])


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)


def assignments(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Names, and what is assigned to them or iterated over."""
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "iter", None) or getattr(node, "value", None)
        if isinstance(value, ast.AST):
            names = [name for target in targets if target is not None for name in ast.walk(target)]
            yield from [(name.id, value) for name in names if isinstance(name, ast.Name)]


def written_operands(node: ast.Call, function: types.FunctionType) -> list[ast.AST]:
    """The operands through which a call may write."""
    every: list[ast.AST] = [*node.args, *[keyword.value for keyword in node.keywords]]
    name = called(node)
    root: ast.AST = node.func
    while isinstance(root, ast.Attribute):
        root = root.value
    module = function.__globals__.get(root.id) if isinstance(root, ast.Name) else None
    if isinstance(module, types.ModuleType) and module.__name__.startswith("triton"):
        writes = name == "store" or name.startswith(("atomic_", "inline_asm", "store_"))
        return every if writes else []
    if isinstance(node.func, ast.Attribute):  # a method: of a block, a descriptor, a scalar
        return [root, *every] if name == "store" or name.startswith("atomic_") else []
    return [] if name in BUILTINS else every
