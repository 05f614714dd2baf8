"""What a kernel language cannot express."""

from __future__ import annotations

from kiln.support.errors import KilnError


class UnsupportedInKernel(KilnError):
    code = "KILN3401"
    what = "{language} kernels cannot express {thing}"
    why = "{reason}"
    try_ = ("run the operation outside of `kiln.compile`", "report it: the library call should have been kept")
