"""Compiled kernels in this process: C++ functions in shared libraries, cubins for GPUs.

libraries = Libraries({"k_ab12": path}, kernels, cubins)
libraries.function("k_ab12")          # a ctypes function
libraries.images()                    # the cubins as the native executor takes them
"""

from __future__ import annotations

import _ctypes
import ctypes
import json
import os
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, final

from kiln.plan.plan import Kernel
from kiln.support.errors import KilnError
from kiln.support.records import dataclass
from kiln.support.target import WARP, cpu_flags

Image = tuple[str, str, bool, int, int, int, int, int, bytes]
KERNEL_FUNCTION = ctypes.CFUNCTYPE(
    None, *map(ctypes.POINTER, (ctypes.c_void_p, ctypes.c_int64, ctypes.c_double)),
    ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64),
)  # fmt: skip
INSTRUCTION_SETS = (
    "abm", "adx", "aes", "amx", "avx", "bmi", "f16c", "fma", "gfni", "movbe", "pclmulqdq", "popcnt", "sha", "sse",
    "ssse", "vaes", "vpclmulqdq",
)  # fmt: skip
"""Beginnings of the CPU flags that name instructions which a compiler may use."""


class MissingKernel(KilnError):
    code = "KILN4103"
    what = "no library has kernel {symbol}"
    why = "the plan and its libraries do not belong together"
    try_ = ("compile the plan again, or load the bundle that it was saved in",)


@final
@dataclass(frozen=True, slots=True)
class Cubin:
    """A compiled Triton kernel. `letters`: types of its parameters; `trailing`: pointers that Triton appends to them;
    `capability`: 10 * major + minor of its devices.
    """

    entry: str
    letters: str
    status: bool
    trailing: int
    num_warps: int
    shared_bytes: int
    scratch_bytes: int
    capability: int
    code: bytes

    def image(self) -> Image:
        """As `kiln.native._executor.Executor` takes it."""
        threads = self.num_warps * WARP
        sizes = (self.shared_bytes, self.scratch_bytes)
        return (self.entry, self.letters, self.status, self.trailing, threads, *sizes, self.capability, self.code)

    def encode(self) -> bytes:
        head = {name: value for name, value in asdict(self).items() if name != "code"}
        text = json.dumps(head, sort_keys=True).encode()
        return len(text).to_bytes(4, "little") + text + self.code

    @staticmethod
    def decode(data: bytes) -> Cubin:
        length = int.from_bytes(data[:4], "little")
        return Cubin(**json.loads(data[4 : 4 + length]), code=data[4 + length :])


@final
class Library:
    """A shared library, unloaded with this object (a `ctypes.CDLL` never is)."""

    def __init__(self, path: Path) -> None:
        self._handle = _ctypes.dlopen(str(path), os.RTLD_NOW | os.RTLD_LOCAL)
        weakref.finalize(self, _ctypes.dlclose, self._handle).atexit = False

    def address(self, symbol: str) -> int:
        """Raises OSError where the library has no such symbol."""
        address: int = _ctypes.dlsym(self._handle, symbol)
        return address


class Libraries:
    """The kernels of a plan by symbol: functions of loaded libraries, and cubins, which executors load.

    Libraries stay loaded while this object or a function of it lives, cubins while the process runs.
    """

    def __init__(
        self, paths: dict[str, Path], kernels: Iterable[Kernel], cubins: Mapping[str, Cubin] | None = None
    ) -> None:
        self.paths = paths
        self.cubins: Mapping[str, Cubin] = cubins or {}
        self._scratch = {kernel.symbol: kernel.scratch_bytes for kernel in kernels}
        opened = {path: Library(path) for path in dict.fromkeys(paths.values())}
        self._libraries = {symbol: opened[path] for symbol, path in paths.items()}
        self._addresses: dict[str, int] = {}
        for symbol, library in self._libraries.items():
            try:
                self._addresses[symbol] = library.address(symbol)
            except OSError as error:
                raise MissingKernel(symbol=symbol) from error

    def function(self, symbol: str) -> Any:
        """A ctypes function. Raises MissingKernel."""
        function = KERNEL_FUNCTION(self.address(symbol))
        function.library = self._libraries[symbol]  # type: ignore[attr-defined]
        return function

    def address(self, symbol: str) -> int:
        """Of the function, for the native executor. Raises MissingKernel."""
        if symbol not in self._addresses:
            raise MissingKernel(symbol=symbol)
        return self._addresses[symbol]

    def addresses(self) -> dict[str, int]:
        return dict(self._addresses)

    def images(self) -> dict[str, Image]:
        """The cubins as the native executor takes them."""
        return {symbol: cubin.image() for symbol, cubin in self.cubins.items()}

    def scratch_bytes(self, symbol: str) -> int:
        """Static part of the scratch memory of a call."""
        return self._scratch.get(symbol, 0)

    def files(self) -> list[Path]:
        return list(dict.fromkeys(self.paths.values()))


@lru_cache(maxsize=1)
def instruction_sets() -> frozenset[str]:
    """The instructions that code compiled here may contain."""
    return frozenset(flag for flag in cpu_flags() if flag.startswith(INSTRUCTION_SETS))
