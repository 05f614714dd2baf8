"""What the options switch off, and the target of a compile with it.

    options={"disable": "cse+memory-reuse"}        switched_off(options) == ("cse", "memory-reuse")

`numerics` and `collectives` switch off what their contracts do not allow. Names travel in `Target.without`, which
every pass sees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from kiln.support.late import late
from kiln.support.options import Options
from kiln.support.target import Target

if TYPE_CHECKING:
    from kiln.pipeline.switches import check_switches
else:
    check_switches = late("kiln.pipeline.switches", "check_switches")

NUMERICS: Mapping[str, tuple[str, ...]] = {
    "fast": (),
    "rounded": ("fast-math",),
    "strict": (
        "add-embedding", "align-products", "channels-last", "convolution-bias", "depthwise-lines", "fast-math",
        "fuse-erf", "lines-as-images", "lines-as-products", "one-hot-sums", "online-softmax", "resample-in-steps",
        "sum-before-reduce", "unfuse-bias", "wide-sums",
    ),
}  # fmt: skip
"""What a contract switches off: other orders of sums, other functions, other algorithms of libraries."""

COLLECTIVES: Mapping[str, tuple[str, ...]] = {
    "as_written": ("bucket-all-reduces", "sum-before-reduce"),
    "joined": (),
}
"""What changes the messages between ranks."""


def switched_off(options: Options) -> tuple[str, ...]:
    """In the order of the alphabet. Raises UnknownSwitch."""
    given = {name for name in options.disable.split("+") if name}
    if given:
        check_switches(given)
    return tuple(sorted(given.union(NUMERICS[options.numerics], COLLECTIVES[options.collectives])))


def target_for(options: Options, host: Target) -> Target:
    """`host` with what `options` and torch's settings ask for."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    rounds = options.numerics != "fast"
    without = switched_off(options)
    return replace(host, deterministic=deterministic, rounds=rounds, graphs=options.cuda_graphs, without=without)
