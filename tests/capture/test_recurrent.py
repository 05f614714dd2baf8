"""Recurrent layers with gradients, padded sequences, losses of sequences: one region, with the values of eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import kiln


def trained(module: Any, lstm: torch.nn.LSTM, x: torch.Tensor) -> list[torch.Tensor]:
    lstm.zero_grad()
    x = x.clone().requires_grad_()
    out, (h, c) = module(x)
    ((out * out).sum() + (h * c).sum()).backward()
    gradients = [p.grad.clone() for p in (x, *lstm.parameters()) if p.grad is not None]
    return [out.detach(), h.detach(), c.detach(), *gradients]


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("dynamic", ["never", "always"])
def test_lstm_has_gradients(dynamic: str, train: bool) -> None:
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True).train(train)
    compiled = kiln.compile(lstm, options={"cache": False, "dynamic": dynamic})
    for _ in range(2):
        x = torch.randn(2, 5, 3)
        for expected, got in zip(trained(lstm, lstm, x), trained(compiled, lstm, x), strict=True):
            torch.testing.assert_close(got, expected)
    assert compiled.report().regions == 1 and not compiled.report().eager


def encode(rnn: Any, x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
    utils, first = torch.nn.utils.rnn, rnn.batch_first
    packed = utils.pack_padded_sequence(x * 2, lengths, batch_first=first, enforce_sorted=False)
    out, state = rnn(packed)
    padded, found = utils.pad_packed_sequence(out, batch_first=first, padding_value=0.5)
    mean = utils.PackedSequence(out.data.relu(), out.batch_sizes, out.sorted_indices, out.unsorted_indices).data.mean()
    return padded, found, mean, *(state if isinstance(state, tuple) else (state,))


def gradients(rnn: Any, x: torch.Tensor, results: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    loss = sum(result.square().sum() for result in results if result.requires_grad)
    return list(torch.autograd.grad(loss, [x, *rnn.parameters()]))  # type: ignore[arg-type]


LAYERS = {
    "lstm": lambda: torch.nn.LSTM(4, 6, num_layers=2, bidirectional=True, batch_first=True),
    "gru": lambda: torch.nn.GRU(4, 6, bidirectional=True),
    "tanh": lambda: torch.nn.RNN(4, 6, num_layers=2, bias=False, batch_first=True),
    "relu": lambda: torch.nn.RNN(4, 6, nonlinearity="relu", dropout=0.0),
}


@pytest.mark.parametrize("name", LAYERS)
def test_packed_sequences_are_one_graph_for_all_lengths(name: str) -> None:
    torch.manual_seed(0)
    rnn = LAYERS[name]().double()
    fast: Any = kiln.compile(encode, options={"cache": False})
    for steps, lengths in ((7, [7, 3, 5]), (9, [9, 2, 4]), (6, [1, 6, 6]), (8, [8, 8, 8]), (5, [2, 4, 1])):
        shape = (len(lengths), steps, 4) if rnn.batch_first else (steps, len(lengths), 4)
        x, given = torch.randn(shape, dtype=torch.float64, requires_grad=True), torch.tensor(lengths)
        found, expected = fast(rnn, x, given), encode(rnn, x, given)
        for mine, eager in zip(
            (*found, *gradients(rnn, x, found)), (*expected, *gradients(rnn, x, expected)), strict=True
        ):
            torch.testing.assert_close(mine, eager)
            assert mine.stride() == eager.stride()
        with torch.no_grad():
            for mine, eager in zip(fast(rnn, x, given), encode(rnn, x, given), strict=True):
                torch.testing.assert_close(mine, eager)
    report = fast.report()
    assert not report.breaks and not report.eager and report.compiles <= 4


@pytest.mark.parametrize("lengths", [[3, 4, 1], [4, 2, 0], [5, 2, 1], [4, 3], [4, 3, -1], [4, 3, 1]])
def test_lengths_that_do_not_fit_are_refused_as_in_eager(lengths: list[int]) -> None:
    def packed(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return torch.nn.utils.rnn.pack_padded_sequence(x, lengths).data * 2

    fast, x = kiln.compile(packed, options={"cache": False}), torch.randn(4, 3, 2)
    fast(x, torch.tensor([4, 3, 2]))
    answers = []
    for function in (packed, fast):
        try:
            answers.append(function(x, torch.tensor(lengths)).tolist())
        except RuntimeError as problem:
            answers.append(str(problem))
    assert answers[0] == answers[1]


def test_layers_on_packed_sequences_have_second_derivatives() -> None:
    """The region is run again by eager, which reads the sizes that data decide off the results of its calls."""
    rnn = torch.nn.LSTM(4, 3)
    fast = kiln.compile(encode, options={"cache": False})
    given, x = torch.tensor([5, 3]), torch.randn(5, 2, 4, requires_grad=True)
    seconds = []
    for function in (encode, fast):
        (first,) = torch.autograd.grad(function(rnn, x, given)[0].square().sum(), x, create_graph=True)
        seconds.append(torch.autograd.grad(first.square().sum(), x)[0])
    torch.testing.assert_close(*seconds)


def test_a_packed_sequence_is_passed_in_and_returned() -> None:
    rnn = torch.nn.GRU(4, 3)
    fast: Any = kiln.compile(rnn, options={"cache": False})
    for steps in (5, 4, 7):
        lengths = torch.tensor([steps, 1, 2])
        packed = torch.nn.utils.rnn.pack_padded_sequence(torch.randn(steps, 3, 4), lengths, enforce_sorted=False)
        (found, last), (expected, state) = fast(packed), rnn(packed)
        assert type(found) is torch.nn.utils.rnn.PackedSequence
        for mine, eager in zip((*found, last), (*expected, state), strict=True):
            torch.testing.assert_close(mine, eager)
    assert not kiln.report_of(fast).breaks


class Residual(torch.nn.Module):
    def __init__(self, cls: type[torch.nn.Module]) -> None:
        super().__init__()
        self.layer = cls(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0] + x  # type: ignore[no-any-return]


@pytest.mark.parametrize("cls", [torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM])
def test_equal_blocks_with_a_recurrent_layer(cls: type[torch.nn.Module]) -> None:
    """Its weak references to its weights have no `__dict__`."""
    model = torch.nn.Sequential(*[Residual(cls) for _ in range(4)])
    compiled = kiln.compile(model, options={"cache": False})
    for size in (2, 3):
        x = torch.randn(5, size, 4)
        torch.testing.assert_close(compiled(x), model(x))
    assert not kiln.report_of(compiled).eager_reasons
    model[1].layer = cls(4, 4)
    torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("side", ["left", "right"])
def test_lengths_of_padded_sequences_are_symbols(side: str) -> None:
    def padded(rows: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=side == "left", padding_value=2.0, padding_side=side)

    fast = kiln.compile(padded, options={"cache": False})
    for lengths in ((3, 5), (4, 2), (2, 7), (6, 6), (9, 3)):
        rows = [torch.randn(length, 4, requires_grad=True) for length in lengths]
        found, expected = fast(rows), padded(rows)
        assert torch.equal(found, expected) and found.stride() == expected.stride()
        for mine, eager in zip(*[torch.autograd.grad(y.square().sum(), rows) for y in (found, expected)], strict=True):
            assert torch.equal(mine, eager)
    assert fast.report().compiles <= 2 and not fast.report().eager, fast.report()
    with pytest.raises(RuntimeError, match="must match"):
        fast([torch.ones(2, 3), torch.ones(2, 4)])


def test_ctc_loss_beside_another_result() -> None:
    """What its backward saves has a size from data, and one of two gradients may be missing."""

    def losses(x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        targets, steps = torch.ones(2, 3, dtype=torch.int64), torch.full((2,), x.shape[0])
        return torch.nn.functional.ctc_loss(x.log_softmax(-1), targets, steps, lengths), x.sin().sum()

    fast = kiln.compile(losses, options={"cache": False})
    x = torch.randn(8, 2, 4, requires_grad=True)
    for lengths in (torch.tensor([2, 1]), torch.tensor([1, 3])):
        for chosen in (slice(None), slice(1), slice(1, 2)):
            found, expected = [torch.autograd.grad(f(x, lengths)[chosen], x) for f in (fast, losses)]
            torch.testing.assert_close(found, expected)
    assert not fast.report().eager, fast.report()


@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
def test_ctc_loss_with_lengths_in_tensors(kind: torch.dtype) -> None:
    """The longest target decides the size of what is saved; a length beyond the input is refused as in eager."""

    def loss(x: torch.Tensor, targets: torch.Tensor, steps: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.nn.functional.ctc_loss(x.log_softmax(-1), targets, steps, lengths)
        return made

    fast = kiln.compile(loss, options={"cache": False})
    for size, batch, longest in ((12, 3, 4), (12, 3, 4), (14, 2, 3), (20, 4, 6)):
        x = torch.randn(size, batch, 6, requires_grad=True)
        targets, lengths = torch.randint(1, 6, (batch, longest)), torch.randint(1, longest + 1, (batch,), dtype=kind)
        steps = torch.randint(2 * longest + 1, size + 1, (batch,), dtype=kind)
        found, expected = [function(x, targets, steps, lengths) for function in (fast, loss)]
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(*[torch.autograd.grad(y, x) for y in (found, expected)])
    report = fast.report()
    assert report.compiles <= 2 and not report.breaks and not report.eager, report
    with pytest.raises(RuntimeError, match="input_lengths"):
        fast(x, targets, steps + 20, lengths)


def test_ctc_loss_with_lists_of_lengths() -> None:
    def loss(x: torch.Tensor, targets: torch.Tensor, steps: list[int], lengths: tuple[int, ...]) -> torch.Tensor:
        given = x.log_softmax(-1), targets, steps, lengths
        return torch.nn.functional.ctc_loss(*given) + torch.nn.functional.ctc_loss(*given, reduction="none").max()

    fast = kiln.compile(loss, options={"cache": False})
    for steps, lengths in (([12, 12, 12], (4, 3, 2)), ([12, 11, 12], (4, 3, 3)), ([9, 12, 12], (2, 1, 4))):
        x, targets = torch.randn(12, 3, 5, requires_grad=True), torch.randint(1, 5, (3, 4))
        found, expected = fast(x, targets, steps, lengths), loss(x, targets, steps, lengths)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(*[torch.autograd.grad(y, x)[0] for y in (found, expected)])
    report = fast.report()
    assert report.compiles <= 3 and not report.breaks
    with pytest.raises(TypeError):
        fast(x, targets, [12.0, 12.0, 12.0], lengths)


ROWS_OF_STEPS = {
    "gru": lambda: torch.nn.GRU(4, 6, num_layers=2, bidirectional=True, batch_first=True),
    "tanh": lambda: torch.nn.RNN(4, 6, bias=False),
    "relu": lambda: torch.nn.RNN(4, 6, nonlinearity="relu", num_layers=2),
    "lstm": lambda: torch.nn.LSTM(4, 6, bidirectional=True).double(),
    "half": lambda: torch.nn.GRU(4, 6).bfloat16(),
}


@pytest.mark.parametrize("name", ROWS_OF_STEPS)
def test_the_number_of_steps_is_a_symbol(name: str) -> None:
    """Where no library has the layer, the graph has a loop over the steps."""
    torch.manual_seed(0)
    layer = ROWS_OF_STEPS[name]()
    compiled = kiln.compile(layer, options={"cache": False, "speed_check": False}, fullgraph=True)
    dtype = next(layer.parameters()).dtype
    tolerance = {"rtol": 5e-2, "atol": 5e-2} if dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    for steps in (12, 9, 30, 17):
        x = torch.randn((3, steps, 4) if layer.batch_first else (steps, 3, 4), dtype=dtype, requires_grad=True)
        results = []
        for module in (layer, compiled):
            out, state = module(x)
            states = state if isinstance(state, tuple) else (state,)
            loss = out.square().sum() + sum(part.sum() for part in states)
            results.append([out, *states, *torch.autograd.grad(loss, [x, *layer.parameters()])])
        for expected, found in zip(*results, strict=True):
            torch.testing.assert_close(found, expected, **tolerance)
            assert found.stride() == expected.stride()
    report = compiled.report()
    assert (report.compiles, report.breaks, report.eager) == (2, [], 0)


def test_many_steps_are_turns_of_a_loop() -> None:
    """What is compiled does not grow with them; few steps are unrolled."""
    layer = torch.nn.GRU(4, 6)
    found = [kiln.explain(layer)(torch.randn(steps, 3, 4)) for steps in (2, 12, 100)]
    assert found[1].library_calls == found[2].library_calls
    assert found[1].kernels == found[2].kernels


def test_an_exported_layer_takes_any_number_of_steps() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.GRU(4, 6, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.layer(x)[0]
            return out

    model = Model()
    program = kiln.export(model, (torch.randn(2, 12, 4),), dynamic_shapes={"x": {1: torch.export.Dim("steps")}})
    for steps in (3, 40):
        x = torch.randn(2, steps, 4)
        torch.testing.assert_close(program(x), model(x))
