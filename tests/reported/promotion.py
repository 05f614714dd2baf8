"""Dtypes of results, Python numbers beside tensors, integer overflow, kinds of division, casts."""

from __future__ import annotations

import torch

from tests.reported.registry import Programs, floats, halves, ints

PROGRAMS = Programs("promotion")
add = PROGRAMS.add

BYTES = lambda n: (ints(n, low=0, high=256, dtype=torch.uint8),)  # noqa: E731
INTS = lambda n: (ints(n), ints(n, low=1, high=5) * (1 - 2 * (torch.arange(n) % 2)))  # noqa: E731
SHORTS = lambda n: (ints(n, low=-128, high=128, dtype=torch.int8),)  # noqa: E731
FLAGS = lambda n: (ints(n, low=0, high=2).bool(), ints(n, low=0, high=2).bool())  # noqa: E731
BITS = lambda n: (ints(n, low=-99, high=99), torch.arange(n))  # noqa: E731
LOW = lambda n: (halves(n, 3),)  # noqa: E731

add(
    "a rank-0 tensor does not promote",
    lambda x, s: x + s,
    lambda n: (halves(n), torch.tensor(2.0, dtype=torch.float64)),
)
add("a rank-0 float beside integers", lambda x, s: x * s, lambda n: (ints(n), torch.tensor(2.5)))
add("a rank-0 half beside integers", lambda x, s: x * s, lambda n: (ints(n), torch.tensor(2.5).half()))
add("two rank-0 tensors", lambda a, b: (a + b, a * 2.5, b / 3), lambda n: (torch.tensor(n), torch.tensor(2.5).half()))
add("rank 0 of a higher category", lambda x, s: x + s, lambda n: (ints(n), torch.tensor(1 + 2j)))
add("integers plus a float number", lambda x: (x + 1.5, x * 2.0, x - 0.0), lambda n: (ints(n),))
add("integers and a bool number", lambda x: (x + True, x * False, x & True), lambda n: (ints(n),))
add("flags plus flags", lambda a, b: (a + b, a * b, a | b, a ^ b), FLAGS)
add("flags minus flags", lambda a, b: a - b, FLAGS)
add("a sum of flags", lambda a, b: (a.sum(), a.sum(0, dtype=torch.int32), a.prod(), a.cumsum(0)), FLAGS)
add("a mean of flags", lambda a, b: a.mean(), FLAGS)
add("a flag times a float", lambda a, b: (a * 2.5, a + 1, ~a, a / 2), FLAGS)
add("comparisons of flags", lambda a, b: (a > b, a == 1, a < 0.5, a >= True), FLAGS)
add("the negative of flags", lambda a, b: -a, FLAGS)
add("bytes overflow", lambda x: (x + 200, x * 3, x - 1, -x), BYTES)
add("bytes shifted", lambda x: (x << 3, x >> 2, x >> 8, x << 9), BYTES)
add("bytes divided", lambda x: (x / 3, x // 3, x % 7, x // 2.5), BYTES)
add("bytes compared with a negative number", lambda x: (x > -1, x == -1, x < 300), BYTES)
add("bytes in a sum", lambda x: (x.sum(), x.cumsum(0), x.float().mean(), x.max()), BYTES)
add("bytes inverted", lambda x: (~x, x ^ 255, x & 15), BYTES)
add("bytes subtracted from a number", lambda x: (10 - x, torch.rsub(x, 3)), BYTES)
add("short integers overflow", lambda x: (x * x, x + 127, x.abs(), -x, x * 300), SHORTS)
add("short integers squared", lambda x: (x**2, x**3, x.square(), torch.pow(2, x.abs() % 7)), SHORTS)
add(
    "integers of 32 bits overflow",
    lambda x: (x * 2**20, x + 2**31 - 1),
    lambda n: (ints(n, low=4096, high=9000, dtype=torch.int32),),
)
add("integers of 64 bits overflow", lambda x: (x * 2**62, x + 2**63 - 1, x - 2**62 - 2**62), lambda n: (ints(n),))
add("an integer beyond 64 bits", lambda x: x + 2**64, lambda n: (ints(n),))
add(
    "floor division by signs",
    lambda a, b: (a // b, a % b, torch.fmod(a, b), torch.div(a, b, rounding_mode="trunc")),
    INTS,
)
add("floor division by a number", lambda a, b: (a // -3, a % -3, torch.fmod(a, -3), torch.remainder(a, 4)), INTS)
add("true division", lambda a, b: (a / b, torch.true_divide(a, 2), a / 2.0), INTS)
add("a number divided by integers", lambda a, b: (7 / b, 7 // b, -7 % b, 7.5 // b), INTS)
add("divmod", lambda a, b: divmod(a, b) if hasattr(a, "__divmod__") else (a // b, a % b), INTS)
add("float floor division", lambda x: (x // 0.3, x % 0.3, x % -0.3, torch.fmod(x, 0.3), torch.floor_divide(x, -0.7)))
add("float division by zero", lambda x: (x // 0.0, x % 0.0, x / 0.0, torch.fmod(x, 0.0)))
add("float division by infinity", lambda x: (x // float("inf"), x % float("inf"), torch.remainder(x, -float("inf"))))
add("division of 0 by a negative", lambda x: ((x * 0) // -2.0, (x * 0) / -2.0, (x * 0) % -2.0))
add("integer division by zero", lambda a, b: a // (b * 0), INTS)
add("integer remainder by zero", lambda a, b: a % (b * 0), INTS)
add(
    "the smallest integer divided",
    lambda a, b: torch.full_like(a, -(2**63)) // 2 + torch.full_like(a, -(2**63)) % 3,
    INTS,
)
add("integer powers", lambda a, b: (a**3, a ** b.abs(), a**0, 2 ** b.abs(), (-2) ** b.abs()), INTS)
add("negative integer powers", lambda a, b: a**-1, INTS)
add("negative tensor powers", lambda a, b: (b ** -b.abs(), a.clamp(1) ** b), INTS)
add("a float power of integers", lambda a, b: (a**0.5, a**2.0, 2.0**b, torch.float_power(a, 2)), INTS)
add("powers of negative floats", lambda x: (x**2, x**3.0, x**0.5, (-2.0) ** x, 0.0**x, x**-1))
add("shifts by negative and large amounts", lambda a, b: (a << b, a >> b, a << 1, a >> 63), BITS)
add("a shift of a number", lambda a, b: (1 << b, torch.bitwise_left_shift(1, b)), BITS)
add("bitwise ops of negatives", lambda a, b: (a & 7, a | 8, a ^ -1, ~a, a & b), BITS)
add("gcd and lcm", lambda a, b: (torch.gcd(a, b), torch.lcm(a, b)), INTS)
add("floats to bytes out of range", lambda x: ((x * 40).abs().to(torch.uint8), (x > 0).to(torch.uint8)))
add("floats to integers round to zero", lambda x: ((x * 9).to(torch.int32), (x * 9).long(), (x * 9).short()))
add("floats to flags", lambda x: (x.bool(), (x * 0).bool(), (x * float("nan")).bool(), (x * 1e-40).bool()))
add("integers to low precision", lambda x: (x.half(), x.bfloat16()), lambda n: (ints(n, low=-70000, high=70000),))
add("large integers to float", lambda x: (x.float(), x.double(), x + 0.5), lambda n: (ints(n) + 2**53 + 1,))
add("doubles to float overflow", lambda x: (x * 1e300).float(), lambda n: (floats(n).double(),))
add("floats to half overflow", lambda x: ((x * 1e6).half(), (x * 1e-8).half(), (x * 1e39).bfloat16()))
add("half beside bfloat16", lambda h: (h + h.half(), h.half() * h, torch.cat([h, h.half()])), LOW)
add("half sums", lambda h: (h.sum(), h.mean(), h.sum(0), h.norm(), h.var(0)), LOW)
add("a half cumulative sum", lambda h: (h.cumsum(0), h.cumprod(0), h.logcumsumexp(0)), LOW)
add("half softmax to float", lambda h: (h.softmax(1), h.softmax(1, dtype=torch.float32), h.log_softmax(0)), LOW)
add("half comparisons", lambda h: (h > 0.1, h == 0.1, h <= torch.tensor(0.1)), LOW)
add("half where with numbers", lambda h: (torch.where(h > 0, h, 0.1), torch.where(h > 0, 1.0, 2.0)), LOW)
add("where promotes", lambda x: (torch.where(x > 0, x, 1), torch.where(x > 0, 1, 2), torch.where(x > 0, x, x.double())))
add("where of a rank-0 tensor", lambda x, s: torch.where(x > 0, x, s), lambda n: (halves(n), torch.tensor(1.0)))
add(
    "cat promotes",
    lambda x, i: (torch.cat([x, i]), torch.stack([x, i.float()]), torch.cat([i, i.bool()])),
    lambda n: (floats(n), ints(n)),
)
add(
    "maximum promotes", lambda x, i: (torch.maximum(x, i), torch.minimum(i, x.double())), lambda n: (floats(n), ints(n))
)
add(
    "clamp promotes", lambda i: (i.clamp(0, 3), i.clamp(0.5, 2.5), i.clamp(min=torch.tensor(1.5))), lambda n: (ints(n),)
)
add("clamp of bytes by negatives", lambda x: (x.clamp(-5, 100), x.clamp(min=3), x.clamp_max(250)), BYTES)
add(
    "lerp and addcmul of halves",
    lambda h: (h.lerp(h * 2, 0.3), torch.addcmul(h, h, h, value=0.1), torch.addcdiv(h, h, h + 9)),
    LOW,
)
add("addcdiv of integers", lambda a, b: torch.addcdiv(a, a, b), INTS)
add("alpha of integers", lambda a, b: (torch.add(a, b, alpha=3), torch.sub(a, b, alpha=-2)), INTS)
add("a float alpha of integers", lambda a, b: torch.add(a, b, alpha=0.5), INTS)
add(
    "full infers its dtype",
    lambda x: (torch.full((2,), 1), torch.full((2,), 1.5), torch.full((2,), True), torch.full((2,), 1j)),
)
add(
    "arange infers its dtype",
    lambda x: (torch.arange(3), torch.arange(3.0), torch.arange(0, 1, 0.3), torch.arange(5, 0, -2)),
)
add(
    "arange of sizes",
    lambda x: (torch.arange(x.shape[0]) * 2, torch.arange(x.shape[0], 0, -1), torch.arange(x.shape[0]) / 2),
)
add(
    "linspace",
    lambda x: (
        torch.linspace(0, 1, 5),
        torch.linspace(3, -3, 4, dtype=torch.int64),
        torch.linspace(0, 1, 1),
        torch.logspace(0, 2, 3),
    ),
)
add(
    "tensor infers its dtype",
    lambda x: (torch.tensor([1, 2.5]), torch.tensor([True, 2]), torch.tensor([]), torch.tensor(3)),
)
add("new_tensor keeps its dtype", lambda h: (h.new_tensor([1, 2]), h.new_zeros(2), h.new_full((2,), 3.7)), LOW)
add("scalar_tensor and item", lambda x: torch.scalar_tensor(2.5) * x)
add(
    "result_type",
    lambda h: (
        torch.result_type(h, 1.0),
        torch.promote_types(h.dtype, torch.float16),
        torch.can_cast(h.dtype, torch.int32),
    ),
    LOW,
)
add(
    "integer mean with a dtype",
    lambda x: (x.mean(dtype=torch.float32), x.sum(dtype=torch.float64)),
    lambda n: (ints(n),),
)
add("integer mean", lambda x: x.mean(), lambda n: (ints(n),))
add(
    "integer functions",
    lambda x: (x.sqrt(), x.exp(), x.sin(), x.sigmoid(), x.abs().log1p(), x.erf()),
    lambda n: (ints(n),),
)
add("integer rounding", lambda x: (x.floor(), x.ceil(), x.trunc(), x.round(), x.sign()), lambda n: (ints(n),))
add(
    "rounding to even",
    lambda x: ((x * 2).round() / 2, torch.tensor([0.5, 1.5, 2.5, -0.5]).round(), x.round(decimals=1)),
)
add("rounding with negative decimals", lambda x: (x * 99).round(decimals=-1))
add("frac and trunc", lambda x: ((x * 9).frac(), (x * 9).trunc(), (x * -9).frac()))
add(
    "complex arithmetic",
    lambda z: (z * 2, z * z.conj(), z.abs(), z.angle(), z / (1 + 1j), z + 1),
    lambda n: (torch.complex(floats(n), floats(n)),),
)
add(
    "complex beside float",
    lambda z: (z + z.real, z.real * 1j, z == z.conj()),
    lambda n: (torch.complex(floats(n), floats(n)),),
)
add("complex division by zero", lambda z: z / (z * 0), lambda n: (torch.complex(floats(n), floats(n)),))
add(
    "complex sums",
    lambda z: (z.sum(), z.mean(), z.prod(), z.cumsum(0)),
    lambda n: (torch.complex(floats(n), floats(n)),),
)
add("complex comparison", lambda z: z > 1, lambda n: (torch.complex(floats(n), floats(n)),))
add(
    "conj is lazy",
    lambda z: (z.conj().is_conj(), z.conj() * 2, z.conj().resolve_conj(), z.conj().imag),
    lambda n: (torch.complex(floats(n), floats(n)),),
)
add(
    "type_as and to", lambda x: (x.type_as(x.half()), x.to(torch.int8), x.type(torch.float64), x.type(torch.LongTensor))
)
add(
    "bincount and histc",
    lambda x: (torch.bincount(x), torch.histc(x.float(), 4), torch.histc(x.float(), 3, 0, 5)),
    lambda n: (ints(n, low=0, high=9),),
)
