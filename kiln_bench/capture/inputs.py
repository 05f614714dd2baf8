"""Inputs of a model, made from the signature of its forward and its config.

    for attempt in attempts(model):       a few sets of arguments, the richest first
        model(**attempt())

A maker for each name of an argument; the number of image tokens in a text is that of the model's own image features.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import cast, final

import torch
from torch import Tensor, nn

from kiln_bench.capture.architectures import Config, config_like, integers, members, nested
from kiln_bench.capture.subject import Inputs

BATCH, LENGTH, FRAMES = 2, 12, 4


def text_config(config: Config) -> Config:
    """The config of the text that it writes, where it has one for what it reads, too."""
    try:
        return config.get_text_config()
    except ValueError:
        return config.get_text_config(decoder=True)


@final
class Maker:
    """Makes arguments for one model."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.config: Config = cast(Config, model.config)
        self.text = text_config(self.config)
        self.all = dict(reversed(list(nested(self.config))))
        self.image_tokens = 0
        self.tiles = 0
        """Parts into which an image is cut, on an axis of their own; 0: no such axis."""

    def read(self, *names: str, default: int) -> int:
        """The first of these fields in the config, or in one in it."""
        for config in (self.config, *[value for value in members(self.config).values() if config_like(value)]):
            for name in names:
                found = integers(getattr(config, name, None))
                if found:
                    return found[0]
        for name in names:
            found = integers(self.all.get(name))
            if found:
                return found[0]
        return default

    def of_images(self, *names: str, default: int) -> int:
        for part in ("vision_config", "backbone_config", "image_encoder_config"):
            config = getattr(self.config, part, None)
            if config is not None:
                for name in names:
                    found = integers(getattr(config, name, None))
                    if found:
                        return found[0]
        return self.read(*names, default=default)

    # -------------------------------------------------------------------------------------------- text

    def special(self) -> set[int]:
        names = ("token_id", "token_ids", "token_index")
        return {n for name, value in nested(self.config) if name.endswith(names) for n in integers(value)}

    def tokens(self, length: int = LENGTH, batch: int = BATCH) -> Tensor:
        vocabulary = self.read_text("vocab_size", default=100)
        free = [n for n in range(3, min(vocabulary, 400)) if n not in self.special()] or [0]
        return torch.tensor(free)[torch.randint(len(free), (batch, length))]

    def read_text(self, name: str, default: int) -> int:
        return (integers(getattr(self.text, name, None)) or [self.read(name, default=default)])[0]

    def input_ids(self) -> Tensor:
        length = min(LENGTH, self.read_text("max_position_embeddings", default=LENGTH))
        tokens = self.tokens(length)
        end = integers(getattr(self.text, "eos_token_id", None))
        if end:
            tokens[:, -1] = end[0]
        image = self.image_token()
        if self.image_tokens and image is not None:
            middle = torch.full((self.images(), self.image_tokens // self.images()), image)
            tokens = tokens[: self.images()]
            tokens = torch.cat([tokens[:, :2], middle, tokens[:, 2:]], dim=1)
        return tokens

    def image_token(self) -> int | None:
        for name in (
            "image_token_id",
            "image_token_index",
            "img_context_token_id",
            "audio_token_id",
            "audio_token_index",
        ):
            found = integers(getattr(self.config, name, None))
            if found:
                return found[0]
        return None

    # -------------------------------------------------------------------------------------------- images

    def images(self) -> int:
        return 1 if self.image_tokens or "image_grid_thw" in self.parameters() else BATCH

    def sides(self) -> tuple[int, int]:
        for config in (getattr(self.config, "vision_config", None), self.config, *members(self.config).values()):
            found = integers(getattr(config, "image_size", None)) or integers(getattr(config, "img_size", None))
            if found:
                return (found * 2)[0], (found * 2)[1]
        return (224, 224)

    def channels(self) -> int:
        return self.of_images("num_channels", "in_channels", "in_chans", default=3)

    def parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(type(self.model).forward).parameters

    def grid(self) -> Tensor:
        merge = self.of_images("spatial_merge_size", default=2)
        return torch.tensor([[1, 2 * merge, 3 * merge]])

    def pixel_values(self) -> Tensor:
        names = self.parameters()
        if {"image_grid_thw", "grid_thw"} & set(names):
            patch, temporal = self.of_images("patch_size", default=14), self.of_images("temporal_patch_size", default=1)
            return torch.randn(int(self.grid().prod()), self.channels() * patch * patch * temporal)
        shape = (self.tiles, self.channels()) if self.tiles else (self.channels(),)
        return torch.randn(self.images(), *shape, *self.sides())

    def video(self) -> Tensor:
        frames = self.of_images("num_frames", "frames_per_clip", default=FRAMES)
        if "video_grid_thw" in self.parameters():
            return self.pixel_values()
        return torch.randn(1, frames, self.channels(), *self.sides())

    # -------------------------------------------------------------------------------------------- sound and series

    def wave(self) -> Tensor:
        return torch.randn(1, 1, 8000) if self.all.get("audio_channels") else torch.randn(1, 8000)

    def spectrogram(self) -> Tensor:
        mels = self.read("num_mel_bins", "n_mels", "input_feat_per_channel", "feature_size", default=80)
        frames = 2 * self.read("max_source_positions", default=50)
        steps = torch.randn(1, mels, min(frames, 3000))
        return steps if "whisper" in self.config.model_type or "audio_config" in vars(self.config) else steps.mT

    def series(self) -> Tensor:
        lags = max(integers(self.all.get("lags_sequence")) or [0])
        length = self.read("context_length", default=64) + lags
        width = self.read("num_input_channels", "input_size", default=1)
        return torch.rand(2, length, width) if width > 1 or not lags else torch.rand(2, length)


def image_sizes(maker: Maker) -> Tensor:
    return torch.tensor([maker.sides()] * maker.images())


def boxes(maker: Maker) -> Tensor:
    boxes = torch.randint(0, 100, (*maker.input_ids().shape, 4))
    return torch.cat([boxes[..., :2], boxes[..., :2] + boxes[..., 2:]], dim=-1)


def hidden(maker: Maker) -> Tensor:
    return torch.randn(BATCH, LENGTH, maker.read("hidden_size", "d_model", default=64))


def mask(maker: Maker) -> Tensor:
    return torch.ones_like(maker.input_ids())


MAKERS: Mapping[str, Callable[[Maker], Tensor | bool]] = {
    "input_ids": Maker.input_ids,
    "attention_mask": mask,
    "decoder_input_ids": Maker.tokens,
    "decoder_attention_mask": lambda maker: torch.ones(BATCH, LENGTH, dtype=torch.long),
    "decoder_inputs_embeds": hidden,
    "pixel_values": Maker.pixel_values,
    "pixel_values_videos": Maker.video,
    "grid_thw": Maker.grid,
    "image_grid_thw": Maker.grid,
    "video_grid_thw": Maker.grid,
    "image_sizes": image_sizes,
    "mm_token_type_ids": lambda maker: torch.eq(maker.input_ids(), maker.image_token() or 0).int(),
    "input_values": Maker.wave,
    "input_features": Maker.spectrogram,
    "past_values": Maker.series,
    "past_observed_mask": lambda maker: torch.ones_like(maker.series()),
    "past_time_features": lambda maker: torch.rand(
        *maker.series().shape[:2], maker.read("num_time_features", default=1)
    ),
    "future_time_features": lambda maker: torch.rand(
        2, maker.read("prediction_length", default=8), maker.read("num_time_features", default=1)
    ),
    "future_values": lambda maker: torch.rand(2, maker.read("prediction_length", default=8)),
    "bbox": boxes,
    "hidden_states": lambda maker: maker.pixel_values() if "grid_thw" in maker.parameters() else hidden(maker),
    "inputs_embeds": hidden,
    "state": hidden,
    "inputs": Maker.input_ids,
    "qformer_input_ids": Maker.tokens,
    "return_loss": lambda maker: False,
    "aspect_ratio_ids": lambda maker: torch.ones(maker.images(), 1, dtype=torch.long),
    "aspect_ratio_mask": lambda maker: torch.ones(maker.images(), 1, 4, dtype=torch.long),
    "task_inputs": lambda maker: torch.randint(1, 50, (BATCH, 77)),
    "pixel_attention_mask": lambda maker: torch.ones(maker.images(), 16, dtype=torch.long),
    "bool_masked_pos": lambda maker: torch.zeros(BATCH, 196, dtype=torch.bool),
}


def attempts(model: nn.Module) -> Iterator[Callable[[], Inputs]]:
    """Arguments to try, the richest first: those without a default, text and images, then fewer."""
    maker = Maker(model)
    named = maker.parameters()
    needed = [
        name
        for name, parameter in named.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL) and name != "self"
    ]  # fmt: skip
    main = getattr(model, "main_input_name", "input_ids")
    wanted = [*needed, *([main] if isinstance(main, str) and main in named else [])]
    media = [name for name in ("pixel_values", "input_features", "input_values") if name in named]
    grids = [name for name in ("image_grid_thw", "image_sizes", "mm_token_type_ids") if name in named]
    text = [name for name in ("input_ids", "attention_mask", "bbox") if name in named]
    decoder = ["decoder_input_ids"] if "decoder_input_ids" in named else []
    tried: list[list[str]] = []
    for names in (
        [*wanted, *text, *media, *grids, *decoder], [*wanted, *text, *media[:1], *decoder],
        [*wanted, *text[:1], *decoder], [*wanted, *media[:1], *decoder], [*wanted], [*text[:1]],
        [*wanted, "decoder_inputs_embeds"],
    ):  # fmt: skip
        chosen = [name for name in dict.fromkeys(names) if name in MAKERS]
        if "input_ids" not in chosen and "attention_mask" not in needed:
            chosen = [name for name in chosen if name != "attention_mask"]
        if chosen not in tried and set(needed) <= set(chosen):
            tried.append(chosen)
            frames = maker.of_images("num_frames", "frames_per_clip", "num_concurrent_media", default=2)
            for tiles in (0, 1, 3, frames) if "pixel_values" in chosen and "grid_thw" not in str(chosen) else (0,):
                yield functools.partial(made, maker, chosen, tiles)
    codes = integers(maker.all.get("num_codebooks"))
    if "input_ids" in named and codes:
        yield lambda: {
            "input_ids": maker.input_ids().repeat_interleave(codes[0], dim=0),
            "attention_mask": mask(maker),
        }  # several codes for each step of a sound
    if "input_ids" in named:
        yield lambda: {
            name: torch.stack([torch.as_tensor(MAKERS[name](maker))] * 2, dim=1) for name in text
        }  # texts to choose from


def made(maker: Maker, names: list[str], tiles: int) -> Inputs:
    maker.tiles = tiles
    maker.image_tokens = 0
    inputs: Inputs = {}
    media = [name for name in names if name in ("pixel_values", "input_features", "input_values")]
    for name in media:
        inputs[name] = MAKERS[name](maker)
    if media and "input_ids" in names and maker.image_token() is not None:
        maker.image_tokens = feature_count(maker, inputs)
    torch.manual_seed(0)
    for name in names:
        if name not in inputs:
            torch.manual_seed(1)
            inputs[name] = MAKERS[name](maker)
    if maker.image_tokens:
        for name in media:
            value = inputs[name]
            if isinstance(value, Tensor) and "image_grid_thw" not in names:
                inputs[name] = value[: maker.images()]
    return inputs


def feature_count(maker: Maker, inputs: Inputs) -> int:
    """Tokens that the model's own features of the first image (or sound) take."""
    for method, name in (("get_image_features", "pixel_values"), ("get_audio_features", "input_features")):
        for owner in (maker.model, getattr(maker.model, "model", None)):
            function = getattr(owner, method, None)
            if function is None or name not in inputs:
                continue
            arguments: Inputs = {name: inputs[name]}
            accepted = inspect.signature(function).parameters
            for extra in ("image_grid_thw", "image_sizes"):
                if extra in accepted:
                    arguments[extra] = MAKERS[extra](maker)
            with torch.no_grad():
                found = function(**arguments)
            features = getattr(found, "pooler_output", found)
            rows = rows_of(features)
            grid = "image_grid_thw" in accepted
            return rows if grid else rows // max(1, maker.images())
    return 0


def rows_of(features: object) -> int:
    """Vectors of a tensor, or of all tensors in a sequence."""
    if isinstance(features, Tensor):
        return features.numel() // features.shape[-1]
    if isinstance(features, list | tuple):
        return sum([rows_of(part) for part in features])
    return 0
