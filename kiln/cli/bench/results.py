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
    """One candidate on one row; `speed` over eager with its interval, seconds and bytes of the first call."""

    speed: float
    low: float
    high: float
    first_seconds: float | None = None
    peak_bytes: int | None = None
    error_ratio: float | None = None
    facts: dict[str, object] = field(default_factory=dict)
    failure: str = ""


@final
@dataclass(slots=True)
class Result:
    """All scores of a row by candidate; `eager_seconds` is eager's median."""

    row: str
    eager_seconds: float
    scores: dict[str, Score]


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
    return Score(*median_interval([a / b for a, b in zip(eager, other, strict=True)]))


def geomean(values: Sequence[float]) -> float:
    return math.exp(sum(math.log(value) for value in values) / len(values)) if values else float("nan")


def table(results: Sequence[Result], candidates: Sequence[str]) -> str:
    """The table as text, geometric mean and minimum last."""
    header = f"{'':22} {'eager ms':>9}" + "".join(
        f" | {name:>13} {'[95 %]':>13} {'first s':>8} {'MB':>6} {'error':>6}" for name in candidates
    )
    lines = [header, "-" * len(header)]
    for result in results:
        cells = "".join(" | " + _cell(result.scores.get(name)) for name in candidates)
        lines.append(f"{result.row:22} {result.eager_seconds * 1e3:>9.2f}{cells}")
    lines.append("-" * len(header))
    for label, fold in (("geometric mean", geomean), ("minimum", min)):
        cells = ""
        for name in candidates:
            scores = [result.scores[name] for result in results if name in result.scores]
            speeds = [score.speed for score in scores if not score.failure]
            firsts = [score.first_seconds for score in scores]
            first = geomean([value for value in firsts if value]) if label == "geometric mean" else float("nan")
            cells += f" | {fold(speeds) if speeds else float('nan'):>13.3f} {'':>13} {first:>8.2f} {'':>6} {'':>6}"
        lines.append(f"{label:22} {'':>9}{cells}")
    return "\n".join(lines)


def _cell(score: Score | None) -> str:
    if score is None or score.failure:
        return f"{(score.failure if score else 'not run')[:50]:>50}"
    interval = f"{score.low:.2f}..{score.high:.2f}"
    first = f"{score.first_seconds:.2f}" if score.first_seconds is not None else "-"
    memory = f"{score.peak_bytes / 2**20:.0f}" if score.peak_bytes is not None else "-"
    error = f"{score.error_ratio:.2f}" if score.error_ratio is not None else "-"
    return f"{score.speed:>13.3f} {interval:>13} {first:>8} {memory:>6} {error:>6}"


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
