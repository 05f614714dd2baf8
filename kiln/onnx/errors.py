"""What cannot be written as ONNX."""

from __future__ import annotations

from kiln.support.errors import KilnError


class NoOnnxForm(KilnError):
    code = "KILN5110"
    what = "`{op}` has no form in ONNX"
    why = "{reason}"
    try_ = (
        "compile with `backend='onnxrt'`, which leaves such operations to Kiln",
        "program.package writes all of it",
        'of a program with numerics="strict": export it with "fast"',
    )
