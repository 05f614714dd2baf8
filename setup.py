"""Builds the two native modules against the torch that is installed (never fetched as a build requirement).

pip's build isolation finds the torch of the environment that it installs into; other isolated builds end with an error.

`_frames` needs CPython and c10 headers only (seconds). `_executor` calls the ATen dispatcher and autograd's engine,
whose headers take longer to read than all of its files: those that need them are compiled as one file.
As many files are compiled at a time as there are processors, or `--parallel N`; setuptools alone would take one by one.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import site
import sys
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import setuptools
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

OLDEST = 77
"""Of setuptools: as in pyproject.toml, which pip does not compare without build isolation."""
if int(setuptools.__version__.split(".")[0]) < OLDEST:
    sys.exit(f"building torch-kiln needs setuptools {OLDEST} or newer: pip install --upgrade setuptools")
if importlib.util.find_spec("torch") is None:
    # pip's build isolation hides the environment that it installs into; its torch is the one to build for.
    site.addsitedir(sysconfig.get_path("purelib"))
try:
    import torch
except ImportError:
    sys.exit("building torch-kiln needs an installed torch; install it, or run with --no-build-isolation")

TORCH = Path(torch.__file__).parent
package = runpy.run_path("kiln/native/__init__.py")
PYTHONS, source_digest = package["PYTHONS"], package["source_digest"]
FLAGS = [
    "-std=c++20",
    "-O2",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Wno-unused-parameter",
    "-Wno-missing-field-initializers",
]
if not any(flag.startswith("-g") for flag in os.environ.get("CFLAGS", "").split()):
    FLAGS.append("-g0")  # Python's own flags ask for debug information, which takes a third of the time
MOST_WORKERS = 8
"""A file takes up to 1 GB."""
ABI = [("_GLIBCXX_USE_CXX11_ABI", str(int(torch._C._GLIBCXX_USE_CXX11_ABI)))]


# Only the pragmas: GOMP's functions are those of the library that torch has loaded, so there is one team of threads.
PARALLEL = ["-fopenmp"]


SHARED = {"autograd": ("<torch/csrc/",), "dispatcher": ("<ATen/", "<torch/library.h>")}
"""Headers of torch that take longer to read than a file of ours: what includes one of a group is compiled as one."""
GROUPS = Path("build", "groups")


def headers(source: str) -> list[str]:
    folder = folder_of(Path(source))
    return sorted(str(path) for part in (Path("csrc", folder), Path("csrc/support")) for path in part.glob("*.h"))


def folder_of(source: Path) -> str:
    """Of `csrc/executor/run.cpp` and of `build/groups/executor/autograd.cpp`: "executor"."""
    return source.parent.name


def units(folder: str) -> list[str]:
    """What the compiler is given: the files of a folder, and one file in place of each group of `SHARED`."""
    made = []
    left = sorted(Path("csrc", folder).glob("*.cpp"))
    texts = {path: path.read_text() for path in left}
    for name, shared in SHARED.items():
        members = [path for path in left if any(f"#include {header}" in texts[path] for header in shared)]
        if len(members) > 1:
            left = [path for path in left if path not in members]
            made.append(group(GROUPS / folder / f"{name}.cpp", members))
    return [*map(str, made), *map(str, left)]


def is_group(source: str) -> bool:
    return Path(source).is_relative_to(GROUPS)


def group(path: Path, members: Sequence[Path]) -> Path:
    """A file that includes the others; as new as the newest of them, or the change of what it includes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join([f'#include "{member.relative_to("csrc").as_posix()}"\n' for member in members])
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    newest = max([member.stat().st_mtime for member in [path, *members]])
    os.utime(path, (newest, newest))
    return path


def native(name: str, folder: str, libraries: list[str], flags: list[str]) -> Extension | None:
    sources = units(folder)
    if not sources:
        return None
    return Extension(
        f"kiln.native.{name}",
        sources=sources,
        depends=[*headers(sources[0]), *map(str, sorted(Path("csrc", folder).glob("*.cpp")))],
        include_dirs=["csrc", str(TORCH / "include"), str(TORCH / "include" / "torch" / "csrc" / "api" / "include")],
        library_dirs=[str(TORCH / "lib")],
        runtime_library_dirs=[str(TORCH / "lib")],
        libraries=libraries,
        define_macros=ABI,
        extra_compile_args=FLAGS + flags,
        language="c++",
    )


class BuildFiles(build_ext):
    """Compiles files that changed, side by side; first what takes longest: the groups, then the largest."""

    def build_extensions(self) -> None:
        workers, self.parallel = int(self.parallel or min(len(os.sched_getaffinity(0)), MOST_WORKERS)), None
        if self.compiler.compiler_type == "unix":
            compiler, compile_one = self.compiler, self.compiler.compile

            def compile_file(source: str, settings: dict[str, Any]) -> list[str]:
                objects: list[str] = compiler.object_filenames([source], output_dir=settings.get("output_dir") or "")
                if Path(source).name == "module.cpp":  # it holds the digest of all sources of the module
                    digest = ("KILN_SOURCES", f'"{source_digest(folder_of(Path(source)))}"')
                    settings = {**settings, "macros": [*settings["macros"], digest]}
                elif not self.force and is_newer(Path(objects[0]), source):
                    return objects
                compiled: list[str] = compile_one([source], **settings)
                return compiled

            def compile_all(sources: Sequence[str], **settings: Any) -> list[str]:
                ordered = sorted(sources, key=lambda source: (not is_group(source), -Path(source).stat().st_size))
                with ThreadPoolExecutor(workers) as pool:
                    made = pool.map(lambda source: compile_file(source, settings), ordered)
                    return [path for paths in made for path in paths]

            self.compiler.compile = compile_all
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        """An extension that was copied here may be newer than the sources and made of others."""
        made = Path(self.get_ext_fullpath(ext.name))
        if made.exists() and source_digest(ext.name).encode() not in made.read_bytes():
            made.unlink()
        super().build_extension(ext)


def is_newer(made: Path, source: str) -> bool:
    """Than its source, the headers, this file (the flags) and the installed torch."""
    used = [Path(source), *map(Path, headers(source)), Path(__file__), TORCH / "version.py"]
    return made.exists() and made.stat().st_mtime > max([path.stat().st_mtime for path in used])


# Elsewhere the package is installed without its extension, and programs run eager.
supported = sys.version_info[:2] in PYTHONS and not sysconfig.get_config_var("Py_GIL_DISABLED")
if not supported:
    known = ", ".join(f"{major}.{minor}" for major, minor in PYTHONS)
    print(f"torch-kiln: programs run eager on this Python: its extension is for {known} with the GIL", file=sys.stderr)
modules = (
    []
    if not supported
    else [
        native("_frames", "frames", ["c10"], []),
        native("_executor", "executor", ["c10", "torch_cpu", "torch_python"], PARALLEL),
    ]
)
setup(ext_modules=[module for module in modules if module is not None], cmdclass={"build_ext": BuildFiles})
