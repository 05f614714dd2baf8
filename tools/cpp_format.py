"""Check (or with --fix, apply) clang-format on csrc/."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    files = [str(path) for path in sorted((ROOT / "csrc").rglob("*")) if path.suffix in (".cpp", ".h")]
    if not files:
        return 0
    tool = Path(sysconfig.get_path("scripts")) / "clang-format"
    mode = ["-i"] if "--fix" in sys.argv else ["--dry-run", "--Werror"]
    return subprocess.run([str(tool), *mode, *files], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
