"""Programs as users write them: results, side effects, output and exceptions are eager's.

A case gets `compile` (`kiln.compile`, or nothing for eager), runs its program and returns all that can be seen of it.
"""

from __future__ import annotations

import collections.abc
import functools
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch

import kiln

CASES: list[Callable[[Any], Any]] = []


def case(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    CASES.append(function)
    return function


def ones() -> torch.Tensor:
    return torch.ones(2)


@case
def a_partial_among_other_results(compile):
    x, bound = compile(lambda x: (x + 1, functools.partial(max, 5, key=abs)))(ones())
    return x, bound(-7), bound.func is max, bound.args


@case
def the_right_operand_of_a_derived_class_is_asked_first(compile):
    class Base:
        def __add__(self, other):
            return "Base.add"

        def __radd__(self, other):
            return "Base.radd"

        def __eq__(self, other):
            return "Base.eq"

        def __lt__(self, other):
            return "Base.lt"

    class Derived(Base):
        def __radd__(self, other):
            return "Derived.radd"

        def __gt__(self, other):
            return "Derived.gt"

    def program(x):
        a, b = Base(), Derived()
        return a + b, b + a, a == b, a < b, b + b, x

    return compile(program)(ones())


class Plain:
    pass


@case
def order_of_an_instance_dict(compile):
    def program(x, thing):
        seen = hasattr(thing, "c"), list(vars(thing)), thing.b
        del thing.__dict__[next(iter(vars(thing)))]
        del thing.b
        thing.b = 4
        return x, seen, list(vars(thing))

    thing = Plain()
    thing.a, thing.b, thing.c = 1, 2, 3
    return compile(program)(ones(), thing), vars(thing)


@case
def a_dict_that_is_or_is_not_the_dict_of_an_object(compile):
    def program(x, thing, items):
        items["c"] = 5
        return x * getattr(thing, "c", 7), items.get("a"), list(items)

    run, results = compile(program), []
    for shared in (False, True, False):
        thing = Plain()
        thing.a = 1
        results.append((run(ones(), thing, vars(thing) if shared else {"a": 2}), vars(thing)))
    return results


@case
def what_is_handed_through_may_be_missing(compile):
    run = compile(lambda x, thing, items: (x + 1, getattr(thing, "b", 7), items.get("k", 8)))
    first, second = Plain(), Plain()
    first.b = 2
    return [run(ones(), *pair) for pair in ((first, {"k": 1}), (second, {"k": 1}), (first, {}), (second, {}))]


class SelfDict(dict):
    def __init__(self, **items):
        super().__init__(**items)
        self.__dict__ = self


class ItemAttributes(dict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    __setattr__ = dict.__setitem__
    __delattr__ = dict.__delitem__


@case
def writes_to_an_instance_dict(compile):
    def program(x, thing):
        items = vars(thing)
        items["a"] = 7
        thing.__dict__.setdefault("b", 2)
        thing.__dict__ |= {"d": 4}
        thing.c = 3
        del items["e"]
        seen = getattr(thing, "a", 0), hasattr(thing, "b"), hasattr(thing, "e"), "c" in items, len(items)
        return x * thing.a, seen, items is thing.__dict__, list(items)

    thing = Plain()
    thing.a, thing.e = 1, 5
    result = compile(program)(ones(), thing)
    return result, vars(thing)


@case
def an_instance_dict_of_a_new_object(compile):
    class Config:
        def __init__(self, **items):
            self.__dict__.update(items)

    def program(x):
        config = Config(scale=3, shift=x)
        config.extra = 1
        return config, config.__dict__, list(vars(config)), x * config.scale + config.shift

    config, items, *rest = compile(program)(ones())
    return config, items is config.__dict__, rest


@case
def a_dict_that_is_its_own_instance_dict(compile):
    def program(x, config):
        config.shift = config.scale + 1
        config["more"] = config.shift
        result = x * getattr(config, "more", 0)
        del config.scale
        made = SelfDict(one=1)
        made.two = 2
        return result, "scale" in config, hasattr(config, "scale"), sorted(config), made, made["two"]

    config = SelfDict(scale=2)
    *rest, made, two = compile(program)(ones(), config)
    made.three = 3
    return rest, dict(made), two, dict(config), config.__dict__ is config


@case
def a_dict_whose_items_are_attributes(compile):
    def program(x, config):
        config.shift = config.scale + 1
        config["more"] = config.shift
        del config.scale
        return x * config.more, "scale" in config, hasattr(config, "scale"), sorted(config)

    config = ItemAttributes(scale=2)
    return compile(program)(ones(), config), dict(config)


@case
def a_descriptor_that_stores_under_its_own_name(compile):
    class Doubled:
        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, thing, owner=None):
            return self if thing is None else thing.__dict__.get(self.name, 1)

        def __set__(self, thing, value):
            thing.__dict__[self.name] = value * 2

    class Thing:
        size = Doubled()

    def program(x, thing):
        thing.size = thing.size + 1
        made = Thing()
        made.size = 3
        return x * thing.size, made

    thing, run = Thing(), compile(program)
    return run(ones(), thing), run(ones(), thing), vars(thing)


@case
def an_instance_dict_over_a_graph_break(compile):
    def program(x, thing):
        items = vars(thing)
        if x.sum() > 0:
            items["late"] = 6
        return x * getattr(thing, "late", 0)

    thing = Plain()
    return compile(program)(ones(), thing), vars(thing)


@case
def a_deleted_attribute_is_found_missing(compile):
    def program(x, thing):
        del thing.a
        return x, hasattr(thing, "a"), getattr(thing, "a", 4)

    run, results = compile(program), []
    for _ in range(2):
        thing = Plain()
        thing.a = 1
        results.append((run(ones(), thing), vars(thing)))
    return results


@case
def globals_of_a_module_that_is_not_registered(compile):
    space = {"__name__": "loaded_by_hand"}
    source = """
K = 2
L = []
def read(x): return x * K
def write(x):
    global K
    K += 1
    L.append(K)
    return x * K
"""
    exec(source, space)
    read, write = space["read"], space["write"]
    reader, writer = compile(lambda x: read(x)), compile(lambda x: write(x))
    results = [reader(ones())]
    space["K"] = 9
    results += [reader(ones()), *[writer(ones()) for _ in range(3)]]
    return results, space["K"], space["L"]


@case
def attributes_of_a_thread(compile):
    mine = threading.local()
    run, results = compile(lambda x: x * getattr(mine, "factor", 1)), []
    results.append(run(ones()))
    mine.factor = 3
    results.append(run(ones()))
    del mine.factor
    return [*results, run(ones())]


@case
def hooks_added_in_the_function(compile):
    model, seen = torch.nn.Sequential(torch.nn.Identity(), torch.nn.ReLU()), []

    def program(x):
        handle = model[0].register_forward_hook(lambda module, args, result: seen.append("h") or result * 2)
        first = model(x)
        handle.remove()
        return first, model(x)

    run = compile(program)
    return run(ones()), run(ones()), seen


@case
def parameters_made_at_the_first_call(compile):
    class Lazy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = None

        def forward(self, x):
            if self.weight is None:
                self.weight = torch.nn.Parameter(torch.ones(x.shape[-1]))
            if not hasattr(self, "count"):
                self.register_buffer("count", torch.zeros(()))
            self.count = self.count + 1
            return x * self.weight + self.count

    model = Lazy()
    run = compile(model)
    results = [run(ones()) for _ in range(3)]
    results[-1].sum().backward()
    return results, dict(model.state_dict()), model.weight.grad


@case
def state_read_inside(compile):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))

    def program(x):
        count = sum(p.numel() for p in model.parameters())
        return x * count, list(model.state_dict()), [name for name, _ in model.named_modules()]

    return compile(program)(ones())


@case
def recurrent_networks(compile):
    results = []
    for kind in (torch.nn.LSTM, torch.nn.GRU):
        torch.manual_seed(0)
        model = kind(3, 4, batch_first=True)
        run, x = compile(model), torch.ones(2, 5, 3)
        output, _ = run(x)
        output.sum().backward()
        with torch.no_grad():
            results += [run(x)[0].shape, output.shape, bool((model.weight_ih_l0.grad != 0).all())]
    return results


# ---- exceptions


def lines_of(error: BaseException) -> list[int]:
    """The user's lines on the way to an exception, without those of the test."""
    found = traceback.extract_tb(error.__traceback__)
    return [value.lineno for value in found if value.filename == __file__][1:]


def outcome(function, *args):
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error), lines_of(error)


@case
def an_exception_for_some_arguments(compile):
    seen = []

    def program(x, n):
        seen.append(n)
        x.add_(1)
        if n < 0:
            raise ValueError(f"negative: {n}")
        return x * n

    run, x = compile(program), ones()
    return [outcome(run, x, n) for n in (-1, 2, 3, -1, 4, -5)], x, seen


@case
def the_line_of_a_torch_error(compile):
    def program(x):
        y = x + 1
        return y.view(7)

    return outcome(compile(program), ones())


@case
def tracebacks_are_there(compile):
    class Guard:
        def __enter__(self):
            return self

        def __exit__(self, kind, error, trace):
            self.seen = kind, str(error), trace is None
            return True

    def program(x):
        guard = Guard()
        with guard:
            raise KeyError("inside")
        try:
            raise ValueError("q")
        except ValueError as error:
            return x, guard.seen, sys.exc_info()[2] is None, error.__traceback__ is None

    return compile(program)(ones())


@case
def messages_of_wrong_programs(compile):
    attempts = [
        lambda x: Plain() + 1,
        lambda x: Plain() < 1,
        lambda x: len(Plain()),
        lambda x: Plain()[0],
        lambda x: Plain()(),
        lambda x: iter(Plain()),
        lambda x: -Plain(),
        lambda x: 1 + "a",
        lambda x: None + 1,
        lambda x: [].foo,
        lambda x: Plain().foo,
        lambda x: {}["x"],
    ]

    def program(x):
        found = []
        for attempt in attempts:
            try:
                attempt(x)
            except Exception as error:
                found.append((type(error), str(error)))
        return found

    return compile(program)(ones())


@case
def subscripts_of_classes(compile):
    def program(x):
        return isinstance(x, list) or collections.abc.Sequence[int] == list[int], type[int] == type[int], dict[str, int]

    return [str(item) for item in compile(program)(ones())]


# ---- gradients


def leaf() -> torch.Tensor:
    return torch.ones(2, 2, requires_grad=True)


@case
def detached_results(compile):
    def program(x):
        y = x * 2
        return y, y.detach(), y.data, y.view(-1).detach(), x.detach(), x[0].detach().view(-1), x.t(), x

    x = leaf()
    results = compile(program)(x), compile(program)(x * 1)
    results[0][4].add_(1)
    return results, x, results[0][-1] is x, [result.grad_fn is None for result in results[0]]


@case
def views_made_without_gradients(compile):
    def program(x):
        with torch.no_grad():
            views = x.view(-1), x[0]
        return *views, x.view(-1)

    run, x = compile(program), leaf()
    with torch.no_grad():
        inside = compile(program)(x)
    return run(x), run(x * 1), inside


@case
def an_input_that_is_only_changed(compile):
    def scaled(x):
        x.mul_(3)
        return x

    def partly(x, y):
        x[0] = y[0]

    def without_history(x):
        with torch.no_grad():
            x.mul_(2)
        return x + 1

    results = []
    for program in (scaled, lambda x: partly(x, x * 2), without_history):
        start = leaf()
        x = start * 3
        result = compile(program)(x)
        (x.sum() if result is None else x.sum() + result.sum()).backward()
        results.append((x, result is x, start.grad))
    return results


@case
def an_input_that_comes_to_require_gradients(compile):
    def copied(x, y):
        x.copy_(y * 2)
        x[0] = y[0]
        return x

    def asked(x):
        x.requires_grad_()
        return x * 2

    x, y, z = torch.zeros(2), torch.ones(2, requires_grad=True), torch.ones(2)
    result, other = compile(copied)(x, y), compile(asked)(z)
    (result.sum() + other.sum()).backward()
    return result, result is x, x, y.grad, z, z.grad


@case
def leaves_made_inside(compile):
    def program(x, p):
        made = torch.ones(2, requires_grad=True)
        copy = x.detach().requires_grad_()
        return made, copy, (made * p * copy).sum()

    p = torch.nn.Parameter(torch.ones(2))
    made, copy, loss = compile(program)(torch.ones(2), p)
    loss.backward()
    alone, _ = compile(lambda x: (torch.zeros(2, requires_grad=True), x * 2))(ones())
    return made, copy, loss, made.grad, copy.grad, p.grad, alone


@case
def backward_inside(compile):
    p = torch.nn.Parameter(torch.ones(2))

    def program(x):
        loss = ((p * x) ** 2).sum()
        loss.backward(retain_graph=True)
        first = p.grad
        loss.backward()
        return loss.detach(), first is p.grad, torch.zeros(2) if p.grad is None else p.grad * 2

    return compile(program)(ones()), p.grad


@case
def backward_of_what_is_made_inside(compile):
    def program(x):
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            (y**2).sum().backward()
        return y.grad + x

    return compile(program)(ones())


@case
def a_training_step_inside(compile):
    model = torch.nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.fill_(0.5)
        model.bias.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x):
        optimizer.zero_grad()
        loss = (model(x) ** 2).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = compile(step)
    return [run(torch.ones(3, 2)) for _ in range(3)], list(model.parameters())


@case
def inputs_in_one_memory(compile):
    def changed(a, b):
        product = a * b
        b[0].mul_(-1.0)
        return product, b

    def looked_at(a, b):
        return b[0], a.detach()

    run, look, results = compile(changed), compile(looked_at), []
    for view in (torch.t, torch.clone):
        start = leaf()
        a = start * 3
        b = view(a)
        product, _ = run(a.detach(), b.detach())
        product_2, result = run(a, b)
        result.sum().backward()
        results += [product, product_2, start.grad, a, b]
    plain = torch.zeros(2, 2)
    return results, look(plain, plain.detach()), look(plain, torch.ones(2, 2))


@case
def views_stay_tied_to_an_input_without_gradients(compile):
    def program(x, p):
        return x.view(-1), x[0], (p * 2).sum()

    x, p = torch.ones(2, 2), torch.ones(4, requires_grad=True)
    flat, row, _ = compile(program)(x, p)
    flat.add_(p)
    return x.requires_grad, flat.requires_grad, row.requires_grad, row.detach()


@case
def a_detached_input_gets_a_history_of_its_own(compile):
    def program(a, b):
        inner = b.detach()
        inner.copy_(a * 3)
        return inner, b * 2

    a, start = leaf(), leaf()
    inner, doubled = compile(program)(a, start * 1)
    (inner.sum() * 5 + doubled.sum()).backward()
    return inner, doubled, a.grad, start.grad


@case
def retained_gradients(compile):
    def program(x):
        y = x * 2
        y.retain_grad()
        return y, (y * 3).sum()

    x = leaf()
    y, loss = compile(program)(x)
    loss.backward()
    return y.grad, x.grad


@case
def gradients_that_are_turned_on_inside(compile):
    def program(x, z):
        with torch.enable_grad():
            y = x * 2
            z.mul_(2)
            view = z.view(-1)
        return y, view, x * 3

    x, start = leaf(), leaf()
    z = start * 1
    with torch.no_grad():
        y, view, plain = compile(program)(x, z)
    (y.sum() + view.sum() + z.sum()).backward()
    return y, view, plain, x.grad, start.grad, torch.is_grad_enabled()


@case
def parameters_changed_in_a_loop_with_breaks(compile):
    model = torch.nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.fill_(0.5)
        model.bias.zero_()

    def step(x):
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p -= 0.5 * p.grad
                    p.grad = None
        return model(x).sum()

    run, losses = compile(step), []
    for _ in range(3):
        losses.append(run(torch.ones(1, 2)))
        losses[-1].backward()
    return losses, list(model.parameters())


def seen(value: Any) -> Any:
    """A result in comparable form."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.requires_grad, value.is_leaf, value.stride(), value.tolist()
    if isinstance(value, list | tuple):
        return type(value), [seen(item) for item in value]
    if isinstance(value, dict):
        return type(value), [(key, seen(item)) for key, item in value.items()]
    if isinstance(value, BaseException):
        return type(value), str(value)
    return (
        value
        if isinstance(value, type) or not hasattr(value, "__dict__")
        else (type(value).__name__, seen(vars(value)))
    )


@pytest.mark.filterwarnings("ignore::kiln.pipeline.session.KilnWarning")
@pytest.mark.parametrize("backend", ["eager", "kiln"])
@pytest.mark.parametrize("program", CASES, ids=lambda one: one.__name__)
def test_result_is_eagers(program: Any, backend: str, capsys: Any) -> None:
    torch.manual_seed(0)
    expected, printed = seen(program(lambda function: function)), capsys.readouterr().out
    torch.manual_seed(0)
    got = seen(program(functools.partial(kiln.compile, backend=backend)))
    assert got == expected
    assert capsys.readouterr().out == printed
