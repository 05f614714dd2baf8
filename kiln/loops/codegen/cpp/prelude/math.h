//@ KILN_FUNCTION
// Functions of libm lane by lane; a vector function on one number; both, beside a function of f32 vectors.
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
#define KILN_OTHER_TYPES(name) KILN_ONE_LANE(name) KILN_LIBM_F64(name)
// name_far(x, v, far): v, but libm's value of x where `far`.
#define KILN_FAR(name)                                                                            \
  __attribute__((noinline, cold)) static f32v name##_far(const f32v& x, const f32v& v, const mask& far) { \
    f32v r = v;                                                                                   \
    for (int k = 0; k < W; ++k)                                                                   \
      if (far[k]) r[k] = __builtin_##name##f(x[k]);                                               \
    return r;                                                                                     \
  }

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
// exp(x) = 2^n (1 + r + r^2 P(r)) with x = n log 2 + r, |r| <= log(2)/2; P is minimax (relative error 3e-9), evaluated
// in pairs of terms (G. Estrin, 1960) for a shorter chain of dependencies than Horner's.
struct Power {
  f32v value, n;
};
KILN_INLINE Power exp_part(f32v x) {
  f32v n = mad(x, 0x1.715476p+0f, 0x1.8p23f) - 0x1.8p23f;
  f32v r = mad(n, -0x1.62e4p-1f, x);
  r = mad(n, -0x1.7f7d1cp-20f, r);
  f32v square = r * r;
  f32v low = mad(r, 0.166665167f, 0.49999994f), high = mad(r, 0.00836924836f, 0.041668281f);
  high = mad(square, 0.0013820742f, high);
  return {mad(square, mad(high, square, low), r) + 1.0f, n};
}

//@ exp: KILN_FUNCTION exp_f64 exp_part scaled lower_of
KILN_INLINE f32v exp(f32v x) {
  auto [value, n] = exp_part(upper_of(all(-104.0f), lower_of(all(89.0f), x)));
  return scaled(value, n);
}
KILN_ONE_LANE(exp)
KILN_DOUBLES(exp)

//@ exp_moderate: exp_part to_i32
// exp(x) for -80 <= x <= 80, where nothing overflows.
KILN_INLINE f32v exp_moderate(f32v x) {
  auto [value, n] = exp_part(x);
  return (f32v)((i32v)value + (to_i32(n) << 23));
}

//@ exp2: KILN_FUNCTION mad horner scaled nearest lower_of
// 2^n * (1 + r P(r)) with x = n + r, |r| <= 1/2 (relative error 2e-10).
KILN_INLINE f32v exp2(f32v x) {
  x = upper_of(all(-151.0f), lower_of(all(129.0f), x));
  f32v n = nearest(x), r = x - n;
  f32v p = horner(r, 1.44508822e-05f, 0.000154532827f, 0.00133375078f, 0.00961808488f, 0.0555040538f, 0.240226507f,
                  0.693147182f);
  return scaled(mad(p, r, 1.0f), n);
}
KILN_OTHER_TYPES(exp2)

//@ expm1: KILN_FUNCTION expm1_f64 mad horner power_of_two to_i32 nearest sel lower_of
// 2^n * (expm1(r) + 1) - 1 with x = n log 2 + r; written with 2^(n-1), which is finite for every n.
KILN_INLINE f32v expm1(f32v x) {
  f32v c = upper_of(all(-18.0f), lower_of(all(89.0f), x));
  f32v n = nearest(c * 0x1.715476p+0f);
  f32v r = mad(n, -0x1.62e4p-1f, c);
  r = mad(n, -0x1.7f7d1cp-20f, r);
  f32v p = horner(r, 0.000197669942f, 0.00139332283f, 0.00833354145f, 0.0416664854f, 0.166666657f, 0.5f);
  p = mad(r * r, p, r);
  f32v half = power_of_two(to_i32(n) - 1);
  f32v whole = mad(half, p, half - 0.5f);
  return sel(x == 0.0f, x, whole + whole);
}
KILN_ONE_LANE(expm1)
KILN_DOUBLES(expm1)

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

//@ log_part: mad horner
// log(1 + f) + e log 2 = f - f^2/2 + f^3 Q(f) + e log 2; Q is minimax (relative error 8e-10).
KILN_INLINE f32v log_part(f32v f, f32v e) {
  f32v q = horner(f, 0.0674955621f, -0.116701923f, 0.118834704f, -0.124062076f, 0.142203629f, -0.166679904f,
                  0.200020716f, -0.250000089f, 0.333333135f);
  f32v square = f * f;
  f32v r = mad(e, 0x1.7f7d1cp-20f, square * f * q);
  r = mad(square, -0.5f, r);
  return mad(e, all(0x1.62e4p-1f), f + r);
}

//@ log_special: sel
// The logarithm where x is not positive and finite.
KILN_INLINE f32v log_special(f32v x, f32v r) {
  r = x == __builtin_inff() ? x : r;
  r = x == 0.0f ? all(-__builtin_inff()) : r;
  return sel((x < 0.0f) | (x != x), all(__builtin_nanf("")), r);
}

//@ near_one: lookup binary_parts mad
// x = 2^e (1 + f) / c with c from a table, so that -1/32 < f < 1/16; c = 1 on both sides of x = 1.
#if defined(KILN_AVX512)
struct NearOne {
  f32v f, e;
  i32v at;
};
KILN_INLINE NearOne near_one(f32v x, Table c) {
  auto [m, e] = binary_parts(x);
  i32v at = (i32v)m >> 19;
  return {mad(m, lookup(c, at), all(-1.0f)), e, at};
}
#endif

//@ log: KILN_FUNCTION log_f64 split_exponent log_part log_special near_one horner
// By table e log 2 - log c + log(1 + f), with c whose logarithm is nearly a float; f + f^2 P(f) (relative error 3e-9).
KILN_INLINE f32v log(f32v x) {
#if defined(KILN_AVX512)
  constexpr Table c = {1.0f, 0.914214194f, 0.865004122f, 0.820373118f, 0.780449152f, 0.744220376f, 0.711269438f,
                       0.680772364f, 1.30592597f, 1.25527394f, 1.20763206f, 1.16326725f, 1.12276125f, 1.08455122f,
                       1.04956079f, 1.0f};
  constexpr Table t = {0.0f, 0.0896903872f, 0.145021006f, 0.19799602f, 0.247885689f, 0.295418084f, 0.340703964f,
                       0.384527296f, -0.266912341f, -0.227353826f, -0.188661471f, -0.151232645f, -0.115791053f,
                       -0.0811662748f, -0.0483717769f, 0.0f};
  auto [f, e, at] = near_one(x, c);
  f32v p = horner(f, 0.188874289f, -0.25009343f, 0.333344758f, -0.5f);
  return mad(e, all(0x1.62e43p-1f), lookup(t, at)) + mad(f * f, p, f);
#else
  auto [f, e] = split_exponent(x);
  return log_special(x, log_part(f, e));
#endif
}
KILN_ONE_LANE(log)
KILN_DOUBLES(log)

//@ log1p: KILN_FUNCTION log1p_f64 split_exponent log_part log_special power_of_two sel abs
// u = 1 + x rounds; the rounding error is added to f.
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
KILN_DOUBLES(log1p)

//@ log_wide: split_exponent horner
// log(x) in double precision, for positive finite x: 2t + t^3 P(t^2) with t = f/(2+f) (relative error 2e-16).
KILN_INLINE f64v log_wide(f32v x) {
  auto [f, e] = split_exponent(x);
  f64v g = __builtin_convertvector(f, f64v);
  f64v t = g / (g + 2.0), u = t * t;
  f64v p = horner(u, 0.16823877935794487, 0.1812331918150925, 0.22223381196416078, 0.285714170040251,
                  0.4000000005299022, 0.666666666665859);
  return __builtin_convertvector(e, f64v) * 0x1.62e42fefa39efp-1 + (t * 2.0 + t * u * p);
}

//@ log2: KILN_FUNCTION log_wide log_special near_one horner
// f + f Q(f) (relative error 7e-9).
KILN_INLINE f32v log2(f32v x) {
#if defined(KILN_AVX512)
  constexpr Table c = {1.0f, 0.914117396f, 0.864890158f, 0.820408881f, 0.780451536f, 0.744133592f, 0.710926592f,
                       0.680959284f, 1.30591643f, 1.25495732f, 1.20737076f, 1.16342652f, 1.12251043f, 1.08470762f,
                       1.04900384f, 1.0f};
  constexpr Table t = {0.0f, 0.129548639f, 0.209411174f, 0.285584986f, 0.357619047f, 0.426366448f, 0.492227495f,
                       0.554359555f, -0.385062575f, -0.327638298f, -0.271868765f, -0.218380094f, -0.166728854f,
                       -0.117306218f, -0.0690199584f, 0.0f};
  auto [f, e, at] = near_one(x, c);
  f32v q = horner(f, 0.276109815f, -0.360765368f, 0.480896652f, -0.721347511f, 0.442695051f);
  return (e + lookup(t, at)) + mad(f, q, f);
#else
  return log_special(x, __builtin_convertvector(log_wide(x) * 0x1.71547652b82fep+0, f32v));
#endif
}
KILN_OTHER_TYPES(log2)

//@ log10: KILN_FUNCTION log_wide log_special near_one horner
// f/2 + f Q(f) (relative error 6e-9).
KILN_INLINE f32v log10(f32v x) {
#if defined(KILN_AVX512)
  constexpr Table c = {1.0f, 0.914428294f, 0.864684641f, 0.820663512f, 0.780549288f, 0.744207501f, 0.711103976f,
                       0.680896819f, 1.30585158f, 1.25465882f, 1.20731449f, 1.1638118f, 1.12246561f, 1.0847286f,
                       1.04940152f, 1.0f};
  constexpr Table t = {0.0f, 0.0388503447f, 0.0631422549f, 0.0858348757f, 0.107599668f, 0.128305957f, 0.148066893f,
                       0.166918695f, -0.115893818f, -0.0985256433f, -0.0818204135f, -0.0658827573f, -0.0501730442f,
                       -0.0353210904f, -0.0209416896f, 0.0f};
  auto [f, e, at] = near_one(x, c);
  f32v q = horner(f, 0.0828085914f, -0.108597331f, 0.144765437f, -0.217147246f, -0.0657055154f);
  f32v low = mad(f, q, f * 0.5f);
  return mad(e, all(0x1.344134p-2f), lookup(t, at)) + mad(e, 0x1.09f7ap-26f, low);
#else
  return log_special(x, __builtin_convertvector(log_wide(x) * 0x1.bcb7b1526e50ep-2, f32v));
#endif
}
KILN_OTHER_TYPES(log10)

//@ pow_far: abs
// v, but where `far` libm's power, or the exact one if x is 0 or infinite and y not too large.
__attribute__((noinline, cold)) static f32v pow_far(const f32v& x, const f32v& y, const f32v& v, const mask& far) {
  f32v size = abs(x), t = y + 0x1.8p23f, r = v;
  mask edge = ((size == 0.0f) | (size == __builtin_inff())) & (abs(y) < 0x1p22f);
  mask odd = (t - 0x1.8p23f == y) & ((i32v)t << 31) & (i32v)x & (i32)0x80000000;
  f32v at_edge = ((size == 0.0f) == (y < 0.0f)) ? all(__builtin_inff()) : f32v{};
  at_edge = y == 0.0f ? all(1.0f) : (f32v)((i32v)at_edge | odd);
  r = edge ? at_edge : r;
  for (int k = 0; k < W; ++k)
    if (far[k] && !edge[k]) r[k] = __builtin_powf(x[k], y[k]);
  return r;
}

//@ pow: KILN_FUNCTION log_wide abs any_lanes pow_far lookup mad horner scaled lower_of
// 2^(y log2 |x|) where x is finite and not 0 and y below 2^22, with the logarithm in two floats (T. J. Dekker, "A
// floating-point technique for extending the available precision", 1971), or in double precision.
KILN_INLINE f32 pow(f32 x, f32 y) { return __builtin_powf(x, y); }
KILN_INLINE f64 pow(f64 x, f64 y) { return __builtin_pow(x, y); }
KILN_INLINE f64v pow(f64v x, f64v y) {
  for (int k = 0; k < W; ++k) x[k] = __builtin_pow(x[k], y[k]);
  return x;
}
#if defined(KILN_AVX512)
// log2(x) = e - log2 c + log2(1 + f) for positive finite x; 1 + f = c m with 1 <= m < 2 and f exact, because c has
// five bits. Beyond f log2 e - f^2 (log2 e)/2: f^3 R(f) (absolute error 8e-13).
struct TwoFloats {
  f32v high, low;
};
KILN_INLINE TwoFloats log2_exact(f32v x) {
  constexpr Table c = {1.0f, 0.90625f, 0.875f, 0.8125f, 0.78125f, 0.75f, 0.71875f, 0.6875f, 0.65625f, 0.625f,
                       0.59375f, 0.59375f, 0.5625f, 0.53125f, 0.53125f, 0.5f};
  constexpr Table t = {0.0f, 0.142028809f, 0.192626953f, 0.299560547f, 0.356140137f, 0.415039062f, 0.47644043f,
                       0.540588379f, 0.607666016f, 0.678100586f, 0.752075195f, 0.752075195f, 0.830078125f, 0.912536621f,
                       0.912536621f, 1.0f};
  constexpr Table rest = {0.0f, -9.8037217e-06f, 1.81248179e-05f, -2.65016098e-07f, 3.67350663e-06f, -1.56322119e-06f,
                          -2.38574444e-06f, -1.99975439e-05f, 1.65615966e-05f, -2.86808245e-05f, -2.70875603e-06f,
                          -2.70875603e-06f, -3.12644238e-06f, 5.37655922e-07f, 5.37655922e-07f, 0.0f};
  f32v m = (f32v)__builtin_ia32_getmantps512_mask(x, 0, x, (u16)-1, 4);
  f32v e = (f32v)__builtin_ia32_getexpps512_mask(x, x, (u16)-1, 4);
  i32v at = (i32v)m >> 19;
  f32v f = mad(m, lookup(c, at), all(-1.0f)), square = f * f;
  f32v a = f * 0x1.715476p+0f, b = square * -0x1.715476p-1f;
  f32v a_rest = mad(f, 0x1.4ae0cp-26f, mad(f, all(0x1.715476p+0f), -a));
  f32v b_rest = mad(mad(f, f, -square), -0x1.715476p-1f, mad(square, all(-0x1.715476p-1f), -b));
  b_rest = mad(square, -0x1.4ae0cp-27f, b_rest);
  f32v r = horner(f, 0.207523614f, -0.241547719f, 0.288534999f, -0.360672176f, 0.48089835f);
  r = mad(square * f, r, lookup(rest, at));
  f32v whole = e + lookup(t, at), sum = whole + a, both = sum + b;
  return {both, (a - (sum - whole)) + (b - (both - sum)) + (a_rest + b_rest + r)};
}
#endif
KILN_INLINE f32v pow(f32v x, f32v y) {
  f32v size = abs(x);
  mask far = ~((size > 0.0f) & (size < __builtin_inff()) & (abs(y) < 0x1p22f));
#if defined(KILN_AVX512)
  auto [high, low] = log2_exact(size);
  f32v z = high * y, z_rest = mad(low, y, mad(high, y, -z));
  z = upper_of(all(-200.0f), lower_of(all(200.0f), z));
  f32v n = (z + 0x1.8p23f) - 0x1.8p23f, r = (z - n) + z_rest;
  r = upper_of(all(-1.0f), lower_of(all(1.0f), r));
  // 2^r = 1 + r Q(r) (relative error 3e-9).
  f32v square = r * r;
  f32v p = mad(square, mad(r, 0.000153264627f, 0.00133908063f), mad(r, 0.00961850584f, 0.0555035993f));
  p = mad(square, p, mad(r, 0.240226477f, 0.693147182f));
  f32v v = scaled(mad(p, r, 1.0f), n);
#else
  f64v z = log_wide(size) * 0x1.71547652b82fep+0 * __builtin_convertvector(y, f64v);
  z = z < -200.0 ? all(-200.0) : z;
  z = z > 200.0 ? all(200.0) : z;
  f64v n = (z + 0x1.8p52) - 0x1.8p52, r = z - n;
  f64v p = horner(r, 1.0147655136873999e-07, 1.3259193509213867e-06, 1.5253000854982281e-05, 0.00015403437267703785,
                  0.0013333557592768914, 0.00961812918566075, 0.055504108668716134, 0.24022650695707415,
                  0.6931471805598789);
  f64v scale = (f64v)((__builtin_convertvector(n, i64v) + 1023) << 52);
  f32v v = __builtin_convertvector((p * r + 1.0) * scale, f32v);
#endif
  // An odd y keeps the sign of x; a negative x has no power for a y that is not an integer.
  f32v t = y + 0x1.8p23f;
  v = (f32v)((i32v)v ^ ((i32v)t << 31 & (i32v)x & (i32)0x80000000));
  v = ((i32v)x < 0) & (t - 0x1.8p23f != y) ? all(__builtin_nanf("")) : v;
  return any_lanes(far) ? pow_far(x, y, v, far) : v;
}

//@ sigmoid: KILN_FUNCTION exp
KILN_INLINE f32v sigmoid(f32v x) { return 1.0f / (1.0f + exp(-x)); }
KILN_ONE_LANE(sigmoid)
KILN_INLINE f64 sigmoid(f64 x) { return 1.0 / (1.0 + exp(-x)); }
KILN_INLINE f64v sigmoid(f64v x) { return 1.0 / (1.0 + exp(-x)); }

//@ tanh: KILN_FUNCTION tanh_f64 exp_moderate abs copysign piecewise lower_of horner
// By pieces (relative error 4e-8 in [4, 6), else 1e-8); or x + x^3 P(x^2) (relative error 5e-10) near 0, else
// 1 - 2/(exp(2|x|) + 1).
KILN_INLINE f32v tanh(f32v x) {
#if defined(KILN_AVX512)
  static constexpr Table rows[8] = {
    {2.50030899f, 3.49993134f, 4.99878693f, 6.99823761f, 8.62957764f, 0.0f, 0.0781110525f, 0.109373808f, 0.156249285f,
     0.218705654f, 0.312478542f, 0.437551975f, 0.625105858f, 0.874995232f, 1.24983978f, 1.75005722f},
    {0.986622512f, 0.998177648f, 0.999908984f, 0.999998331f, 0.99999994f, 0.0f, 0.0779525787f, 0.108939752f,
     0.154990032f, 0.21528405f, 0.302690238f, 0.411613226f, 0.554673016f, 0.703903198f, 0.848238707f, 0.941382051f},
    {0.026576113f, 0.00364145194f, 0.000182279036f, 3.34256083e-06f, 1.27791807e-07f, 1.0f, 0.993923366f,
     0.988132119f, 0.975978076f, 0.953652799f, 0.908378601f, 0.830574572f, 0.692337871f, 0.504520297f, 0.280490965f,
     0.113799788f},
    {-0.0262203012f, -0.00363479159f, -0.000182194461f, -3.34126071e-06f, -3.21855282e-07f, -1.25678579e-09f,
     -0.0774796307f, -0.107647344f, -0.151267201f, -0.205306008f, -0.274957359f, -0.341875494f, -0.384021133f,
     -0.355133474f, -0.237923458f, -0.107129045f},
    {0.0170076676f, 0.0024120938f, 0.000119186159f, 2.18587297e-06f, 8.84395277e-08f, -0.333333045f, -0.324786246f,
     -0.317465186f, -0.301825911f, -0.273771554f, -0.219546542f, -0.136158228f, -0.0177833606f, 0.0818022788f,
     0.108335227f, 0.0629225746f},
    {-0.00804725196f, -0.00119750388f, -5.97296203e-05f, -1.09596431e-06f, 1.26714281e-06f, -2.1266982e-05f,
     0.0604737215f, 0.0754693076f, 0.0980950519f, 0.126696497f, 0.158148378f, 0.169987336f, 0.137865365f,
     0.0607996136f, -0.0125672659f, -0.0235240944f},
    {0.00288561848f, 0.000490329694f, 2.84969665e-05f, 5.2370325e-07f, 1.90248794e-09f, 0.134016335f, -1.45202923f,
     -0.487579763f, 0.0618559271f, 0.155772835f, 0.0415291227f, -0.00183794578f, -0.0541293435f, -0.0584629327f,
     -0.0197216533f, 0.00348609569f},
    {-0.000696423347f, -0.000157679882f, -9.38064932e-06f, -1.72578709e-07f, -2.22466133e-06f, -0.00994803756f,
     -27.2845478f, -13.2995234f, -0.653833747f, 0.400793284f, -0.0809464753f, -0.0580451563f, -0.0239012502f,
     0.0128830504f, 0.0150673324f, 0.00210425607f},
  };
  return copysign(piecewise(rows, lower_of(all(9.25f), abs(x))), x);
#endif
  f32v size = abs(x), square = x * x;
  f32v p = horner(square, -0.000512176892f, 0.00272287964f, -0.00839966722f, 0.0217273999f, -0.0539445169f,
                  0.133331448f, -0.333333284f);
  f32v near = mad(size * square, p, size);
  f32v a = size < 10.0f ? size : all(10.0f);
  f32v far = 1.0f - 2.0f / (exp_moderate(a + a) + 1.0f);
  return copysign(size > 0.85f ? far : near, x);
}
KILN_ONE_LANE(tanh)
KILN_DOUBLES(tanh)

//@ erf: KILN_FUNCTION erf_f64 exp_moderate abs copysign horner
// x + x P(x^2) (relative error 9e-10) near 0, else 1 - exp(-Q(|x|)) with Q = -log(erfc) (error 5e-11).
KILN_INLINE f32v erf(f32v x) {
  f32v size = abs(x), square = x * x;
  f32v p = horner(square, 8.00277485e-05f, -0.000805080403f, 0.00519246049f, -0.0268557407f, 0.112836257f,
                  -0.376126289f, 0.128379166f);
  f32v near = mad(size, p, size);
  f32v a = size < 4.0f ? size : all(4.0f);
  f32v q = horner(a, 2.1092741e-05f, -0.000434444606f, 0.00417100918f, -0.0251193512f, 0.10828004f, 0.633346915f,
                  1.12951493f, -0.00017468445f);
  f32v far = 1.0f - exp_moderate(-q);
  return copysign(size > 0.93f ? far : near, x);
}
KILN_ONE_LANE(erf)
KILN_DOUBLES(erf)

//@ erf_plus_one: KILN_FUNCTION exp_moderate abs lookup lower_of horner
// erfc(-x), and 2 less that for positive x: polynomials of degree 6 around multiples of 3/8, 0 from 5.4 on (absolute
// error 3e-8); or exp(-Q(|x|)) with Q = -log(erfc) on [0, 6] (absolute error 3e-9), and 2 less that for positive x.
KILN_INLINE f32v erf_plus_one(f32v x) {
#if defined(KILN_AVX512)
  static constexpr Table rows[7] = {
    {1.0f, 0.595883071f, 0.288844377f, 0.111611769f, 0.0338948518f, 0.00800994225f, 0.00146271661f, 0.000205375734f,
     2.20904967e-05f, 1.81528139e-06f, 1.13727253e-07f, 5.42340084e-09f, 1.96616043e-10f, 5.41340627e-12f,
     1.1310313e-13f, 0.0f},
    {-1.12837923f, -0.980352759f, -0.642931104f, -0.318273991f, -0.11893028f, -0.0335458145f, -0.00714231748f,
     -0.00114787638f, -0.00013925368f, -1.27518706e-05f, -8.81446852e-07f, -4.59908485e-08f, -1.81132265e-09f,
     -5.38471177e-11f, -1.20826103e-12f, 0.0f},
    {4.70062378e-06f, 0.367641091f, 0.482192904f, 0.358058006f, 0.178396359f, 0.0628985986f, 0.0160702318f,
     0.00301313982f, 0.000417740201f, 4.30318833e-05f, 3.30448688e-06f, 1.89610134e-07f, 8.14336598e-09f,
     2.62110611e-10f, 6.32884934e-12f, 0.0f},
    {0.376001209f, 0.234862372f, -0.0267749317f, -0.162443236f, -0.138755634f, -0.0674453974f, -0.0217251163f,
     -0.00488991896f, -0.000788819219f, -9.25136774e-05f, -7.95938467e-06f, -5.05378637e-07f, -2.37836115e-08f,
     -8.32224401e-10f, -2.17051273e-11f, 0.0f},
    {0.00151537277f, -0.167178869f, -0.150275812f, -0.0279609039f, 0.0445260778f, 0.0422454327f, 0.0190825276f,
     0.00541743077f, 0.00104615011f, 0.000142368692f, 1.39225795e-05f, 9.90290914e-07f, 5.16498595e-08f,
     1.98677519e-09f, 5.66048215e-11f, 0.0f},
    {-0.121907838f, -0.0448647514f, 0.052251108f, 0.0607607663f, 0.0151230097f, -0.0111825792f, -0.0106195109f,
     -0.00425436208f, -0.0010373618f, -0.0001691332f, -1.92076532e-05f, -1.55342889e-06f, -9.06959485e-08f,
     -3.85748189e-09f, -1.20287405e-10f, 0.0f},
    {0.0257164072f, 0.0599397048f, 0.0189822521f, -0.0155428434f, -0.0178412292f, -0.00386609486f, 0.00288410578f,
     0.00217968202f, 0.000706362422f, 0.000138335206f, 1.79623166e-05f, 1.61194328e-06f, 1.02307034e-07f,
     4.65882222e-09f, 1.53726684e-10f, 0.0f},
  };
  f32v bounded = lower_of(all(5.75f), abs(x)), t = mad(bounded, 0x1.555556p+1f, 0x1.8p23f);
  f32v d = mad(t - 0x1.8p23f, -0.375f, bounded), v = lookup(rows[6], (i32v)t);
#pragma GCC unroll 6
  for (int k = 5; k >= 0; --k) v = mad(v, d, lookup(rows[k], (i32v)t));
  return x < 0.0f ? v : 2.0f - v;
#endif
  f32v size = abs(x), a = size > 6.0f ? all(6.0f) : size;
  f32v q = horner(a, -7.43849841e-06f, 0.000100440659f, -0.000567037903f, 0.00153565209f, -1.28909087e-05f,
                  -0.0192465428f, 0.102809615f, 0.636614263f, 1.12837946f, -2.14884688e-09f);
  f32v tail = exp_moderate(-q);
  tail = size > 6.0f ? f32v{} : tail;
  return x < 0.0f ? tail : 2.0f - tail;
}
KILN_ONE_LANE(erf_plus_one)

//@ rsqrt: sqrt
template <class V> KILN_INLINE V rsqrt(V x) { return 1 / sqrt(x); }

//@ erfc: KILN_FUNCTION exp_part scaled piecewise abs lower_of
// exp(-x^2) times the scaled function by pieces (relative error 1e-7 in [4, 6), else 4e-8); the square in two parts.
#if defined(KILN_AVX512)
KILN_INLINE f32v erfc(f32v x) {
  static constexpr Table rows[8] = {
    {2.50019455f, 3.49909973f, 4.99950409f, 6.99777985f, 9.12147522f, 0.0f, 0.0781596899f, 0.109358907f, 0.156252623f,
     0.218715906f, 0.312421799f, 0.437557697f, 0.625243187f, 0.875157356f, 1.24962616f, 1.74973869f},
    {0.210791901f, 0.155330867f, 0.110715218f, 0.0798248798f, 0.0614876896f, 1.0f, 0.91757381f, 0.887644291f,
     0.845505178f, 0.794181585f, 0.726138711f, 0.649160922f, 0.556708753f, 0.464261889f, 0.367900997f, 0.285006464f},
    {-0.0743377432f, -0.0413427949f, -0.021336887f, -0.0111853052f, -0.00666229473f, -1.12837923f, -0.984944582f,
     -0.934235573f, -0.864154339f, -0.780978858f, -0.674656034f, -0.560288429f, -0.432222456f, -0.315774739f,
     -0.208901778f, -0.131005496f},
    {0.02493334f, 0.0106683588f, 0.00404182076f, 0.00155263091f, 0.000717751856f, 1.00001323f, 0.840590239f,
     0.785476685f, 0.710478604f, 0.623369336f, 0.515361369f, 0.404002398f, 0.286464602f, 0.187909245f, 0.106851906f,
     0.055781085f},
    {-0.00799639896f, -0.00267495844f, -0.000752456544f, -0.000213491978f, -7.68785976e-05f, -0.753222883f,
     -0.613097012f, -0.565160453f, -0.502197087f, -0.429834902f, -0.34243995f, -0.255698234f, -0.168740869f,
     -0.100885779f, -0.0502468161f, -0.0222679321f},
    {0.00246561877f, 0.000653286115f, 0.000138053525f, 2.91055421e-05f, 8.19083198e-06f, 0.531051576f, 0.401743561f,
     0.367085218f, 0.316475958f, 0.264176726f, 0.204241082f, 0.146072358f, 0.0904797837f, 0.0498176143f,
     0.0220277067f, 0.00840806589f},
    {-0.000759496703f, -0.000159354939f, -2.63839065e-05f, -4.05896935e-06f, -8.89383273e-07f, -0.752042711f,
     0.645044208f, -1.51343584f, -0.0962472558f, -0.0862272307f, -0.109639816f, -0.0722405389f, -0.0450585522f,
     -0.0228453428f, -0.00923379045f, -0.00305657857f},
    {0.000217538007f, 3.70432899e-05f, 4.68281769e-06f, 5.42173836e-07f, 9.34706463e-08f, 2.59964442f, -12.4423542f,
     -11.5850525f, -0.199313566f, 0.350297958f, 0.0483676977f, 0.0354613103f, 0.0208917335f, 0.00965740904f,
     0.00359690818f, 0.00104934664f},
  };
  f32v size = lower_of(all(10.25f), abs(x)), square = size * size;
  auto [value, n] = exp_part(-square);
  value = value * piecewise(rows, size);
  f32v r = scaled(mad(value, mad(size, -size, square), value), n);
  return x < 0.0f ? 2.0f - r : r;
}
KILN_ONE_LANE(erfc)
#else
KILN_LIBM_F32(erfc)
#endif
KILN_LIBM_F64(erfc)

//@ lgamma: KILN_FUNCTION
KILN_LIBM_F32(lgamma)
KILN_LIBM_F64(lgamma)

//@ digamma: each
// Recurrence up to 10, then the asymptotic series in 1/x^2; reflection below 0 (Abramowitz and Stegun, 6.3).
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

//@ erfinv: each log sqrt mad horner
// x P(w) with w = -log(1 - x^2): in w where that is small, else in its root (M. Giles, "Approximating the erfinv
// function", GPU Computing Gems, 2011; relative errors 4e-8 and 9e-9).
KILN_INLINE f32v erfinv(f32v x) {
  f32v w = -log(mad(-x, x, 1.0f)), a = w - 2.5f, b = sqrt(w) - 3.0f;
  f32v p = horner(a, -8.23615132e-09f, 2.81591372e-08f, 4.59949973e-07f, -3.52337429e-06f, -4.94350388e-06f,
                  0.000218576548f, -0.00125275564f, -0.00417766813f, 0.24664028f, 1.50140941f);
  f32v q = horner(b, 0.000129182896f, -0.000315708166f, -8.05345335e-05f, 0.00149204582f, -0.00358249177f,
                  0.00568492431f, -0.00764101744f, 0.00944533478f, 1.00167525f, 2.83297682f);
  f32v v = x * (w < 5.0f ? p : q);
  return w == __builtin_inff() ? x * w : v;
}
KILN_INLINE f32 erfinv(f32 x) { return erfinv(all(x))[0]; }
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
KILN_INLINE f64 erfinv(f64 x) { return erfinv_one(x); }
KILN_INLINE f64v erfinv(f64v x) {
  return each(x, [](auto a) { return erfinv_one(a); });
}
