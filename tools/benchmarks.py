"""Writes docs/benchmarks.md, its plots and the table of README.md from benchmarks/results/*.json.

python tools/benchmarks.py            rewrite them
python tools/benchmarks.py --check    fail if they are not what the results say

A result is called <date>-<subject>.json; the page shows the newest of each subject and lists the others.
"""

from __future__ import annotations

import io
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE, README = ROOT / "docs" / "benchmarks.md", ROOT / "README.md"
MARKS = "<!-- table: begin -->\n", "<!-- table: end -->"
PEER, KILN = "torch.compile", "kiln"
COLORS = {PEER: "#9aa0a6", KILN: "#c2410c"}

INTRODUCTION = """\
# Benchmarks

Written by `python tools/benchmarks.py` from `benchmarks/results/*.json` (a test checks that it is up to date). Each
section names its raw data and the command that made it.

* **Speed** is eager's time divided by the compiler's: the median over rounds of calls in one process, each round in
  random order, with its 95 % confidence interval. Above 1 is faster than eager. Times in ms are medians; where a result
  has none for a compiler, they are eager's divided by the speed.
* **First call** is the first call in a fresh process with empty caches, compilers of kernels included. **Set-up** is a
  tiny program before it, in the same process; results without it include it in the first call.
* **Error** is the error against a float64 reference as a share of the bound: 1 is the limit. The bound is twice eager's
  own error, or that of one rounding (4 ulp in results of 2026-11-21). It is taken over all seeds (root mean square); in
  brackets follow the worst single seed, and what eager gets when one of its seeds is judged by another.
* **Breaks** are graph breaks. Programs that ask `torch.compiler.is_compiling()` are shown with both answers.
* Means are geometric.
"""


@dataclass(frozen=True)
class Run:
    """One result file."""

    path: Path
    data: dict[str, Any]

    @property
    def subject(self) -> str:
        """cpu-train, of 2026-11-21-cpu-train.json"""
        return self.path.stem[len("2026-11-21-") :]

    def rows(self) -> list[dict[str, Any]]:
        """Models that every candidate ran."""
        return [row for row in self.data["results"] if not any(score["failure"] for score in row["scores"].values())]

    def failures(self) -> list[str]:
        scores = [(row["row"], name, score) for row in self.data["results"] for name, score in row["scores"].items()]
        return [f"{row}, {name}: {score['failure']}" for row, name, score in scores if score["failure"]]

    def scores(self, candidate: str, field: str) -> list[float]:
        """A number of each row that has it."""
        found = [row["scores"][candidate][field] for row in self.rows()]
        return [value for value in found if value is not None]

    def source(self) -> str:
        facts = [f"torch {self.data['torch']}", f"CPython {self.data['python']}"]
        device = self.data["device"] or f"CPU, {self.data['threads']} threads"
        return (
            f"{device}, {', '.join(facts)}, {self.data['date']}. "
            f"[`{self.path.name}`](../benchmarks/results/{self.path.name}): `{self.data['command']}`\n"
        )


def newest(paths: Sequence[Path]) -> dict[str, Run]:
    """The last run of each subject; names begin with the date."""
    runs = [Run(path, json.loads(path.read_text())) for path in sorted(paths)]
    return {run.subject: run for run in runs}


def geomean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def digits(value: float | None, count: int = 2) -> str:
    return "" if value is None else f"{value:.{count}f}"


def seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def share(value: float | None) -> str:
    """Two decimals; three where two would hide on which side of the bound it is."""
    text = digits(value)
    return digits(value, 3) if text == "1.00" else text


def error(score: dict[str, Any]) -> str:
    """0.63 (1.005, 1.15): over all seeds, worst single seed, eager's worst single seed."""
    facts = score["facts"]
    seeds = [share(facts[name]) for name in ("one_seed", "eager_one_seed") if name in facts]
    return share(score["error_ratio"]) + (f" ({', '.join(seeds)})" if len(seeds) > 1 else "")


def models(run: Run) -> Iterator[str]:
    """Speed, interval, first call, memory and error of each row."""
    yield run.source()
    head = ["model", "ms: eager", "torch.compile", "Kiln", "speed, torch.compile", "speed, Kiln", "95 % interval",
            "first call, s: torch.compile", "Kiln", "set-up, s: torch.compile", "Kiln",
            "peak, MB: torch.compile", "Kiln", "error, torch.compile", "error, Kiln",
            "breaks, torch.compile", "breaks, Kiln"]  # fmt: skip
    body = []
    for row in run.rows():
        peer, ours = row["scores"][PEER], row["scores"][KILN]
        body.append([
            row["row"], f"{row['eager_seconds'] * 1e3:.2f}", *(milliseconds(row, score) for score in (peer, ours)),
            digits(peer["speed"]), f"**{ours['speed']:.2f}**",
            f"{ours['low']:.2f} .. {ours['high']:.2f}", seconds(peer["first_seconds"]), seconds(ours["first_seconds"]),
            *(seconds(score["facts"].get("setup_seconds")) for score in (peer, ours)),
            *("" if score["peak_bytes"] is None else f"{score['peak_bytes'] / 1e6:.0f}" for score in (peer, ours)),
            error(peer), error(ours), *(str(score["facts"].get("breaks", "")) for score in (peer, ours)),
        ])  # fmt: skip
    means = [f"{geomean(run.scores(name, 'speed')):.2f}" for name in (PEER, KILN)]
    firsts = [run.scores(name, "first_seconds") for name in (PEER, KILN)]
    times = [seconds(geomean(values)) if values else "" for values in firsts]
    body.append(["mean", "", "", "", means[0], f"**{means[1]}**", "", *times, *[""] * 8])
    used = [column for column in range(len(head)) if any(row[column] for row in body)]
    yield from table([head[column] for column in used], [[row[column] for column in used] for row in body])
    yield from (f"* Failed: {failure}\n" for failure in run.failures())
    if "note" in run.data:
        yield f"* {run.data['note']}\n"
    yield from answers(run)
    if has_plot(run):
        yield f"![Speed over eager](plots/{run.subject}.svg)\n"


def milliseconds(row: dict[str, Any], score: dict[str, Any]) -> str:
    return f"{score.get('seconds', row['eager_seconds'] / score['speed']) * 1e3:.2f}"


def answers(run: Run) -> Iterator[str]:
    """What each compiler answers to `is_compiling()`, and Kiln with the other answer."""
    for row in run.rows():
        if row.get("asks"):
            shown = [
                f"{name.partition(',')[0]} {score['facts']['answer']}: speed {score['speed']:.2f}, "
                f"{score['facts']['breaks']} breaks"
                for name, score in row["scores"].items()
                if not score["failure"] and "answer" in score["facts"]
            ]
            yield f"* {row['row']} asks `is_compiling()`. {'; '.join(shown)}.\n"


def has_plot(run: Run) -> bool:
    """One model alone needs no plot."""
    return "results" in run.data and len(run.rows()) > 1


def compile_time(run: Run) -> Iterator[str]:
    yield run.source()
    capture, ratios = median(run.data["capture_seconds"]), run.data["depth_ratios"]
    opcodes = run.data["opcodes"]
    yield f"* Capture of BERT-base with guards: {capture * 1e3:.0f} ms (median of {len(run.data['capture_seconds'])})."
    yield (
        f"* That is {capture / opcodes * 1e6:.1f} us for each of the {opcodes:,} opcodes that eager runs; "
        f"a loop of plain Python takes {run.data['seconds_per_plain_opcode'] * 1e6:.1f} us."
    )
    yield (
        f"* First call of 48 layers over that of 12 (BERT of width 64): {median(ratios):.2f} "
        f"({', '.join(f'{ratio:.2f}' for ratio in ratios)}). Both have {run.data['kernels'][0]} kernels.\n"
    )


def bandwidth(run: Run) -> Iterator[str]:
    yield run.source()
    yield f"256 MB of bf16; share of the speed of a copy ({run.data['copy'] / 1e12:.2f} TB/s).\n"
    patterns = run.data["patterns"]
    names = list(dict.fromkeys(name.partition("/")[0] for name in patterns))
    body = [
        [name, *(digits(patterns[f"{name}/{who}"][way]) for way in ("forward", "backward") for who in (PEER, KILN))]
        for name in names
    ]
    yield from table(["pattern", "forward, torch.compile", "Kiln", "backward, torch.compile", "Kiln"], body)


def rates(run: Run) -> Iterator[str]:
    yield run.source()
    found = run.data
    body = [
        [name, f"{rate / 1e12:.0f}", " .. ".join(f"{end / 1e12:.0f}" for end in found["spread"][name])]
        for name, rate in found["rates"].items()
    ]
    yield from table(["rows of", "TFLOP/s, median", "tenths"], body)
    yield (
        f"{len(found['products'])} products in each alignment. A copy moves {found['memory'] / 1e12:.1f} TB/s; "
        f"95 % of the small products save at most {found['least'] * 1e6:.1f} us less than these rates predict.\n"
    )


def overhead(run: Run) -> Iterator[str]:
    yield run.source()
    found = run.data
    seconds_of = " and ".join(f"{value * 1e6:.1f} us ({name})" for name, value in found["seconds"].items())
    yield (
        f"* Calling a compiled 12-layer BERT that has nothing to compute, with all guards: {seconds_of}; after "
        f"{found['changes']} changes that recompile, {found['seconds_after_changes'] * 1e6:.1f} us."
    )
    noticed = found["changes"] - len(found["missed"])
    yield f"* {noticed} of {found['changes']} changes are noticed.\n"


def launch(run: Run) -> Iterator[str]:
    yield run.source()
    yield from table(["on the CPU", "us"], [[name, f"{cost:.2f}"] for name, cost in run.data["microseconds"].items()])


def distributed(run: Run) -> Iterator[str]:
    yield run.source()
    names = ["eager", PEER, KILN]
    rows = []
    for wrapper, found in run.data["runs"].items():
        rates = [found[name]["rate"] for name in names]
        peaks = [found[name]["peak"] / 1e9 for name in names]
        rows.append(
            [wrapper, *[f"{rate:,.0f}" for rate in rates], digits(rates[2] / max(rates[:2])), *map(digits, peaks)]
        )
    yield from table(["wrapper", *names, "over the better", *[f"GB of a rank, {name}" for name in names]], rows)
    yield (
        "\nTokens of all ranks per second: a Llama of 1.2 billion parameters, bf16, torch's fused AdamW. Kiln compiles "
        "the whole step, torch.compile the model. Matrix products take most of a step and run at the GPU's speed.\n"
    )


def memory(run: Run) -> Iterator[str]:
    """Time of a training step by the option `memory_budget`."""
    yield run.source()
    yield f"![Time against memory](plots/{run.subject}.svg)\n"
    head = ["`memory_budget`", "MB saved for the backward", "CPU time of a step, ms"]
    body = [[name, f"{size / 1e6:.1f}", f"{time * 1e3:.0f}"] for name, (size, time) in run.data["candidates"].items()]
    yield from table(head, body)


def curves(run: Run) -> Iterator[str]:
    """Losses of whole trainings, and what is left at their end."""
    yield run.source()
    yield (
        f"{run.data['steps']:,} steps of training of three small models, each step one region (forward, loss,\n"
        "backward, clipped gradients, AdamW, a schedule), on the same batches and noise. Error of the state: of\n"
        "parameters and statistics at the end, against the run in float64, over twice eager's. Resumed: each goes on\n"
        "from a checkpoint of the other; the largest relative difference of the next losses. A point of the plot\n"
        f'averages {run.data["point"]} steps, "at the end" is the mean of the last 50.\n'
    )
    yield f"![Losses](plots/{run.subject}.svg)\n"
    head = ["model", "loss at the end: eager", "Kiln", "float64", "error of the state", "resumed", "compiles"]
    body = []
    for name, row in run.data["models"].items():
        ends = [f"{row['ends'][who]:.4f}" for who in ("eager", "kiln", "float64")]
        ratio = row["errors"]["kiln"] / (2 * row["errors"]["eager"])
        body.append([name, *ends, f"{ratio:.2f}", f"{row['resumed']:.1e}", str(row["compiles"])])
    yield from table(head, body)


def second_derivatives(run: Run) -> Iterator[str]:
    """Speeds over eager of the two ways to compile."""
    yield run.source()
    yield (
        "CPU time of a step, median of alternating measurements. Model: the model is compiled, and the program around\n"
        "it asks for gradients with `create_graph=True`. Step: the whole step is compiled. Error: of the gradients of\n"
        "both against float64, over twice eager's.\n"
    )
    head = ["step", "ms: eager", "speed, model compiled", "speed, step compiled", "error"]
    body, speeds = [], []
    for name, row in run.data["cases"].items():
        eager, *compiled = row["seconds"].values()
        speeds.append([eager / seconds for seconds in compiled])
        body.append([name, f"{eager * 1e3:.2f}", *[f"**{speed:.2f}**" for speed in speeds[-1]], f"{row['error']:.2f}"])
    means = [f"**{geomean(list(column)):.2f}**" for column in zip(*speeds, strict=True)]
    yield from table(head, [*body, ["mean", "", *means, ""]])


EXPORTED = {"export": "torch.export", "package": "AOTInductor", "call": "AOTInductor"}


def exports(run: Run) -> Iterator[str]:
    """Seconds of Kiln and of the peer, and their quotient."""
    yield run.source()
    yield "CPU seconds of exports (medians of three) and packages (one, empty caches); a call is timed in wall time.\n"
    head = ["model", *[name for kind, peer in EXPORTED.items() for name in (f"{kind}, s: Kiln", peer, "share")]]
    body, shares = [], {kind: list[float]() for kind in EXPORTED}
    for row in run.data["exports"]:
        cells = [row["row"]]
        for kind in EXPORTED:
            ours, theirs = [median(row["times"][kind][name]) for name in ("kiln", "torch")]
            shares[kind].append(ours / theirs)
            cells += [f"{ours:.4f}", f"{theirs:.4f}", f"**{ours / theirs:.2f}**"]
        body.append(cells)
    means = [cell for kind in EXPORTED for cell in ("", "", f"**{geomean(shares[kind]):.2f}**")]
    yield from table(head, [*body, ["mean", *means]])


SECTIONS: dict[str, tuple[str, Callable[[Run], Iterator[str]]]] = {
    "cpu": ("CPU: inference in float32", models),
    "cpu-train": ("CPU: training step in float32 (loss and all gradients)", models),
    "cpu-micro": ("CPU: small patterns in float32", models),
    "cpu-memory": ("CPU: time of a training step against memory", memory),
    "cpu-curves": ("CPU: losses of whole trainings", curves),
    "cpu-second-derivatives": ("CPU: gradients of gradients", second_derivatives),
    "compile": ("CPU: time of compiling", compile_time),
    "export": ("CPU: programs and packages", exports),
    "overhead": ("CPU: entering compiled code", overhead),
    "gpu-infer": ("GPU: inference in bf16", models),
    "gpu-reduce-overhead": ("GPU: inference with CUDA graphs (`mode='reduce-overhead'`)", models),
    "gpu-train": ("GPU: training step under bf16 autocast (forward and backward)", models),
    "gpu-train-convnext": ("GPU: training step of ConvNeXt, whose error the run above had no time to compare", models),
    "gpu-train-step": ("GPU: whole training step with AdamW under bf16 autocast", models),
    "gpu-bandwidth": ("GPU: kernels against the bandwidth of memory", bandwidth),
    "gpu-distributed": ("Two GPUs: training steps", distributed),
    "gpu-launch": ("GPU: launching kernels", launch),
    "gpu-products": ("GPU: 16-bit matrix products by the alignment of their rows", rates),
}

GPU_NOTE = """\
Up to nine models compile at the same time on the cores of the machine, in the runs of first calls too: compare their
seconds only with each other. Each model is then timed alone. Eager is bound by the CPU for many of these models, so
speeds depend on the machine around the GPU.
"""

SUMMARY = {
    "cpu": "CPU inference",
    "cpu-train": "CPU training",
    "gpu-infer": "GPU inference",
    "gpu-reduce-overhead": "GPU, CUDA graphs",
    "gpu-train": "GPU training",
}


def page(runs: dict[str, Run], paths: Sequence[Path]) -> str:
    parts = [INTRODUCTION, "![Speed over eager and first call](plots/overview.svg)\n"]
    noted = False
    for subject, (title, write) in SECTIONS.items():
        if subject.startswith("gpu") and not noted:
            parts.append(f"## On a GPU\n\n{GPU_NOTE}")
            noted = True
        parts += [f"## {title}\n", *write(runs[subject])]
    shown = {runs[subject].path for subject in SECTIONS}
    parts.append("## Earlier and partial runs\n")
    for path in sorted(set(paths) - shown):
        command = json.loads(path.read_text())["command"]
        parts.append(f"* [`{path.name}`](../benchmarks/results/{path.name}): `{command}`")
    return "\n".join([*parts, ""])


def summary(runs: dict[str, Run]) -> str:
    """The table of README.md: means over the models of a suite."""
    body = []
    for subject, title in SUMMARY.items():
        run = runs[subject]
        firsts = [run.scores(name, "first_seconds") for name in (PEER, KILN)]
        speeds = [f"{geomean(run.scores(name, 'speed')):.2f}" for name in (PEER, KILN)]
        times = [seconds(geomean(values)) if values else "" for values in firsts]
        body.append(
            [title, str(len(run.rows())), speeds[0], f"**{speeds[1]}**", times[0], times[1] and f"**{times[1]}**"]
        )
    head = ["", "models", "speed over eager: torch.compile", "Kiln", "first call, s: torch.compile", "Kiln"]
    return "\n".join(table(head, body))


def svg(draw: Callable[[Any], None], width: float, height: float) -> str:
    """A plot as text that is the same in every run."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "kiln", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return re.sub(r"[ \t]+\n", "\n", text.getvalue())


def bars(axes: Any, labels: Sequence[str], values: dict[str, list[float]]) -> None:
    """Two bars for each label."""
    for number, (name, heights) in enumerate(values.items()):
        at = [index + 0.4 * number - 0.2 for index in range(len(labels))]
        axes.bar(at, heights, 0.38, label="Kiln" if name == KILN else name, color=COLORS[name])
    axes.set_xticks(range(len(labels)), labels, rotation=35, ha="right")
    axes.spines[["top", "right"]].set_visible(False)


def draw_models(run: Run) -> Callable[[Any], None]:
    def draw(figure: Any) -> None:
        axes = figure.subplots()
        bars(axes, [row["row"] for row in run.rows()], {name: run.scores(name, "speed") for name in (PEER, KILN)})
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set_ylabel("speed (eager = 1)")
        axes.legend(frameon=False)

    return draw


def draw_curves(run: Run) -> Callable[[Any], None]:
    """Kiln's curve as dots on eager's line: where they part, it shows."""

    def draw(figure: Any) -> None:
        models = run.data["models"]
        for axes, (name, row) in zip(figure.subplots(1, len(models)), models.items(), strict=True):
            steps = range(run.data["point"], run.data["steps"] + 1, run.data["point"])
            axes.plot(steps, row["losses"]["eager"], linewidth=1, label="eager", color="black")
            axes.plot(steps, row["losses"]["kiln"], ":", linewidth=3, label=KILN, color=COLORS[KILN])
            axes.set_title(name)
            axes.set_xlabel("step")
            axes.spines[["top", "right"]].set_visible(False)
        figure.axes[0].set_ylabel("loss")
        figure.axes[0].legend(frameon=False)

    return draw


def draw_memory(run: Run) -> Callable[[Any], None]:
    def draw(figure: Any) -> None:
        axes = figure.subplots()
        points = {name: (size / 1e6, time * 1e3) for name, (size, time) in run.data["candidates"].items()}
        axes.plot(*points["eager"], "s", color=COLORS[PEER], label="eager")
        del points["eager"]
        axes.plot(*zip(*points.values(), strict=True), "o-", color=COLORS[KILN], label="Kiln")
        for name, point in points.items():
            axes.annotate(name, point, textcoords="offset points", xytext=(4, 4))
        axes.set_xlabel("saved for the backward, MB")
        axes.set_ylabel("CPU time of a step, ms")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)

    return draw


def draw_overview(runs: dict[str, Run]) -> Callable[[Any], None]:
    def draw(figure: Any) -> None:
        speed, first = figure.subplots(1, 2, width_ratios=(5, 4))
        names = (PEER, KILN)
        bars(
            speed,
            list(SUMMARY.values()),
            {name: [geomean(runs[key].scores(name, "speed")) for key in SUMMARY] for name in names},
        )
        speed.axhline(1.0, color="black", linewidth=0.8)
        speed.set_title("Speed, eager = 1")
        speed.legend(frameon=False, loc="upper left")
        timed = {key: title for key, title in SUMMARY.items() if runs[key].scores(KILN, "first_seconds")}
        bars(
            first,
            list(timed.values()),
            {name: [geomean(runs[key].scores(name, "first_seconds")) for key in timed] for name in names},
        )
        first.set_yscale("log")
        first.set_ylim(0.5, 100)
        first.set_yticks([1, 10, 100], ["1", "10", "100"])
        first.set_title("First call, seconds")

    return draw


def files() -> dict[Path, str]:
    """Every file that this command writes, with its text."""
    paths = sorted(RESULTS.glob("*.json"))
    runs = newest(paths)
    before, _, rest = README.read_text().partition(MARKS[0])
    plots = {"overview": svg(draw_overview(runs), 7.5, 3.2)}
    plots["cpu-memory"] = svg(draw_memory(runs["cpu-memory"]), 5, 3.2)
    plots["cpu-curves"] = svg(draw_curves(runs["cpu-curves"]), 8, 2.6)
    for subject in SECTIONS:
        if has_plot(runs[subject]):
            plots[subject] = svg(draw_models(runs[subject]), 2 + 0.45 * len(runs[subject].rows()), 3)
    return {
        PAGE: page(runs, paths),
        README: before + MARKS[0] + summary(runs) + MARKS[1] + rest.partition(MARKS[1])[2],
        **{ROOT / "docs" / "plots" / f"{name}.svg": text for name, text in plots.items()},
    }


def main() -> int:
    wanted = files()
    if "--check" in sys.argv[1:]:
        behind = [
            str(path.relative_to(ROOT))
            for path, text in wanted.items()
            if not path.exists() or path.read_text() != text
        ]
        print("\n".join(behind))
        return bool(behind)
    for path, text in wanted.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
