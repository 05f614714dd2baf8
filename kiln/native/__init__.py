"""The C++ extension and its typed stubs; sources in `csrc`.

`_frames` (dispatchers, guard trees, frame hook) needs c10 only, `_executor` runs plans. Either may be
missing (not built), stale (the sources beside it have changed since) or unusable (a torch whose objects look
otherwise than the module expects, found by its self-test at import): then `problem()` says why, and the API runs
programs eager after one warning.
Modules that need one import it themselves, `from kiln.native import _frames`.
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import zlib
from pathlib import Path

MODULES = ("torch", "kiln.native._frames", "kiln.native._executor")
"""What has to load, in this order: the extension needs torch's libraries in the process."""

PYTHONS = ((3, 11), (3, 12), (3, 13), (3, 14))
"""The CPythons whose bytecode and frames Kiln knows."""

CSRC = Path(__file__).resolve().parents[2] / "csrc"


def source_digest(module: str) -> str:
    """Of what `_executor` or `_frames` is compiled from; `setup.py` puts it into them. Empty without the sources."""
    checksum = 0
    try:
        for folder in (CSRC / module.rpartition("_")[2], CSRC / "support"):
            for name in sorted(os.listdir(folder)):
                with open(f"{folder}/{name}", "rb", buffering=0) as file:
                    checksum = zlib.crc32(file.read(), checksum)
    except FileNotFoundError:
        return ""
    return f"kiln-sources-{checksum:08x}"


def problem() -> str:
    """Why compiled programs cannot run in this process; `""` where they can."""
    if sys.version_info[:2] not in PYTHONS:
        *most, last = (f"{major}.{minor}" for major, minor in PYTHONS)
        known = f"{', '.join(most)} and {last}"
        return f"CPython {sys.version_info[0]}.{sys.version_info[1]} is not supported yet, {known} are"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "free-threaded builds of CPython are not supported: guards read objects that no other thread may change"
    for name in MODULES:
        try:
            module = importlib.import_module(name)
        except Exception as error:  # whatever goes wrong in it, it cannot be used
            return f"{name} cannot be loaded: {error}"
        if not getattr(module, "usable", True):
            return f"{name}: {module.problem}"
        if name != "torch" and source_digest(name) not in ("", getattr(module, "sources", "unknown")):
            return f"{name} was built from other sources than those in {CSRC}"
    return ""
