//@ f64r: KILN_FUNCTION
// Doubles in one register: longer vectors GCC keeps in memory.
constexpr int double_lanes = W < register_bytes / 8 ? W : register_bytes / 8;
typedef f64 f64r __attribute__((vector_size(8 * double_lanes)));
typedef i64 i64r __attribute__((vector_size(8 * double_lanes)));
typedef u64 u64r __attribute__((vector_size(8 * double_lanes)));
KILN_INLINE f64r splat(f64 x) { return x - f64r{}; }
KILN_INLINE f64r fused(f64r a, f64r b, f64r c) {
#if defined(KILN_AVX512)
  return (f64r)__builtin_ia32_vfmaddpd512_mask(a, b, c, (u8)-1, 4);
#elif defined(__FMA__) && KILN_W >= 4
  if constexpr (double_lanes == 4) return (f64r)__builtin_ia32_vfmaddpd256(a, b, c);
#endif
  return a * b + c;
}
KILN_INLINE f64r fused(f64r a, f64 b, f64r c) { return fused(a, splat(b), c); }
KILN_INLINE f64r fused(f64r a, f64r b, f64 c) { return fused(a, b, splat(c)); }
template <class... C> KILN_INLINE f64r powers(f64r x, f64 highest, C... others) {
  f64r p = splat(highest);
  return ((p = fused(p, x, others)), ...);
}
KILN_INLINE f64r size_of(f64r x) { return (f64r)((i64r)x & 0x7fffffffffffffff); }
KILN_INLINE f64r sign_from(f64r x, f64r y) { return (f64r)((i64r)x | ((i64r)y & ~0x7fffffffffffffff)); }
KILN_INLINE f64r power_f64(f64r n) { return (f64r)(((i64r)(n + 0x1.8p52) + 1023) << 52); }
KILN_INLINE f64r whole_f64(f64r x) { return (x + 0x1.8p52) - 0x1.8p52; }

// The function `name`_f64 of a register, on more lanes and on one.
template <class F> KILN_INLINE f64v by_registers(F function, f64v x) {
  struct Parts {
    f64r part[W / double_lanes];
  };
  Parts parts = __builtin_bit_cast(Parts, x);
  for (f64r& part : parts.part) part = function(part);
  return __builtin_bit_cast(f64v, parts);
}
#define KILN_DOUBLES(name)                                                                              \
  KILN_INLINE f64v name(f64v x) { return by_registers([](f64r part) { return name##_f64(part); }, x); } \
  KILN_INLINE f64 name(f64 x) { return name##_f64(splat(x))[0]; }

//@ exp_f64: f64r
// As exp_part, for 1 + r + r^2 P(r) (relative error 1e-17), and 2^n in two factors, which do not overflow before it does.
struct WidePower {
  f64r rest, n;
};
KILN_INLINE WidePower exp_rest(f64r x) {
  f64r n = whole_f64(x * 0x1.71547652b82fep+0);
  f64r r = fused(n, -0x1.62e42fefp-1, x);
  r = fused(n, -0x1.473de6afp-34, r);
  r = fused(n, -0x1.3c7673007e5edp-69, r);
  f64r p = powers(r, 2.09147553258932e-09, 2.5105312729622103e-08, 2.755727347871858e-07, 2.755725517000089e-06,
                  2.480158732567746e-05, 0.0001984126987500228, 0.0013888888888883711, 0.008333333333326084,
                  0.04166666666666667, 0.1666666666666667, 0.5);
  return {fused(r * r, p, r), n};
}
KILN_INLINE f64r exp_f64(f64r x) {
  x = x < -746.0 ? splat(-746.0) : x;
  x = x > 710.0 ? splat(710.0) : x;
  auto [rest, n] = exp_rest(x);
  f64r half = whole_f64(n * 0.5);
  return (rest + 1.0) * power_f64(half) * power_f64(n - half);
}

//@ expm1_f64: exp_f64
// 2^n (exp(r) - 1) + (2^n - 1), written with 2^(n-1), which is finite for every n.
KILN_INLINE f64r expm1_f64(f64r x) {
  f64r c = x < -40.0 ? splat(-40.0) : x;
  c = c > 710.0 ? splat(710.0) : c;
  auto [rest, n] = exp_rest(c);
  f64r scale = power_f64(n - 1.0), v = fused(scale, rest, scale - 0.5);
  v = n == 0.0 ? rest : v + v;
  return x == 0.0 ? x : v;
}

//@ tanh_f64: expm1_f64
// e / (e + 2) with e = exp(2|x|) - 1.
KILN_INLINE f64r tanh_f64(f64r x) {
  f64r size = size_of(x);
  size = size > 20.0 ? splat(20.0) : size;
  f64r e = expm1_f64(size + size);
  return sign_from(e / (e + 2.0), x);
}

//@ log_f64: f64r
// x = 2^k m with m between the roots of 1/2 and 2, log(m) = 2s + s^3 Q(s^2) with s = (m-1)/(m+1) (relative error 4e-17).
// `lost` is what `x` lacks of the number whose logarithm is asked for.
KILN_INLINE f64r log_wide_f64(f64r x, f64r lost) {
  i64r tiny = x < 0x1p-1022;
  f64r given = tiny ? x * 0x1p54 : x;
  i64r bits = (i64r)given;
  i64r k = (i64r)((u64r)(bits - 0x3fe6a09e667f3bcd + ((i64)1024 << 52)) >> 52) - 1024;
  f64r m = (f64r)(bits - (k << 52)), f = m - 1.0, s = f / (f + 2.0), z = s * s;
  f64r whole = (f64r)(k + 0x4338000000000000) - 0x1.8p52;
  whole = tiny ? whole - 54.0 : whole;
  f64r q = powers(z, 0.11896558568412165, 0.11686508917312045, 0.13335711085008436, 0.15384573450028968,
                  0.18181818615177278, 0.22222222219710297, 0.2857142857143586, 0.3999999999999999,
                  0.6666666666666666);
  // f - f^2/2 is exact enough where 2s is not.
  f64r half = 0.5 * f * f, low = fused(s, half + z * q, lost / x);
  low = fused(whole, 0x1.473de6af278edp-34, low);
  f64r v = fused(whole, 0x1.62e42fefp-1, f - (half - low));
  v = x == __builtin_inf() ? x : v;
  v = x == 0.0 ? splat(-__builtin_inf()) : v;
  return x >= 0.0 ? v : splat(__builtin_nan(""));
}
KILN_INLINE f64r log_f64(f64r x) { return log_wide_f64(x, f64r{}); }

//@ log1p_f64: log_f64
// 1 + x, and what it loses to rounding (W. Kahan).
KILN_INLINE f64r log1p_f64(f64r x) {
  f64r sum = x + 1.0, lost = x < 1.0 ? x - (sum - 1.0) : (x - sum) + 1.0;
  f64r v = log_wide_f64(sum, size_of(lost) < 1.0 ? lost : f64r{});
  return size_of(x) < 0x1p-60 ? x : v;
}

//@ sine_f64: f64r
// x = n pi + r with |r| <= pi/2, n a whole number, and a half where `half` is 1/2, for |x| < 2^21; sin(r) = r + r^3 P(r^2)
// (relative error 1e-17). Larger numbers, infinities and NaN are left to libm.
template <class Libm> KILN_INLINE f64r sine_f64(f64r x, f64 half, Libm libm) {
  f64r size = half == 0.0 ? x : size_of(x);
  f64r t = size * 0x1.45f306dc9c883p-2 - half + 0x1.8p52, n = t - 0x1.8p52 + half;
  f64r r = fused(n, -0x1.921fb544p+1, size);
  r = fused(n, -0x1.0b4611a6p-33, r);
  r = fused(n, -0x1.3198a2e037073p-68, r);
  f64r z = r * r;
  f64r p = powers(z, -8.005858059980551e-18, 2.810466816590253e-15, -7.647139048550473e-13, 1.605904347799452e-10,
                  -2.505210838237619e-08, 2.7557319223971175e-06, -0.00019841269841269806, 0.008333333333333333,
                  -0.16666666666666666);
  f64r v = fused(r * z, p, r);
  i64r parity = half == 0.0 ? (i64r)t : (i64r)t + 1;
  v = (f64r)((i64r)v ^ parity << 63);
  i64r far = ~(size_of(x) < 0x1p21);
  for (int k = 0; k < double_lanes; ++k)
    if (far[k]) [[unlikely]] v[k] = libm(x[k]);
  return v;
}

//@ sin_f64: sine_f64
KILN_INLINE f64r sin_f64(f64r x) {
  f64r v = sine_f64(x, 0.0, [](f64 x) { return __builtin_sin(x); });
  return x == 0.0 ? x : v;
}

//@ cos_f64: sine_f64
KILN_INLINE f64r cos_f64(f64r x) { return sine_f64(x, 0.5, [](f64 x) { return __builtin_cos(x); }); }

//@ erf_f64: exp_f64
// x + x P(x^2) below 1 (relative error 4e-17), else 1 - exp(-x^2) Q((x-3)/(x+3)) with Q = erfc(x) exp(x^2) (error 8e-18).
KILN_INLINE f64r erf_f64(f64r x) {
  f64r size = size_of(x), z = x * x, a = size > 6.0 ? splat(6.0) : size;
  f64r p = powers(z, -7.795898827002142e-10, 1.3720064546777686e-08, -1.6208483801871705e-07, 1.6447424703317362e-06,
                  -1.492473690741966e-05, 0.00012055294904839707, -0.0008548325975389692, 0.0052239776071164225,
                  -0.02686617064323777, 0.11283791670945006, -0.37612638903183543, 0.12837916709551256);
  f64r t = (a - 3.0) / (a + 3.0);
  f64r q = powers(t, 3.0997111248611914e-08, 2.1006932317945462e-08, -2.2960836640172656e-07, -2.902652004392866e-07,
                  1.2519261188022667e-06, 2.119283446053111e-06, -7.978119385932173e-06, -1.2860421831200831e-05,
                  6.405655737002857e-05, 4.525529412129632e-05, -0.0005970619486416963, 0.000707746439062207,
                  0.004269136332839387, -0.024392499318674116, 0.07166583719797825, -0.1501159365007772,
                  0.24560380171233087, -0.3262335600430372, 0.17900115118138996);
  f64r far = 1.0 - exp_f64(-a * a) * q;
  return sign_from(size < 1.0 ? fused(size, p, size) : far, x);
}
