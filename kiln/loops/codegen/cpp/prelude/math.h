//@ KILN_FUNCTION
// Functions of one number that are left to libm, lane by lane; and a function of lanes for one number.
#define KILN_LIBM_F64(name)                                   \
  KILN_INLINE f64 name(f64 x) { return __builtin_##name(x); } \
  KILN_INLINE f64v name(f64v x) {                             \
    for (int k = 0; k < W; ++k) x[k] = __builtin_##name(x[k]); \
    return x;                                                 \
  }
#define KILN_LIBM_F32(name)                                      \
  KILN_INLINE f32 name(f32 x) { return __builtin_##name##f(x); } \
  KILN_INLINE f32v name(f32v x) {                                \
    for (int k = 0; k < W; ++k) x[k] = __builtin_##name##f(x[k]); \
    return x;                                                    \
  }
#define KILN_ONE_LANE(name) \
  KILN_INLINE f32 name(f32 x) { return name(all(x))[0]; }

//@ power_of_two
// 2^n for -126 <= n <= 127.
KILN_INLINE f32v power_of_two(i32v n) { return (f32v)((n + 127) << 23); }

//@ to_i32
KILN_INLINE i32v to_i32(f32v x) { return __builtin_convertvector(x, i32v); }

//@ scaled: power_of_two to_i32
// x * 2^n for a whole n from -250 to 250, in two steps so that neither overflows before the product does.
KILN_INLINE f32v scaled(f32v x, f32v n) {
#if defined(__AVX512F__) && KILN_W == 16
  return (f32v)__builtin_ia32_scalefps512_mask(x, n, x, (u16)-1, 4);
#endif
  i32v whole = to_i32(n), half = whole >> 1;
  return x * power_of_two(half) * power_of_two(whole - half);
}

//@ nearest
// x to the nearest integer, for |x| < 2^22.
KILN_INLINE f32v nearest(f32v x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

//@ exp_part: mad nearest
// exp(x) = 2^n (1 + r + r^2 P(r)) with x = n log 2 + r, |r| <= log(2)/2; P is minimax (relative error 3e-9).
struct Power {
  f32v value, n;
};
KILN_INLINE Power exp_part(f32v x) {
  f32v n = nearest(x * 0x1.715476p+0f);
  f32v r = mad(n, -0x1.62e4p-1f, x);
  r = mad(n, -0x1.7f7d1cp-20f, r);
  f32v p = mad(all(0.0013820742f), r, 0.00836924836f);
  p = mad(p, r, 0.041668281f);
  p = mad(p, r, 0.166665167f);
  p = mad(p, r, 0.49999994f);
  return {mad(r * r, p, r) + 1.0f, n};
}

//@ exp: KILN_FUNCTION exp_part scaled
KILN_INLINE f32v exp(f32v x) {
  x = x < -104.0f ? all(-104.0f) : x;
  x = x > 89.0f ? all(89.0f) : x;
  auto [value, n] = exp_part(x);
  return scaled(value, n);
}
KILN_ONE_LANE(exp)
KILN_LIBM_F64(exp)

//@ exp_moderate: exp_part to_i32
// exp(x) for -80 <= x <= 80, where nothing overflows.
KILN_INLINE f32v exp_moderate(f32v x) {
  auto [value, n] = exp_part(x);
  return (f32v)((i32v)value + (to_i32(n) << 23));
}

//@ exp2: KILN_FUNCTION mad scaled nearest
// 2^n * (1 + r P(r)) with x = n + r, |r| <= 1/2 (relative error 2e-10).
KILN_INLINE f32v exp2(f32v x) {
  x = x < -151.0f ? all(-151.0f) : x;
  x = x > 129.0f ? all(129.0f) : x;
  f32v n = nearest(x), r = x - n;
  f32v p = mad(all(1.44508822e-05f), r, 0.000154532827f);
  p = mad(p, r, 0.00133375078f);
  p = mad(p, r, 0.00961808488f);
  p = mad(p, r, 0.0555040538f);
  p = mad(p, r, 0.240226507f);
  p = mad(p, r, 0.693147182f);
  return scaled(mad(p, r, 1.0f), n);
}
KILN_ONE_LANE(exp2)
KILN_LIBM_F64(exp2)

//@ expm1: KILN_FUNCTION mad power_of_two to_i32 nearest sel
// 2^n * (expm1(r) + 1) - 1 with x = n log 2 + r; written with 2^(n-1), which is finite for every n.
KILN_INLINE f32v expm1(f32v x) {
  f32v c = x < -18.0f ? all(-18.0f) : x;
  c = c > 89.0f ? all(89.0f) : c;
  f32v n = nearest(c * 0x1.715476p+0f);
  f32v r = mad(n, -0x1.62e4p-1f, c);
  r = mad(n, -0x1.7f7d1cp-20f, r);
  f32v p = mad(all(0.000197669942f), r, 0.00139332283f);
  p = mad(p, r, 0.00833354145f);
  p = mad(p, r, 0.0416664854f);
  p = mad(p, r, 0.166666657f);
  p = mad(p, r, 0.5f);
  p = mad(r * r, p, r);
  f32v half = power_of_two(to_i32(n) - 1);
  f32v whole = mad(half, p, half - 0.5f);
  return sel(x == 0.0f, x, whole + whole);
}
KILN_ONE_LANE(expm1)
KILN_LIBM_F64(expm1)

//@ split_exponent: to_i32
// x = (1 + f) * 2^e with sqrt(1/2) <= 1 + f < sqrt(2), for positive finite x.
struct Exponent {
  f32v f, e;
};
KILN_INLINE Exponent split_exponent(f32v x) {
  mask tiny = x < 0x1p-126f;
  i32v bits = (i32v)(tiny ? x * 0x1p23f : x);
  i32v e = (bits - 0x3f3504f3) >> 23;
  f32v m = (f32v)(bits - (e << 23));
  e = tiny ? e - 23 : e;
  return {m - 1.0f, __builtin_convertvector(e, f32v)};
}

//@ log_part: mad
// log(1 + f) + e log 2 = f - f^2/2 + f^3 Q(f) + e log 2; Q is minimax (relative error 8e-10).
KILN_INLINE f32v log_part(f32v f, f32v e) {
  f32v q = mad(all(0.0674955621f), f, -0.116701923f);
  q = mad(q, f, 0.118834704f);
  q = mad(q, f, -0.124062076f);
  q = mad(q, f, 0.142203629f);
  q = mad(q, f, -0.166679904f);
  q = mad(q, f, 0.200020716f);
  q = mad(q, f, -0.250000089f);
  q = mad(q, f, 0.333333135f);
  f32v square = f * f;
  f32v r = mad(e, 0x1.7f7d1cp-20f, square * f * q);
  r = mad(square, -0.5f, r);
  return mad(e, all(0x1.62e4p-1f), f + r);
}

//@ log_special: sel
// What a logarithm of x is where x is not positive and finite.
KILN_INLINE f32v log_special(f32v x, f32v r) {
  r = x == __builtin_inff() ? x : r;
  r = x == 0.0f ? all(-__builtin_inff()) : r;
  return sel((x < 0.0f) | (x != x), all(__builtin_nanf("")), r);
}

//@ log: KILN_FUNCTION split_exponent log_part log_special
KILN_INLINE f32v log(f32v x) {
  auto [f, e] = split_exponent(x);
  return log_special(x, log_part(f, e));
}
KILN_ONE_LANE(log)
KILN_LIBM_F64(log)

//@ log1p: KILN_FUNCTION split_exponent log_part log_special power_of_two sel abs
// u = 1 + x rounds; what it lost is added to f.
KILN_INLINE f32v log1p(f32v x) {
  f32v u = x + 1.0f;
  f32v lost = x < 1.0f ? x - (u - 1.0f) : 1.0f - (u - x);
  auto [f, e] = split_exponent(u);
  f32v scale = (f32v)(0x3f800000 - (to_i32(e) << 23));
  lost = u < 0x1p100f ? lost * scale : f32v{};
  f32v r = log_special(u, log_part(f + lost, e));
  return sel(abs(x) < 0x1p-14f, x - x * x * 0.5f, r);
}
KILN_ONE_LANE(log1p)
KILN_LIBM_F64(log1p)

//@ log_wide: split_exponent
// log(x) in double precision, for positive finite x: 2t + t^3 P(t^2) with t = f/(2+f) (relative error 2e-16).
KILN_INLINE f64v log_wide(f32v x) {
  auto [f, e] = split_exponent(x);
  f64v g = __builtin_convertvector(f, f64v);
  f64v t = g / (g + 2.0), u = t * t;
  f64v p = u * 0.16823877935794487 + 0.1812331918150925;
  p = p * u + 0.22223381196416078;
  p = p * u + 0.285714170040251;
  p = p * u + 0.4000000005299022;
  p = p * u + 0.666666666665859;
  return __builtin_convertvector(e, f64v) * 0x1.62e42fefa39efp-1 + (t * 2.0 + t * u * p);
}

//@ log2: KILN_FUNCTION log_wide log_special
KILN_INLINE f32v log2(f32v x) { return log_special(x, __builtin_convertvector(log_wide(x) * 0x1.71547652b82fep+0, f32v)); }
KILN_ONE_LANE(log2)
KILN_LIBM_F64(log2)

//@ log10: KILN_FUNCTION log_wide log_special
KILN_INLINE f32v log10(f32v x) { return log_special(x, __builtin_convertvector(log_wide(x) * 0x1.bcb7b1526e50ep-2, f32v)); }
KILN_ONE_LANE(log10)
KILN_LIBM_F64(log10)

//@ pow: KILN_FUNCTION log_wide abs any_lanes
// 2^(y log2 |x|) in double precision where x is finite and not 0 and y below 2^23; else libm.
KILN_INLINE f32 pow(f32 x, f32 y) { return __builtin_powf(x, y); }
KILN_INLINE f64 pow(f64 x, f64 y) { return __builtin_pow(x, y); }
KILN_INLINE f64v pow(f64v x, f64v y) {
  for (int k = 0; k < W; ++k) x[k] = __builtin_pow(x[k], y[k]);
  return x;
}
KILN_INLINE f32v pow(f32v x, f32v y) {
  f32v size = abs(x);
  mask usual = (size > 0.0f) & (size < __builtin_inff()) & (abs(y) < 0x1p23f);
  if (any_lanes(~usual)) {
    for (int k = 0; k < W; ++k) x[k] = __builtin_powf(x[k], y[k]);
    return x;
  }
  f64v z = log_wide(size) * 0x1.71547652b82fep+0 * __builtin_convertvector(y, f64v);
  z = z < -200.0 ? all(-200.0) : z;
  z = z > 200.0 ? all(200.0) : z;
  f64v n = (z + 0x1.8p52) - 0x1.8p52, r = z - n;
  f64v p = r * 1.0147655136873999e-07 + 1.3259193509213867e-06;
  p = p * r + 1.5253000854982281e-05;
  p = p * r + 0.00015403437267703785;
  p = p * r + 0.0013333557592768914;
  p = p * r + 0.00961812918566075;
  p = p * r + 0.055504108668716134;
  p = p * r + 0.24022650695707415;
  p = p * r + 0.6931471805598789;
  f64v scale = (f64v)((__builtin_convertvector(n, i64v) + 1023) << 52);
  f32v whole = __builtin_convertvector((p * r + 1.0) * scale, f32v);
  i32v yi = __builtin_convertvector(y, i32v);
  mask integer = __builtin_convertvector(yi, f32v) == y, negative = (i32v)x < 0;
  whole = (negative & ((yi & 1) != 0)) ? -whole : whole;
  return (negative & ~integer) ? all(__builtin_nanf("")) : whole;
}

//@ sigmoid: KILN_FUNCTION exp
KILN_INLINE f32v sigmoid(f32v x) { return 1.0f / (1.0f + exp(-x)); }
KILN_ONE_LANE(sigmoid)
KILN_INLINE f64 sigmoid(f64 x) { return 1.0 / (1.0 + exp(-x)); }
KILN_INLINE f64v sigmoid(f64v x) { return 1.0 / (1.0 + exp(-x)); }

//@ tanh: KILN_FUNCTION exp_moderate abs copysign
// x + x^3 P(x^2) (relative error 5e-10) near 0, else 1 - 2/(exp(2|x|) + 1).
KILN_INLINE f32v tanh(f32v x) {
  f32v size = abs(x), square = x * x;
  f32v p = mad(all(-0.000512176892f), square, 0.00272287964f);
  p = mad(p, square, -0.00839966722f);
  p = mad(p, square, 0.0217273999f);
  p = mad(p, square, -0.0539445169f);
  p = mad(p, square, 0.133331448f);
  p = mad(p, square, -0.333333284f);
  f32v near = mad(size * square, p, size);
  f32v a = size < 10.0f ? size : all(10.0f);
  f32v far = 1.0f - 2.0f / (exp_moderate(a + a) + 1.0f);
  return copysign(size > 0.85f ? far : near, x);
}
KILN_ONE_LANE(tanh)
KILN_LIBM_F64(tanh)

//@ erf: KILN_FUNCTION exp_moderate abs copysign
// x + x P(x^2) (relative error 9e-10) near 0, else 1 - exp(-Q(|x|)) with Q = -log(erfc) (error 5e-11).
KILN_INLINE f32v erf(f32v x) {
  f32v size = abs(x), square = x * x;
  f32v p = mad(all(8.00277485e-05f), square, -0.000805080403f);
  p = mad(p, square, 0.00519246049f);
  p = mad(p, square, -0.0268557407f);
  p = mad(p, square, 0.112836257f);
  p = mad(p, square, -0.376126289f);
  p = mad(p, square, 0.128379166f);
  f32v near = mad(size, p, size);
  f32v a = size < 4.0f ? size : all(4.0f);
  f32v q = mad(all(2.1092741e-05f), a, -0.000434444606f);
  q = mad(q, a, 0.00417100918f);
  q = mad(q, a, -0.0251193512f);
  q = mad(q, a, 0.10828004f);
  q = mad(q, a, 0.633346915f);
  q = mad(q, a, 1.12951493f);
  q = mad(q, a, -0.00017468445f);
  f32v far = 1.0f - exp_moderate(-q);
  return copysign(size > 0.93f ? far : near, x);
}
KILN_ONE_LANE(erf)
KILN_LIBM_F64(erf)

//@ erf_plus_one: KILN_FUNCTION exp_moderate abs
// erfc(-x): exp(-Q(|x|)) with Q = -log(erfc) on [0, 6] (absolute error 3e-9), and 2 less that for positive x.
KILN_INLINE f32v erf_plus_one(f32v x) {
  f32v size = abs(x), a = size > 6.0f ? all(6.0f) : size;
  f32v q = mad(all(-7.43849841e-06f), a, 0.000100440659f);
  q = mad(q, a, -0.000567037903f);
  q = mad(q, a, 0.00153565209f);
  q = mad(q, a, -1.28909087e-05f);
  q = mad(q, a, -0.0192465428f);
  q = mad(q, a, 0.102809615f);
  q = mad(q, a, 0.636614263f);
  q = mad(q, a, 1.12837946f);
  q = mad(q, a, -2.14884688e-09f);
  f32v tail = exp_moderate(-q);
  tail = size > 6.0f ? f32v{} : tail;
  return x < 0.0f ? tail : 2.0f - tail;
}
KILN_ONE_LANE(erf_plus_one)

//@ quadrant: mad nearest to_i32
// x = n pi/2 + r + rest with |r| <= pi/4, for |x| < 20000: pi/2 in three parts of 24 bits. The first difference is
// exact, `rest` is what the second one rounds off.
struct Quadrant {
  f32v r, rest;
  i32v n;
};
KILN_INLINE Quadrant quadrant(f32v x) {
  f32v n = nearest(x * 0x1.45f306p-1f);
  f32v high = mad(n, -0x1.921fb4p+0f, x);
  f32v r = mad(n, -0x1.4442dp-24f, high);
  f32v rest = mad(n, all(-0x1.4442dp-24f), high - r);
  return {r, mad(n, all(-0x1.84698ap-48f), rest), to_i32(n)};
}

//@ sin_cos_part: mad
// Sine and cosine of r + rest: r + r^3 P(r^2), 1 - r^2/2 + r^4 Q(r^2) (relative errors 2e-10, 7e-12).
KILN_INLINE f32v sin_part(f32v r, f32v rest) {
  f32v square = r * r;
  f32v p = mad(all(2.82641486e-06f), square, -0.000198525653f);
  p = mad(p, square, 0.00833337847f);
  p = mad(p, square, -0.166666672f);
  return r + mad(r * square, p, rest);
}
KILN_INLINE f32v cos_part(f32v r, f32v rest) {
  f32v square = r * r;
  f32v q = mad(all(-2.87680592e-07f), square, 2.48209744e-05f);
  q = mad(q, square, -0.00138889777f);
  q = mad(q, square, 0.0416666679f);
  f32v low = mad(square * square, q, -(r * rest));
  return mad(square, all(-0.5f), all(1.0f)) + low;
}

//@ sin: KILN_FUNCTION quadrant sin_cos_part any_lanes abs
KILN_INLINE f32v sin(f32v x) {
  if (any_lanes(~(abs(x) < 20000.0f))) {
    for (int k = 0; k < W; ++k) x[k] = __builtin_sinf(x[k]);
    return x;
  }
  auto [r, rest, n] = quadrant(x);
  f32v v = ((n & 1) != 0) ? cos_part(r, rest) : sin_part(r, rest);
  v = ((n & 2) != 0) ? -v : v;
  return x == 0.0f ? x : v;
}
KILN_ONE_LANE(sin)
KILN_LIBM_F64(sin)

//@ cos: KILN_FUNCTION quadrant sin_cos_part any_lanes abs
KILN_INLINE f32v cos(f32v x) {
  if (any_lanes(~(abs(x) < 20000.0f))) {
    for (int k = 0; k < W; ++k) x[k] = __builtin_cosf(x[k]);
    return x;
  }
  auto [r, rest, n] = quadrant(x);
  f32v v = ((n & 1) != 0) ? sin_part(r, rest) : cos_part(r, rest);
  return (((n + 1) & 2) != 0) ? -v : v;
}
KILN_ONE_LANE(cos)
KILN_LIBM_F64(cos)

//@ atan_part: mad
// atan(x) on [0, 1]: x + x^3 P(x^2) (relative error 3e-9).
KILN_INLINE f32v atan_part(f32v x) {
  f32v square = x * x;
  f32v p = mad(all(-0.0017875476f), square, 0.0108873611f);
  p = mad(p, square, -0.0311270021f);
  p = mad(p, square, 0.0579065457f);
  p = mad(p, square, -0.0840047523f);
  p = mad(p, square, 0.109511748f);
  p = mad(p, square, -0.142640516f);
  p = mad(p, square, 0.19998531f);
  p = mad(p, square, -0.333332986f);
  return mad(x * square, p, x);
}

//@ atan: KILN_FUNCTION atan_part abs copysign
KILN_INLINE f32v atan(f32v x) {
  f32v size = abs(x);
  mask large = size > 1.0f;
  f32v p = atan_part(large ? 1.0f / size : size);
  p = large ? (0x1.921fb6p+0f - p) - 0x1.777a5cp-25f : p;
  return copysign(x != x ? x : p, x);
}
KILN_ONE_LANE(atan)
KILN_LIBM_F64(atan)

//@ rsqrt: sqrt
template <class V> KILN_INLINE V rsqrt(V x) { return 1 / sqrt(x); }

//@ tan: KILN_FUNCTION
KILN_LIBM_F32(tan)
KILN_LIBM_F64(tan)
//@ asin: KILN_FUNCTION
KILN_LIBM_F32(asin)
KILN_LIBM_F64(asin)
//@ acos: KILN_FUNCTION
KILN_LIBM_F32(acos)
KILN_LIBM_F64(acos)
//@ sinh: KILN_FUNCTION
KILN_LIBM_F32(sinh)
KILN_LIBM_F64(sinh)
//@ cosh: KILN_FUNCTION
KILN_LIBM_F32(cosh)
KILN_LIBM_F64(cosh)
//@ asinh: KILN_FUNCTION
KILN_LIBM_F32(asinh)
KILN_LIBM_F64(asinh)
//@ acosh: KILN_FUNCTION
KILN_LIBM_F32(acosh)
KILN_LIBM_F64(acosh)
//@ atanh: KILN_FUNCTION
KILN_LIBM_F32(atanh)
KILN_LIBM_F64(atanh)
//@ erfc: KILN_FUNCTION
KILN_LIBM_F32(erfc)
KILN_LIBM_F64(erfc)
//@ lgamma: KILN_FUNCTION
KILN_LIBM_F32(lgamma)
KILN_LIBM_F64(lgamma)

//@ atan2: each
KILN_INLINE f32 atan2_one(f32 y, f32 x) { return __builtin_atan2f(y, x); }
KILN_INLINE f64 atan2_one(f64 y, f64 x) { return __builtin_atan2(y, x); }
template <class V> KILN_INLINE V atan2(V y, V x) {
  return each(y, x, [](auto a, auto b) { return atan2_one(a, b); });
}

//@ digamma: each
// Recurrence up to 10, then the asymptotic series in 1/x^2 with Bernoulli numbers; reflection below 0.
KILN_INLINE f64 digamma_one(f64 x) {
  if (x == 0) return __builtin_copysign(__builtin_inf(), -x);
  f64 r = 0;
  if (x < 0) {
    if (x == __builtin_trunc(x)) return __builtin_nan("");
    f64 rest = x - __builtin_trunc(x);
    r = -3.14159265358979323846 / __builtin_tan(3.14159265358979323846 * rest);
    x = 1 - x;
  }
  for (; x < 10; x += 1) r -= 1 / x;
  f64 y = 1 / (x * x);
  f64 series = y * (1.0 / 12 - y * (1.0 / 120 - y * (1.0 / 252 - y * (1.0 / 240 - y * (1.0 / 132 - y * (691.0 / 32760 - y / 12))))));
  return r + __builtin_log(x) - 0.5 / x - series;
}
template <class V> KILN_INLINE V digamma(V x) {
  return each(x, [](auto a) { return (decltype(a))digamma_one(a); });
}

//@ erfinv: each
// A start from Winitzki's formula, then Newton steps on erf (on erfc near 1) in double precision.
KILN_INLINE f64 erfinv_one(f64 x) {
  f64 size = __builtin_fabs(x);
  if (!(size < 1)) return size == 1 ? __builtin_copysign(__builtin_inf(), x) : __builtin_nan("");
  f64 a = 0.147, l = __builtin_log1p(-size * size), t = 2 / (3.14159265358979323846 * a) + l / 2;
  f64 y = __builtin_sqrt(__builtin_sqrt(t * t - l / a) - t);
  for (int step = 0; step < 3; ++step) {
    f64 miss = size < 0.5 ? __builtin_erf(y) - size : (1 - size) - __builtin_erfc(y);
    f64 move = miss / (1.12837916709551257390 * __builtin_exp(-y * y));
    y -= move / (1 + y * move);
  }
  return __builtin_copysign(y, x);
}
template <class V> KILN_INLINE V erfinv(V x) {
  return each(x, [](auto a) { return (decltype(a))erfinv_one(a); });
}
