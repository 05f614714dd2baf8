//@ philox: halves
// Philox 2x32, 10 rounds (Salmon, Moraes, Dror, Shaw, SC 2011); seed and counter as in loops/body/philox.py.
template <class V> struct Words {
  V w[2];
};
// The lanes of a register.
typedef u64 word_register __attribute__((vector_size(register_bytes)));
typedef i32 half_words __attribute__((vector_size(register_bytes)));
template <class V> KILN_INLINE V low_word(V x) { return x & 0xffffffffu; }
// The product of two words: of x, the high ones do not count. As a product of 64-bit lanes GCC would multiply three times.
template <class V> KILN_INLINE V word_product(V x, u32 y) { return low_word(x) * (u64)y; }
#if defined(KILN_AVX512)
KILN_INLINE word_register word_product(word_register x, u32 y) {
  half_words factor = (half_words)(word_register{} + y);
  return (word_register)__builtin_ia32_pmuludq512_mask((half_words)x, factor, (whole_register)x, (u8)-1);
}
#elif defined(__AVX2__)
KILN_INLINE word_register word_product(word_register x, u32 y) {
  return (word_register)__builtin_ia32_pmuludq256((half_words)x, (half_words)(word_register{} + y));
}
#endif
template <class V> KILN_INLINE Words<V> philox(u64 seed, V counter) {
  V w0 = counter, w1 = (counter ^ seed) >> 32, key = V{} + seed;  // the high word of a lane is not read
  for (int round = 0; round < 10; ++round) {
    V product = word_product(w0, 0xD256D193u);
    w0 = (product >> 32) ^ w1 ^ key;
    w1 = product;
    key = key + 0x9E3779B9u;
  }
  return {{low_word(w0), low_word(w1)}};
}
KILN_INLINE Words<u64v> philox(u64 seed, u64v counter) {
  constexpr int count = sizeof(u64v) / sizeof(word_register);
  word_register parts[count], words[2][count];
  __builtin_memcpy(parts, &counter, sizeof counter);
  for (int k = 0; k < count; ++k) {
    auto made = philox<word_register>(seed, parts[k]);  // the template, also where `u64v` is a register
    for (int n = 0; n < 2; ++n) words[n][k] = made.w[n];
  }
  Words<u64v> r;
  __builtin_memcpy(&r, words, sizeof r);
  return r;
}

//@ random_bits: philox
template <class T> KILN_INLINE i64 random_bits(i64 seed, i64 counter) { return (i64)philox((u64)seed, (u64)counter).w[0]; }
template <class T> KILN_INLINE i64v random_bits(i64 seed, i64v counter) {
  return (i64v)philox((u64)seed, (u64v)counter).w[0];
}

//@ unit
// One word, or two, as a number in [0, 1).
KILN_INLINE f32 unit24(u64 w) { return (f32)(i32)(w >> 8) * 0x1p-24f; }
KILN_INLINE f32v unit24(u64v w) { return __builtin_convertvector(__builtin_convertvector(w >> 8, i32v), f32v) * 0x1p-24f; }
KILN_INLINE f64 unit53(u64 low, u64 high) { return (f64)(i64)((high << 21) | (low >> 11)) * 0x1p-53; }
KILN_INLINE f64v unit53(u64v low, u64v high) {
  return __builtin_convertvector((i64v)((high << 21) | (low >> 11)), f64v) * 0x1p-53;
}

//@ random_uniform: philox unit
template <class T> KILN_INLINE T random_uniform(i64 seed, i64 counter) {
  auto r = philox((u64)seed, (u64)counter);
  if constexpr (sizeof(T) == 8) return unit53(r.w[0], r.w[1]);
  else return unit24(r.w[0]);
}
template <class T> KILN_INLINE vec<T> random_uniform(i64 seed, i64v counter) {
  auto r = philox((u64)seed, (u64v)counter);
  if constexpr (sizeof(T) == 8) return unit53(r.w[0], r.w[1]);
  else return unit24(r.w[0]);
}

//@ random_normal: philox unit log cos sqrt
// Box-Muller: sqrt(-2 log(1 - u0)) cos(2 pi u1); in double precision, u1 is from another counter.
template <class V> KILN_INLINE V box_muller(V u0, V u1) { return sqrt(-2 * log(1 - u0)) * cos((V)(u1 * (decltype(u1[0] + 0))6.28318530717958647693)); }
template <class T> KILN_INLINE vec<T> random_normal(i64 seed, i64v counter) {
  auto r = philox((u64)seed, (u64v)counter);
  if constexpr (sizeof(T) == 8) {
    auto other = philox((u64)seed, (u64v)counter ^ (1ull << 63));
    return box_muller(unit53(r.w[0], r.w[1]), unit53(other.w[0], other.w[1]));
  } else return box_muller(unit24(r.w[0]), unit24(r.w[1]));
}
template <class T> KILN_INLINE T random_normal(i64 seed, i64 counter) { return random_normal<T>(seed, all(counter))[0]; }
