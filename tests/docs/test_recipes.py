"""Every recipe of docs/recipes.md is performed: its toy changes a copy of the package, and runs there.

A toy is a file of `recipes/` with `RECIPE` (the heading), `EDITS` and `check()`. An edit is a file, a
text, and the text in its place; an empty text appends or makes the file. Only files that the recipe names are changed.
"""

from __future__ import annotations

import compileall
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOYS = sorted((Path(__file__).parent / "recipes").glob("*.py"))
PAGE = (ROOT / "docs" / "recipes.md").read_text()
RUNNER = Path(__file__).parent / "recipe_runner.py"


@cache
def toy(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def recipes() -> dict[str, str]:
    """Heading -> text."""
    return dict(part.split("\n", 1) for part in PAGE.split("\n## ")[1:])


def files_of(recipe: str) -> set[str]:
    return set(re.findall(r"`((?:kiln|csrc|tests)/[\w./<>]+)`", recipes()[recipe]))


def copy_package(target: Path) -> None:
    """Links to every file, and to the compiled bytecode, of the package."""
    for folder, folders, files in os.walk(ROOT / "kiln"):
        there = target / Path(folder).relative_to(ROOT)
        there.mkdir(parents=True)
        if "__pycache__" in folders:
            folders.remove("__pycache__")
            (there / "__pycache__").symlink_to(Path(folder) / "__pycache__")
        for name in files:
            (there / name).symlink_to(Path(folder) / name)


def edit(target: Path, file: str, old: str, new: str) -> None:
    path = target / file
    text = path.read_text() if path.exists() else ""
    assert not old or text.count(old) == 1, f"{file} has {text.count(old)} times: {old}"
    path.unlink(missing_ok=True)
    path.write_text(text.replace(old, new) if old else text + new)


def is_native(path: Path) -> bool:
    """Does the toy change C++?"""
    return any(file.startswith("csrc/") for file, _, _ in toy(path).EDITS)


NATIVE = [path for path in TOYS if is_native(path)]
PYTHON = [path for path in TOYS if not is_native(path)]


def perform(folder: Path, paths: list[Path], *, edited: bool = True) -> dict[str, str]:
    """Toy -> traceback ("" if it ran). One process imports torch and forks for each toy."""
    outcomes = {}
    compileall.compile_dir(ROOT / "kiln", quiet=1)  # else each toy compiles all of it
    for path in paths:
        tree = folder / path.stem
        copy_package(tree)
        try:
            if is_native(path):
                copy_sources(tree)
            for change in toy(path).EDITS if edited else ():
                edit(tree, *change)
            if is_native(path):
                subprocess.run([sys.executable, "tools/plan_header.py"], cwd=tree, capture_output=True, check=True)
                command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--parallel", "2"]
                subprocess.run(command, cwd=tree, capture_output=True, check=True)
        except (AssertionError, subprocess.CalledProcessError) as error:
            outcomes[path.stem] = str(error)
    names = [path.stem for path in paths if path.stem not in outcomes]
    done = subprocess.run(
        [sys.executable, RUNNER, folder, *names],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "KILN_OPTIONS": "cache=false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {**outcomes, **json.loads(done.stdout.splitlines()[-1])}


def copy_sources(tree: Path) -> None:
    """Copy the native sources; the copy builds its own extension modules."""
    for folder in ("csrc", "tools"):
        shutil.copytree(ROOT / folder, tree / folder)
    shutil.copy(ROOT / "setup.py", tree)
    for module in (tree / "kiln" / "native").glob("*.so"):
        module.unlink()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return perform(tmp_path_factory.mktemp("recipes"), PYTHON)


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: path.stem)
def test_recipe(path: Path, outcomes: dict[str, str]) -> None:
    if outcomes[path.stem]:
        pytest.fail(outcomes[path.stem], pytrace=False)


@pytest.mark.slow
@pytest.mark.parametrize("path", NATIVE, ids=lambda path: path.stem)
def test_native_recipe(path: Path, tmp_path: Path) -> None:
    if failure := perform(tmp_path, [path])[path.stem]:
        pytest.fail(failure, pytrace=False)


@pytest.mark.slow
def test_toys_need_their_edits(tmp_path: Path) -> None:
    """Without its edits every toy fails, so each tests its recipe."""
    outcomes = perform(tmp_path, PYTHON, edited=False)
    assert not [name for name, failure in outcomes.items() if not failure]


@pytest.mark.parametrize("path", TOYS, ids=lambda path: path.stem)
def test_recipe_names_the_files(path: Path) -> None:
    """The toy changes what the recipe names; `<name>` in a recipe stands for any word."""
    named = [re.sub(r"<\w+>", r"\\w+", re.escape(file)) for file in files_of(toy(path).RECIPE)]
    changed = {file for file, _, _ in toy(path).EDITS}
    assert not [file for file in changed if not any(re.fullmatch(pattern, file) for pattern in named)]


def test_every_recipe_is_performed() -> None:
    assert set(recipes()) == {toy(path).RECIPE for path in TOYS}
