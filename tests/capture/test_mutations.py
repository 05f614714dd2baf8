"""What a compiled model must notice: after each change the guards fail, or the result is still eager's."""

from __future__ import annotations

import pytest
import torch

WIDTH = 8
SCALE = 2.0


class Config:
    def __init__(self):
        self.eps = 1e-3
        self.act = "relu"


class Block(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.dense = torch.nn.Linear(WIDTH, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.drop = torch.nn.Dropout(0.5)
        self.register_buffer("shift", torch.ones(WIDTH))

    def forward(self, x):
        y = self.drop(self.dense(x)) + self.shift
        y = torch.relu(y) if self.config.act == "relu" else torch.tanh(y)
        return self.norm(y) * SCALE + self.config.eps


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config()
        self.layers = torch.nn.ModuleList([Block(self.config) for _ in range(3)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return {"out": x}


def entry(model, x):
    return model(x)


def replaced_parameter(m):
    m.layers[1].dense.weight = torch.nn.Parameter(torch.randn(WIDTH, WIDTH))


def swapped_data(m):
    m.layers[1].dense.weight.data = torch.randn(WIDTH, WIDTH)


def frozen(m):
    m.layers[2].norm.weight.requires_grad_(False)


def replaced_module(m):
    m.layers[0].dense = torch.nn.Linear(WIDTH, WIDTH, bias=False)


def replaced_layer(m):
    m.layers[2] = torch.nn.Identity()


def removed_layer(m):
    del m.layers[2]


def forward_hook(m):
    m.layers[1].register_forward_hook(lambda mod, args, out: out * 2)


def forward_pre_hook(m):
    m.layers[1].dense.register_forward_pre_hook(lambda mod, args: (args[0] + 1,))


def backward_hook(m):
    m.layers[1].register_full_backward_hook(lambda mod, gi, go: None)


def training(m):
    torch.manual_seed(5)
    m.train()


def config_attribute(m):
    m.config.eps = 0.5


def config_string(m):
    m.config.act = "tanh"


def config_of_one_layer(m):
    m.layers[1].config = Config()
    m.layers[1].config.act = "tanh"


def global_value(m):
    globals()["SCALE"] = 3.0


def own_forward(m):
    m.layers[0].forward = lambda x: x


def class_forward(m):
    Block.forward, m.saved = (lambda self, x: x - 1), Block.forward


def new_buffer(m):
    m.layers[0].shift = torch.zeros(WIDTH)


def half(m):
    m.double()


MUTATIONS = [
    *(replaced_parameter, swapped_data, frozen, replaced_module, replaced_layer, removed_layer, forward_hook),
    *(forward_pre_hook, backward_hook, training, config_attribute, config_string, config_of_one_layer, global_value),
    *(own_forward, class_forward, new_buffer, half),
]


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda f: f.__name__)
def test_change_is_noticed(lab, equal, mutate):
    torch.manual_seed(0)
    model = Net().eval()
    x = torch.randn(2, WIDTH)
    compiled = lab.compile(entry)
    before = Block.forward
    try:
        for _ in range(2):
            equal(compiled(model, x), entry(model, x))
        assert len(lab.captures) == 1
        assert len(lab.captures[0].regions) == 1
        mutate(model)
        if mutate is half:
            x = x.double()
        torch.manual_seed(1)
        expected = entry(model, x)
        torch.manual_seed(1)
        got = compiled(model, x)
        equal(got, expected)
        assert got["out"].requires_grad == expected["out"].requires_grad
    finally:
        Block.forward = before
        globals()["SCALE"] = 2.0


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(3, WIDTH),
        torch.randn(2, 2, WIDTH),
        torch.randn(WIDTH, 2).t(),
        torch.randn(2, WIDTH).requires_grad_(),
    ],
)
def test_other_input_is_noticed(lab, equal, x):
    model = Net().eval()
    compiled = lab.compile(entry)
    compiled(model, torch.randn(2, WIDTH))
    equal(compiled(model, x), entry(model, x))
    assert len(lab.captures) == 2


def test_state_is_noticed(lab, equal):
    model, x = Net().eval(), torch.randn(2, WIDTH)
    compiled = lab.compile(entry)
    compiled(model, x)
    with torch.no_grad():
        assert not compiled(model, x)["out"].requires_grad
    with torch.autocast("cpu", dtype=torch.bfloat16):
        equal(compiled(model, x), entry(model, x))
    assert len(lab.captures) == 3


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_autocast_inside_is_in_the_graph(lab, equal, kind):
    """Also for a device that is missing: the context manager queries the machine first."""

    def product(x):
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=False):
            y = x @ x
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return y @ x

    x = torch.randn(WIDTH, WIDTH)
    equal(lab.compile(product)(x), product(x))
    assert len(lab.captures) == 1
