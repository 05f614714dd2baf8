"""Programs whose results depend on what their module reaches; the mutator changes that between two calls.

Each text is a module with `program(x)`; it has no side effects.
"""

from __future__ import annotations

import textwrap

PROGRAMS: dict[str, str] = {}


def add(name: str, text: str) -> None:
    PROGRAMS[name] = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n" + textwrap.dedent(text)


add(
    "globals",
    """
    SCALE, NAME, MODE, FLAG = 2.0, "fast", None, True
    TABLE = {"fast": 1.5, "slow": 0.5}
    ORDER = [1, 2, 3]
    PAIR = (4, 5.0)
    NAMES = {"fast", "other"}
    SIZES = torch.Size([5])
    DTYPE = torch.float32
    def shift(x, by=1.0, *, power=2):
        return (x + by) ** power
    def make(factor):
        def scaled(x):
            return x * factor
        return scaled
    scaled = make(3.0)
    def program(x):
        if MODE is None and FLAG:
            x = shift(x) * SCALE
        for index, item in enumerate(ORDER):
            x = x + index * item
        if NAME in NAMES:
            x = x * TABLE.get(NAME, 9.0)
        return scaled(x).to(DTYPE) + PAIR[0] * len(PAIR) + len(TABLE) + SIZES[0]
""",
)
add(
    "classes",
    """
    class Base:
        offset = 1.0
        def __init__(self, gain):
            self.gain = gain
        @property
        def doubled(self):
            return self.gain * 2
        @classmethod
        def named(cls):
            return len(cls.__name__) + cls.offset
        @staticmethod
        def halved(x):
            return x / 2
        def apply(self, x):
            return x * self.gain
    class Derived(Base):
        __slots__ = ("extra",)
        def __init__(self, gain):
            super().__init__(gain)
            self.extra = 3.0
        def apply(self, x):
            return super().apply(x) + self.extra
    thing = Derived(2.0)
    def program(x):
        y = Derived(4.0).apply(x) + thing.apply(x) + thing.doubled
        if hasattr(thing, "bonus"):
            y = y + thing.bonus
        return Base.halved(y) + thing.named() + getattr(thing, "missing", 5.0) + isinstance(thing, Base)
""",
)
add(
    "special methods",
    """
    class Vector:
        def __init__(self, items):
            self.items = items
        def __len__(self):
            return len(self.items)
        def __getitem__(self, n):
            return self.items[n]
        def __iter__(self):
            return iter(self.items)
        def __bool__(self):
            return True
        def __eq__(self, other):
            return isinstance(other, Vector) and self.items == other.items
        def __hash__(self):
            return 3
        def __contains__(self, item):
            return item in self.items
        def __call__(self, x):
            return x * self.items[0]
        def __add__(self, other):
            return Vector([a + b for a, b in zip(self.items, other.items)])
        def __enter__(self):
            return self.items[1]
        def __exit__(self, *error):
            return False
        def __getattr__(self, name):
            if name.startswith("_"):
                raise AttributeError(name)
            return len(name)
    v, w = Vector([1, 2, 3]), Vector([4, 5, 6])
    known = {v: 2.0}
    def program(x):
        if v and v != w and 2 in v:
            x = x + len(v) + v[1]
        for item in v + w:
            x = x * 0.5 + item
        with w as second:
            x = x + second
        return v(x) + v.anything + known.get(w, 7.0) + max(v) + sum(w)
""",
)
add(
    "modules",
    """
    torch.manual_seed(0)
    class Block(nn.Module):
        scale = 0.5
        def __init__(self):
            super().__init__()
            self.dense = nn.Linear(5, 5)
            self.register_buffer("shift", torch.ones(5))
            self.rate = 0.25
            self.act = nn.ReLU()
        def forward(self, x):
            return self.act(self.dense(x)) * self.scale + self.shift * self.rate
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Block(), Block()])
            self.named = nn.ModuleDict({"last": nn.Linear(5, 5)})
            self.drop = nn.Dropout(0.5)
        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return F.gelu(self.named["last"](self.drop(x))) if self.training else self.named["last"](x)
    net = Net().eval()
    def program(x):
        return net(x) + len(net.blocks) + sum(p.numel() for p in net.parameters())
""",
)
add(
    "enums and records",
    """
    import collections, dataclasses, enum, typing
    class Mode(enum.Enum):
        FAST = 2
        SLOW = 3
        @property
        def factor(self):
            return self.value * 10
    class Level(enum.IntEnum):
        LOW = 1
        HIGH = 4
    class Bits(enum.Flag):
        A = 1
        B = 2
    Pair = collections.namedtuple("Pair", "left right")
    class Named(typing.NamedTuple):
        first: int = 1
        second: float = 2.0
    @dataclasses.dataclass
    class Config:
        width: int = 3
        mode: Mode = Mode.FAST
        sizes: list = dataclasses.field(default_factory=lambda: [1, 2])
    @dataclasses.dataclass(frozen=True, order=True)
    class Point:
        x: int
        y: int = 2
    config, pair, mode, bits = Config(), Pair(2, 3), Mode.SLOW, Bits.A | Bits.B
    def program(x):
        x = x * config.width + pair.left - pair.right
        if config.mode is Mode.FAST and mode.name == "SLOW":
            x = x * mode.factor + Level.HIGH
        if Bits.A in bits:
            x = x + Mode(2).value
        made = Config(width=7)
        return x + made.sizes[0] + Named().second + Point(1).y + (Point(1) < Point(2)) + Pair(1, 2).right
""",
)
add(
    "metaclass and descriptors",
    """
    import abc, functools
    class Meta(type):
        factor = 2.0
        def twice(cls):
            return cls.size * 2
        def __instancecheck__(cls, item):
            return type.__instancecheck__(cls, item) or hasattr(item, "looks")
        def __contains__(cls, item):
            return item == cls.size
    class Doubling:
        def __init__(self, key):
            self.key = key
        def __get__(self, item, owner):
            return self if item is None else item.__dict__[self.key] * 2
    class Cached:
        def __set_name__(self, owner, name):
            self.name = name
        def __get__(self, item, owner):
            return 6.0
        def __set__(self, item, value):
            raise AttributeError(self.name)
    class Holder(metaclass=Meta):
        size = 3
        twin = Doubling("value")
        fixed = Cached()
        def __init__(self):
            self.value = 4.0
        @functools.cached_property
        def area(self):
            return self.size * 2.0
    class Shape(abc.ABC):
        @abc.abstractmethod
        def sides(self): ...
    class Square(Shape):
        def sides(self):
            return 4
    class Other:
        looks = True
    holder, square, other = Holder(), Square(), Other()
    def program(x):
        x = x * Holder.twice() + holder.twin + holder.fixed + Holder.factor
        if isinstance(other, Holder) and 3 in Holder:
            x = x + 1
        if isinstance(square, Shape) and not isinstance(other, Shape) and issubclass(Square, Shape):
            x = x * square.sides()
        return x
""",
)
add(
    "functions",
    """
    import functools, operator
    @functools.lru_cache
    def factor(n):
        return n * BASE
    BASE = 2.0
    def add(x, y, z=1.0):
        return x + y * z
    partial = functools.partial(add, y=2.0, z=3.0)
    def decorated(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            return function(*args, **kwargs) * WEIGHT
        return call
    WEIGHT = 0.5
    @decorated
    def core(x, *, bias=1.0):
        return x + bias
    def numbers(n):
        for k in range(n):
            yield k * STEP
    STEP = 2
    handlers = {"a": lambda x: x + 1, "b": core, "c": torch.tanh, "d": operator.neg}
    @functools.singledispatch
    def kind(value):
        return 1.0
    @kind.register
    def _(value: int):
        return 2.0
    def program(x):
        x = partial(x) + core(x, bias=2.0) + factor(3)
        for n in numbers(3):
            x = x + n
        for name in sorted(handlers, key=lambda name: name):
            x = handlers[name](x)
        try:
            x = x + missing
        except NameError:
            x = x + 3.0
        return x
""",
)
add(
    "library",
    """
    import math, torch.nn.functional
    weight = torch.linspace(0.5, 1.5, 5)
    options = {"dim": 0}
    def program(x):
        y = torch.relu(x) + x.sigmoid() + F.silu(x) - torch.sin(weight)
        y = y + torch.softmax(x, **options) + math.sqrt(4.0) + math.pi
        if torch.is_grad_enabled():
            y = y * 2
        if torch.get_default_dtype() is torch.float32 and torch.backends.mkldnn.enabled:
            y = y + torch.get_num_threads()
        if torch.backends.cudnn.benchmark or torch.are_deterministic_algorithms_enabled():
            y = y - 5
        if torch.backends.cuda.matmul.allow_tf32 or torch.get_float32_matmul_precision() != "highest":
            y = y - 7
        if torch.is_autocast_enabled("cpu") or torch.is_inference_mode_enabled():
            y = y * 3
        if isinstance(weight, nn.Parameter) or weight.requires_grad or hasattr(weight, "note"):
            y = y + 11
        return y.add(1).mul(weight) + weight.stride(0) + weight.storage_offset() + x.dim() + len(x)
""",
)
add(
    "containers",
    """
    import collections
    registry = collections.OrderedDict(a=1, b=2)
    defaults = collections.defaultdict(int, a=5)
    queue = collections.deque([1, 2, 3], maxlen=4)
    nested = {"layers": [{"width": 3, "act": "relu"}, {"width": 4, "act": "tanh"}], "rest": ((1, 2), (3, 4))}
    frozen = frozenset([1, 2, 3])
    numbers = {1, 2, 3}
    grid = [[1, 2], [3, 4]]
    tensors = {"w": torch.ones(5), "b": [torch.zeros(5)]}
    counts = collections.Counter("aab")
    text = "width={}"
    class Items(list):
        def total(self):
            return sum(self)
    class Lookup(dict):
        def __missing__(self, key):
            return 8.0
    items, lookup = Items([1, 2]), Lookup(a=2.0)
    def program(x):
        for key, value in registry.items():
            x = x + value * len(key)
        for layer in nested["layers"]:
            x = getattr(torch, layer["act"])(x) * layer["width"]
        (a, b), (c, d) = nested["rest"]
        x = x + a - b + c - d + queue[0] + len(queue) + defaults["a"] + (2 in frozen) + len(numbers & frozen)
        x = x * tensors["w"] + tensors["b"][0] + grid[1][0] + sum(map(sum, grid)) + counts["a"]
        match grid:
            case [[1, *rest], _]:
                x = x + len(rest)
            case _:
                x = x - 1
        return x + items.total() + lookup["q"] + lookup["a"] + len(text.format(3)) + sum(n for n in numbers if n > 1)
""",
)
add(
    "wrappers",
    """
    import contextlib, weakref
    class Proxy:
        def __init__(self, target):
            object.__setattr__(self, "target", target)
        def __getattribute__(self, name):
            if name == "direct":
                return 1.0
            return object.__getattribute__(self, name)
        def __getattr__(self, name):
            return getattr(self.target, name)
        def __setattr__(self, name, value):
            setattr(self.target, name, value)
    class Target:
        gain = 2.0
        def run(self, x):
            return x * self.gain
    class Scope:
        depth = 1
        def __enter__(self):
            return self.depth
        def __exit__(self, kind, error, trace):
            return kind is ValueError
    @contextlib.contextmanager
    def scope():
        yield AMOUNT
    AMOUNT = 4.0
    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2
        @staticmethod
        def backward(ctx, g):
            return g * 2
    target = Target()
    proxy = Proxy(target)
    bound = target.run
    def program(x):
        with Scope() as depth:
            x = x + depth
            if depth > 3:
                raise ValueError("deep")
        with scope() as amount:
            x = x * amount
        with torch.no_grad():
            y = proxy.run(x) + proxy.direct + bound(x)
        return y + Custom.apply(x) + callable(proxy) + bool(target) + (target == proxy.target)
""",
)
