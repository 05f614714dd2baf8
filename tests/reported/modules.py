"""Modules whose parameters, buffers, mode or structure change between calls; hooks; optimizers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tests.reported.registry import Compile, Programs, attempt, floats, ints

PROGRAMS = Programs("modules")


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


class Counter(nn.Module):
    """Counts its calls in a buffer and in a Python number."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.calls = 0
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.calls += 1
        self.last = x * 2
        return x * self.count + self.calls


class Tied(nn.Module):
    """Two names of one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, i: Tensor) -> Tensor:
        return self.head(self.embed(i))


@PROGRAMS.scenario
def buffers_and_attributes_that_change(compile: Compile) -> Iterator[Any]:
    module = Counter()
    f = compile(module)
    for n in (2, 2, 3):
        yield f(floats(n)), module.count, module.calls, module.last


@PROGRAMS.scenario
def tied_parameters(compile: Compile) -> Iterator[Any]:
    module = Tied()
    f = compile(module)
    for n in (2, 2, 3):
        module.zero_grad()
        y = f(ints(n, low=0, high=5))
        y.sum().backward()
        yield y, module.embed.weight.grad, module.head.weight is module.embed.weight
    module.head.weight = nn.Parameter(floats(5, 3))
    module.zero_grad()
    f(ints(2, low=0, high=5)).sum().backward()
    yield module.embed.weight.grad, module.head.weight.grad


@PROGRAMS.scenario
def a_replaced_parameter(compile: Compile) -> Iterator[Any]:
    module = nn.Linear(3, 2)
    f = compile(module)
    x = floats(2, 3)
    yield f(x)
    module.weight = nn.Parameter(torch.ones(2, 3))
    yield f(x)
    module.bias = None
    yield f(x)
    module.weight.data = torch.full((2, 3), 2.0)
    yield f(x)
    with torch.no_grad():
        module.weight.fill_(3)
    yield f(x)


@PROGRAMS.scenario
def a_frozen_parameter(compile: Compile) -> Iterator[Any]:
    module = net()
    f = compile(module)
    for frozen in (False, True, False):
        module[0].weight.requires_grad_(not frozen)
        module.zero_grad()
        f(floats(2, 3)).sum().backward()
        yield [parameter.grad for parameter in module.parameters()]
    module.requires_grad_(False)
    yield f(floats(2, 3))


@PROGRAMS.scenario
def a_loaded_state(compile: Compile) -> Iterator[Any]:
    module, other = net(), net()
    f = compile(module)
    x = floats(2, 3)
    yield f(x)
    module.load_state_dict(other.state_dict())
    yield f(x)
    module.load_state_dict({name: value * 2 for name, value in other.state_dict().items()}, assign=True)
    yield f(x), list(module.state_dict())


@PROGRAMS.scenario
def training_and_evaluation(compile: Compile) -> Iterator[Any]:
    module = nn.Sequential(nn.Dropout(1.0), nn.BatchNorm1d(3))
    f = compile(module)
    for training in (True, False, True, False):
        module.train(training)
        yield f(floats(4, 3)), module[1].running_mean, module[1].num_batches_tracked


@PROGRAMS.scenario
def batch_norm_without_momentum(compile: Compile) -> Iterator[Any]:
    module = nn.BatchNorm1d(3, momentum=None)
    f = compile(module)
    for n in (4, 4, 6):
        yield f(floats(n, 3)), module.running_mean, module.running_var, module.num_batches_tracked


@PROGRAMS.scenario
def batch_norm_without_statistics(compile: Compile) -> Iterator[Any]:
    module = nn.BatchNorm2d(2, affine=False, track_running_stats=False)
    f = compile(module)
    for n in (2, 2, 3):
        yield f(floats(n, 2, 3, 3))
    module.eval()
    yield f(floats(2, 2, 3, 3))


@PROGRAMS.scenario
def batch_norm_of_one_value(compile: Compile) -> Iterator[Any]:
    f = compile(nn.BatchNorm1d(3))
    yield attempt(f, floats(1, 3))
    yield attempt(f, floats(2, 3))


@PROGRAMS.scenario
def instance_and_group_norm(compile: Compile) -> Iterator[Any]:
    module = nn.Sequential(nn.InstanceNorm2d(4, track_running_stats=True, affine=True), nn.GroupNorm(2, 4))
    f = compile(module)
    for n in (2, 2, 3):
        yield f(floats(n, 4, 3, 3)), module[0].running_mean
    module.eval()
    yield f(floats(1, 4, 3, 3))


@PROGRAMS.scenario
def forward_hooks(compile: Compile) -> Iterator[Any]:
    module = net()
    seen: list[Any] = []
    f = compile(module)
    x = floats(2, 3)
    yield f(x)
    handle = module[0].register_forward_hook(lambda module, args, result: result * 2)
    yield f(x)
    other = module[1].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    yield f(x)
    handle.remove()
    yield f(x)
    module.register_forward_hook(lambda module, args, result: seen.append(result.sum()))
    other.remove()
    yield f(x), list(seen)
    yield f(x), list(seen)


@PROGRAMS.scenario
def a_hook_with_keywords(compile: Compile) -> Iterator[Any]:
    class Layer(nn.Module):
        def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
            return x * scale

    module = Layer()
    module.register_forward_pre_hook(lambda m, args, kwargs: (args, {"scale": kwargs["scale"] + 1}), with_kwargs=True)
    f = compile(module)
    for scale in (1.0, 2.0, 3.0):
        yield f(floats(2), scale=scale)


@PROGRAMS.scenario
def full_backward_hooks(compile: Compile) -> Iterator[Any]:
    module = net()
    seen = []
    module[0].register_full_backward_hook(lambda module, grad_in, grad_out: seen.append(grad_out[0].sum()))
    f = compile(module)
    for _ in range(2):
        module.zero_grad()
        f(floats(2, 3)).sum().backward()
        yield [parameter.grad for parameter in module.parameters()], list(seen)


@PROGRAMS.scenario
def a_backward_hook_that_changes_the_gradient(compile: Compile) -> Iterator[Any]:
    module = net()
    module[1].register_full_backward_hook(lambda module, grad_in, grad_out: (grad_in[0] * 2,))
    f = compile(module)
    f(floats(2, 3)).sum().backward()
    yield [parameter.grad for parameter in module.parameters()]


@PROGRAMS.scenario
def steps_of_optimizers(compile: Compile) -> Iterator[Any]:
    for make in (
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
        lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
        lambda p: torch.optim.AdamW(p, lr=0.1),
        lambda p: torch.optim.RMSprop(p, lr=0.1),
    ):
        torch.manual_seed(1)
        module = net()
        optimizer = make(module.parameters())
        f = compile(module)
        for _ in range(3):
            optimizer.zero_grad()
            loss = f(floats(4, 3)).square().mean()
            loss.backward()
            optimizer.step()
            yield loss, list(module.parameters())


@PROGRAMS.scenario
def a_whole_training_step(compile: Compile) -> Iterator[Any]:
    module = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = module(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    f = compile(step)
    for _ in range(4):
        yield f(floats(4, 3)), module.weight
    optimizer.param_groups[0]["lr"] = 1.0
    yield f(floats(4, 3)), module.weight


@PROGRAMS.scenario
def clipped_gradients(compile: Compile) -> Iterator[Any]:
    module = net()
    f = compile(module)

    def clip() -> Tensor:
        return nn.utils.clip_grad_norm_(module.parameters(), 0.1)

    g = compile(clip)
    for _ in range(3):
        module.zero_grad()
        f(floats(4, 3)).sum().backward()
        yield g(), [parameter.grad for parameter in module.parameters()]


@PROGRAMS.scenario
def a_layer_replaced(compile: Compile) -> Iterator[Any]:
    module = net()
    f = compile(module)
    x = floats(2, 3)
    yield f(x)
    module[1] = nn.Tanh()
    yield f(x)
    module.append(nn.Sigmoid())
    yield f(x)
    del module[-1]
    yield f(x)
    module.insert(1, nn.Linear(4, 4, bias=False))
    yield f(x)


@PROGRAMS.scenario
def layers_in_containers(compile: Compile) -> Iterator[Any]:
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
            self.named = nn.ModuleDict({"b": nn.ReLU(), "a": nn.Tanh()})
            self.weights = nn.ParameterList([nn.Parameter(torch.ones(3) * i) for i in range(2)])
            self.order = ["a", "b"]

        def forward(self, x: Tensor) -> Any:
            for i, layer in enumerate(self.layers[::-1]):
                x = self.named[self.order[i % 2]](layer(x)) * self.weights[i % 2]
            return x, [name for name, _ in self.named_parameters()], len(self.layers)

    module = Stack()
    f = compile(module)
    for _ in range(2):
        yield f(floats(2, 3))
    module.order.reverse()
    yield f(floats(2, 3))
    module.layers.append(nn.Linear(3, 3))
    yield f(floats(2, 3))


@PROGRAMS.scenario
def a_copied_module(compile: Compile) -> Iterator[Any]:
    module = net()
    f = compile(module)
    x = floats(2, 3)
    yield f(x)
    other = copy.deepcopy(f)
    with torch.no_grad():
        module[0].weight.zero_()
    yield f(x), other(x)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(2)
    yield f(x), other(x)


@PROGRAMS.scenario
def a_module_of_another_dtype(compile: Compile) -> Iterator[Any]:
    module = net()
    f = compile(module)
    yield f(floats(2, 3))
    module.double()
    yield f(floats(2, 3).double())
    yield attempt(f, floats(2, 3))
    module.bfloat16()
    yield f(floats(2, 3).bfloat16())


@PROGRAMS.scenario
def other_attributes_of_a_module(compile: Compile) -> Iterator[Any]:
    class Scale(nn.Module):
        factor = 2.0

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor + getattr(self, "offset", 0)

    module = Scale()
    f = compile(module)
    x = floats(2)
    yield f(x)
    module.factor = 3.0
    yield f(x)
    module.offset = torch.ones(2)
    yield f(x)
    del module.factor
    yield f(x)
    Scale.factor = 5.0
    yield f(x)
    module.forward = lambda x: x - 1  # type: ignore[method-assign]
    yield f(x)


@PROGRAMS.scenario
def a_buffer_replaced(compile: Compile) -> Iterator[Any]:
    class Running(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            return x - self.mean

    module = Running()
    f = compile(module)
    for n in (2, 2, 3):
        before = module.mean
        yield f(floats(n, 3)), module.mean, before
    module.mean = torch.ones(3)
    yield f(floats(2, 3)), module.mean, list(module.state_dict())


@PROGRAMS.scenario
def a_cache_that_grows(compile: Compile) -> Iterator[Any]:
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.keys: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            self.keys = x if self.keys is None else torch.cat([self.keys, x])
            return self.keys.sum(0)

    module = Cache()
    f = compile(module)
    for _ in range(5):
        yield f(floats(1, 3)), module.keys


@PROGRAMS.scenario
def one_layer_called_twice(compile: Compile) -> Iterator[Any]:
    layer = nn.Linear(3, 3)
    f = compile(lambda x: layer(layer(x)) + layer(x * 0))
    for n in (2, 2, 4):
        layer.zero_grad()
        f(floats(n, 3)).sum().backward()
        yield layer.weight.grad, layer.bias.grad


@PROGRAMS.scenario
def two_modules_of_one_class(compile: Compile) -> Iterator[Any]:
    first, second = compile(nn.Linear(3, 2)), compile(nn.Linear(3, 2))
    x = floats(2, 3)
    for _ in range(2):
        yield first(x), second(x)


@PROGRAMS.scenario
def a_parametrised_weight(compile: Compile) -> Iterator[Any]:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    f = compile(layer)
    for _ in range(2):
        layer.zero_grad()
        f(floats(2, 3)).sum().backward()
        yield [parameter.grad for parameter in layer.parameters()]
    nn.utils.parametrize.remove_parametrizations(layer, "weight")
    yield f(floats(2, 3))


@PROGRAMS.scenario
def a_spectral_norm(compile: Compile) -> Iterator[Any]:
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2))
    f = compile(layer)
    for _ in range(3):
        yield f(floats(2, 3))
    layer.eval()
    yield f(floats(2, 3))


@PROGRAMS.scenario
def functional_calls(compile: Compile) -> Iterator[Any]:
    module = net()
    f = compile(lambda weights, x: torch.func.functional_call(module, weights, (x,)))
    for factor in (1.0, 2.0, 2.0):
        weights = {name: parameter * factor for name, parameter in module.named_parameters()}
        yield f(weights, floats(2, 3))
    yield module(floats(2, 3))


@PROGRAMS.scenario
def a_recurrent_layer_with_a_state(compile: Compile) -> Iterator[Any]:
    layer = nn.LSTM(3, 4, num_layers=2, batch_first=True, bidirectional=True)
    f = compile(lambda x, state: layer(x, state))
    state = None
    for _ in range(3):
        y, state = f(floats(2, 3, 3), state)
        yield y, state
    y, state = f(floats(1, 5, 3), None)
    yield y, state


@PROGRAMS.scenario
def an_encoder_in_evaluation(compile: Compile) -> Iterator[Any]:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    f = compile(layer)
    mask = torch.zeros(2, 3).bool()
    mask[0, 2] = True
    for training in (True, False):
        layer.train(training)
        yield f(floats(2, 3, 4)), f(floats(2, 3, 4), src_key_padding_mask=mask)
    with torch.no_grad():
        yield f(floats(2, 3, 4), src_key_padding_mask=mask)


@PROGRAMS.scenario
def an_encoder_that_packs_rows(compile: Compile) -> Iterator[Any]:
    """Eager leaves zeros where a row has ended, unless padding is elsewhere."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(4)).eval()
    f = compile(encoder)
    ends, elsewhere = torch.tensor([[0, 0, 1], [0, 1, 1]]).bool(), torch.tensor([[0, 0, 1], [1, 0, 0]]).bool()
    for mask in (ends, elsewhere, torch.zeros(2, 3).masked_fill(ends, -torch.inf), torch.zeros(3, 5).bool()):
        x = floats(*mask.shape, 4)
        yield f(x, src_key_padding_mask=mask)
        with torch.no_grad():
            yield f(x, src_key_padding_mask=mask)


@PROGRAMS.scenario
def attention_with_masks(compile: Compile) -> Iterator[Any]:
    layer = nn.MultiheadAttention(4, 2, batch_first=True)
    f = compile(lambda x, mask, causal: layer(x, x, x, attn_mask=mask, need_weights=True, is_causal=causal))
    for n in (3, 3, 5):
        x = floats(2, n, 4)
        yield f(x, None, False)
        yield f(x, torch.ones(n, n).triu(1).bool(), False)
        yield f(x, nn.Transformer.generate_square_subsequent_mask(n), True)


@PROGRAMS.scenario
def a_lazy_layer(compile: Compile) -> Iterator[Any]:
    module = nn.Sequential(nn.LazyLinear(2), nn.ReLU())
    f = compile(module)
    for _ in range(2):
        y = f(floats(2, 3))
        yield y.shape, type(module[0]).__name__, module[0].weight.shape


@PROGRAMS.scenario
def a_module_without_parameters_that_returns_its_input(compile: Compile) -> Iterator[Any]:
    f = compile(nn.Sequential(nn.Identity(), nn.Dropout(0.0), nn.Flatten(0, -1)))
    for n in (2, 2, 3):
        x = floats(n)
        yield f(x), x
