"""Errors of export: what cannot be one whole program, wrong shapes and arguments, damaged files."""

from __future__ import annotations

from kiln.support.errors import KilnError


class ExportChangesObject(KilnError):
    code = "KILN5101"
    what = "`{function}` cannot be exported: it changes {what_changes}"
    why = "a program is a graph of tensors, which cannot change objects of this process"
    try_ = (
        "return the new value, and let the caller store it",
        "keep state in a buffer of the module, whose size and dtype stay",
    )


class UnknownResult(KilnError):
    code = "KILN5102"
    what = "`{function}` cannot be exported: it returns a `{type}`"
    why = "results are tensors, numbers, strings, None, and containers of these"
    try_ = (
        "return a tuple or a dict; a float of sizes as a tensor: torch.full((), number)",
        "register the class: torch.utils._pytree.register_pytree_node; dataclasses are known",
        "of a Hugging Face model: pass use_cache=False",
    )


class BadDynamicShapes(KilnError):
    code = "KILN5103"
    what = "dynamic_shapes is wrong at `{place}`"
    why = "{problem}"
    try_ = ("dynamic_shapes={{'x': {{0: kiln.Dim('batch', min=1, max=64)}}}} makes the first dimension of x dynamic",)


class WrongProgramInput(KilnError, ValueError):
    code = "KILN5104"
    what = "the program cannot run on these arguments: {problem}"
    why = "{reason}"
    try_ = ("program.text() shows its inputs and constraints", "export again with arguments of this kind")


class NotATrainingProgram(KilnError):
    code = "KILN5105"
    what = "`{function}` has no gradients to export"
    why = "{reason}"
    try_ = ("return the loss, a tensor of one element that depends on parameters, as the first result",)


class BadExportArgument(KilnError):
    code = "KILN5106"
    what = "argument `{name}` of kiln.export cannot be {value!r}"
    why = "it takes {allowed}"
    try_ = ("help(kiln.export) lists all arguments",)


class CompilerNotLoaded(KilnError):
    code = "KILN5107"
    what = "this process cannot {work}"
    why = "it has loaded a part of Kiln that does without the compiler"
    try_ = ("load the program with kiln.load_program",)


class NoTorchExport(KilnError):
    code = "KILN5108"
    what = "the program has no form as a torch.export.ExportedProgram, or the other way round"
    why = "{problem}"
    try_ = ("kiln.export and program.save keep all of it",)


class NotSavable(KilnError):
    code = "KILN6101"
    what = "the program cannot be saved: {place} holds a `{type}`"
    why = "a file holds tensors, numbers, strings, None, dtypes, devices and containers of these"
    try_ = ("export with plain values in that place",)


class DamagedProgram(KilnError):
    code = "KILN6102"
    what = "the file is not a program that this version can load"
    why = "{problem}"
    try_ = ("export and save it again",)
