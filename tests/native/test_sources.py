"""What native sources must not use, and that they fit this torch."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

import kiln.native

CSRC = Path(__file__).resolve().parents[2] / "csrc"
FORBIDDEN = {
    r"#include <\w*stream>": "streams crash where a second C++ library has not set up its locale",
    r"\bTORCH_CHECK\(": "it formats several parts with a stream: KILN_CHECK of executor/check.h does not",
    r"c10::str\(": "it is a stream",
}


def test_no_streams() -> None:
    found = []
    for file in sorted((*CSRC.rglob("*.cpp"), *CSRC.rglob("*.h"))):
        text = file.read_text()
        for pattern, reason in FORBIDDEN.items():
            if re.search(pattern, text) and file.name != "check.h":
                found.append(f"{file.relative_to(CSRC)}: {pattern}: {reason}")
    assert found == []


@pytest.mark.skipif(sys.version_info[:2] not in kiln.native.PYTHONS, reason="not supported yet")
def test_the_modules_find_tensors_as_they_expect_them() -> None:
    """Each reads an example when it is loaded; compiled programs run eager where that fails."""
    assert kiln.native.problem() == ""


def test_an_extension_of_other_sources_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(CSRC, tmp_path / "csrc")
    monkeypatch.setattr(kiln.native, "CSRC", tmp_path / "csrc")
    assert kiln.native.problem() == ""
    for name in ("support/hex.h", "frames/hook.cpp", "executor/run.h"):
        changed = tmp_path / "csrc" / name
        text = changed.read_bytes()
        changed.write_bytes(text + b" ")
        assert "was built from other sources" in kiln.native.problem()
        changed.write_bytes(text)
    shutil.rmtree(tmp_path / "csrc")  # as where the package is installed
    assert kiln.native.problem() == ""
