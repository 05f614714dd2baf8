"""The rows of the primitive op set; `PRIMS["add"]` is the row of `add`."""

from __future__ import annotations

from kiln.graph.prims.table import Kind, Prim, PrimTable

POINTWISE, REDUCTION, SCAN, VIEW = Kind.POINTWISE, Kind.REDUCTION, Kind.SCAN, Kind.VIEW
DATA_MOVEMENT, SCATTER, CREATE, RANDOM, DRAW = Kind.DATA_MOVEMENT, Kind.SCATTER, Kind.CREATE, Kind.RANDOM, Kind.DRAW
LIBRARY, STRUCTURE, EFFECT, NESTED = Kind.LIBRARY, Kind.STRUCTURE, Kind.EFFECT, Kind.NESTED

# fmt: off
PRIMS = PrimTable(
    #    name               inputs meaning                                          kind
    # structure
    Prim("input",           0, "argument `index` of the graph",                     STRUCTURE, ("index", "name"), flops=0),
    Prim("constant_tensor", 0, "a tensor known at compile time, by content key",    STRUCTURE, ("key",), flops=0),
    Prim("item",            1, "result `index` of an op with several",              STRUCTURE, ("index",), flops=0),
    Prim("materialised", None, "x, or zeros if x is missing and another input, a gradient too, is not", STRUCTURE, flops=0),

    # arithmetic
    Prim("neg",             1, "-x",                                                POINTWISE),
    Prim("abs",             1, "|x|",                                               POINTWISE),
    Prim("sign",            1, "-1, 0 or 1; 0 for NaN, as in eager",                POINTWISE),
    Prim("add",             2, "x + y",                                             POINTWISE, commutative=True),
    Prim("sub",             2, "x - y",                                             POINTWISE),
    Prim("mul",             2, "x * y",                                             POINTWISE, commutative=True),
    Prim("div",             2, "x / y, floating point only",                        POINTWISE, floating=True, flops=4),
    Prim("floor_div",       2, "floor(x / y), Python's //",                         POINTWISE, flops=4),
    Prim("trunc_div",       2, "trunc(x / y)",                                      POINTWISE, flops=4),
    Prim("remainder",       2, "x - y*floor(x/y), sign of y",                       POINTWISE, flops=6),
    Prim("fmod",            2, "x - y*trunc(x/y), sign of x",                       POINTWISE, flops=6),
    Prim("fma",             3, "x*y + z, rounded once",                             POINTWISE, floating=True),
    Prim("pow",             2, "x to the power y",                                  POINTWISE, flops=20),
    Prim("maximum",         2, "larger of x and y; NaN propagates",                 POINTWISE, commutative=True),
    Prim("minimum",         2, "smaller of x and y; NaN propagates",                POINTWISE, commutative=True),
    Prim("fmax",            2, "larger of x and y, ignoring NaN",                   POINTWISE, commutative=True),
    Prim("fmin",            2, "smaller of x and y, ignoring NaN",                  POINTWISE, commutative=True),
    Prim("where",           3, "y where x (bool) is true, else z",                  POINTWISE),
    Prim("copysign",        2, "|x| with the sign of y",                            POINTWISE, floating=True),
    Prim("nextafter",       2, "next number after x towards y",                     POINTWISE, floating=True),
    Prim("hypot",           2, "sqrt(x*x + y*y) without overflow",                  POINTWISE, floating=True, flops=8),

    # rounding
    Prim("floor",           1, "largest integer not above x",                       POINTWISE, floating=True),
    Prim("ceil",            1, "smallest integer not below x",                      POINTWISE, floating=True),
    Prim("trunc",           1, "x without its fractional part",                     POINTWISE, floating=True),
    Prim("round",           1, "nearest integer, ties to even",                     POINTWISE, floating=True),

    # roots, exponentials, trigonometry
    Prim("sqrt",            1, "square root",                                       POINTWISE, floating=True, flops=4),
    Prim("rsqrt",           1, "1 / sqrt(x)",                                       POINTWISE, floating=True, flops=6),
    Prim("reciprocal",      1, "1 / x",                                             POINTWISE, floating=True, flops=4),
    Prim("exp",             1, "e to the power x",                                  POINTWISE, floating=True, flops=12),
    Prim("exp2",            1, "2 to the power x",                                  POINTWISE, floating=True, flops=10),
    Prim("expm1",           1, "exp(x) - 1",                                        POINTWISE, floating=True, flops=14),
    Prim("log",             1, "natural logarithm",                                 POINTWISE, floating=True, flops=12),
    Prim("log2",            1, "logarithm to base 2",                               POINTWISE, floating=True, flops=12),
    Prim("log10",           1, "logarithm to base 10",                              POINTWISE, floating=True, flops=12),
    Prim("log1p",           1, "log(1 + x)",                                        POINTWISE, floating=True, flops=14),
    Prim("sin",             1, "sine",                                              POINTWISE, floating=True, flops=14),
    Prim("cos",             1, "cosine",                                            POINTWISE, floating=True, flops=14),
    Prim("tan",             1, "tangent",                                           POINTWISE, floating=True, flops=20),
    Prim("asin",            1, "arc sine",                                          POINTWISE, floating=True, flops=20),
    Prim("acos",            1, "arc cosine",                                        POINTWISE, floating=True, flops=20),
    Prim("atan",            1, "arc tangent",                                       POINTWISE, floating=True, flops=20),
    Prim("atan2",           2, "angle of the point (y, x)",                         POINTWISE, floating=True, flops=24),
    Prim("sinh",            1, "hyperbolic sine",                                   POINTWISE, floating=True, flops=20),
    Prim("cosh",            1, "hyperbolic cosine",                                 POINTWISE, floating=True, flops=20),
    Prim("tanh",            1, "hyperbolic tangent",                                POINTWISE, floating=True, flops=16),
    Prim("asinh",           1, "inverse hyperbolic sine",                           POINTWISE, floating=True, flops=20),
    Prim("acosh",           1, "inverse hyperbolic cosine",                         POINTWISE, floating=True, flops=20),
    Prim("atanh",           1, "inverse hyperbolic tangent",                        POINTWISE, floating=True, flops=20),
    Prim("sigmoid",         1, "1 / (1 + exp(-x))",                                 POINTWISE, floating=True, flops=16),
    Prim("erf",             1, "error function",                                    POINTWISE, floating=True, flops=20),
    Prim("erfc",            1, "1 - erf(x)",                                        POINTWISE, floating=True, flops=24),
    Prim("erfinv",          1, "inverse error function",                            POINTWISE, floating=True, flops=30),
    Prim("lgamma",          1, "log |gamma(x)|",                                    POINTWISE, floating=True, flops=40),
    Prim("digamma",         1, "derivative of lgamma",                              POINTWISE, floating=True, flops=40),

    # comparison, logic, bits
    Prim("eq",              2, "x == y",                                            POINTWISE, result="bool", commutative=True),
    Prim("ne",              2, "x != y",                                            POINTWISE, result="bool", commutative=True),
    Prim("lt",              2, "x < y",                                             POINTWISE, result="bool"),
    Prim("le",              2, "x <= y",                                            POINTWISE, result="bool"),
    Prim("gt",              2, "x > y",                                             POINTWISE, result="bool"),
    Prim("ge",              2, "x >= y",                                            POINTWISE, result="bool"),
    Prim("isnan",           1, "x is NaN",                                          POINTWISE, result="bool"),
    Prim("isinf",           1, "x is plus or minus infinity",                       POINTWISE, result="bool"),
    Prim("signbit",         1, "the sign bit is set",                               POINTWISE, result="bool"),
    Prim("logical_not",     1, "not x, on bool",                                    POINTWISE, result="bool"),
    Prim("bitwise_and",     2, "x & y; logical and on bool",                        POINTWISE, commutative=True),
    Prim("bitwise_or",      2, "x | y; logical or on bool",                         POINTWISE, commutative=True),
    Prim("bitwise_xor",     2, "x ^ y; inequality on bool",                         POINTWISE, commutative=True),
    Prim("bitwise_not",     1, "~x; not on bool",                                   POINTWISE),
    Prim("shift_left",      2, "x << y",                                            POINTWISE),
    Prim("shift_right",     2, "x >> y, arithmetic",                                POINTWISE),
    Prim("convert",         1, "the value in another dtype",                        POINTWISE, ("dtype",), result="attr"),
    Prim("bitcast",         1, "the same bits as a dtype of equal width",           POINTWISE, ("dtype",), result="attr", flops=0),

    # reductions: attribute axes; index reductions take one axis and return int64
    Prim("sum",             1, "sum along `axes`",                                  REDUCTION, ("axes",)),
    Prim("prod",            1, "product along `axes`",                              REDUCTION, ("axes",)),
    Prim("amax",            1, "largest element along `axes`; NaN propagates",      REDUCTION, ("axes",)),
    Prim("amin",            1, "smallest element along `axes`; NaN propagates",     REDUCTION, ("axes",)),
    Prim("any",             1, "whether any element is true (bool)",                REDUCTION, ("axes",)),
    Prim("all",             1, "whether all elements are true (bool)",              REDUCTION, ("axes",)),
    Prim("argmax",          1, "first index of the largest along one axis",         REDUCTION, ("axes",), result="int64"),
    Prim("argmin",          1, "first index of the smallest along one axis",        REDUCTION, ("axes",), result="int64"),

    # scans: attribute axis
    Prim("cumsum",          1, "running sum along `axis`",                          SCAN, ("axis",)),
    Prim("cumprod",         1, "running product along `axis`",                      SCAN, ("axis",)),
    Prim("cummax",          1, "running maximum along `axis`",                      SCAN, ("axis",)),
    Prim("cummin",          1, "running minimum along `axis`",                      SCAN, ("axis",)),

    # views: as in eager, strides and offset included
    Prim("expand",          1, "broadcast to `sizes`; new dims lead",               VIEW, ("sizes",), flops=0),
    Prim("permute",         1, "result dimension i is dimension dims[i] of x",      VIEW, ("dims",), flops=0),
    Prim("view",            1, "the elements in order under `sizes`, no copy",      VIEW, ("sizes",), flops=0),
    Prim("unsqueeze",       1, "a new dimension of size 1 at `axis`",               VIEW, ("axis",), flops=0),
    Prim("squeeze",         1, "without the size-1 dimensions `axes`",              VIEW, ("axes",), flops=0),
    Prim("slice",           1, "start:stop:step along `axis`, already clamped",     VIEW, ("axis", "start", "stop", "step"), flops=0),
    Prim("select",          1, "element `index` along `axis`, which is removed",    VIEW, ("axis", "index"), flops=0),
    Prim("diagonal",        1, "diagonal of dims axis1, axis2, as the last dim",    VIEW, ("offset", "axis1", "axis2"), flops=0),
    Prim("unfold",          1, "sliding windows along `axis`, as the last dim",     VIEW, ("axis", "size", "step"), flops=0),
    Prim("as_strided",      1, "sizes, strides and offset over the storage",        VIEW, ("sizes", "strides", "offset"), flops=0),
    Prim("view_dtype",      1, "the same bytes as another dtype",                   VIEW, ("dtype",), result="attr", flops=0),

    # data movement
    Prim("clone",           1, "a copy with `strides` (None: contiguous)",          DATA_MOVEMENT, ("strides",), flops=0),
    Prim("reshape",         1, "a contiguous copy under `sizes`",                   DATA_MOVEMENT, ("sizes",), flops=0),
    Prim("cat",          None, "inputs joined along `axis`",                        DATA_MOVEMENT, ("axis",), flops=0),
    Prim("flip",            1, "reversed along `axes`",                             DATA_MOVEMENT, ("axes",), flops=0),
    Prim("pad",             2, "x with `low` and `high` elements y (rank 0) added per dimension; negative crops", DATA_MOVEMENT, ("low", "high"), flops=0),
    Prim("gather",          2, "out[i..] = x[i.., index[i..] at `axis`, ..]",       DATA_MOVEMENT, ("axis",), flops=0),
    Prim("index",        None, "x[..., i0, i1, ...]: advanced indexing, indices at `axes` (adjacent as in eager)", DATA_MOVEMENT, ("axes",), flops=0),
    Prim("select_scatter",  2, "x with element `index` along `axis` set to y",      DATA_MOVEMENT, ("axis", "index"), flops=0),
    Prim("slice_scatter",   2, "x with start:stop:step along `axis` set to y",      DATA_MOVEMENT, ("axis", "start", "stop", "step"), flops=0),
    Prim("diagonal_scatter", 2, "x with its diagonal set to y",                     DATA_MOVEMENT, ("offset", "axis1", "axis2"), flops=0),
    Prim("as_strided_scatter", 2, "x with the view of sizes, strides, offset set to y", DATA_MOVEMENT, ("sizes", "strides", "offset"), flops=0),

    # scatters
    Prim("scatter",         3, "out = x; out[.., index[i], ..] = src[i] along `axis`, combined by `reduce` (None, sum, prod, amax, amin)", SCATTER, ("axis", "reduce"), flops=0),
    Prim("index_put",    None, "x with values (last input) stored, or added, at the indices of `axes`", SCATTER, ("axes", "accumulate"), flops=0),

    # creation: attributes dtype, device
    Prim("constant",        0, "a number, rank 0",                                  CREATE, ("value", "dtype", "device"), result="attr", flops=0),
    Prim("scalar_tensor",   1, "a scalar input as a tensor of rank 0",              CREATE, ("dtype", "device"), result="attr", flops=0),
    Prim("full",            1, "x (rank 0) repeated to `sizes`",                    CREATE, ("sizes",), flops=0),
    Prim("iota",            0, "start + step * i for i < length",                   CREATE, ("length", "start", "step", "dtype", "device"), result="attr"),
    Prim("empty",           0, "uninitialised memory",                              CREATE, ("sizes", "strides", "dtype", "device"), result="attr", flops=0),

    # randomness: forward and backward share the seed, or what was drawn
    Prim("random_seed",     0, "what random numbers are computed from (rank 0), another one in each run", RANDOM, ("device",), result="int64", flops=0),
    Prim("random",       None, "`distribution` (uniform, normal, bernoulli, randint, exponential) with `params`, or chances y, by the seed x", DRAW,
         ("distribution", "params", "sizes", "dtype", "device"), result="attr", flops=10),

    # libraries and opaque ops
    Prim("aten",         None, "the ATen overload `target` on `args`, `kwargs`",    LIBRARY, ("target", "args", "kwargs")),

    # effects
    Prim("assert",          1, "stop with `message` unless x (bool, rank 0)",       EFFECT, ("message",), flops=0),
    Prim("opaque",       None, "an op with unknown effects: `target` on `args`, `kwargs`", EFFECT, ("target", "args", "kwargs")),
    Prim("wait",         None, "x, the result of a collective, once it is there; the other inputs keep their memory until then", EFFECT, flops=0),
    Prim("local_scalar",    1, "the value of x (rank 0) as a host scalar; stop unless `checks` hold", EFFECT, ("kind", "checks"), flops=0),

    # nested graphs
    Prim("cond",         None, "graph `true` or `false` on inputs 1.., by input 0", NESTED, ("true", "false", "exist")),
    Prim("while_loop",   None, "repeats graph `body` while graph `test` holds; it replaces the first inputs", NESTED, ("test", "body")),
    Prim("scan",         None, "graph `body` on `carried` values, which it replaces, and each row of the next `rows` inputs", NESTED, ("body", "carried", "rows")),
    Prim("region",       None, "graph `body`, tagged (checkpoint, repeated block)", NESTED, ("body", "tag")),
)
# fmt: on
