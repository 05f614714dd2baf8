"""What a mode of `kiln.compile` does less than its name says: a warning, once per process.

mode="max-autotune"      KILN5012: ... the mode means CUDA graphs on a GPU and the usual kernels
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping

from kiln.support.errors import KilnError
from kiln.support.location import user_stacklevel
from kiln.support.options import MODES


class NothingTuned(KilnError):
    code = "KILN5012"
    what = "mode {mode!r} measures no candidates"
    why = "Kiln has no autotuning yet; the mode means {meaning}"
    try_ = ("leave the mode away, or use {instead!r}: it does the same",)


class ModeWarning(UserWarning):
    """A mode does less than its name says."""


MEANINGS: Mapping[str, tuple[str, str]] = {
    "max-autotune": ("CUDA graphs on a GPU and the usual kernels", "reduce-overhead"),
    "max-autotune-no-cudagraphs": ("the defaults", "default"),
}
"""What the modes mean that tune nothing, and the mode that says so."""


@functools.lru_cache(maxsize=len(MODES))
def warn_of_mode(mode: str) -> None:
    """Say, once per process, that a mode does less than its name says."""
    if mode in MEANINGS:
        meaning, instead = MEANINGS[mode]
        problem = NothingTuned(mode=mode, meaning=meaning, instead=instead)
        warnings.warn(problem.render(), ModeWarning, stacklevel=user_stacklevel())
