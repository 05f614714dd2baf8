"""Steps of fused optimizers and of gradient scaling, written in torch calls.

Their kernels change lists of tensors, which no rule can express.

_fused_adam_([p], [g], [m], [v], [], [step], lr=..., ...)    =>    m.lerp_(g, 1 - beta1), v = ..., p.copy_(...)

The step counts are used in double precision, as the kernels do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from kiln.graph.trace.log import Target

Lists = Sequence[Tensor]
Numeric = float | Tensor


def signed(grad: Tensor, maximize: bool) -> Tensor:
    return -grad if maximize else grad


def decays(weight_decay: float) -> bool:
    """Whether the weights decay; a number that changes is not asked for its value."""
    return not isinstance(weight_decay, int | float) or weight_decay != 0


def decayed(grad: Tensor, param: Tensor, weight_decay: float, maximize: bool) -> Tensor:
    """The gradient of a loss with a penalty on the weights."""
    grad = signed(grad, maximize)
    return grad + param * weight_decay if decays(weight_decay) else grad


def with_scaling(step: Callable[..., None], changed: int) -> Callable[..., None]:
    """`step`, of gradients divided by a `grad_scale`, and left out where `found_inf` is one.

    It takes lists of tensors, of which it changes the first `changed`, but for the gradients, which come second.
    """

    def call(
        *lists: Lists, grad_scale: Tensor | None = None, found_inf: Tensor | None = None, **options: object
    ) -> None:
        if grad_scale is None and found_inf is None:
            step(*lists, **options)
            return
        made = [[each.clone() for each in tensors] for tensors in lists]
        if grad_scale is not None:
            made[1] = [grad / grad_scale for grad in lists[1]]
        step(*made, **options)
        for number in range(changed):
            if number == 1 and grad_scale is None:
                continue
            for old, new in zip(lists[number], made[number], strict=True):
                old.copy_(new if found_inf is None else torch.where(found_inf == 1, old, new))

    return call


def adam(decoupled: bool) -> Callable[..., None]:
    """`_fused_adam_`, or with `decoupled` weight decay `_fused_adamw_`."""

    def step(
        params: Lists,
        grads: Lists,
        exp_avgs: Lists,
        exp_avg_sqs: Lists,
        max_exp_avg_sqs: Lists,
        state_steps: Lists,
        *,
        lr: Numeric,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
    ) -> None:
        for number, param in enumerate(params):
            grad, mean, square = signed(grads[number], maximize), exp_avgs[number], exp_avg_sqs[number]
            if decays(weight_decay):
                if decoupled:
                    param.mul_(1 - lr * weight_decay)
                else:
                    grad = grad + param * weight_decay
            mean.lerp_(grad, 1 - beta1)
            square.copy_(square * beta2 + (grad * grad) * (1 - beta2))
            largest = square
            if amsgrad:
                largest = max_exp_avg_sqs[number]
                largest.copy_(torch.maximum(largest, square))
            count = state_steps[number].double()
            size, correction = lr / (1 - beta1**count), (1 - beta2**count).sqrt()
            param.copy_(param - size * mean / (largest.sqrt() / correction + eps))

    return step


def sgd(
    params: Lists,
    grads: Lists,
    buffers: Lists,
    *,
    weight_decay: float,
    momentum: float,
    lr: Numeric,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
) -> None:
    """`_fused_sgd_`; without momentum there are no buffers."""
    for number, param in enumerate(params):
        grad = decayed(grads[number], param, weight_decay, maximize)
        if buffers:
            buffer = buffers[number]
            buffer.copy_(grad if is_first_step else buffer * momentum + grad * (1 - dampening))
            grad = grad + buffer * momentum if nesterov else buffer
        param.copy_(param - lr * grad)


def adagrad(
    params: Lists,
    grads: Lists,
    sums: Lists,
    state_steps: Lists,
    *,
    lr: Numeric,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
) -> None:
    """`_fused_adagrad_`."""
    for number, param in enumerate(params):
        grad = decayed(grads[number], param, weight_decay, maximize)
        sums[number].copy_(sums[number] + grad * grad)
        rate = lr / (1 + (state_steps[number].double() - 1) * lr_decay)
        param.copy_(param - rate * grad / (sums[number].sqrt() + eps))


def unscale(grads: Lists, found_inf: Tensor, inv_scale: Tensor) -> None:
    """`_amp_foreach_non_finite_check_and_unscale_`: the gradients of a scaled loss."""
    for grad in grads:
        found_inf.copy_(torch.where(torch.isfinite(grad).all(), found_inf, 1.0))
        grad.mul_(inv_scale)


def update_scale(
    scale: Tensor,
    growth_tracker: Tensor,
    found_inf: Tensor,
    scale_growth_factor: float,
    scale_backoff_factor: float,
    growth_interval: int,
) -> Tensor:
    """`_amp_update_scale_`: the scale shrinks after infinite gradients, and grows after many steps without."""
    steps, larger = growth_tracker + 1, scale * scale_growth_factor
    grows = steps == growth_interval
    grown = torch.where(grows & torch.isfinite(larger), larger, scale)
    growth_tracker.copy_(torch.where((found_inf != 0) | grows, 0, steps))
    return scale.copy_(torch.where(found_inf != 0, scale * scale_backoff_factor, grown))


FUSED: Mapping[Target, Callable[..., object]] = {
    torch._amp_foreach_non_finite_check_and_unscale_: unscale,
    torch._amp_update_scale_: update_scale,
    torch._fused_adam_: with_scaling(adam(decoupled=False), changed=5),
    torch._fused_adamw_: with_scaling(adam(decoupled=True), changed=5),
    torch._fused_sgd_: with_scaling(sgd, changed=3),
    torch._fused_adagrad_: with_scaling(adagrad, changed=3),
}
"""Functions of torch, and the same in torch calls."""
