"""Equal layers are interpreted once; with and without that, a capture has the same text and results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch import nn

from kiln.capture.interpreter.repeated_layers import repeat
from kiln.capture.interpreter.repeated_layers.recorded_call import is_fixed_result
from kiln.capture.interpreter.variables import module
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.sequence import List, Tuple
from kiln.runtime.guards.source import LocalSource
from tests.capture.conftest import Lab, assert_equal
from tests.capture.texts import texts

COUNT = 0


class Config:
    def __init__(self) -> None:
        self.scale = 2.0
        self.kinds = {"wide"}


CONFIG = Config()


class Block(nn.Module):
    """Long enough to be worth repeating."""

    def __init__(self, config: Config | None = None, index: int = 0, width: int = 8) -> None:
        super().__init__()
        self.config = config or Config()
        self.index = index
        self.unused = 1
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(0.25)
        self.kinds = {"wide"}

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        _ = self.unused
        y = self.norm(x)
        if mask is not None:
            y = y + mask
        y = self.down(torch.relu(self.up(y)))
        y = self.dropout(y) * self.config.scale
        return x + self.extra(y) if "wide" in self.kinds else x - y

    def extra(self, y: torch.Tensor) -> torch.Tensor:
        return y


class Stack(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.config = getattr(blocks[0], "config", None) or Config()

    def forward(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        x = x * self.config.scale
        for block in self.blocks:
            x = block(x, *rest)
        return x


def stack(count: int = 4, config: Config | None = None) -> Stack:
    torch.manual_seed(0)
    config = config or Config()
    return Stack(*[Block(config, index) for index in range(count)]).eval()


def interpreted(s: Any, module: Any, args: Any, kwargs: Any, interpret: Callable[[], Any]) -> Any:
    """Replaces `call_repeatable`: nothing is repeated."""
    return interpret()


def noting(call: Callable[..., Any], states: list[Any]) -> Callable[..., Any]:
    def noted(s: Any, *rest: Any) -> Any:
        states.append(s)
        return call(s, *rest)

    return noted


@pytest.fixture
def repeats(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """`repeats(model, x)`: captured both ways, equal; how often a block was repeated."""
    made = [0]
    original = repeat.repeated

    def counted(*args: Any) -> Any:
        result = original(*args)
        made[0] += result is not None
        return result

    monkeypatch.setattr(repeat, "repeated", counted)

    def check(model: Any, *args: Any, grad: bool = False) -> int:
        with torch.set_grad_enabled(grad):
            return both(model, *args)

    def both(model: Any, *args: Any) -> int:
        seed = torch.get_rng_state()
        state = {name: value.clone() for name, value in model.state_dict().items()}
        answers: list[Any] = []
        labs: list[Lab] = []
        numbers: list[int] = []
        for call in (None, repeat.call_repeatable, interpreted):
            torch.set_rng_state(seed)
            model.load_state_dict(state)
            if call is None:
                answers.append((model(*args), {n: v.clone() for n, v in model.state_dict().items()}))
                continue
            states: list[Any] = []
            monkeypatch.setattr(module, "call_repeatable", noting(call, states))
            labs.append(lab := Lab())
            function = lab.compile(type(model).forward)
            answers.append((function(model, *args), {n: v.clone() for n, v in model.state_dict().items()}))
            assert lab.skipped() == [], [str(capture.skipped) for capture in lab.captures]
            assert lab.failures == [None] * len(lab.failures)
            numbers.append(states[-1].counters.frames)
        assert numbers[0] == numbers[1], "breaks are found again by the numbers of frames"
        assert texts(labs[0].captures) == texts(labs[1].captures)
        assert_equal(answers[1], answers[0])
        assert_equal(answers[2], answers[0])
        return made[0]

    return check


def x(*sizes: int) -> torch.Tensor:
    return torch.randn(*(sizes or (2, 8)), generator=torch.Generator().manual_seed(1))


def test_equal_blocks_are_repeated(repeats: Any) -> None:
    assert repeats(stack(), x()) == 3


def test_with_autograd(repeats: Any) -> None:
    """The input of the first block requires no gradient, that of the others does."""
    assert repeats(stack(), x(), grad=True) == 2
    assert repeats(stack(), x().requires_grad_(), grad=True) == 2 + 3


def test_an_argument_is_shared_by_all(repeats: Any) -> None:
    assert repeats(stack(), x(), x()) == 3


def test_an_input_that_is_the_first_activation(repeats: Any) -> None:
    """The first block gets an input of the frame, the others get intermediate values."""

    class Direct(Stack):
        def forward(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
            for block in self.blocks:
                x = block(x, *rest)
            return x

    assert repeats(Direct(*[Block(CONFIG) for _ in range(4)]).eval(), x(), None) == 2


def test_dropout_draws_anew_in_each(repeats: Any) -> None:
    assert repeats(stack().train(), x()) == 3


class WithBatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm, self.other = nn.BatchNorm1d(8), nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu_(self.other(self.second(torch.relu_(self.norm(self.first(x))))))


def test_buffers_are_written_in_each(repeats: Any) -> None:
    """Also once inside the first block, whose two norms are equal."""
    assert repeats(Stack(*[WithBatchNorm() for _ in range(4)]).train(), x()) == 1 + 3


def change_scale(model: Stack) -> None:
    model.blocks[2].dropout.p = 0.5


def add_hook(model: Stack) -> None:
    model.blocks[2].register_forward_hook(lambda module, args, output: output * 2)


def add_inner_hook(model: Stack) -> None:
    model.blocks[2].up.register_forward_pre_hook(lambda module, args: (args[0] + 1,))


def replace_module(model: Stack) -> None:
    model.blocks[2].norm = nn.Identity()


def override_method(model: Stack) -> None:
    model.blocks[2].extra = torch.sin


def override_forward(model: Stack) -> None:
    model.blocks[2].forward = torch.neg


def own_config(model: Stack) -> None:
    model.blocks[2].config = Config()
    model.blocks[2].config.scale = 3.0


def other_set(model: Stack) -> None:
    model.blocks[2].kinds = {"flat"}


def train_one(model: Stack) -> None:
    model.blocks[2].dropout.train()


def frozen(model: Stack) -> None:
    model.blocks[2].up.weight.requires_grad_(False)


def no_bias(model: Stack) -> None:
    model.blocks[2].up.bias = None


def wider(model: Stack) -> None:
    model.blocks[2].up, model.blocks[2].down = nn.Linear(8, 24), nn.Linear(24, 8)


def other_strides(model: Stack) -> None:
    weight = model.blocks[2].up.weight
    weight.data = weight.data.t().contiguous().t()


@pytest.mark.parametrize(
    "change",
    [
        change_scale, add_hook, add_inner_hook, replace_module, override_method, override_forward, own_config,
        other_set, train_one, frozen, no_bias, wider, other_strides,
    ],
)  # fmt: skip
def test_a_block_that_differs_is_interpreted(repeats: Any, change: Any) -> None:
    model = stack(5)
    change(model)
    assert repeats(model, x()) == 3


def test_one_block_in_another_dtype(repeats: Any) -> None:
    class Cast(Block):
        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            return super().forward(x.to(self.up.weight.dtype), mask).to(torch.float32)

    model = Stack(*[Cast(CONFIG, index) for index in range(5)]).eval()
    model.blocks[2].double()
    assert repeats(model, x()) == 3


def test_the_same_block_again_is_no_other_block(repeats: Any) -> None:
    block = Block()
    assert repeats(Stack(block, block, block).eval(), x()) == 0


def test_shared_parameters(repeats: Any) -> None:
    model = stack(4)
    model.blocks[2].up.weight = model.blocks[0].up.weight
    assert repeats(model, x()) == 2


def test_parameters_in_one_memory(repeats: Any) -> None:
    model = stack(4)
    whole = torch.randn(2, 16, 8)
    model.blocks[1].up.weight = nn.Parameter(whole[0])
    model.blocks[2].up.weight = nn.Parameter(whole.view(-1)[64:192].view(16, 8))
    repeats(model, x())


def test_a_module_inside_two_blocks(repeats: Any) -> None:
    model = stack(4)
    model.blocks[2].norm = model.blocks[1].norm
    assert repeats(model, x()) == 2


def test_a_module_twice_inside_a_block(repeats: Any) -> None:
    model = Stack(*[WithBatchNorm() for _ in range(4)]).eval()
    for block in model.blocks:
        block.second = block.first
    assert repeats(model, x()) == 1 + 3
    model.blocks[3].second = nn.Linear(8, 8)
    assert repeats(model, x()) == (1 + 3) + (1 + 2 + 2)


class Counting(Block):
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        global COUNT
        COUNT += 1
        return super().forward(x, mask) * COUNT


def test_a_global_that_is_written_and_read(repeats: Any) -> None:
    global COUNT
    model = Stack(*[Counting() for _ in range(3)]).eval()

    class Start(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            global COUNT
            COUNT = 0
            return x

    model.blocks.insert(0, Start())
    assert repeats(model, x()) == 0


class Remembering(Block):
    def forward(self, x: torch.Tensor, mask: list[Any] | None = None) -> torch.Tensor:
        y = super().forward(x)
        assert mask is not None
        mask.append(y)
        return y + len(mask)


def test_a_list_of_the_caller_that_grows(repeats: Any) -> None:
    class Caller(Stack):
        def forward(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
            kept: list[Any] = []
            for block in self.blocks:
                x = block(x, kept)
            return x + sum(kept)

    assert repeats(Caller(*[Remembering() for _ in range(3)]).eval(), x()) == 0


class Indexed(Block):
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        y = super().forward(x, mask)
        return y * (self.index + 1) if mask is not None else pass_on(y, self.index)


def pass_on(y: torch.Tensor, index: int) -> torch.Tensor:
    return y


def test_a_number_that_is_not_used_may_differ(repeats: Any) -> None:
    assert repeats(Stack(*[Indexed(CONFIG, index) for index in range(4)]).eval(), x()) == 3


def test_a_number_that_is_used_may_not(repeats: Any) -> None:
    assert repeats(Stack(*[Indexed(CONFIG, index) for index in range(4)]).eval(), x(), x()) == 3 - 3


def test_an_attribute_that_is_read_must_be_there(repeats: Any) -> None:
    model = stack()
    del model.blocks[2].unused
    Block.unused = 7  # type: ignore[assignment]
    try:
        assert repeats(model, x()) == 2
    finally:
        del Block.unused


def test_a_mode_that_changes_between_blocks(repeats: Any) -> None:
    class Modes(Stack):
        def forward(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
            for number, block in enumerate(self.blocks):
                with torch.set_grad_enabled(number % 2 == 0):
                    x = block(x)
            return x

    repeats(Modes(*[Block(CONFIG) for _ in range(6)]).eval(), x())


class Asking(Block):
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        y = super().forward(x)
        return y * 2 if torch.tensor([1.0, 2.0]).sum() > 2 else y


def test_values_of_tensors_are_asked_again(repeats: Any) -> None:
    assert repeats(Stack(*[Asking() for _ in range(3)]).eval(), x()) == 0


def test_a_break_behind_repeated_blocks(repeats: Any) -> None:
    class Breaking(Stack):
        def forward(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
            x = super().forward(x)
            return super().forward(x + (0, 1)[x.sum().item() > 1e9])

    repeats(Breaking(*[Block(CONFIG) for _ in range(3)]).eval(), x())


def test_results_that_are_tuples_and_views(repeats: Any) -> None:
    class Two(Block):
        def forward(self, x: Any, mask: Any = None) -> Any:
            y, left = x
            y = super().forward(y.transpose(0, 1).contiguous().transpose(0, 1))
            return y, (left[0], y[:, :4] * 2)

    class Pairs(Stack):
        def forward(self, x: torch.Tensor, *rest: Any) -> Any:
            state = (x + self.config.scale, (x * 2, x[:, :4] * 2))
            for block in self.blocks:
                state = block(state)
            return state

    # The first block's input has other strides than that of the others.
    assert repeats(Pairs(*[Two(CONFIG) for _ in range(4)]).eval(), x()) == 2


def test_arguments_that_are_one_tensor_in_one_call_only(repeats: Any) -> None:
    class Same(Block):
        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            y = super().forward(x)
            return y * 2 if x is mask else y * 3

    class Caller(Stack):
        def forward(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
            x = x + self.config.scale
            for number, block in enumerate(self.blocks):
                x = block(x, x if number in (1, 2) else x + 1)
            return x

    assert repeats(Caller(*[Same(CONFIG) for _ in range(5)]).eval(), x()) == 3


def test_checkpoint_regions_inside_a_block(repeats: Any) -> None:
    class Region(Block):
        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)

    # A method is not a module, so nothing inside is repeated.
    assert repeats(Stack(*[Region(CONFIG) for _ in range(4)]).eval(), x().requires_grad_(), grad=True) == 0


def test_blocks_inside_checkpoint_regions(repeats: Any) -> None:
    class Regions(Stack):
        def forward(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
            x = x * self.config.scale
            for block in self.blocks:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
            return x

    assert repeats(Regions(*[Block(CONFIG) for _ in range(4)]).eval(), x().requires_grad_(), grad=True) == 3


class Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, block: Any) -> torch.Tensor:
        return block(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * 2, None


def test_blocks_inside_a_function_with_its_own_backward(repeats: Any) -> None:
    class Hidden(Stack):
        def forward(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
            x = x * self.config.scale
            for number, block in enumerate(self.blocks):
                x = Through.apply(x, block) if number % 2 else block(x)
            return x

    repeats(Hidden(*[Block(CONFIG) for _ in range(6)]).eval(), x().requires_grad_(), grad=True)


def test_blocks_called_on_different_lines(repeats: Any) -> None:
    """Guards and nodes have the line that caused them."""

    class Lines(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = CONFIG
            self.first, self.second, self.third = Block(CONFIG), Block(CONFIG), Block(CONFIG)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x * self.config.scale)
            x = self.second(x)
            return self.later(x)

        def later(self, x: torch.Tensor) -> torch.Tensor:
            return self.third(x)

    assert repeats(Lines().eval(), x()) == 2


def test_views_of_one_memory_as_arguments(repeats: Any) -> None:
    class Strided(Block):
        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            y = super().forward(x)
            return torch.as_strided(x, (2, 8), (8, 1)) + y.view(16)[4:12].sum()

    class Caller(Stack):
        def forward(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
            whole = torch.cat([x * self.config.scale, x])
            parts = [block(whole[:2]) for block in self.blocks]
            parts[0].mul_(2.0)
            return torch.cat([*parts, whole])

    assert repeats(Caller(*[Strided(CONFIG) for _ in range(4)]).eval(), x()) == 3


def test_arrays_of_the_modules(repeats: Any) -> None:
    """The first block's array was taken for those of the others."""

    class WithArray(Block):
        def __init__(self, index: int) -> None:
            super().__init__(CONFIG)
            self.table = np.full(8, float(index), dtype=np.float32)

        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            return super().forward(x) + torch.from_numpy(self.table)

    assert repeats(Stack(*[WithArray(index) for index in range(4)]).eval(), x()) == 0


def test_what_a_repeated_layer_may_return() -> None:
    given, made = Constant(3, LocalSource("n")), Constant(3, None)
    assert is_fixed_result(made) and is_fixed_result(Constant(None, None)) and is_fixed_result(Tuple([made]))
    assert (
        not is_fixed_result(given) and not is_fixed_result(Tuple([made, given])) and not is_fixed_result(List([made]))
    )
