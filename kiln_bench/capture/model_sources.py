"""Where the models of the suite `capture` come from.

    for entry in entries(["transformers", "timm", "torch", "research"]):
        subject = entry.build()

Of transformers each class of model; of timm the smallest model of each series ("resnet", "seresnext") of each of its
files; of torch each module of its database, with the first inputs that the database has; of `research/` each class,
with calls of other sizes.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

import torch
from torch import nn

from kiln.support.optional import load_required
from kiln_bench.capture import research
from kiln_bench.capture.architectures import SIZES, Architecture, architectures, small_config
from kiln_bench.capture.inputs import attempts
from kiln_bench.capture.research.sample import SAMPLES, Sample
from kiln_bench.capture.subject import MOST_PARAMETERS, CaptureEntry, Inputs, NotBuilt, Subject, not_built, with_inputs
from kiln_bench.databases import database


def entries(libraries: Sequence[str]) -> Iterator[CaptureEntry]:
    """All models of these libraries.

    Raises:
        KeyError: for a library that is not in `LIBRARIES`.
        MissingPackage: for one that is not installed.
    """
    for library in libraries:
        yield from LIBRARIES[library]()


def number_of_parameters(make: Callable[[], nn.Module]) -> int:
    with torch.device("meta"):
        return sum([parameter.numel() for parameter in make().parameters()])


# ------------------------------------------------------------------------------------------------ transformers


def of_transformers() -> Iterator[CaptureEntry]:
    load_required("transformers", purpose="its architectures").logging.set_verbosity_error()
    yield from map(entry_of, architectures())


def entry_of(architecture: Architecture) -> CaptureEntry:
    return CaptureEntry(architecture.family, architecture.title, functools.partial(small_model, architecture))


def small_model(architecture: Architecture) -> Subject:
    """The smallest model of the class that runs, with inputs."""
    problems: list[str] = []
    for size in SIZES:
        torch.manual_seed(0)
        try:
            config = small_config(architecture.config_class, size)
            if getattr(config, "pad_token_id", 0) is None:
                setattr(config, "pad_token_id", 0)  # noqa: B010 - not a field of the protocol
            make = functools.partial(architecture.model_class, config)
            count = number_of_parameters(make)
            if count > MOST_PARAMETERS:
                problems.append(f"{count} parameters")
                continue
            model = make().eval()
        except Exception as problem:
            problems.append(f"{type(problem).__name__}: {problem}")
            continue
        found = with_inputs(architecture.title, model, attempts(model), problems)
        if found is not None:
            return found
    raise not_built(problems)


# ------------------------------------------------------------------------------------------------ timm

SMALL = ("test", "atto", "femto", "pico", "nano", "xxxs", "xxs", "tiny", "_t", "xs", "small", "_s", "_0", "18", "b0")
"""Parts of names of small models, the smallest first."""
SERIES = re.compile(r"[a-z]+")


def of_timm() -> Iterator[CaptureEntry]:
    timm = load_required("timm", purpose="its models")
    for file in timm.list_modules():
        series: dict[str, list[str]] = {}
        for name in timm.list_models(module=file):
            series.setdefault(cast("re.Match[str]", SERIES.match(name))[0], []).append(name)
        for names in series.values():
            smallest = sorted(names, key=place_by_size)[:3]
            yield CaptureEntry(
                "timm", f"timm.{smallest[0]}", functools.partial(timm_model, timm.create_model, smallest)
            )


def place_by_size(name: str) -> tuple[int, str]:
    return next((place for place, part in enumerate(SMALL) if part in name), len(SMALL)), name


def timm_model(create: Callable[[str], nn.Module], names: Sequence[str]) -> Subject:
    """The first of `names` that runs, with two images of the size that it is made for."""
    problems: list[str] = []
    for name in names:
        torch.manual_seed(0)
        try:
            if number_of_parameters(functools.partial(create, name)) > MOST_PARAMETERS:
                continue
            model = create(name).eval()
            [argument] = list(inspect.signature(model.forward).parameters)[:1]
            size = cast(Mapping[str, Sequence[int]], model.pretrained_cfg)["input_size"]
        except Exception as problem:
            problems.append(f"{type(problem).__name__}: {problem}")
            continue
        images = functools.partial(named_images, argument, size)
        found = with_inputs(f"timm.{names[0]}", model, [images], problems)
        if found is not None:
            return found
    raise not_built(problems)


def named_images(argument: str, size: Sequence[int]) -> Inputs:
    return {argument: torch.randn(2, *size)}


# ------------------------------------------------------------------------------------------------ torch


def of_torch() -> Iterator[CaptureEntry]:
    for number, info in enumerate(database("common_modules").module_db):
        yield CaptureEntry("torch", f"torch.{info.name}", functools.partial(torch_module, number))


def torch_module(number: int) -> Subject:
    """The first entry of the database for a module; what it is called with by place gets its names."""
    info = database("common_modules").module_db[number]
    problems: list[str] = []
    settings = {"device": "cpu", "dtype": torch.float32, "requires_grad": False, "training": False}
    for found in info.module_inputs_func(info, **settings):
        if found.forward_input is None:
            continue
        torch.manual_seed(0)
        made, given = found.constructor_input, found.forward_input
        try:
            model = info.module_cls(*made.args, **made.kwargs).eval()
            inputs = inspect.signature(model.forward).bind(*given.args, **given.kwargs).arguments
        except Exception as problem:
            problems.append(f"{type(problem).__name__}: {problem}")
            continue
        subject = with_inputs(f"torch.{info.name}", model, [functools.partial(dict, inputs)], problems)
        if subject is not None:
            return subject
    raise not_built(problems) if problems else NotBuilt("the database has no inputs for a CPU")


# ------------------------------------------------------------------------------------------------ research


def of_research() -> Iterator[CaptureEntry]:
    for file in pkgutil.iter_modules(research.__path__):
        importlib.import_module(f"{research.__name__}.{file.name}")
    for name, found in SAMPLES.items():
        yield CaptureEntry(found.field, f"research.{name}", functools.partial(research_module, name, found))


def research_module(name: str, found: Sample) -> Subject:
    inputs, *more = found.calls()
    return Subject(f"research.{name}", found.model().eval(), inputs, tuple(more))


LIBRARIES: Mapping[str, Callable[[], Iterator[CaptureEntry]]] = {
    "transformers": of_transformers, "timm": of_timm, "torch": of_torch, "research": of_research,
}  # fmt: skip
