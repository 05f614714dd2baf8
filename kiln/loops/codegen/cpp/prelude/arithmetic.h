//@ as_bits
// The bits of a number as an integer of the same width, and back.
KILN_INLINE i32 as_bits(f32 x) { return __builtin_bit_cast(i32, x); }
KILN_INLINE i64 as_bits(f64 x) { return __builtin_bit_cast(i64, x); }
KILN_INLINE i32v as_bits(f32v x) { return (i32v)x; }
KILN_INLINE i64v as_bits(f64v x) { return (i64v)x; }

//@ abs: as_bits
KILN_INLINE f32 abs(f32 x) { return __builtin_fabsf(x); }
KILN_INLINE f64 abs(f64 x) { return __builtin_fabs(x); }
KILN_INLINE f32v abs(f32v x) { return (f32v)((i32v)x & 0x7fffffff); }
KILN_INLINE f64v abs(f64v x) { return (f64v)((i64v)x & 0x7fffffffffffffff); }
template <class T> KILN_INLINE T abs(T x) { return x < 0 ? -x : x; }

//@ copysign
KILN_INLINE f32 copysign(f32 x, f32 y) { return __builtin_copysignf(x, y); }
KILN_INLINE f64 copysign(f64 x, f64 y) { return __builtin_copysign(x, y); }
KILN_INLINE f32v copysign(f32v x, f32v y) { return (f32v)(((i32v)x & 0x7fffffff) | ((i32v)y & (i32)0x80000000)); }
KILN_INLINE f64v copysign(f64v x, f64v y) {
  return (f64v)(((i64v)x & 0x7fffffffffffffff) | ((i64v)y & (i64)0x8000000000000000));
}

//@ sign: sel less
// NaN gives 0 or NaN as eager does: x > 0 less x < 0.
template <class V> KILN_INLINE V sign(V x) {
  if constexpr (Lanes<V> && Whole<V> && sizeof(V) < 8 * W) return (V)(x < V{}) - (V)(x > V{});
  V zero = {}, one = zero + 1;
  return sel(greater(x, zero), one, sel(less(x, zero), (V)(zero - one), zero));
}

//@ maximum: sel less
// NaN wins; of equal numbers, such as zeros of both signs, the first.
template <class V> KILN_INLINE V maximum(V x, V y) {
  if constexpr (Whole<V>) return x > y ? x : y;
  else if constexpr (Register<V>) return (x < y) | (y != y) ? y : x;
  else return sel(less(x, y) | differs(y, y), y, x);
}

//@ minimum: sel less
template <class V> KILN_INLINE V minimum(V x, V y) {
  if constexpr (Whole<V>) return x < y ? x : y;
  else if constexpr (Register<V>) return (x > y) | (y != y) ? y : x;
  else return sel(greater(x, y) | differs(y, y), y, x);
}

//@ fmax: sel less
// NaN loses; of equal numbers the first.
template <class V> KILN_INLINE V fmax(V x, V y) {
  if constexpr (Whole<V>) return x > y ? x : y;
  if constexpr (Register<V>) return (x < y) | (x != x) ? y : x;
  return sel(less(x, y) | differs(x, x), y, x);
}

//@ fmin: sel less
template <class V> KILN_INLINE V fmin(V x, V y) {
  if constexpr (Whole<V>) return x < y ? x : y;
  if constexpr (Register<V>) return (x > y) | (x != x) ? y : x;
  return sel(greater(x, y) | differs(x, x), y, x);
}

//@ fma
// Rounded once.
KILN_INLINE f32 fma(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
KILN_INLINE f64 fma(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }
KILN_INLINE f32v fma(f32v a, f32v b, f32v c) {
#if defined(__AVX512F__) && KILN_W == 16
  return (f32v)__builtin_ia32_vfmaddps512_mask(a, b, c, (u16)-1, 4);
#elif defined(__FMA__) && KILN_W == 8
  return (f32v)__builtin_ia32_vfmaddps256(a, b, c);
#endif
  for (int k = 0; k < W; ++k) c[k] = __builtin_fmaf(a[k], b[k], c[k]);
  return c;
}
KILN_INLINE f64v fma(f64v a, f64v b, f64v c) {
  for (int k = 0; k < W; ++k) c[k] = __builtin_fma(a[k], b[k], c[k]);
  return c;
}

//@ mad: fma
// a*b + c, rounded once where the machine can.
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
KILN_INLINE f32v mad(f32v a, f32v b, f32v c) { return fma(a, b, c); }
#else
KILN_INLINE f32v mad(f32v a, f32v b, f32v c) { return a * b + c; }
#endif
KILN_INLINE f32v mad(f32v a, f32v b, f32 c) { return mad(a, b, all(c)); }
KILN_INLINE f32v mad(f32v a, f32 b, f32v c) { return mad(a, all(b), c); }
KILN_INLINE f32v mad(f32v a, f32 b, f32 c) { return mad(a, all(b), all(c)); }

//@ horner: mad
// The polynomial with these coefficients, the highest power first.
template <class... C> KILN_INLINE f32v horner(f32v x, f32 highest, C... others) {
  f32v p = all(highest);
  return ((p = mad(p, x, others)), ...);
}
template <class... C> KILN_INLINE f64v horner(f64v x, f64 highest, C... others) {
  f64v p = all(highest);
  return ((p = p * x + others), ...);
}

//@ whole_lanes
// To an integer in one instruction: 0 nearest, 1 down, 2 up, 3 toward 0.
#if defined(KILN_AVX512)
template <int Way> KILN_INLINE f32v whole_lanes(f32v x) {
  return (f32v)__builtin_ia32_rndscaleps_mask(x, Way, x, (u16)-1, 4);
}
#elif defined(__AVX__) && KILN_W == 8
template <int Way> KILN_INLINE f32v whole_lanes(f32v x) { return (f32v)__builtin_ia32_roundps256(x, Way); }
#endif

//@ round: abs copysign whole_lanes sel less
// To the nearest integer, ties to even: adding 2^23 (2^52) shifts the fraction out.
KILN_INLINE f32 round(f32 x) { return __builtin_rintf(x); }
KILN_INLINE f64 round(f64 x) { return __builtin_rint(x); }
KILN_INLINE f32v round(f32v x) {
#if defined(KILN_AVX512) || (defined(__AVX__) && KILN_W == 8)
  return whole_lanes<0>(x);
#endif
  f32v size = abs(x), whole = (size + 0x1p23f) - 0x1p23f;
  return copysign(size < 0x1p23f ? whole : size, x);
}
KILN_INLINE f64v round(f64v x) {
  f64v size = abs(x), whole = (size + 0x1p52) - 0x1p52;
  return copysign(sel(less(size, all(0x1p52)), whole, size), x);
}

//@ floor: round whole_lanes
KILN_INLINE f32 floor(f32 x) { return __builtin_floorf(x); }
KILN_INLINE f64 floor(f64 x) { return __builtin_floor(x); }
#if defined(KILN_AVX512) || (defined(__AVX__) && KILN_W == 8)
KILN_INLINE f32v floor(f32v x) { return whole_lanes<1>(x); }
#endif
template <class V> KILN_INLINE V floor(V x) {
  V near = round(x);
  return sel(greater(near, x), (V)(near - 1), near);
}

//@ ceil: round copysign whole_lanes
KILN_INLINE f32 ceil(f32 x) { return __builtin_ceilf(x); }
KILN_INLINE f64 ceil(f64 x) { return __builtin_ceil(x); }
#if defined(KILN_AVX512) || (defined(__AVX__) && KILN_W == 8)
KILN_INLINE f32v ceil(f32v x) { return whole_lanes<2>(x); }
#endif
template <class V> KILN_INLINE V ceil(V x) {
  V near = round(x);
  return copysign(sel(less(near, x), (V)(near + 1), near), x);
}

//@ trunc: floor abs copysign whole_lanes
KILN_INLINE f32 trunc(f32 x) { return __builtin_truncf(x); }
KILN_INLINE f64 trunc(f64 x) { return __builtin_trunc(x); }
#if defined(KILN_AVX512) || (defined(__AVX__) && KILN_W == 8)
KILN_INLINE f32v trunc(f32v x) { return whole_lanes<3>(x); }
#endif
template <class V> KILN_INLINE V trunc(V x) { return copysign(floor(abs(x)), x); }

//@ sqrt: halves
KILN_INLINE f32 sqrt(f32 x) { return __builtin_sqrtf(x); }
KILN_INLINE f64 sqrt(f64 x) { return __builtin_sqrt(x); }
KILN_INLINE f32v sqrt(f32v x) {
#if defined(__AVX512F__) && KILN_W == 16
  return (f32v)__builtin_ia32_sqrtps512_mask(x, x, (u16)-1, 4);
#elif defined(__AVX__) && KILN_W == 8
  return (f32v)__builtin_ia32_sqrtps256(x);
#endif
  for (int k = 0; k < W; ++k) x[k] = __builtin_sqrtf(x[k]);
  return x;
}
KILN_INLINE f64v sqrt(f64v x) {
#if defined(KILN_AVX512)
  auto [low, high] = halves<float_register>(x);
  low = __builtin_ia32_sqrtpd512_mask(low, low, (u8)-1, 4), high = __builtin_ia32_sqrtpd512_mask(high, high, (u8)-1, 4);
  return joined<f64v>(low, high);
#endif
  for (int k = 0; k < W; ++k) x[k] = __builtin_sqrt(x[k]);
  return x;
}

//@ signbit: less
template <class V> KILN_INLINE auto signbit(V x) { return less(x, V{}); }
KILN_INLINE bool signbit(f32 x) { return __builtin_signbitf(x) != 0; }
KILN_INLINE bool signbit(f64 x) { return __builtin_signbit(x) != 0; }
KILN_INLINE mask signbit(f32v x) { return (i32v)x < 0; }
KILN_INLINE mask signbit(f64v x) { return less((i64v)x, i64v{}); }

//@ isinf: abs less
template <class V> KILN_INLINE auto isinf(V x) { return equals(abs(x), (V)(V{} + __builtin_inff())); }

//@ each
// A function of numbers, on numbers or lane by lane.
template <class V, class F> KILN_INLINE V each(V x, F f) {
  if constexpr (Lanes<V>) {
    for (int k = 0; k < W; ++k) x[k] = f(x[k]);
    return x;
  } else {
    return f(x);
  }
}
template <class V, class F> KILN_INLINE V each(V x, V y, F f) {
  if constexpr (Lanes<V>) {
    for (int k = 0; k < W; ++k) x[k] = f(x[k], y[k]);
    return x;
  } else {
    return f(x, y);
  }
}
template <class V, class L, class F> KILN_INLINE V each_real(V x, V y, L lanes, F f) {
  if constexpr (Lanes<V>) {
    for (i64 k = 0; k < lanes.n; ++k) x[k] = f(x[k], y[k]);
    return x;
  } else {
    return f(x, y);
  }
}

//@ fmod_one
KILN_INLINE f32 fmod_one(f32 x, f32 y) { return __builtin_fmodf(x, y); }
KILN_INLINE f64 fmod_one(f64 x, f64 y) { return __builtin_fmod(x, y); }

//@ fmod: each fmod_one trunc mad abs copysign any_lanes
// x - trunc(x/y) y is exact where the quotient fits; the rounded quotient is at most one too large.
__attribute__((noinline, cold)) static f32v fmod_far(const f32v& x, const f32v& y, const f32v& v, const mask& far) {
  f32v r = v;
  for (int k = 0; k < W; ++k)
    if (far[k]) r[k] = __builtin_fmodf(x[k], y[k]);
  return r;
}
KILN_INLINE f32v fmod(f32v x, f32v y) {
  f32v a = abs(x), b = abs(y), quotient = a / b;
  mask far = ~(quotient < 0x1p22f);
  f32v rest = mad(trunc(quotient), -b, a);
  rest = rest < 0.0f ? rest + b : rest;
  rest = copysign(b == __builtin_inff() ? a : rest, x);
  return any_lanes(far) ? fmod_far(x, y, rest, far) : rest;
}
template <class V> KILN_INLINE V fmod(V x, V y) {
  return each(x, y, [](auto a, auto b) { return fmod_one(a, b); });
}

//@ remainder: fmod sel less
// The sign of y.
template <class V> KILN_INLINE V remainder(V x, V y) {
  V zero = {}, rest = fmod(x, y);
  return sel(differs(rest, zero) & (less(y, zero) ^ less(rest, zero)), (V)(rest + y), rest);
}

//@ float_floor_div: fmod floor copysign sel less
// floor(x / y) as Python's //: from the exact remainder, so that the two agree.
template <class V> KILN_INLINE V float_floor_div(V x, V y) {
  V zero = {}, one = zero + 1, rest = fmod(x, y), ratio = x / y, quotient = (x - rest) / y;
  quotient = sel(differs(rest, zero) & (less(y, zero) ^ less(rest, zero)), (V)(quotient - one), quotient);
  V whole = floor(quotient);
  whole = sel(greater(quotient - whole, one / 2), (V)(whole + one), whole);
  whole = sel(equals(quotient, zero), copysign(zero, ratio), whole);
  return sel(equals(y, zero), ratio, whole);
}

//@ int_divide
// Quotient (toward 0) and remainder; division by zero sets the status, the smallest number by -1 wraps.
template <class T> struct Division {
  T quotient, rest;
};
template <class T> KILN_INLINE Division<T> int_divide(T x, T y, i64* status) {
  if (y == 0) {
    status[0] = 2;
    return {0, 0};
  }
  if constexpr ((T)-1 < 0)
    if (y == (T)-1) return {(T)(0 - (u64)x), 0};
  return {(T)(x / y), (T)(x % y)};
}

//@ float_divide: less sel active any_lanes round wide32
// Integer lanes divided in floating point, which has instructions for it: up to 16 bits in single precision, 32 bits in
// double, 64 bits in double if the numbers have at most 51. The quotient is rounded to nearest, and the rest exact,
// because the product of quotient and divisor fits.
KILN_INLINE f32v near_whole(f32v x) { return round(x); }
KILN_INLINE f64v near_whole(f64v x) { return (x + 0x1.8p52) - 0x1.8p52; }
template <class F, class V> struct FloatDivision {
  F quotient, rest, x, y;
};
template <class F, class V, class L>
KILN_INLINE FloatDivision<F, V> float_divide(F x, F y, i64* status, L lanes) {
  mask zero = equals(y, F{});
  if (any_lanes(zero & active(lanes))) status[0] = 2;
  y = sel(zero, (F)(F{} + 1), y);
  F q = near_whole(x / y);
  return {q, x - q * y, x, y};
}
// The rest with the sign of y (down) or x (toward 0): both follow from the nearest.
template <class D> KILN_INLINE D rounded_down(D d) {
  auto zero = d.x - d.x, one = zero + 1;
  mask fix = differs(d.rest, zero) & (less(d.rest, zero) ^ less(d.y, zero));
  return {sel(fix, (decltype(one))(d.quotient - one), d.quotient), sel(fix, (decltype(one))(d.rest + d.y), d.rest), d.x,
          d.y};
}
template <class D> KILN_INLINE D rounded_to_zero(D d) {
  auto zero = d.x - d.x, one = zero + 1;
  mask fix = differs(d.rest, zero) & (less(d.rest, zero) ^ less(d.x, zero));
  auto back = sel(less(d.x, zero) ^ less(d.y, zero), (decltype(one))-one, one);
  return {sel(fix, (decltype(one))(d.quotient - back), d.quotient),
          sel(fix, (decltype(one))(d.rest + back * d.y), d.rest), d.x, d.y};
}
constexpr f64 magic51 = 0x1.8p52;
KILN_INLINE f64v as_float51(i64v x) { return (f64v)(x + __builtin_bit_cast(i64, magic51)) - magic51; }
KILN_INLINE i64v as_whole51(f64v x) { return (i64v)(x + magic51) - __builtin_bit_cast(i64, magic51); }
KILN_INLINE mask beyond51(i64v x) { return at_least((u64v)x + (u64)(1LL << 50), all((u64)(1LL << 51))); }

//@ divided: float_divide int_divide each
// Division of two integers: `fixed` turns the nearest quotient into the wanted one; `exact` divides one by one.
template <class V, class L, class X, class Q>
KILN_INLINE V divided(V x, V y, i64* status, L lanes, X exact, Q fixed) {
  if constexpr (!Lanes<V>) {
    return exact(x, y);
  } else {
    constexpr int bytes = sizeof(V) / W;
    constexpr bool has_sign = (decltype(x[0] + 0))-1 < 0 && V{}[0] - 1 < 0;
    if constexpr (bytes <= 2) {
      f32v a = __builtin_convertvector(wide32(x), f32v);
      f32v b = __builtin_convertvector(wide32(y), f32v);
      f32v r = fixed(float_divide<f32v, V>(a, b, status, lanes));
      return __builtin_convertvector(__builtin_convertvector(r, i32v), V);
    } else if constexpr (bytes == 4 && has_sign) {
      f64v a = __builtin_convertvector(x, f64v), b = __builtin_convertvector(y, f64v);
      return __builtin_convertvector(as_whole51(fixed(float_divide<f64v, V>(a, b, status, lanes))), V);
    } else if constexpr (bytes == 8 && has_sign) {
      if (!any_lanes((beyond51(x) | beyond51(y)) & active(lanes)))
        return as_whole51(fixed(float_divide<f64v, V>(as_float51(x), as_float51(y), status, lanes)));
    }
    return each_real(x, y, lanes, exact);
  }
}

//@ int_trunc_div: divided
template <class V, class L> KILN_INLINE V int_trunc_div(V x, V y, i64* status, L lanes) {
  return divided(x, y, status, lanes, [=](auto a, auto b) { return int_divide(a, b, status).quotient; },
                 [](auto d) { return rounded_to_zero(d).quotient; });
}

//@ int_fmod: divided
template <class V, class L> KILN_INLINE V int_fmod(V x, V y, i64* status, L lanes) {
  return divided(x, y, status, lanes, [=](auto a, auto b) { return int_divide(a, b, status).rest; },
                 [](auto d) { return rounded_to_zero(d).rest; });
}

//@ int_floor_div: divided
template <class V, class L> KILN_INLINE V int_floor_div(V x, V y, i64* status, L lanes) {
  auto exact = [=](auto a, auto b) {
    auto [quotient, rest] = int_divide(a, b, status);
    return (decltype(a))(quotient - (rest != 0 && (rest < 0) != (b < 0)));
  };
  return divided(x, y, status, lanes, exact, [](auto d) { return rounded_down(d).quotient; });
}

//@ int_remainder: divided
template <class V, class L> KILN_INLINE V int_remainder(V x, V y, i64* status, L lanes) {
  auto exact = [=](auto a, auto b) {
    auto rest = int_divide(a, b, status).rest;
    return (decltype(a))(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
  };
  return divided(x, y, status, lanes, exact, [](auto d) { return rounded_down(d).rest; });
}

//@ int_pow: each
// Wraps around; a negative exponent gives 1, -1 or 0.
template <class T> KILN_INLINE T int_pow_one(T x, T y) {
  if constexpr ((T)-1 < 0)
    if (y < 0) return x == 1 ? 1 : x == (T)-1 ? (y % 2 ? (T)-1 : 1) : 0;
  u64 base = (u64)x, r = 1;
  for (u64 n = (u64)y; n; n >>= 1, base *= base)
    if (n & 1) r *= base;
  return (T)r;
}
template <class V> KILN_INLINE V int_pow(V x, V y) {
  return each(x, y, [](auto a, auto b) { return int_pow_one(a, b); });
}

//@ shift_left: each sel less
// By the width or more, or by a negative number: 0.
template <class V> KILN_INLINE V shift_left(V x, V y) {
  if constexpr (Lanes<V>) {
    constexpr int bits = 8 * sizeof(V) / W;
    if constexpr (bits == 64) return sel(less((u64v)y, all((u64)64)), (V)(x << (y & 63)), V{});
    else return (y >= V{}) & (y < bits) ? x << (y & (bits - 1)) : V{};
  }
  return each(x, y, [](auto a, auto b) {
    return b < 0 || (u64)b >= 8 * sizeof a ? (decltype(a))0 : (decltype(a))((u64)a << (u64)b);
  });
}

//@ shift_right: each sel less
template <class V> KILN_INLINE V shift_right(V x, V y) {
  if constexpr (Lanes<V>) {
    constexpr int last = 8 * sizeof(V) / W - 1;
    if constexpr (last == 63) {
      mask fits = less((u64v)y, all((u64)64));
      if constexpr ((V{} - 1)[0] < 0) return x >> sel(fits, y, V{} + last);
      else return sel(fits, (V)(x >> (y & last)), V{});
    } else {
      auto fits = (y >= V{}) & (y <= last);
      if constexpr ((V{} - 1)[0] < 0) return x >> (fits ? y : V{} + last);
      else return fits ? x >> (y & last) : V{};
    }
  }
  return each(x, y, [](auto a, auto b) {
    constexpr int last = 8 * sizeof a - 1;
    if constexpr ((decltype(a))-1 < 0) return (decltype(a))(a >> (b < 0 || b > last ? last : (int)b));
    return b < 0 || b > last ? (decltype(a))0 : (decltype(a))(a >> (int)b);
  });
}

//@ nextafter: each
KILN_INLINE f32 nextafter_one(f32 x, f32 y) { return __builtin_nextafterf(x, y); }
KILN_INLINE f64 nextafter_one(f64 x, f64 y) { return __builtin_nextafter(x, y); }
KILN_INLINE f32v nextafter(f32v x, f32v y) {
  i32v bits = (i32v)x, step = ((y > x) ^ (bits < 0)) ? all(1) : all(-1);
  f32v moved = x == 0.0f ? (f32v)(((i32v)y & (i32)0x80000000) | 1) : (f32v)(bits + step);
  moved = x == y ? y : moved;
  return (x != x) | (y != y) ? x + y : moved;
}
template <class V> KILN_INLINE V nextafter(V x, V y) {
  return each(x, y, [](auto a, auto b) { return nextafter_one(a, b); });
}

//@ hypot: each sqrt mad abs
KILN_INLINE f32 hypot_one(f32 x, f32 y) { return __builtin_hypotf(x, y); }
KILN_INLINE f64 hypot_one(f64 x, f64 y) { return __builtin_hypot(x, y); }
KILN_INLINE f32v hypot(f32v x, f32v y) {
  f32v a = abs(x), b = abs(y), large = a > b ? a : b;
  // Scaled by a power of two, so that squares neither overflow nor underflow.
  f32v up = large > 0x1p60f ? all(0x1p-70f) : large < 0x1p-40f ? all(0x1p90f) : all(1.0f);
  f32v down = large > 0x1p60f ? all(0x1p70f) : large < 0x1p-40f ? all(0x1p-90f) : all(1.0f);
  a = a * up, b = b * up;
  f32v r = sqrt(mad(a, a, b * b)) * down;
  return (abs(x) == __builtin_inff()) | (abs(y) == __builtin_inff()) ? all(__builtin_inff()) : r;
}
template <class V> KILN_INLINE V hypot(V x, V y) {
  return each(x, y, [](auto a, auto b) { return hypot_one(a, b); });
}
