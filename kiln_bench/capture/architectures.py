"""The model classes of the installed transformers, and small configs of them.

    for architecture in architectures(transformers):
        for size in SIZES:
            model = architecture.model_class(small_config(architecture.config_class, size))

A class counts if it has a `forward` of its own and is a base model (`BertModel`) or a task (`BertForMaskedLM`).

A config is made small by one rule for all: widths are divided by one number, so that equal widths stay equal and sums
of widths stay sums; there are few layers; images and vocabularies are small. Where no model can be built or run, the
next of `SIZES` is tried.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from types import ModuleType
from typing import Protocol, TypeAlias, cast, final

from torch import nn

from kiln.support.optional import load_required
from kiln.support.records import dataclass


class Config(Protocol):
    """What is used of transformers' `PreTrainedConfig`; all else is read by `getattr`."""

    model_type: str

    def get_text_config(self, decoder: bool | None = None) -> Config: ...


ConfigClass: TypeAlias = Callable[..., Config]


@final
@dataclass(frozen=True, slots=True)
class Architecture:
    family: str
    """The folder of transformers, such as "bert"."""
    name: str
    model_class: type[nn.Module]

    @property
    def config_class(self) -> ConfigClass:
        """That which the constructor names, or the family's."""
        own = getattr(self.model_class, "config_class")  # noqa: B009
        named = inspect.get_annotations(self.model_class.__init__).get("config")
        if isinstance(named, str):
            named = getattr(sys.modules[self.model_class.__module__], named, None)
        return cast(ConfigClass, named if isinstance(named, type) and hasattr(named, "model_type") else own)

    @property
    def title(self) -> str:
        return f"{self.family}.{self.name}"


@final
@dataclass(frozen=True, slots=True)
class Size:
    """How small a config is made; `vocabulary` and `image` 0: as they are."""

    width: int
    """The widest hidden size is about this."""
    layers: int
    vocabulary: int = 1024
    image: int = 224
    fewer_heads: bool = False
    """Divide the numbers of heads too, not the widths of heads."""
    filled: bool = False
    """Give numbers to fields that have none, and leave lists as long as they are."""


SIZES = (
    Size(128, 2), Size(256, 2), Size(128, 2, fewer_heads=True), Size(512, 2), Size(1024, 2),
    Size(128, 8), Size(128, 4, 0, 0), Size(512, 4, 0, 0, fewer_heads=True), Size(128, 10**6), Size(10**6, 2, 0, 0),
    Size(128, 2, fewer_heads=True, filled=True), Size(256, 2, filled=True), Size(512, 4, 0, 0, True, True),
)  # fmt: skip
"""In the order in which they are tried."""


def architectures() -> Iterator[Architecture]:
    """All, by family and name. Files that need packages that are not installed are left out."""
    transformers = load_required("transformers", purpose="its architectures")
    base: type[nn.Module] = transformers.PreTrainedModel
    models = importlib.import_module("transformers.models")
    for folder in pkgutil.iter_modules(models.__path__):
        package = f"transformers.models.{folder.name}"
        for file in sorted(pkgutil.iter_modules(importlib.import_module(package).__path__)):
            if file.name.startswith("modeling_"):
                for found in model_classes(f"{package}.{file.name}", base):
                    yield Architecture(folder.name, found.__name__, found)


def model_classes(file: str, base: type[nn.Module]) -> list[type[nn.Module]]:
    try:
        module: ModuleType = importlib.import_module(file)
    except ImportError:
        return []
    return [
        value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, base) and value.__module__ == file
        if (name.endswith("Model") or "For" in name) and not name.endswith("PreTrainedModel")
        if "forward" in vars(value)
    ]


# ------------------------------------------------------------------------------------------------ small configs

LAYERS = re.compile(r"(layers|n_layer|^depth|^depths|_depth|num_blocks)$")
WIDTH = re.compile(
    r"(hidden|intermediate|dim|width|d_model|d_ff|d_kv|d_inner|n_embd|n_inner|embed|channels|filters|rank|projection"
    r"|embedding_size|ffn)"
)
MAIN_WIDTH = re.compile(r"(hidden|d_model|n_embd|embed_dim|^dim$)")
NOT_WIDTH = re.compile(
    r"(layer|heads|head_num|num_(?!channels|filters)|vocab|image|patch|kernel|stride|window|position|max_|_id$|ids$"
    r"|groups|bins|size_per|ratio|codebook_size)"
)
HEADS = re.compile(r"heads$|n_head$")
HEAD_WIDTH = re.compile(r"(head_dim|d_kv|kv_channels|head_size)$")
IMAGE = re.compile(r"^(image|input|img)_size$")
VOCABULARY = re.compile(r"^(vocab_size|n_vocab|decoder_vocab_size|entity_vocab_size)$")
EXPERTS = re.compile(r"^(num|n)_(local_|routed_)?experts$")
MOST_EXPERTS = 16
MISSED: dict[str, object] = {
    **dict.fromkeys(("vocab_size", "feature_size"), 64),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_key_value_heads", "n_group", "topk_group"), 1),
    **dict.fromkeys(("prediction_length", "sliding_window", "context_length"), 8),
    "rope_theta": 10000.0,
}
"""What fields get that have no number and need one."""
TOKEN = re.compile(r"(token_id|token_ids|token_index|_id|_ids)$")


def small_config(config_class: ConfigClass, size: Size) -> Config:
    """The default config, made small."""
    default = config_class()
    return Shrinking(default, size).config(default)


def config_like(value: object) -> bool:
    return hasattr(value, "model_type") and hasattr(value, "get_text_config")


def members(config: object) -> dict[str, object]:
    return {name: value for name, value in vars(config).items() if not name.startswith("_")}


def nested(config: object) -> Iterator[tuple[str, object]]:
    """Names and values of a config and of the configs in it."""
    for name, value in members(config).items():
        if config_like(value):
            yield from nested(value)
        yield name, value


def integers(value: object) -> list[int]:
    if isinstance(value, int) and not isinstance(value, bool):
        return [value]
    if isinstance(value, list | tuple):
        return [number for item in value for number in integers(item)]
    return []


def is_width(name: str) -> bool:
    return WIDTH.search(name) is not None and NOT_WIDTH.search(name) is None


def is_computed(declared: Field[object], value: object) -> bool:
    """Whether a field without a default has its value from others."""
    if declared.default is not None or declared.default_factory is not MISSING:
        return False
    return TOKEN.search(declared.name) is None and not (isinstance(value, dict) and "mrope_section" in value)


def head_dim(default: object, changes: dict[str, object]) -> dict[str, object]:
    width, heads = [changes.get(name, getattr(default, name, None)) for name in ("hidden_size", "num_attention_heads")]
    return {"head_dim": width // heads} if isinstance(width, int) and isinstance(heads, int) else {}


class Shrinking:
    """The one rule, for a config with all that are in it."""

    def __init__(self, config: object, size: Size) -> None:
        entries = list(nested(config))
        widest = max(
            [n for name, value in entries if is_width(name) and MAIN_WIDTH.search(name) for n in integers(value)] or [1]
        )
        self.size, self.divisor = size, 1
        while widest // (self.divisor * 2) >= size.width:
            self.divisor *= 2
        vocabularies = [n for name, value in entries if VOCABULARY.match(name) for n in integers(value)]
        self.vocabulary = size.vocabulary if size.vocabulary and max(vocabularies or [0]) > size.vocabulary else 0
        tokens = {n for name, value in entries if TOKEN.search(name) for n in integers(value) if n >= self.vocabulary}
        self.tokens = {token: self.vocabulary - 1 - place for place, token in enumerate(sorted(tokens, reverse=True))}
        self.deep = {n for name, value in entries if LAYERS.search(name) for n in integers(value) if n > size.layers}

    def config(self, default: object) -> Config:
        """A config of the class of `default`, made from what its constructor takes."""
        assert is_dataclass(default)
        config_class = cast(ConfigClass, type(default))
        known = {field.name: field for field in fields(default) if field.init}
        changes: dict[str, object] = {}
        for name, value in members(default).items():
            if name not in known:
                continue
            if config_like(value):
                changes[name] = self.config(value)
            elif value is None:
                changes |= {name: MISSED[name]} if self.size.filled and name in MISSED else {}
            elif not is_computed(known[name], value) and (smaller := self.value(name, value)) != value:
                changes[name] = smaller
        if self.size.filled and "head_dim" in known and getattr(default, "head_dim", 0) is None:
            changes |= head_dim(default, changes)
        return config_class(**changes)

    def value(self, name: str, value: object) -> object:
        if isinstance(value, bool):
            return value
        if isinstance(value, int):
            return self.integer(name, value)
        if isinstance(value, dict):
            return {key: self.sections(item) if key == "mrope_section" else item for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.items(name, value))
        return value

    def items(self, name: str, values: Sequence[object]) -> list[object]:
        if len(values) in self.deep and not self.size.filled:  # an entry for each layer
            values = self.layers(values)
        return [self.value(name, value) for value in values]

    def layers(self, values: Sequence[object]) -> list[object]:
        """The first ones, and the last; of kinds of layers, one of each first."""
        if not all([isinstance(value, str) for value in values]):
            return [*values[: self.size.layers - 1], values[-1]]
        order = dict.fromkeys([*[values.index(value) for value in values], *range(len(values))])
        return [values[place] for place in sorted([*order][: self.size.layers])]

    def sections(self, value: object) -> object:
        """Parts of a head, whose sum is divided like its width; what is left goes to the largest remainders."""
        numbers = integers(value)
        if self.size.fewer_heads:
            return value
        parts = [number // self.divisor for number in numbers]
        order = sorted(range(len(numbers)), key=lambda place: -(numbers[place] % self.divisor))
        for place in order[: sum(numbers) // self.divisor - sum(parts)]:
            parts[place] += 1
        return parts

    def integer(self, name: str, value: int) -> int:
        if LAYERS.search(name):
            return min(value, self.size.layers)
        if EXPERTS.search(name):
            return min(value, MOST_EXPERTS)
        if VOCABULARY.match(name) and self.vocabulary:
            return min(value, self.vocabulary)
        if TOKEN.search(name) and self.vocabulary:
            return self.tokens.get(value, value)
        if IMAGE.match(name) and self.size.image:
            return value if value <= 2 * self.size.image else value // 4
        if self.size.fewer_heads and HEADS.search(name):
            return max(1, value // self.divisor)
        if self.size.fewer_heads and HEAD_WIDTH.search(name):
            return value
        if is_width(name) and value >= 16 and value % self.divisor == 0:
            return value // self.divisor
        return value
