"""Builds the two native modules against the torch that is installed (never fetched as a build requirement).

`_frames` needs CPython and c10 headers only (seconds); `_executor` calls the ATen dispatcher (the one slow file).
"""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import Extension, setup

try:
    import torch
except ImportError:
    sys.exit("building torch-kiln needs an installed torch; run pip with --no-build-isolation")

TORCH = Path(torch.__file__).parent
FLAGS = [
    "-std=c++20",
    "-O2",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Wno-unused-parameter",
    "-Wno-missing-field-initializers",
]
ABI = [("_GLIBCXX_USE_CXX11_ABI", str(int(torch._C._GLIBCXX_USE_CXX11_ABI)))]


# Only the pragmas: GOMP's functions are those of the library that torch has loaded, so there is one team of threads.
PARALLEL = ["-fopenmp"]


def native(name: str, folder: str, libraries: list[str], flags: list[str]) -> Extension | None:
    sources = sorted(str(path) for path in Path("csrc", folder).glob("*.cpp"))
    if not sources:
        return None
    return Extension(
        f"kiln.native.{name}",
        sources=sources,
        depends=sorted(str(path) for path in Path("csrc").rglob("*.h")),
        include_dirs=["csrc", str(TORCH / "include"), str(TORCH / "include" / "torch" / "csrc" / "api" / "include")],
        library_dirs=[str(TORCH / "lib")],
        runtime_library_dirs=[str(TORCH / "lib")],
        libraries=libraries,
        define_macros=ABI,
        extra_compile_args=FLAGS + flags,
        language="c++",
    )


modules = [
    native("_frames", "frames", ["c10"], []),
    native("_executor", "executor", ["c10", "torch_cpu", "torch_python"], PARALLEL),
]
setup(ext_modules=[module for module in modules if module is not None])
