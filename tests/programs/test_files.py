"""Programs as files: what is saved comes back, and nothing in a file is trusted."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
import time
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils import _pytree as pytree

import kiln
from kiln.programs.call.errors import DamagedProgram, NotSavable
from kiln.programs.call.shapes import SymbolRange, rules_of
from kiln.programs.call.signature import constant_from_json, constant_to_json
from kiln.programs.call.tensors import read_tensors, write_tensors
from kiln.programs.call.tree import LARGEST_DEPTH, flatten, tree_from_json
from kiln.programs.file_reader import VERSION, program_from_bytes, read_members
from kiln.programs.file_writer import program_bytes
from kiln.support.errors import KilnError
from kiln.support.replaced_file import replaced_file
from kiln.symbolic import ShapeEnv, parse_int
from kiln.tensor.content import elements
from kiln.tensor.spec import TensorSpec
from tests.programs.models import Classifier, Counter, Loss

MATRIX = torch.arange(6.0).view(2, 3)
BATCH = kiln.Dim("batch", min=2, max=64)


def classifier() -> kiln.Program:
    shapes = {"x": {0: BATCH}, "mask": {0: BATCH}}
    return kiln.export(Classifier(), (torch.randn(6, 16),), {"mask": torch.ones(6, 8)}, dynamic_shapes=shapes)


class Everything(nn.Module):
    """Dtypes, constants, complex and tied tensors, other layouts, a registered class."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 3).t())
        self.register_buffer("phase", torch.polar(torch.ones(3), torch.arange(3.0)))
        self.register_buffer("low", torch.randn(4).bfloat16())
        self.register_buffer("nothing", torch.zeros(0, 4))

    def forward(self, x: Tensor, dtype: torch.dtype, number: float, text: str) -> Any:
        table = torch.tensor([1, 5, 2])
        y = (x @ self.w)[table - 1, :] * number
        assert isinstance(self.phase, Tensor) and isinstance(self.low, Tensor)
        return OrderedDict(y=y.to(dtype), z=(y[:, :3] * self.phase).real, h=self.low + 1, n=text, device=x.device)


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    model, x = Everything(), torch.randn(6, 3)
    args = (x, torch.float64, float("inf"), "name")
    program = kiln.export(model, args, dynamic_shapes=({0: kiln.Dim("rows")}, None, None, None))
    program.save(tmp_path / "p")
    again = kiln.load_program(tmp_path / "p")
    assert again.text() == program.text()
    again.save(tmp_path / "q")
    assert (tmp_path / "q").read_bytes() == (tmp_path / "p").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p", "q"]
    found = again(*args)
    assert type(found) is OrderedDict
    for name, value in program(*args).items():
        assert_close(found[name], value, equal_nan=True) if isinstance(value, Tensor) else None
        assert isinstance(value, Tensor) or found[name] == value
    assert {name: tensor.stride() for name, tensor in again.state.items()} == {
        name: tensor.stride() for name, tensor in program.state.items()
    }


@pytest.mark.parametrize("training", [False, True])
def test_state_and_gradients_survive(training: bool) -> None:
    args = (torch.randn(7, 6), torch.randn(7, 3))
    program = kiln.export(Loss(), args, training=training)
    again = program_from_bytes(program_bytes(program))
    assert_close(again(*args), program(*args))
    counter = program_from_bytes(program_bytes(kiln.export(Counter(), (torch.ones(2, 4),))))
    counter(torch.ones(2, 4))
    assert counter(torch.ones(2, 4))[1] == 2
    assert counter.state_dict().keys() == Counter().state_dict().keys()


def test_a_fresh_process_loads_it_without_the_compiler(tmp_path: Path) -> None:
    program = classifier()
    program.save(tmp_path / "p")
    x, mask = torch.randn(5, 16), torch.randn(5, 8)
    torch.save([x, mask, program(x, mask=mask)["logits"]], tmp_path / "values")
    script = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("kiln.native._", "kiln.capture.interpreter", "kiln.loops", "kiln.build")):
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
import torch
from kiln.programs.file_reader import load_program
x, mask, expected = torch.load({str(tmp_path / "values")!r})
assert torch.equal(load_program({str(tmp_path / "p")!r})(x, mask=mask)["logits"], expected)
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).resolve().parents[2])


class Config:
    pass


def configured(x: Tensor, config: Config) -> Tensor:
    return x + 1


def test_what_cannot_be_saved_says_so(tmp_path: Path) -> None:
    program = kiln.export(configured, (torch.ones(2), Config()))
    with pytest.raises(NotSavable, match=r"argument `config` holds a `Config`"):
        program.save(tmp_path / "p")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "target",
    [
        lambda x: torch.linalg.svd(x)[1] + torch.linalg.det(x) + torch.linalg.solve(x, x),
        nn.Bilinear(4, 4, 2),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)),
        nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval(),
        lambda x: torch.cdist(x.repeat(8, 1), x.repeat(9, 1)),  # from 26 rows on, by a product
        lambda x: torch.histogramdd(x, [3, 3, 3, 3]).hist,
        lambda x: torch.fake_quantize_per_tensor_affine(
            x, x.abs().max() / 99, torch.zeros(1, dtype=torch.int32), 0, 255
        ),
    ],
    ids=["linalg", "bilinear", "weight_norm", "encoder", "distances", "histogram", "quantised"],
)
def test_calls_with_internal_names_are_saved(target: Callable[..., Any], tmp_path: Path) -> None:
    x = torch.randn(2, 4, 4) if isinstance(target, nn.TransformerEncoderLayer) else torch.randn(4, 4)
    args = (x, x) if isinstance(target, nn.Bilinear) else (x,)
    with torch.no_grad():
        kiln.export(target, args).save(tmp_path / "p")
        assert_close(kiln.load_program(tmp_path / "p")(*args), target(*args))


@final
class Paired:
    """A container of a user's, with fields in nested lists."""

    def __init__(self, parts: list[object], names: object) -> None:
        self.parts, self.names = parts, names


def paired(x: Tensor) -> Paired:
    return Paired([x + 1, x * 2], [["left", "right"], [None, 3]])


class Parts(nn.Module):
    """Constants, buffers and parameters that are parts of other tensors, or repeat their elements."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = torch.arange(10.0)[1:-1]
        self.columns = torch.arange(20.0).view(4, 5)[:, 1:4]
        self.register_buffer("turned", torch.arange(12.0).view(3, 4).t()[1:])
        self.weight = nn.Parameter(torch.randn(10)[2:])
        self.phase = torch.polar(torch.ones(8), torch.arange(8.0))[4:]
        self.rows = torch.arange(3.0).expand(4, 3)
        self.layer = torch.randn(12, 4, 4)[7]

    def forward(self, x: Tensor) -> Any:
        parts = [part * 2 for part in (self.columns, self.turned, self.phase, self.rows, self.layer)]
        return x * self.middle + self.weight, parts, self.rows.view(-1) if x.dim() > 1 else self.columns[1:, 1]


def test_parts_of_tensors_and_repetitions(tmp_path: Path) -> None:
    model, x = Parts(), torch.randn(8)
    program = kiln.export(model, (x,))
    program.save(tmp_path / "parts.kp")
    program.package(tmp_path / "parts.kiln", key=b"key")
    for loaded in (kiln.load_program(tmp_path / "parts.kp"), kiln.load(tmp_path / "parts.kiln", key=b"key")):
        assert_close(loaded(x), model(x))


def test_a_small_part_of_a_large_tensor_is_not_saved(tmp_path: Path) -> None:
    part = torch.zeros(1 << 21)[-4:]
    program = kiln.export(lambda x: x + part, (torch.ones(4),))
    with pytest.raises(NotSavable, match="a small part of a large tensor"):
        program.save(tmp_path / "part.kp")


def test_registered_containers_keep_their_fields(tmp_path: Path) -> None:
    pytree.register_pytree_node(
        Paired, lambda pair: (pair.parts, pair.names), Paired, serialized_type_name="tests.Paired"
    )
    try:
        kiln.export(paired, (torch.ones(3),)).save(tmp_path / "p")
        found = kiln.load_program(tmp_path / "p")(torch.ones(3))
        assert isinstance(found, Paired) and found.names == [["left", "right"], [None, 3]]
        assert_close(found.parts, paired(torch.ones(3)).parts)
    finally:
        pytree._deregister_pytree_node(Paired)


class Sample(NamedTuple):
    image: Tensor
    label: int


@dataclass(frozen=True)
class Batch:
    sample: Sample
    mask: Tensor | None = None

    def __post_init__(self) -> None:
        assert not LOADING, "a reader runs no code of the class"


LOADING: list[bool] = []


def batched(batch: Batch) -> Any:
    assert batch.mask is not None
    return Batch(batch.sample, batch.mask * 2), batch.sample.image.max(0), batch.mask.shape


def test_dataclasses_and_named_tuples_are_containers(tmp_path: Path) -> None:
    def batch(rows: int) -> Batch:
        return Batch(Sample(torch.randn(3, 2), 7), torch.randn(rows))

    shapes = {"batch": Batch(Sample((None, None), None), {0: BATCH})}  # type: ignore[arg-type]
    program = kiln.export(batched, (batch(4),), dynamic_shapes=shapes)
    assert "argument batch.sample.image: f32[3, 2]" in program.text()
    program.save(tmp_path / "p")
    program.package(tmp_path / "m", key=b"k")
    given = batch(9)
    expected = batched(given)
    LOADING.append(True)
    try:
        for each in (program, kiln.load_program(tmp_path / "p"), kiln.load(tmp_path / "m", key=b"k")):
            found = each(given)
            assert [type(item) for item in found] == [Batch, torch.return_types.max, torch.Size]
            assert found[0].sample == given.sample and found[2] == expected[2]
            assert_close((found[0].mask, *found[1]), (expected[0].mask, *expected[1]))
    finally:
        LOADING.clear()
    for name in ("tests.programs.test_files:Everything", "os:environ", "nowhere:Batch", "builtins:type", "kiln"):
        with pytest.raises(DamagedProgram, match="not known here"):
            tree_from_json({"type": f"class {name}", "keys": ["a"], "children": [None]})


# Hostile files.


def repacked(data: bytes, **members: bytes | str) -> bytes:
    """The file with other members (`manifest`, `graph`, ...)."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in read_members(data).items():
            archive.writestr(name, members.get(name.partition(".")[0], content))
    return file.getvalue()


def refused(data: bytes, words: str = "") -> None:
    with pytest.raises(DamagedProgram) as raised:
        program_from_bytes(data)
    assert words in str(raised.value), raised.value


GRAPHS = [
    ("aten.addmm.default(%1, %2, %4)", "aten.from_file.default(%1, %2, %4)", "from_file"),
    ("aten.addmm.default(%1, %2, %4)", "aten.add_.Tensor(%1, %2, %4)", "writes to its arguments"),
    ("aten.addmm.default(%1, %2, %4)", "os.system.default(%1, %2, %4)", "os"),
    ("aten.addmm.default(%1, %2, %4)", "aten.item.default(%1, %2, %4)", "aten.item"),
    ("aten.addmm.default(%1, %2, %4)", "aten.empty.memory_format(%1, %2, %4)", "memory"),
    ("mul(%5, %3)", "mul(%5, %9)", "no value %9"),
    ("mul(%5, %3)", "mul(%5, %3, %3)", "V2"),
    ("%6: f32[batch, 8]", "%6: f32[batch, 9]", "V3"),
    ("mul(%5, %3)", "mull(%5, %3)", "no op"),
    ("mul(%5, %3)", "mul(%5, %3) + f(1)", ""),
    ("mul(%5, %3)", "mul(" + "(" * 5000 + ")" * 5000 + ")", ""),
    ("mul(%5, %3)", "mul(%5, " + "-" * 100000 + "%3)", ""),
    ("dims=(1, 0)", "dims=(1, 0, 7)", ""),
    ("dims=(1, 0)", "dims=torch.save", ""),
    ("dims=(1, 0)", "dims=(s9, 0)", ""),
    ("f32[batch, 16]", "f32[9**9**9, 16]", "too large"),
    ("f32[batch, 16]", "f32[(batch + s1)**64, 16]", "too large"),
    ("f32[batch, 16]", "f32[batch//0, 16]", ""),
    ("f32[batch, 16]", "f32[other//2, 16]", "other"),
    ("f32[8, 16] ", "f32[8, 17] ", ""),
    ("f32[8] ", "f32[8 | 1000000000] ", "layout"),
    ("f32[8] ", "f32[8 at 70000000] ", "layout"),
    ("f32[8, 16] ", "f32[8, 16 | 1, 1000000000] ", "V3"),
    ("f32[8, 16] ", "f32[8, 16 at 70000000] ", "V3"),
]


@pytest.mark.parametrize(("old", "new", "words"), GRAPHS)
def test_hostile_graphs_are_refused(old: str, new: str, words: str) -> None:
    data = program_bytes(classifier())
    text = read_members(data)["graph.txt"].decode()
    assert old in text
    start = time.perf_counter()
    refused(repacked(data, graph=text.replace(old, new, 1)), words)
    assert time.perf_counter() - start < 10


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The place of every value in a JSON document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *[inner for key, item in items for inner in paths(item, (*path, key))]]


OTHER: tuple[Any, ...] = (
    None,
    True,
    -1,
    1 << 70,
    1.5,
    "x",
    "",
    [],
    {},
    [[]],
    {"type": "tuple"},
    "__class__",
    "(" * 300,
)


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[path[0]] = changed(copy[path[0]], path[1:], value)
    return copy


def same_or_refused(data: bytes, x: Tensor, mask: Tensor, expected: Tensor | None = None) -> bool:
    """Whether the file is refused; one that is not gives the same numbers, or is another program.

    Another one, whose checksums are right, refuses the arguments or gives what its graph says.
    """
    try:
        program = program_from_bytes(data)
    except DamagedProgram:
        return True
    try:
        found = program(x, mask=mask)
    except (KilnError, RuntimeError, ValueError, TypeError, IndexError):  # of a step, on what it was given
        return False
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(found) if isinstance(leaf, Tensor)]
    if expected is not None:
        assert torch.equal(leaves[0], expected)
    nodes = [*program.graph.inputs, *[output.value for output in program.graph.outputs]]
    specs = [node.spec for node in nodes if isinstance(node.spec, TensorSpec)]
    assert all([any([fits(leaf, spec) for spec in specs]) for leaf in leaves])
    return False


def fits(found: Tensor, spec: TensorSpec) -> bool:
    """Whether it has the sizes that are known, and the dtype."""
    if found.dtype is not spec.dtype or found.dim() != spec.rank:
        return False
    return all(known == size or not isinstance(known, int) for size, known in zip(found.shape, spec.sizes, strict=True))


def test_every_field_of_the_manifest_is_checked() -> None:
    program = classifier()
    data, x, mask = program_bytes(program), torch.randn(5, 16), torch.randn(5, 8)
    document = json.loads(read_members(data)["manifest.json"])
    texts = read_members(data)
    places = paths(document)
    assert len(places) > 60
    refusals = 0
    for path in places:
        for value in OTHER:
            manifest = json.dumps(changed(document, path, value))
            refusals += same_or_refused(repacked(data, manifest=manifest), x, mask)
    assert refusals > 0.6 * len(places) * len(OTHER), refusals / (len(places) * len(OTHER))
    for path in places[1:]:  # a field that is missing, and one too many
        parent = changed(document, path[:-1], None)
        inner = document
        for key in path[:-1]:
            inner = inner[key]
        if isinstance(inner, dict) and path[0] != "tied":
            without = {key: value for key, value in inner.items() if key != path[-1]}
            refused(repacked(data, manifest=json.dumps(changed(document, path[:-1], without))))
            more = {**inner, "more": 1}
            refused(repacked(data, manifest=json.dumps(changed(document, path[:-1], more))))
        assert parent is not document
    assert texts.keys() == {"manifest.json", "graph.txt", "state.safetensors", "constants.safetensors"}


RANGE = {"name": "batch", "low": 2, "high": 64}
RULES: list[tuple[dict[str, Any], str]] = [
    ({"version": VERSION + 1}, "version"),
    ({"version": 1 << 15}, "version"),
    ({"ranges": [RANGE, RANGE]}, "of one twice"),
    ({"ranges": [{**RANGE, "name": "other"}]}, "of no size"),
    ({"constraints": [{"relation": "1 == 1", "at": None}]}, "says nothing"),
    ({"constraints": [{"relation": "other == 1", "at": None}]}, "other"),
]


@pytest.mark.parametrize(("fields", "words"), RULES)
def test_wrong_rules_of_sizes_are_refused(fields: dict[str, Any], words: str) -> None:
    data = program_bytes(classifier())
    document = json.loads(read_members(data)["manifest.json"])
    refused(repacked(data, manifest=json.dumps({**document, **fields})), words)


def test_a_range_that_ends_beyond_64_bits_has_no_end() -> None:
    """Rules may compute such ends from products of sizes; a file would refuse them."""
    env = ShapeEnv()
    rows = env.create_symbol(4, name="rows", hi=1 << 189)
    assert rules_of(env, frozenset({rows})).ranges == (SymbolRange("rows", 0, None),)


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def test_structures_come_back_from_their_form_in_files() -> None:
    for value in ({"a": (1, [2, {3: 4}])}, OrderedDict(a=1, b=(2,)), nested(LARGEST_DEPTH), [], {(1, 2): 3}):
        tree, leaves = flatten(value)
        again = tree_from_json(tree.to_json())
        assert again == tree and again.build(leaves) == value
    with pytest.raises(DamagedProgram, match=f"deeper than {LARGEST_DEPTH}"):
        tree_from_json(flatten(nested(LARGEST_DEPTH + 1))[0].to_json())


@pytest.mark.parametrize(
    ("name", "context"), [(None, None), ("tests.Boxed", {1: 2}), ("tests.Boxed", [{1}]), ("tests.Boxed", 0.5)]
)
def test_structures_that_have_no_form_in_files(name: str | None, context: object) -> None:
    boxed = type("Boxed", (), {})
    extra = {} if name is None else {"serialized_type_name": name}
    torch.utils._pytree._private_register_pytree_node(
        boxed, lambda box: ([1], context), lambda items, _: boxed(), **extra
    )
    try:
        with pytest.raises(NotSavable, match="Boxed"):
            flatten(boxed())[0].to_json()
    finally:
        torch.utils._pytree._deregister_pytree_node(boxed)


def mutations(data: bytes, count: int, seed: int) -> list[bytes]:
    """Copies of a file with bytes changed, removed, repeated or cut off."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        made = bytearray(data)
        for _ in range(draw.choice((1, 1, 2, 8))):
            at = draw.randrange(len(made) or 1)
            match draw.randrange(5):
                case 0 if made:
                    made[at] = draw.randrange(256)
                case 1 if made:
                    made[at] ^= 1 << draw.randrange(8)
                case 2:
                    del made[at : at + draw.randrange(1, 40)]
                case 3:
                    made[at:at] = made[at : at + draw.randrange(1, 40)]
                case _:
                    made[at : at + 1] = draw.choice((b"0", b"-", b"(", b")", b"9" * 30, b"%", b"s0", b"\n", b'"'))
        found.append(bytes(made))
    return found


def fuzz(count: int) -> None:
    program = classifier()
    data, x, mask = program_bytes(program), torch.randn(5, 16), torch.randn(5, 8)
    expected = program(x, mask=mask)["logits"]
    for number, broken in enumerate(mutations(data, count, seed=1)):
        same_or_refused(broken, x, mask, expected)
        member = ("manifest", "graph", "state", "constants")[number % 4]
        name = next(name for name in read_members(data) if name.startswith(member))
        (content,) = mutations(read_members(data)[name], 1, seed=number)
        same_or_refused(repacked(data, **{member: content}), x, mask)


def test_mutated_files_are_refused_or_run() -> None:
    fuzz(400)


@pytest.mark.slow
def test_ten_thousand_mutated_files_are_refused_or_run() -> None:
    fuzz(5000)


def test_zip_files_of_other_kinds() -> None:
    data = program_bytes(classifier())
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in read_members(data).items():
            archive.writestr(name, content)
    refused(file.getvalue(), "compressed")
    with pytest.warns(UserWarning), zipfile.ZipFile(file, "a") as archive:
        archive.writestr("graph.txt", "")
    refused(file.getvalue(), "members")
    refused(b"", "zip")
    refused(data[: len(data) // 2], "zip")


@pytest.mark.parametrize(
    "header",
    [
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [1 << 62, 1 << 62], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [True, 2], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [2, "x"], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},
        {"a": [1, 2]},
        [1],
    ],
)
def test_wrong_headers_of_tensors(header: Any) -> None:
    text = json.dumps(header).encode()
    with pytest.raises(DamagedProgram):
        read_tensors(len(text).to_bytes(8, "little") + text + bytes(8))


def test_tensors_are_those_of_safetensors() -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    tensors = {"a": torch.randn(3, 4), "b": torch.arange(5), "c": torch.tensor(True), "d": torch.randn(2).bfloat16()}
    assert_close(safetensors.load(write_tensors(tensors)), tensors)
    assert_close(read_tensors(safetensors.save(tensors)), tensors)


CASES: list[tuple[str, Callable[[], object]]] = [
    ("9**9**9", lambda: parse_int("9**9**9")),
    ("powers of sums", lambda: parse_int("(a + b + c + d)**60")),
    ("powers of powers", lambda: parse_int("((a**30)**30)**30")),
    ("products of sums", lambda: parse_int("*".join(f"(a{n} + b{n})" for n in range(40)))),
]


@pytest.mark.parametrize("read", [read for _, read in CASES], ids=[name for name, _ in CASES])
def test_texts_of_sizes_that_would_take_forever_are_refused(read: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="too large"):
        read()


@pytest.mark.parametrize(
    "tensor",
    [MATRIX, MATRIX[:, 1], MATRIX[:1].unbind(1)[2], MATRIX[:0], MATRIX[1, 1], 1j * MATRIX.mT],
    ids=["whole", "a column", "one element", "none", "a number", "complex"],
)
def test_elements_do_not_depend_on_strides(tensor: Tensor) -> None:
    assert elements(tensor) == tensor.clone(memory_format=torch.contiguous_format).numpy().tobytes()


def test_elements_whatever_the_default_device() -> None:
    expected = elements(MATRIX)
    with torch.device("meta"):
        assert elements(MATRIX) == expected


def test_a_file_has_the_rights_of_the_umask_and_nothing_is_left_of_a_failure(tmp_path: Path) -> None:
    place = tmp_path / "f"
    old = os.umask(0o022)
    try:
        with replaced_file(place) as file:
            file.write(b"new")
    finally:
        os.umask(old)
    with pytest.raises(KeyError), replaced_file(place) as file:
        file.write(b"half")
        raise KeyError
    assert place.stat().st_mode & 0o777 == 0o644
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("f", b"new")]


@pytest.mark.parametrize("data", [{}, {"plain": 1, "float": "0x1p0"}, [1], ["plain"], "plain", None, {"plain": [1]}])
def test_a_constant_that_is_no_marked_value_is_refused(data: Any) -> None:
    with pytest.raises(DamagedProgram):
        constant_from_json(data)


@pytest.mark.parametrize("value", [None, True, -3, "a", 0.1, float("inf"), torch.int8, torch.device("cpu")])
def test_constants_are_read_as_they_were_written(value: Any) -> None:
    found = constant_from_json(json.loads(json.dumps(constant_to_json(value, "here"))))
    assert type(found) is type(value) and found == value
