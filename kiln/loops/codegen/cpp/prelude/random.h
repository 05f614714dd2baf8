//@ philox
// Philox 4x32, 10 rounds (Salmon, Moraes, Dror, Shaw, SC 2011): key = seed, counter = (low, high, 0, 0).
template <class V> struct Words {
  V w[4];
};
KILN_INLINE u64 low_word(u64 x) { return x & 0xffffffffu; }
KILN_INLINE u64v low_word(u64v x) { return x & 0xffffffffu; }
template <class V> KILN_INLINE Words<V> philox(u64 seed, V counter) {
  V w0 = low_word(counter), w1 = counter >> 32, w2 = {}, w3 = {};
  u64 key0 = low_word(seed), key1 = seed >> 32;
  for (int round = 0; round < 10; ++round) {
    V p0 = w0 * 0xD2511F53u, p1 = w2 * 0xCD9E8D57u;
    w0 = (p1 >> 32) ^ w1 ^ key0;
    w1 = low_word(p1);
    w2 = (p0 >> 32) ^ w3 ^ key1;
    w3 = low_word(p0);
    key0 = low_word(key0 + 0x9E3779B9u);
    key1 = low_word(key1 + 0xBB67AE85u);
  }
  return {{w0, w1, w2, w3}};
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
  auto w = philox((u64)seed, (u64)counter).w;
  if constexpr (sizeof(T) == 8) return unit53(w[0], w[1]);
  else return unit24(w[0]);
}
template <class T> KILN_INLINE vec<T> random_uniform(i64 seed, i64v counter) {
  auto r = philox((u64)seed, (u64v)counter);
  if constexpr (sizeof(T) == 8) return unit53(r.w[0], r.w[1]);
  else return unit24(r.w[0]);
}

//@ random_normal: philox unit log cos sqrt
// Box-Muller: sqrt(-2 log(1 - u0)) cos(2 pi u1).
template <class V> KILN_INLINE V box_muller(V u0, V u1) { return sqrt(-2 * log(1 - u0)) * cos((V)(u1 * (decltype(u1[0] + 0))6.28318530717958647693)); }
template <class T> KILN_INLINE vec<T> random_normal(i64 seed, i64v counter) {
  auto r = philox((u64)seed, (u64v)counter);
  if constexpr (sizeof(T) == 8) return box_muller(unit53(r.w[0], r.w[1]), unit53(r.w[2], r.w[3]));
  else return box_muller(unit24(r.w[0]), unit24(r.w[1]));
}
template <class T> KILN_INLINE T random_normal(i64 seed, i64 counter) { return random_normal<T>(seed, all(counter))[0]; }
