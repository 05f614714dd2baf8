"""What torch's nodes keep besides attributes that Python can read follows from their edges, or they stay eager."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from kiln.pipeline.eager_backward.structure import COUNTED, HIDDEN, READABLE, attributes_of

HEADER = Path(torch.__file__).parent / "include/torch/csrc/autograd/generated/Functions.h"
NODE = re.compile(r"struct TORCH_API (\w+) : public \w+ \{(.*?)\n\};", re.DOTALL)
FIELD = re.compile(r"^\s*([\w:][\w:<>, ]*?) (\w+)(?: = [^;]+)?;$", re.MULTILINE)
OF_GRADIENTS = ("ScalarType", "TensorOptions", "TypeAndSize", "Layout")
"""Types of facts about an input that only its own gradient needs: the edge to its node has them."""


def test_fields_that_python_cannot_read() -> None:
    unknown: dict[str, list[str]] = {}
    for name, body in NODE.findall(HEADER.read_text()):
        cls: type | None = getattr(torch._C._functions, name, None)
        if cls is None or not READABLE.fullmatch(name):
            continue
        seen = {found.removeprefix("_saved_").rstrip("_") for found in dir(cls) if found.startswith("_saved_")}
        for kind, field in FIELD.findall(body):
            internal = field.endswith(("_released_", "_size_")) or field == "retain_variables"
            of_gradients = kind.rpartition(":")[2].rstrip(">") in OF_GRADIENTS
            if not (field.rstrip("_") in seen or internal or of_gradients):
                unknown.setdefault(name, []).append(f"{kind} {field}")
    assert set(unknown) - HIDDEN - {COUNTED} == set(), unknown
    assert len(unknown) > 5, "the header was read"


def test_hidden_types_stay_eager() -> None:
    found = [getattr(torch._C._functions, name) for name in HIDDEN if hasattr(torch._C._functions, name)]
    assert found
    assert not any(map(attributes_of, found))
    assert attributes_of(torch._C._functions.MulBackward0) is not None  # type: ignore[attr-defined]
