"""Random object graphs under random changes: a tree with a history must agree with a fresh one."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from kiln.runtime.guards.constant import is_constant, reference
from kiln.runtime.guards.guard import Guard, GuardKind, tensor_expectation
from kiln.runtime.guards.source import AttrSource, DictAttrSource, ItemSource, LocalSource, Source, TypeSource
from kiln.runtime.guards.tree import build_tree


def function(x, y):
    return x


class Box:
    kind = "box"


class Crate:
    kind = "crate"


class Bin(Box):
    __slots__ = ("content",)


NAMES = ("a", "b", "c")


def random_value(rng: random.Random, depth: int) -> Any:
    pick = rng.randrange(9 if depth else 4)
    if pick == 0:
        return rng.choice([0, 1, True, 1000 + rng.randrange(3), "s", "t", None, 1.5])
    if pick == 1:
        return torch.zeros(rng.randrange(1, 3), dtype=rng.choice([torch.float32, torch.float64]))
    if pick in (2, 3):
        return rng.randrange(2)
    if pick == 4:
        return [random_value(rng, depth - 1) for _ in range(rng.randrange(1, 3))]
    if pick == 5:
        return tuple(random_value(rng, depth - 1) for _ in range(rng.randrange(1, 3)))
    if pick == 6:
        return {name: random_value(rng, depth - 1) for name in NAMES[: rng.randrange(1, 4)]}
    value = rng.choice([Box, Crate, Bin])()
    for name in NAMES:
        setattr(value, name, random_value(rng, depth - 1))
    if isinstance(value, Bin):
        value.content = random_value(rng, depth - 1)
    return value


def guards_on(rng: random.Random, value: Any, source: Source) -> list[Guard]:
    if isinstance(value, torch.Tensor):
        return [Guard(source, GuardKind.TENSOR, tensor_expectation(value))]
    if is_constant(value) and not isinstance(value, tuple):
        return [Guard(source, GuardKind.EQUALS, value)]
    guards: list[Guard] = [Guard(source, GuardKind.TYPE_IS, reference(type(value)))]
    if isinstance(value, (list, tuple)):
        guards.append(Guard(source, GuardKind.LENGTH, len(value)))
        parts: list[tuple[Source, Any]] = [(ItemSource(source, n), item) for n, item in enumerate(value)]
    elif isinstance(value, dict):
        if rng.random() < 0.5:
            guards.append(Guard(source, GuardKind.DICT_KEYS, tuple(value)))
        parts = [(ItemSource(source, key), item) for key, item in value.items()]
    else:
        step = rng.choice([AttrSource, DictAttrSource])
        parts = [(step(source, name), getattr(value, name)) for name in NAMES]
        parts += [(AttrSource(source, "content"), value.content)] if isinstance(value, Bin) else []
        guards.append(Guard(AttrSource(source, "kind"), GuardKind.EQUALS, value.kind))
        guards.append(Guard(source, GuardKind.NO_ATTR, "surprise"))
        if rng.random() < 0.3:
            guards.append(Guard(AttrSource(TypeSource(source), "kind"), GuardKind.EQUALS, type(value).kind))
    for where, part in parts:
        if rng.random() < 0.8:
            guards += guards_on(rng, part, where)
    return guards


def containers(value: Any) -> list[Any]:
    """All mutable things in `value`."""
    if isinstance(value, (list, tuple)):
        inner = [container for item in value for container in containers(item)]
        return inner if isinstance(value, tuple) else [value, *inner]
    if isinstance(value, (dict, Box, Crate)):
        held = value.values() if isinstance(value, dict) else list(vars(value).values())
        if isinstance(value, Bin):
            held = [*held, value.content]
        return [value, *(container for item in held for container in containers(item))]
    return []


def change(rng: random.Random, value: Any) -> Any:
    """Changes one thing in `value`; undoes it when called."""
    targets = containers(value)
    if not targets:
        return lambda: None
    target = rng.choice(targets)
    new = random_value(rng, 1)
    if isinstance(target, list):
        before = list(target)
        target[rng.randrange(len(target))] = new

        def undo_list() -> None:
            target[:] = before

        return undo_list
    items = target if isinstance(target, dict) else vars(target)
    saved = dict(items)
    choice = rng.randrange(5)
    if choice == 0:
        items["surprise"] = new
    elif choice == 1 and items:
        items.pop(rng.choice(list(items)))
    elif choice == 2 and not isinstance(target, dict):
        target.__dict__ = dict(saved)
    else:
        items[rng.choice(NAMES)] = new

    def undo() -> None:
        items.clear()
        items.update(saved)
        if not isinstance(target, dict):
            target.__dict__ = items

    return undo


@pytest.mark.parametrize("seed", range(40))
def test_a_tree_with_a_history_agrees_with_a_fresh_one(seed: int) -> None:
    rng = random.Random(seed)
    roots = [(random_value(rng, 3), random_value(rng, 2))]
    roots = [roots[0], (roots[0][0], random_value(rng, 2)), (random_value(rng, 3), roots[0][1])]
    guards = guards_on(rng, roots[0][0], LocalSource("x")) + guards_on(rng, roots[0][1], LocalSource("y"))
    collect = [guard.source for guard in guards if isinstance(guard.source, (AttrSource, DictAttrSource, ItemSource))]
    tree = build_tree(guards, collect=collect, function=function)

    def agree(arguments: tuple[Any, Any]) -> None:
        fresh = build_tree(guards, collect=collect, function=function)
        expected = fresh.check(arguments)
        for _ in range(2):
            assert tree.check(arguments) == expected
            if expected:
                assert all(a is b for a, b in zip(tree.bindings, fresh.bindings, strict=True))

    for _ in range(60):
        arguments = rng.choice(roots)
        agree(arguments)
        undo = [change(rng, rng.choice(arguments)) for _ in range(rng.randrange(3))]
        agree(arguments)
        for action in reversed(undo):
            action()
        if rng.random() < 0.3:
            agree(arguments)
    assert tree.check(roots[0])
