"""Short kernels of equal shape that do not need each other become one launch, on a GPU, when all else is fused.

    k0: m0, g0 -> m0      k1: g1 -> g2      k2: m1, g2 -> m1      =>      k1      k0, k2: m0, g0, m1, g2 -> m0, m1

Such are the steps of an optimizer on biases and norms, and the running statistics of norms. The first moves to the
place of the second, unless a kernel between them needs it. Only what is short is moved, so little memory waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from kiln.loops.fusion.group import Group
from kiln.loops.fusion.order import GroupOrder, current
from kiln.loops.fusion.rules import is_short
from kiln.support.target import Target


def share_launches(order: GroupOrder, target: Target, fuse: Callable[[Group, Group], bool]) -> None:
    """Fuse groups of `order` by `fuse`, which says whether it did; it is given neighbours."""
    users: dict[Group, list[Group]] = {}
    for group in order.groups:
        for other in order.before(group):
            users.setdefault(other, []).append(group)
    last: dict[Hashable, Group] = {}
    for group in list(order.groups):
        if not is_short(group, target) or group.part_symbols():
            continue
        shape = _shape(group)
        earlier = last.get(shape)
        last[shape] = group
        if earlier is None or any(current(user).position <= group.position for user in users.get(earlier, ())):
            continue
        free, before = order.in_front_of(group), earlier.position
        order.move(earlier, free)
        if fuse(earlier, group):
            last[shape] = earlier
            users.setdefault(earlier, []).extend(users.pop(group, ()))
        else:
            order.move(earlier, before)


def _shape(group: Group) -> Hashable:
    """Of groups that run over the same units, with loops of the same sizes inside."""
    inner = tuple([size for symbol, size in group.sizes.items() if symbol not in group.units])
    return group.device, tuple([group.sizes[unit] for unit in group.units]), inner
