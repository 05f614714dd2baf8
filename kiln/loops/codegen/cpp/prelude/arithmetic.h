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

//@ sign: sel as_mask
// NaN gives 0 or NaN as eager does: x > 0 less x < 0.
template <class V> KILN_INLINE V sign(V x) {
  V zero = {}, one = zero + 1;
  return sel(as_mask(x > zero), one, sel(as_mask(x < zero), (V)(zero - one), zero));
}

//@ maximum: sel as_mask
// NaN wins.
template <class V> KILN_INLINE V maximum(V x, V y) { return sel(as_mask(x > y) | as_mask(x != x), x, y); }

//@ minimum: sel as_mask
template <class V> KILN_INLINE V minimum(V x, V y) { return sel(as_mask(x < y) | as_mask(x != x), x, y); }

//@ fmax: sel as_mask
// NaN loses.
template <class V> KILN_INLINE V fmax(V x, V y) { return sel(as_mask(x > y) | as_mask(y != y), x, y); }

//@ fmin: sel as_mask
template <class V> KILN_INLINE V fmin(V x, V y) { return sel(as_mask(x < y) | as_mask(y != y), x, y); }

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

//@ round: abs copysign
// To the nearest integer, ties to even: adding 2^23 (2^52) pushes the fraction out.
KILN_INLINE f32 round(f32 x) { return __builtin_rintf(x); }
KILN_INLINE f64 round(f64 x) { return __builtin_rint(x); }
KILN_INLINE f32v round(f32v x) {
  f32v size = abs(x), whole = (size + 0x1p23f) - 0x1p23f;
  return copysign(size < 0x1p23f ? whole : size, x);
}
KILN_INLINE f64v round(f64v x) {
  f64v size = abs(x), whole = (size + 0x1p52) - 0x1p52;
  return copysign(size < 0x1p52 ? whole : size, x);
}

//@ floor: round
KILN_INLINE f32 floor(f32 x) { return __builtin_floorf(x); }
KILN_INLINE f64 floor(f64 x) { return __builtin_floor(x); }
template <class V> KILN_INLINE V floor(V x) {
  V near = round(x);
  return near > x ? near - 1 : near;
}

//@ ceil: round copysign
KILN_INLINE f32 ceil(f32 x) { return __builtin_ceilf(x); }
KILN_INLINE f64 ceil(f64 x) { return __builtin_ceil(x); }
template <class V> KILN_INLINE V ceil(V x) {
  V near = round(x);
  return copysign(near < x ? near + 1 : near, x);
}

//@ trunc: floor abs copysign
KILN_INLINE f32 trunc(f32 x) { return __builtin_truncf(x); }
KILN_INLINE f64 trunc(f64 x) { return __builtin_trunc(x); }
template <class V> KILN_INLINE V trunc(V x) { return copysign(floor(abs(x)), x); }

//@ sqrt
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
  for (int k = 0; k < W; ++k) x[k] = __builtin_sqrt(x[k]);
  return x;
}

//@ signbit
KILN_INLINE bool signbit(f32 x) { return __builtin_signbitf(x) != 0; }
KILN_INLINE bool signbit(f64 x) { return __builtin_signbit(x) != 0; }
KILN_INLINE mask signbit(f32v x) { return (i32v)x < 0; }
KILN_INLINE mask signbit(f64v x) { return __builtin_convertvector((i64v)x < 0, mask); }

//@ isinf: abs as_mask
template <class V> KILN_INLINE auto isinf(V x) { return as_mask(abs(x) == __builtin_inff()); }

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

//@ fmod: each fmod_one
template <class V> KILN_INLINE V fmod(V x, V y) {
  return each(x, y, [](auto a, auto b) { return fmod_one(a, b); });
}

//@ remainder: each fmod_one
// The sign of y.
template <class V> KILN_INLINE V remainder(V x, V y) {
  return each(x, y, [](auto a, auto b) {
    auto rest = fmod_one(a, b);
    return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
  });
}

//@ float_floor_div: each fmod_one floor copysign
// floor(x / y) as Python's //: from the exact remainder, so that both fit.
template <class T> KILN_INLINE T floor_div_one(T x, T y) {
  if (y == 0) return x / y;
  T rest = fmod_one(x, y), quotient = (x - rest) / y;
  if (rest != 0 && (y < 0) != (rest < 0)) quotient -= 1;
  if (quotient == 0) return copysign((T)0, x / y);
  T whole = floor(quotient);
  return quotient - whole > (T)0.5 ? whole + 1 : whole;
}
template <class V> KILN_INLINE V float_floor_div(V x, V y) {
  return each(x, y, [](auto a, auto b) { return floor_div_one(a, b); });
}

//@ int_divide
// Quotient (toward 0) and remainder; by zero sets the status, the smallest number by -1 wraps instead of trapping.
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

//@ int_trunc_div: each int_divide
template <class V, class L> KILN_INLINE V int_trunc_div(V x, V y, i64* status, L lanes) {
  return each_real(x, y, lanes, [=](auto a, auto b) { return int_divide(a, b, status).quotient; });
}

//@ int_fmod: each int_divide
template <class V, class L> KILN_INLINE V int_fmod(V x, V y, i64* status, L lanes) {
  return each_real(x, y, lanes, [=](auto a, auto b) { return int_divide(a, b, status).rest; });
}

//@ int_floor_div: each int_divide
template <class V, class L> KILN_INLINE V int_floor_div(V x, V y, i64* status, L lanes) {
  return each_real(x, y, lanes, [=](auto a, auto b) {
    auto [quotient, rest] = int_divide(a, b, status);
    return (decltype(a))(quotient - (rest != 0 && (rest < 0) != (b < 0)));
  });
}

//@ int_remainder: each int_divide
template <class V, class L> KILN_INLINE V int_remainder(V x, V y, i64* status, L lanes) {
  return each_real(x, y, lanes, [=](auto a, auto b) {
    auto rest = int_divide(a, b, status).rest;
    return (decltype(a))(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
  });
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

//@ shift_left: each
// By the width or more, or by a negative number: nothing is left.
template <class V> KILN_INLINE V shift_left(V x, V y) {
  return each(x, y, [](auto a, auto b) {
    return b < 0 || (u64)b >= 8 * sizeof a ? (decltype(a))0 : (decltype(a))((u64)a << (u64)b);
  });
}

//@ shift_right: each
template <class V> KILN_INLINE V shift_right(V x, V y) {
  return each(x, y, [](auto a, auto b) {
    constexpr int last = 8 * sizeof a - 1;
    if constexpr ((decltype(a))-1 < 0) return (decltype(a))(a >> (b < 0 || b > last ? last : (int)b));
    return b < 0 || b > last ? (decltype(a))0 : (decltype(a))(a >> (int)b);
  });
}

//@ nextafter: each
KILN_INLINE f32 nextafter_one(f32 x, f32 y) { return __builtin_nextafterf(x, y); }
KILN_INLINE f64 nextafter_one(f64 x, f64 y) { return __builtin_nextafter(x, y); }
template <class V> KILN_INLINE V nextafter(V x, V y) {
  return each(x, y, [](auto a, auto b) { return nextafter_one(a, b); });
}

//@ hypot: each
KILN_INLINE f32 hypot_one(f32 x, f32 y) { return __builtin_hypotf(x, y); }
KILN_INLINE f64 hypot_one(f64 x, f64 y) { return __builtin_hypot(x, y); }
template <class V> KILN_INLINE V hypot(V x, V y) {
  return each(x, y, [](auto a, auto b) { return hypot_one(a, b); });
}
