"""The suite `capture`: small configs, inputs, processes, and what a trial finds."""

from __future__ import annotations

import os
import random
import time

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Blip2QFormerConfig,
    Blip2QFormerModel,
    GPT2LMHeadModel,
    InformerConfig,
    LlamaConfig,
    Qwen2VLConfig,
    SwinConfig,
)

from kiln.programs.dims import Dim
from kiln_bench.capture.architectures import Architecture, Shrinking, Size, small_config
from kiln_bench.capture.exported import free_sizes
from kiln_bench.capture.inputs import text_config
from kiln_bench.capture.main import table
from kiln_bench.capture.model_sources import entries, entry_of, place_by_size, timm_model
from kiln_bench.capture.subject import NotBuilt, Subject
from kiln_bench.capture.trial import calls_of, difference, export_trial, trial, trials
from kiln_bench.children import Tell, Told, in_children

GPT2 = Architecture("gpt2", "GPT2LMHeadModel", GPT2LMHeadModel)


def test_widths_are_divided_by_one_number() -> None:
    config = small_config(LlamaConfig, Size(128, 2))
    assert (config.hidden_size, config.intermediate_size, config.num_attention_heads) == (128, 344, 32)
    assert (config.num_hidden_layers, config.vocab_size) == (2, 1024)


def test_heads_are_fewer_and_keep_their_width() -> None:
    config = small_config(LlamaConfig, Size(128, 2, fewer_heads=True))
    assert (config.hidden_size, config.num_attention_heads, config.head_dim) == (128, 1, 128)


def test_lists_of_widths_and_layers() -> None:
    """A list with an entry for each stage keeps the first and the last."""
    config = small_config(SwinConfig, Size(128, 2))
    assert (config.embed_dim, config.depths, config.num_heads) == (24, (2, 2), (3, 24))


def test_kinds_of_layers_and_sections_of_heads() -> None:
    """One layer of each kind; parts of a head have the sum that its width has."""
    kinds = ["linear", "linear", "linear", "full", "linear", "full"]
    rule = Shrinking(LlamaConfig(num_hidden_layers=6, hidden_size=4096), Size(128, 2))
    assert rule.layers(kinds) == ["linear", "full"]
    assert rule.sections([24, 36, 36]) == [1, 1, 1] and rule.sections([8, 12, 12]) == [0, 1, 0]


def test_fields_without_a_number() -> None:
    config = small_config(InformerConfig, Size(128, 2, filled=True))
    assert config.prediction_length == config.context_length == 8
    own = Architecture("blip_2", "Blip2QFormerModel", Blip2QFormerModel).config_class
    assert own is Blip2QFormerConfig


def test_tokens_stay_in_the_vocabulary() -> None:
    config = small_config(Qwen2VLConfig, Size(128, 2))
    tokens = [config.image_token_id, config.video_token_id, config.vision_start_token_id]
    assert len(set(tokens)) == 3 and all(0 < token < config.text_config.vocab_size for token in tokens)


def test_an_architecture() -> None:
    bert = Architecture("bert", "BertForSequenceClassification", BertForSequenceClassification)
    assert bert.config_class is BertConfig
    found = list(trials(entry_of(bert), "kiln", ("eval", "train", "export")))
    assert [(row["mode"], row["outcome"], row.get("regions"), row.get("breaks", [])) for row in found] == [
        ("eval", "equal", 1, []), ("train", "equal", 1, []), ("export", "equal", None, []),
    ]  # fmt: skip
    lines = table(found)
    assert lines[1].split()[:7] == ["kiln", "eval", "1", "100.0", "%", "100.0", "%"]


@pytest.mark.slow
def test_free_sizes() -> None:
    """Rows of tensors and numbers of tokens are free; the table counts calls with other sizes and compares times."""
    shapes = free_sizes({"input_ids": torch.ones(2, 3, dtype=torch.long), "pixels": torch.ones(2, 3, 4), "flag": True})
    assert shapes == {"input_ids": {0: Dim.AUTO, 1: Dim.AUTO}, "pixels": {0: Dim.AUTO}, "flag": None}
    found, bits = trials(entry_of(GPT2), "kiln", ("free", "strict"))
    assert (found["outcome"], found["sizes"]) == ("equal", [2, 0]) and found["export_seconds"] > 0
    assert (bits["mode"], bits["outcome"], bits["sizes"]) == ("strict", "equal", [2, 0])
    peer = {**found, "candidate": "torch.export", "export_seconds": 4 * found["export_seconds"]}
    refused = {**found, "name": "other", "sizes": [1, 1]}
    lines = table([found, peer, refused])
    assert any([line.startswith("exports of both: 1") and line.endswith("median ratio 0.25") for line in lines])
    assert "calls with other sizes: 3, of which 1 are refused" in lines


class Doubled(nn.Module):
    """Takes two rows in one way, and others in another."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] == 2 else x * 3


def test_sizes_that_a_program_refuses() -> None:
    subject = Subject("doubled", Doubled(), {"x": torch.ones(2, 5)})
    shapes = [x.shape for call in calls_of(subject, "free") if isinstance(x := call["x"], torch.Tensor)]
    assert shapes == [(2, 5), (4, 5), (2, 10)]
    found = export_trial(subject, "kiln", "free")
    assert (found["outcome"], found["sizes"]) == ("equal", [2, 2])


class Kept:
    """A container of which pytree knows the rows, but not the rest."""

    def __init__(self, rows: torch.Tensor, kind: object = None) -> None:
        self.rows, self.kind = rows, kind


pytree.register_pytree_node(
    Kept, lambda kept: ([kept.rows], None), lambda rows, _: Kept(*rows), serialized_type_name="kept"
)


class Keeping(nn.Module):
    def forward(self, x: torch.Tensor) -> Kept:
        return Kept(x * 2, float)


@pytest.mark.slow
def test_containers_are_compared_as_pytree_knows_them() -> None:
    """A program, like one of torch.export, cannot return more."""
    found = export_trial(Subject("keeping", Keeping(), {"x": torch.ones(2, 5)}), "kiln", "export")
    assert found["outcome"] == "equal", found["detail"]


class TwoTexts:
    def get_text_config(self, decoder: bool | None = None) -> str:
        if decoder is None:
            raise ValueError("ambiguous")
        return "decoder"


def test_the_text_that_a_model_writes_is_taken() -> None:
    assert text_config(TwoTexts()) == "decoder"  # type: ignore[arg-type, comparison-overlap]


def test_modules_of_torch() -> None:
    """Each module of the database, with the names of arguments that the database gives by place."""
    found = {entry.title: entry for entry in entries(["torch"])}
    assert len(found) > 100
    subject = found["torch.nn.Bilinear"].build()
    assert list(subject.inputs) == ["input1", "input2"]
    rows = [*trials(found["torch.nn.Bilinear"], "kiln", ("eval", "train"))]
    assert [(row["outcome"], row["breaks"]) for row in rows] == [("equal", [])] * 2


RESEARCH = [entry.title for entry in entries(["research"])]


def check_research(title: str) -> None:
    """Equal to eager in three calls of different sizes, in evaluation and training, as one graph."""
    [entry] = [entry for entry in entries(["research"]) if entry.title == title]
    for row in trials(entry, "kiln", ("eval", "train")):
        assert (row["outcome"], row["calls"]) == ("equal", 3), row.get("detail")
        assert {code for code, _, _ in row["breaks"]} <= KNOWN_BREAKS.get(title, set()), row["breaks"]


KNOWN_BREAKS = {
    "research.CategoricalAutoencoder": {"KILN1008"},
    "research.CellCounts": {"KILN1008", "KILN1015"},
    "research.StackedLanguageModel": {"KILN1002", "KILN1004", "KILN1006", "KILN1015"},
}
"""Codes of the modules that are not one graph: in training, for a custom back end, checks of distributions in front of
buffers that change; `resize_`."""


@pytest.mark.parametrize("title", random.Random(3130007).sample(RESEARCH, 12))
def test_some_research_modules(title: str) -> None:
    check_research(title)


@pytest.mark.slow
@pytest.mark.parametrize("title", RESEARCH)
def test_all_research_modules(title: str) -> None:
    check_research(title)


def test_research_modules_have_fields_and_calls() -> None:
    """A field for each file; the calls of a module differ in rows and lengths."""
    found = {entry.title: entry for entry in entries(["research"])}
    assert len(found) >= 300 and found["research.RotaryAttention"].family == "attention"
    subject = found["research.RotaryAttention"].build()
    shapes = [x.shape for call in calls_of(subject, "free") if isinstance(x := call["x"], torch.Tensor)]
    assert shapes == [(2, 8, 32), (3, 13, 32), (5, 18, 32)]
    rows = [*trials(found["research.RotaryAttention"], "kiln", ("eval",))]
    assert "calls of several sizes: 1, compiled more than twice: 0" in table(rows)
    assert "calls of several sizes: 1, compiled more than twice: 1 research.RotaryAttention eval 4" in table(
        [{**rows[0], "compiles": 4}]
    )


def test_the_smallest_models_of_timm() -> None:
    names = ["net_large", "net_base", "net_tiny", "net_atto.a1", "net_18"]
    assert sorted(names, key=place_by_size)[:3] == ["net_atto.a1", "net_tiny", "net_18"]


class Images(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, 2)
        self.pretrained_cfg = {"input_size": (3, 5, 4)}

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.layer(pixels)


def test_a_model_of_timm_that_does_not_run_is_not_taken() -> None:
    def create(name: str) -> Images:
        return Images({"broken": 7, "right": 4}[name])

    subject = timm_model(create, ["broken", "right"])
    assert subject.name == "timm.broken" and next(subject.model.parameters()).shape == (2, 4)
    assert [(name, value.shape) for name, value in subject.inputs.items()] == [("pixels", (2, 3, 5, 4))]
    with pytest.raises(NotBuilt, match="shapes cannot be multiplied"):
        timm_model(create, ["broken"])


def test_generated_tokens() -> None:
    [found] = trials(entry_of(GPT2), "kiln", ("generate",))
    assert (found["outcome"], found["breaks"]) == ("equal", []) and found["compiles"] <= 3


class Counted(nn.Module):
    """Not the same in two calls, and breaks the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        self.calls += 1
        return x * self.weight + len(str(x.sum().item())), self.calls


def test_breaks_and_differences() -> None:
    found = trial(Subject("counted", Counted(), {"x": torch.ones(2)}), "kiln", "train")
    assert found["outcome"] == "equal" and [code for code, _, _ in found["breaks"]] == ["KILN1008"]
    assert difference([torch.ones(2)], [torch.zeros(2)]) == "result 0 (2,) differs by 1"
    assert not difference([torch.tensor([True])], [torch.tensor([True])])
    assert difference([1], [1.0]) and difference([], [None]) and not difference([float("nan")], [float("nan")])


def well(tell: Tell) -> None:
    tell({"a": 1})


def crashing(tell: Tell) -> None:
    tell(2)
    os._exit(3)


def endless(tell: Tell) -> None:
    while True:
        time.sleep(0)


def silent(tell: Tell) -> None:
    """Its own children hold its channel."""
    tell(4)
    if os.fork():
        os._exit(0)
    time.sleep(600)


@pytest.mark.filterwarnings("ignore")
def test_processes() -> None:
    works = {"well": well, "crash": crashing, "endless": endless, "silent": silent}
    told = list(in_children(works.items(), jobs=2, silence=3.0, processor_seconds=1))
    assert Told("well", '{"a": 1}') in told and Told("well", ended="") in told and Told("crash", "2") in told
    endings = {entry.name: entry.ended for entry in told if entry.ended}
    assert endings["crash"].startswith("crash") and endings["endless"] == "timeout" and "silent" not in endings
