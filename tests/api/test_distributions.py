"""torch.distributions, with its checks of arguments: no graph break, eager's draws, eager's errors."""

import pytest
import torch
from torch import Tensor, distributions

import kiln

Results = tuple[Tensor, ...]


@pytest.fixture(autouse=True)
def checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile turns the checks off for the whole process; other tests call it."""
    monkeypatch.setattr(distributions.Distribution, "_validate_args", True)


def drawn(made: distributions.Distribution) -> Results:
    sample = made.sample()
    return sample, made.log_prob(sample)


def reparametrised(made: distributions.Distribution) -> Results:
    sample = made.rsample()
    return sample, made.log_prob(sample)


SAMPLES = {
    "normal": lambda x: reparametrised(distributions.Normal(x, x.exp())),
    "numbers": lambda x: (*drawn(distributions.Normal(0.0, 1.0)), x.cos()),
    "categorical": lambda x: drawn(distributions.Categorical(logits=x)),
    "probabilities": lambda x: drawn(distributions.Categorical(probs=x.softmax(-1))),
    "bernoulli": lambda x: drawn(distributions.Bernoulli(logits=x)),
    "independent": lambda x: reparametrised(distributions.Independent(distributions.Normal(x, x.exp()), 1)),
    "dirichlet": lambda x: reparametrised(distributions.Dirichlet(x.exp())),
    "gamma": lambda x: reparametrised(distributions.Gamma(x.exp(), x.exp())),
    "multivariate": lambda x: reparametrised(distributions.MultivariateNormal(x, torch.eye(3))),
    "one hot": lambda x: drawn(distributions.OneHotCategorical(logits=x)),
    "mixture": lambda x: drawn(
        distributions.MixtureSameFamily(distributions.Categorical(logits=x), distributions.Normal(x, x.exp()))
    ),
    "transformed": lambda x: reparametrised(
        distributions.TransformedDistribution(
            distributions.Normal(x, x.exp()), [distributions.TanhTransform(cache_size=1)]
        )
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_distributions_do_not_break_the_graph(name: str) -> None:
    compiled = kiln.compile(SAMPLES[name], options={"random": "eager"})
    for seed in range(2):
        x = torch.randn(2, 3, generator=torch.Generator().manual_seed(seed))
        torch.manual_seed(seed)
        expected = SAMPLES[name](x)
        torch.manual_seed(seed)
        torch.testing.assert_close(compiled(x), expected, rtol=1e-4, atol=1e-5)
    report = kiln.report_of(compiled)
    assert (report.compiles + report.loaded, report.breaks) == (1, [])


def test_gradients_reach_the_parameters() -> None:
    def loss(x: Tensor) -> Tensor:
        first, second = distributions.Dirichlet(x.exp()), distributions.Normal(x, x.exp())
        return (
            first.rsample().square().sum() + distributions.kl_divergence(second, distributions.Normal(0.0, 1.0)).sum()
        )

    gradients = []
    for function in (loss, kiln.compile(loss, options={"random": "eager"})):
        torch.manual_seed(0)
        x = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
        function(x).backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[1], gradients[0])


def test_invalid_arguments_raise_and_draw_nothing() -> None:
    def sample(loc: Tensor, scale: Tensor) -> Tensor:
        return distributions.Normal(loc, scale).sample() * 2

    compiled = kiln.compile(sample, options={"random": "eager"})
    loc = torch.zeros(3)
    compiled(loc, torch.ones(3))
    states = []
    for function in (sample, compiled):
        torch.manual_seed(0)
        with pytest.raises(ValueError, match="Expected parameter scale"):
            function(loc, torch.tensor([1.0, -1.0, 1.0]))
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_invalid_samples_leave_the_generator_as_eager_does() -> None:
    """The draw comes before the check that fails: the call is repeated in eager with the same numbers."""

    def score(x: Tensor, chance: Tensor) -> Tensor:
        made = distributions.Bernoulli(chance)
        return made.log_prob(made.sample() * x)

    compiled = kiln.compile(score, options={"random": "eager"})
    chance = torch.full((3,), 0.5)
    compiled(torch.ones(3), chance)
    states, messages = [], []
    for function in (score, compiled):
        torch.manual_seed(3)
        with pytest.raises(ValueError, match="to be within the support") as raised:
            function(torch.full((3,), 0.25), chance)
        states.append(torch.get_rng_state())
        messages.append(str(raised.value))
    assert torch.equal(*states) and messages[0] == messages[1]


def test_a_class_that_derives_from_property() -> None:
    class Lazy(property):
        def __init__(self, function: object) -> None:
            property.__init__(self, function)

    def size(x: Tensor) -> int:
        return 3

    def kinds(x: Tensor) -> tuple[Tensor, bool, bool, int]:
        made = Lazy(size)
        return x + 1, isinstance(made, property), type(made) is Lazy, made.fget(x)

    compiled = kiln.compile(kinds)
    assert compiled(torch.zeros(2))[1:] == kinds(torch.zeros(2))[1:]
