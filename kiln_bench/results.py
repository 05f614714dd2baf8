"""Results of a benchmark run: ratios with confidence intervals, the table, JSON, a plot.

The speed of a row is the median over pairs of eager's seconds / the candidate's; its 95 % confidence interval is that
of the median by order statistics (binomial, distribution-free).
"""

from __future__ import annotations

import json
import math
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import final

import torch

from kiln.support.optional import load_required


@final
@dataclass(slots=True)
class Score:
    """One candidate on one row; `speed` over eager with its interval, `seconds` of a call, and of the first one."""

    speed: float
    low: float
    high: float
    seconds: float = float("nan")
    first_seconds: float | None = None
    peak_bytes: int | None = None
    error_ratio: float | None = None
    facts: dict[str, object] = field(default_factory=dict)
    failure: str = ""


@final
@dataclass(slots=True)
class Result:
    """All scores of a row by candidate; `eager_seconds` is eager's median. `asks`: the program's `is_compiling()`."""

    row: str
    eager_seconds: float
    scores: dict[str, Score]
    asks: bool = False


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Median and its 95 % interval: order statistics n/2 -+ 0.98*sqrt(n) (binomial, approximated)."""
    ordered = sorted(values)
    n = len(ordered)
    reach = 0.98 * math.sqrt(n)
    low = ordered[max(0, math.floor(n / 2 - reach))]
    high = ordered[min(n - 1, math.ceil(n / 2 + reach) - 1)]
    return median(ordered), low, max(high, low)


def score_times(eager: Sequence[float], other: Sequence[float]) -> Score:
    """Speed of `other` over `eager`, pair by pair."""
    return Score(*median_interval([a / b for a, b in zip(eager, other, strict=True)]), median(other))


def geomean(values: Sequence[float]) -> float:
    return math.exp(sum(math.log(value) for value in values) / len(values)) if values else float("nan")


COLUMNS = (("ms", 9), ("speed", 7), ("[95 %]", 13), ("first s", 8), ("set-up s", 9), ("MB", 6), ("error", 7),
           ("seed", 7), ("eager's", 8), ("breaks", 7), ("answer", 7))  # fmt: skip
"""Heads and widths. error: over all seeds; seed: of the worst seed; eager's: of eager's worst seed against another."""


def table(results: Sequence[Result], candidates: Sequence[str]) -> str:
    """A line for each row and candidate; geometric mean and minimum of the speeds last."""
    head = f"{'':22} {'':14}" + "".join([f"{name:>{width}}" for name, width in COLUMNS])
    lines = [head, "-" * len(head)]
    for result in results:
        lines += rows_of(result)
    lines.append("-" * len(head))
    for name in candidates:
        scores = [result.scores[name] for result in results if name in result.scores]
        speeds = [score.speed for score in scores if not score.failure]
        if speeds:
            lines.append(f"{'geometric mean':22} {name:14}{'':9}{geomean(speeds):7.3f}; minimum {min(speeds):.3f}")
    return "\n".join(lines)


def rows_of(result: Result) -> list[str]:
    """Eager, then each candidate. An error above its bound has a `!`; answers are shown if the program asks."""
    lines = [f"{result.row:22} {'eager':14}{result.eager_seconds * 1e3:9.2f}"]
    for name, score in result.scores.items():
        if score.failure:
            lines.append(f"{'':22} {name:14} {score.failure[:80]}")
            continue
        facts = score.facts
        cells = (
            f"{score.seconds * 1e3:.2f}", f"{score.speed:.3f}", f"{score.low:.2f}..{score.high:.2f}",
            _number(score.first_seconds), _number(facts.get("setup_seconds")),
            "-" if score.peak_bytes is None else f"{score.peak_bytes / 2**20:.0f}",
            judged(score.error_ratio), judged(facts.get("one_seed")), _number(facts.get("eager_one_seed")),
            str(facts.get("breaks", "-")), str(facts.get("answer", "-")) if result.asks else "",
        )  # fmt: skip
        written = "".join([f"{cell:>{width}}" for cell, (_, width) in zip(cells, COLUMNS, strict=True)])
        lines.append(f"{'':22} {name:14}{written}")
    return lines


def _number(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else "-"


def judged(ratio: object) -> str:
    """The share of the bound; three decimals where two would hide on which side of the bound it is."""
    if not isinstance(ratio, float):
        return "-"
    text = f"{ratio:.3f}" if 0.995 <= ratio < 1.005 else f"{ratio:.2f}"
    return text + ("!" if ratio > 1 else "")


def is_wrong(score: Score) -> bool:
    """Whether a candidate failed, or its errors over all seeds are above the bound."""
    return bool(score.failure) or (score.error_ratio is not None and not score.error_ratio <= 1)


def write_json(path: Path, results: Sequence[Result]) -> None:
    write_data(path, {"results": [asdict(result) for result in results]})


def write_data(path: Path, found: Mapping[str, object]) -> None:
    """What was found, with date, versions, machine and the command."""
    data = {
        "date": time.strftime("%Y-%m-%d"),
        "command": "python -m kiln "
        + " ".join(Path(word).name if word.startswith("/") else word for word in sys.argv[1:]),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor(),
        "threads": torch.get_num_threads(),
        **found,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n")


def plot(path: Path, results: Sequence[Result], candidates: Sequence[str]) -> None:
    """Bars of the speed over eager, one group per row."""
    matplotlib = load_required("matplotlib.figure", purpose="--plot")
    figure = matplotlib.Figure(figsize=(2 + 0.7 * len(results), 4))
    axes = figure.subplots()
    width = 0.8 / max(1, len(candidates))
    for number, name in enumerate(candidates):
        positions = [index + number * width for index in range(len(results))]
        speeds = [result.scores[name].speed if name in result.scores else 0 for result in results]
        axes.bar(positions, speeds, width, label=name)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(results)), [result.row for result in results], rotation=60, ha="right")
    axes.set_ylabel("speed over eager")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
