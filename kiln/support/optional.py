"""Optional third-party packages, imported on first use; the only file with imports inside functions.

    sympy = load("sympy")        the module, or None where it is not installed

`import kiln` must not load them: SymPy alone takes a quarter of a second.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType
from typing import Literal

from kiln.support.errors import KilnError

OptionalPackage = Literal[
    "sympy", "numpy", "matplotlib.figure", "triton", "transformers", "timm", "onnx", "onnxruntime", "openvino", "jax",
    "iree.compiler", "iree.compiler.extras.onnx_importer", "iree.compiler.tools", "iree.runtime"
]  # fmt: skip
DISTRIBUTIONS = {"iree": "iree-base-compiler iree-base-runtime"}
"""What pip installs, where it is not named as the module."""


class MissingPackage(KilnError):
    code = "KILN5010"
    what = "the package `{package}` is not installed"
    why = "it is needed for {purpose}"
    try_ = ("pip install {package}",)


def load(package: OptionalPackage) -> ModuleType | None:
    """The module, or None if it is not installed."""
    try:
        return importlib.import_module(package)
    except ImportError:
        return None


def check_installed(package: str, *, purpose: str) -> None:
    """Without importing it.

    Raises:
        MissingPackage: if it is not installed.
    """
    if importlib.util.find_spec(package) is None:
        raise MissingPackage(package=DISTRIBUTIONS.get(package, package), purpose=purpose)


def load_required(package: OptionalPackage, *, purpose: str) -> ModuleType:
    """The module.

    Raises:
        MissingPackage: if it is not installed.
    """
    module = load(package)
    if module is None:
        name = package.partition(".")[0]
        raise MissingPackage(package=DISTRIBUTIONS.get(name, name), purpose=purpose)
    return module
