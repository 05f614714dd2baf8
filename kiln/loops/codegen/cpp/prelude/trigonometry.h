//@ half_turn: mad
// |x| = n pi + r with |r| <= pi/2, for |x| < 2^22: pi in three parts of 24 bits (W. J. Cody and W. Waite, 1980). The
// first difference is exact. Where `half` is 1/2, n is a whole number and a half. The last bit of `parity` is that of
// the whole number.
struct HalfTurn {
  f32v r;
  i32v parity;
};
KILN_INLINE HalfTurn half_turn(f32v size, f32 half) {
  f32v t = mad(size, 0x1.45f306p-2f, -half) + 0x1.8p23f, n = (t - 0x1.8p23f) + half;
  f32v r = mad(n, -0x1.921fb4p+1f, size);
  r = mad(n, -0x1.4442dp-23f, r);
  return {mad(n, -0x1.84698ap-47f, r), (i32v)t};
}

//@ sine: mad horner
// sin(r) = r + r^3 P(r^2) for |r| <= pi/2 (relative error 6e-9).
KILN_INLINE f32v sine(f32v r) {
  f32v square = r * r;
  f32v p = horner(square, 2.60605384e-06f, -0.000198097681f, 0.00833306927f, -0.166666597f);
  return mad(r * square, p, r);
}

//@ sin: KILN_FUNCTION sin_f64 half_turn sine any_lanes abs
// Larger numbers, infinities and NaN are left to libm.
KILN_FAR(sin)
KILN_INLINE f32v sin(f32v x) {
  f32v size = abs(x);
  auto [r, parity] = half_turn(size, 0.0f);
  f32v v = (f32v)((i32v)sine(r) ^ (parity << 31) ^ ((i32v)x & (i32)0x80000000));
  mask far = ~(size < 0x1p22f);
  return any_lanes(far) ? sin_far(x, v, far) : v;
}
KILN_ONE_LANE(sin)
KILN_DOUBLES(sin)

//@ cos: KILN_FUNCTION cos_f64 half_turn sine any_lanes abs
KILN_FAR(cos)
KILN_INLINE f32v cos(f32v x) {
  f32v size = abs(x);
  auto [r, parity] = half_turn(size, 0.5f);
  f32v v = (f32v)((i32v)sine(r) ^ (~parity << 31));
  mask far = ~(size < 0x1p22f);
  return any_lanes(far) ? cos_far(x, v, far) : v;
}
KILN_ONE_LANE(cos)
KILN_DOUBLES(cos)

//@ quadrant: mad nearest to_i32
// x = n pi/2 + r with |r| <= pi/4, for |x| < 2^20.
struct Quadrant {
  f32v r;
  i32v n;
};
KILN_INLINE Quadrant quadrant(f32v x) {
  f32v n = nearest(x * 0x1.45f306p-1f);
  f32v r = mad(n, -0x1.921fb4p+0f, x);
  r = mad(n, -0x1.4442dp-24f, r);
  return {mad(n, -0x1.84698ap-48f, r), to_i32(n)};
}

//@ sin_cos_part: mad horner
// Sine and cosine of r: r + r^3 P(r^2), 1 - r^2/2 + r^4 Q(r^2) (relative errors 2e-10, 7e-12).
KILN_INLINE f32v sin_part(f32v r) {
  f32v square = r * r;
  f32v p = horner(square, 2.82641486e-06f, -0.000198525653f, 0.00833337847f, -0.166666672f);
  return mad(r * square, p, r);
}
KILN_INLINE f32v cos_part(f32v r) {
  f32v square = r * r;
  f32v q = horner(square, -2.87680592e-07f, 2.48209744e-05f, -0.00138889777f, 0.0416666679f);
  return mad(square * square, q, mad(square, all(-0.5f), all(1.0f)));
}

//@ tan: KILN_FUNCTION quadrant sin_cos_part any_lanes abs
KILN_FAR(tan)
KILN_INLINE f32v tan(f32v x) {
  auto [r, n] = quadrant(x);
  f32v s = sin_part(r), c = cos_part(r);
  mask odd = (n & 1) != 0;
  f32v v = (odd ? -c : s) / (odd ? s : c);
  v = x == 0.0f ? x : v;
  mask far = ~(abs(x) < 0x1p20f);
  return any_lanes(far) ? tan_far(x, v, far) : v;
}
KILN_OTHER_TYPES(tan)

//@ atan_part: mad horner
// atan(x) on [0, 1]: x + x^3 P(x^2) (relative error 3e-9).
KILN_INLINE f32v atan_part(f32v x) {
  f32v square = x * x;
  f32v p = horner(square, -0.0017875476f, 0.0108873611f, -0.0311270021f, 0.0579065457f, -0.0840047523f, 0.109511748f,
                  -0.142640516f, 0.19998531f, -0.333332986f);
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
KILN_OTHER_TYPES(atan)

//@ asin_part: mad horner sqrt
// asin(|x|) = w + w^3 P(w^2) for |x| <= 1/2 (relative error 5e-9) with w = |x|, else pi/2 - 2 asin(w) with
// w = sqrt((1 - |x|) / 2).
struct Arc {
  f32v part;
  mask large;
};
KILN_INLINE Arc asin_part(f32v size) {
  mask large = size > 0.5f;
  f32v square = large ? (1.0f - size) * 0.5f : size * size;
  f32v w = large ? sqrt(square) : size;
  f32v p = horner(square, 0.0421583056f, 0.0241847783f, 0.0454691499f, 0.0749530941f, 0.166667521f);
  return {mad(w * square, p, w), large};
}

//@ asin: KILN_FUNCTION asin_part abs copysign
KILN_INLINE f32v asin(f32v x) {
  auto [part, large] = asin_part(abs(x));
  return copysign(large ? (0x1.921fb6p+0f - (part + part)) - 0x1.777a5cp-25f : part, x);
}
KILN_OTHER_TYPES(asin)

//@ acos: KILN_FUNCTION asin_part abs copysign
KILN_INLINE f32v acos(f32v x) {
  auto [part, large] = asin_part(abs(x));
  f32v twice = part + part, back = (0x1.921fb6p+1f - twice) - 0x1.777a5cp-24f;
  f32v near = (0x1.921fb6p+0f - copysign(part, x)) - 0x1.777a5cp-25f;
  return large ? (x < 0.0f ? back : twice) : near;
}
KILN_OTHER_TYPES(acos)

//@ atan2: KILN_FUNCTION atan_part abs copysign
// The angle of the point (x, y), from its smaller coordinate divided by the larger.
KILN_INLINE f32v atan2(f32v y, f32v x) {
  f32v down = abs(y), along = abs(x);
  mask steep = down > along;
  f32v small = steep ? along : down, large = steep ? down : along;
  f32v q = small / large;
  q = (small == large) ? (large == 0.0f ? f32v{} : all(1.0f)) : q;
  f32v p = atan_part(q);
  p = steep ? (0x1.921fb6p+0f - p) - 0x1.777a5cp-25f : p;
  p = (i32v)x < 0 ? (0x1.921fb6p+1f - p) - 0x1.777a5cp-24f : p;
  return copysign((x != x) | (y != y) ? x + y : p, y);
}
KILN_INLINE f32 atan2(f32 y, f32 x) { return atan2(all(y), all(x))[0]; }
KILN_INLINE f64 atan2(f64 y, f64 x) { return __builtin_atan2(y, x); }
KILN_INLINE f64v atan2(f64v y, f64v x) {
  for (int k = 0; k < W; ++k) x[k] = __builtin_atan2(y[k], x[k]);
  return x;
}

//@ exp_half: exp_part scaled lower_of
// exp(x) / 2 for x >= 0, finite as long as the half is.
KILN_INLINE f32v exp_half(f32v x) {
  auto [value, n] = exp_part(lower_of(all(90.0f), x));
  return scaled(value, n - 1.0f);
}

//@ cosh: KILN_FUNCTION exp_half abs
KILN_INLINE f32v cosh(f32v x) {
  f32v e = exp_half(abs(x));
  return e + 0.25f / e;
}
KILN_OTHER_TYPES(cosh)

//@ sinh: KILN_FUNCTION exp_half abs copysign mad horner
// x + x^3 P(x^2) for |x| <= 1 (relative error 3e-10).
KILN_INLINE f32v sinh(f32v x) {
  f32v size = abs(x), square = x * x;
  f32v p = horner(square, 2.78221319e-06f, 0.000198428956f, 0.00833331048f, 0.166666672f);
  f32v e = exp_half(size);
  return copysign(size > 1.0f ? e - 0.25f / e : mad(size * square, p, size), x);
}
KILN_OTHER_TYPES(sinh)

//@ atanh: KILN_FUNCTION log1p abs copysign
KILN_INLINE f32v atanh(f32v x) {
  f32v size = abs(x);
  return copysign(0.5f * log1p((size + size) / (1.0f - size)), x);
}
KILN_OTHER_TYPES(atanh)

//@ asinh: KILN_FUNCTION log1p abs copysign sqrt
// log(x + sqrt(x^2 + 1)) = log1p(x + x^2 / (1 + sqrt(x^2 + 1))); where the square would be too large, log(2 x).
KILN_INLINE f32v asinh(f32v x) {
  f32v size = abs(x), a = size > 0x1p30f ? f32v{} : size, square = a * a;
  f32v r = log1p(size > 0x1p30f ? size : a + square / (1.0f + sqrt(square + 1.0f)));
  return copysign(size > 0x1p30f ? r + 0x1.62e43p-1f : r, x);
}
KILN_OTHER_TYPES(asinh)

//@ acosh: KILN_FUNCTION log1p sqrt
KILN_INLINE f32v acosh(f32v x) {
  f32v t = x - 1.0f, a = x > 0x1p30f ? f32v{} : t;
  f32v r = log1p(x > 0x1p30f ? x : a + sqrt(a * (a + 2.0f)));
  r = x > 0x1p30f ? r + 0x1.62e43p-1f : r;
  return x < 1.0f ? all(__builtin_nanf("")) : r;
}
KILN_OTHER_TYPES(acosh)
