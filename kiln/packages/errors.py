"""Errors of packages: damaged, not trusted, or made for another machine or version."""

from __future__ import annotations

from kiln.support.errors import KilnError


class DamagedPackage(KilnError, ValueError):
    code = "KILN6103"
    what = "the file is not a package that this version can load"
    why = "{problem}"
    try_ = ("package the program again",)


class ForeignPackage(KilnError, RuntimeError):
    code = "KILN6104"
    what = "the package was made for another {kind}"
    why = "it needs {needed}, here is {found}"
    try_ = ("package the program here", "program.package(path, target='cpu:x86-64-v3') runs on most machines")


class UntrustedPackage(KilnError, RuntimeError):
    code = "KILN6105"
    what = "the package is not loaded: it is machine code, and nobody vouches for it"
    why = "{problem}"
    try_ = (
        "kiln.load(path, digest=...) with what program.package returned, or kiln.load(path, key=...)",
        "chmod go-w, if only you have written it",
        "kiln.load(path, trust=True), as you would import a module",
    )
