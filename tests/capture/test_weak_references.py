"""Weak references and proxies made in the frame: alive as long as the program holds what they refer to."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

X = torch.arange(4.0)
LOG: list[str] = []


@dataclasses.dataclass
class Point:
    x: int


class Node:
    def __init__(self, value: Any, parent: Node | None = None) -> None:
        self.value = value
        self.parent = None if parent is None else weakref.ref(parent)
        self.children: list[Node] = []


def read(reference: Any) -> Any:
    found = reference()
    return "gone" if found is None else found.value


def tree(x: Tensor) -> Any:
    root = Node(x)
    root.children += [Node(x + 1, root), Node(x + 2, root)]
    return [child.value + child.parent().value for child in root.children]  # type: ignore[misc]


def dropped(x: Tensor) -> Any:
    node = Node(x + 1)
    reference, other = weakref.ref(node), weakref.ref(node)
    seen = [read(reference), reference is other, reference == other]
    node = Node(x)
    return *seen, read(reference), node.value


def dropped_by_a_callee(x: Tensor) -> Any:
    def inner() -> Any:
        local = Node(x + 1)
        return weakref.ref(local), local.value

    reference, value = inner()
    return read(reference), value, read(weakref.ref(Node(x)))


def held_by_a_container(x: Tensor) -> Any:
    held = {"node": [Node(x + 1)]}
    reference = weakref.ref(held["node"][0])
    first = read(reference)
    held["node"].pop()
    return first, read(reference)


def held_by_a_closure(x: Tensor) -> Any:
    node = Node(x + 1)
    reference = weakref.ref(node)

    def use(node: Any = node) -> Any:
        return node.value

    first = use() + read(reference)
    del use, node
    return first, read(reference)


def proxied(x: Tensor) -> Any:
    node = Node(x + 1)
    proxy = weakref.proxy(node)
    proxy.value = proxy.value * 2
    result = [proxy.value, node.value, isinstance(proxy, Node)]
    del node
    try:
        result.append(proxy.value)
    except ReferenceError as error:
        result.append(str(error))
    return result


def with_callbacks(x: Tensor) -> Any:
    log: list[str] = []
    node, other = Node(x), Node(x + 1)
    reference = weakref.ref(node, lambda found: log.append(f"dropped {found() is None}"))
    log.append("before")
    node = other
    log.append("after")
    return x + len(log), log, read(reference)


def dictionaries(x: Tensor) -> Any:
    keys, values, items = weakref.WeakKeyDictionary(), weakref.WeakValueDictionary(), weakref.WeakSet()  # type: ignore[var-annotated]
    node, other = Node(x), Node(x + 1)
    keys[node], keys[other] = 1, 2
    values["node"], values["other"] = node, other
    items.add(node)
    items.add(other)
    before = len(keys), len(values), len(items), keys[node], values["other"].value
    del other
    after = len(keys), sorted(values), len(items), node in items
    return before, after, values["node"].value


def tensors_as_weak_keys(x: Tensor) -> Any:
    """Another reference to a tensor is equal if its values are, of which there must be one."""
    keys, found, single = weakref.WeakKeyDictionary(), [], x.sum()  # type: ignore[var-annotated]
    keys[x] = keys[single] = 1
    for key in (x, single, x + 1):
        try:
            found.append(key in keys)
        except RuntimeError as error:
            found.append(str(error))
    return x + 1, found, weakref.ref(x) in {weakref.ref(x)}


def returned(x: Tensor) -> Any:
    node = Node(x + 1)
    return node, weakref.ref(node), weakref.proxy(node)


def refused(x: Tensor) -> Any:
    found = []
    for value in (3, "text", (1, 2)):
        try:
            weakref.ref(value)  # type: ignore[type-var]
        except TypeError as error:
            found.append(str(error))
    return x + 1, found


def addresses(x: Tensor) -> Any:
    seen, kept = set(), []
    for number in range(3):
        kept.append([number])
        seen.add(id(kept[-1]))
    return x + len(seen), id(kept[1]) in seen, repr(Point(1)), repr(Point(2))


def addresses_used_again(x: Tensor) -> Any:
    return (
        x + 1,
        len(set(map(id, zip("abc", "def", strict=True)))),
        len(set(map(id, list(zip("abc", "def", strict=True))))),
    )


def in_a_cycle(x: Tensor) -> Any:
    first, second = Node(x), Node(x + 1)
    first.children.append(second)
    second.children.append(first)
    reference = weakref.ref(first)
    del first, second
    return read(reference)


def at_the_end(x: Tensor) -> Tensor:
    node = Node(x)
    reference = weakref.ref(node, lambda found: LOG.append("dropped"))
    return x + (1 if reference() is node else 2)


WHOLE = [
    *(tree, dropped, dropped_by_a_callee, held_by_a_container, held_by_a_closure, proxied, with_callbacks),
    *(dictionaries, refused, addresses),
]


def assert_same(got: Any, expected: Any) -> None:
    if isinstance(expected, list | tuple):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, Tensor):
        torch.testing.assert_close(got, expected)
    else:
        assert got == expected


@pytest.mark.parametrize("program", WHOLE, ids=lambda program: program.__name__)
def test_one_graph(program: Callable[[Tensor], Any]) -> None:
    compiled = kiln.compile(program, backend="eager", options={"cache": False})
    for x in (X, X + 1):
        assert_same(compiled(x), program(x))
    report = kiln.report_of(compiled)
    assert not report.breaks and not report.eager_reasons, report


@pytest.mark.parametrize(
    "program",
    [in_a_cycle, at_the_end, addresses_used_again, tensors_as_weak_keys],
    ids=lambda program: program.__name__,
)
def test_what_is_not_known_breaks(program: Callable[[Tensor], Any]) -> None:
    compiled = kiln.compile(program, backend="eager", options={"cache": False})
    for x in (X, X + 1):
        LOG.clear()
        expected = program(x), list(LOG)
        LOG.clear()
        assert_same((compiled(x), list(LOG)), expected)


def test_references_that_leave_the_frame() -> None:
    compiled = kiln.compile(returned, backend="eager", options={"cache": False})
    node, reference, proxy = compiled(X)
    assert reference() is node and proxy.value is node.value
    del node
    assert reference() is None
    with pytest.raises(ReferenceError):
        proxy.value  # noqa: B018


def test_finalizers() -> None:
    """Their registry has those of the compiler, too; a function that makes one sees when an object is freed."""
    outer = Node(1)
    finalizer = weakref.finalize(outer, LOG.append, "gone")

    def program(x: Tensor) -> Any:
        node = Node(x)
        inner = weakref.finalize(node, LOG.append, "inner")
        before = inner.alive, finalizer.alive
        inner.detach()
        return x + 1, before, inner.alive

    compiled = kiln.compile(program, options={"cache": False})
    for _ in range(2):
        assert_same(compiled(X), program(X))
    finalizer()
    assert_same(compiled(X), program(X))


def test_the_first_reference_of_an_object_that_the_frame_makes() -> None:
    """Metaclasses look at each attribute of `dir(instance)`."""

    def program(x: Tensor) -> tuple[Tensor, int]:
        plain, referred = Node(x), Node(x)
        reference = weakref.ref(referred)
        found = [name for name in dir(plain) if getattr(getattr(plain, name), "is_abstract", False)]
        return x + (plain.__weakref__ is None) + (referred.__weakref__ is reference), len(found)

    compiled = kiln.compile(program, fullgraph=True, backend="eager", options={"cache": False})
    assert str(compiled(torch.ones(2))) == str(program(torch.ones(2)))
