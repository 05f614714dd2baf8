//@ lower_of
// The lower and the upper of two; the second if either is NaN.
KILN_INLINE f32v lower_of(f32v a, f32v b) {
#if defined(KILN_AVX512)
  return (f32v)__builtin_ia32_minps512_mask(a, b, a, (u16)-1, 4);
#elif defined(__AVX__) && KILN_W == 8
  return (f32v)__builtin_ia32_minps256(a, b);
#endif
  return a < b ? a : b;
}
KILN_INLINE f32v upper_of(f32v a, f32v b) {
#if defined(KILN_AVX512)
  return (f32v)__builtin_ia32_maxps512_mask(a, b, a, (u16)-1, 4);
#elif defined(__AVX__) && KILN_W == 8
  return (f32v)__builtin_ia32_maxps256(a, b);
#endif
  return a > b ? a : b;
}

//@ lookup
// Tables of sixteen numbers in a register (P. T. P. Tang, "Table-driven implementation of the exponential function in
// IEEE floating-point arithmetic", ACM TOMS 15, 1989, and of the logarithm, TOMS 16, 1990). Entry number `at & 15`.
#if defined(KILN_AVX512)
typedef f32v Table;
KILN_INLINE f32v lookup(Table table, i32v at) {
  return (f32v)__builtin_ia32_permvarsf512_mask(table, at, table, (u16)-1);
}
#endif

//@ binary_parts
// x = m * 2^e with 3/4 <= m < 3/2; m is NaN below 0, e infinite for 0 and infinity; right for subnormal numbers.
#if defined(KILN_AVX512)
struct BinaryParts {
  f32v m, e;
};
KILN_INLINE f32v binary_exponent(f32v x) { return (f32v)__builtin_ia32_getexpps512_mask(x, x, (u16)-1, 4); }
KILN_INLINE BinaryParts binary_parts(f32v x) {
  f32v m = (f32v)__builtin_ia32_getmantps512_mask(x, (2 << 2) | 3, x, (u16)-1, 4);
  return {m, binary_exponent(x) - binary_exponent(m)};
}
#endif

//@ piecewise: lookup mad
// Polynomials of degree 6 around the first row's centers: one for [0, 1/16), then one for each half of a power of two
// up to 12. The first coefficients are values at centers where the function is nearly a float (S. Gal, "Computing
// elementary functions: a new approach for achieving high accuracy and good performance", 1986).
#if defined(KILN_AVX512)
KILN_INLINE f32v piecewise(const Table (&rows)[8], f32v size) {
  i32v bits = (i32v)size, first = all((i32)0x3d400000), at = (bits > first ? bits : first) >> 22;
  f32v d = size - lookup(rows[0], at);
  f32v p = lookup(rows[7], at);
#pragma GCC unroll 6
  for (int k = 6; k > 0; --k) p = mad(p, d, lookup(rows[k], at));
  return p;
}
#endif
