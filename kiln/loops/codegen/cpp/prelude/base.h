//@ base
constexpr int W = KILN_W;  // lanes of every vector
typedef __INT8_TYPE__ i8;
typedef __INT16_TYPE__ i16;
typedef __INT32_TYPE__ i32;
typedef __INT64_TYPE__ i64;
typedef __UINT8_TYPE__ u8;
typedef __UINT16_TYPE__ u16;
typedef __UINT32_TYPE__ u32;
typedef __UINT64_TYPE__ u64;
typedef float f32;
typedef double f64;
struct bf16 {
  u16 bits;
};
struct f16 {
  u16 bits;
};
#define KILN_INLINE static inline __attribute__((always_inline))
#define KILN_LAMBDA __attribute__((always_inline))

// vec<T>: one T per lane, as it is computed with. A bool is a lane of 0 or -1.
template <class T> struct vec_of {
  typedef T type __attribute__((vector_size(sizeof(T) * W)));
};
typedef vec_of<i8>::type i8v;
typedef vec_of<i16>::type i16v;
typedef vec_of<i32>::type i32v;
typedef vec_of<i64>::type i64v;
typedef vec_of<u8>::type u8v;
typedef vec_of<u16>::type u16v;
typedef vec_of<u32>::type u32v;
typedef vec_of<u64>::type u64v;
typedef vec_of<f32>::type f32v;
typedef vec_of<f64>::type f64v;
typedef i32v mask;
template <> struct vec_of<bf16> {
  typedef f32v type;
};
template <> struct vec_of<f16> {
  typedef f32v type;
};
template <> struct vec_of<bool> {
  typedef mask type;
};
template <class T> using vec = typename vec_of<T>::type;
template <class V> concept Lanes = requires(V v) { v[0]; };
template <class V> concept Whole = requires(V v) { v << 1; };

// Longer vectors GCC keeps in memory, and compares lane by lane.
#if defined(KILN_AVX512)
constexpr int register_bytes = 64;
#else
constexpr int register_bytes = 32;
#endif
template <class V> concept Register = Lanes<V> && sizeof(V) <= register_bytes;

// The active lanes of a step: all, or the first n.
struct Full {
  static constexpr i64 n = W;
};
struct Part {
  i64 n;
};
constexpr Full full{};

// The same number in every lane. (x - 0 is x for every x; x + 0 is not, for -0.)
KILN_INLINE f32v all(f32 x) { return x - f32v{}; }
KILN_INLINE f64v all(f64 x) { return x - f64v{}; }
KILN_INLINE i8v all(i8 x) { return x + i8v{}; }
KILN_INLINE i16v all(i16 x) { return x + i16v{}; }
KILN_INLINE i32v all(i32 x) { return x + i32v{}; }
KILN_INLINE i64v all(i64 x) { return x + i64v{}; }
KILN_INLINE u8v all(u8 x) { return x + u8v{}; }
KILN_INLINE u16v all(u16 x) { return x + u16v{}; }
KILN_INLINE u32v all(u32 x) { return x + u32v{}; }
KILN_INLINE u64v all(u64 x) { return x + u64v{}; }
KILN_INLINE mask all(bool x) { return all(-(i32)x); }

//@ lanes32
// 0, 1, 2, ...
KILN_INLINE i32v lanes32() {
  i32v r;
  for (int k = 0; k < W; ++k) r[k] = k;
  return r;
}

//@ lanes64: lanes32
KILN_INLINE i64v lanes64() { return __builtin_convertvector(lanes32(), i64v); }

//@ lane_numbers
// 0, 1, .., N - 1 as constants, of which GCC makes shuffles of one instruction.
template <int... K> struct LaneNumbers {};
template <int N, int... K> struct lane_numbers : lane_numbers<N - 1, N - 1, K...> {};
template <int... K> struct lane_numbers<0, K...> {
  static constexpr LaneNumbers<K...> all{};
};

//@ active: lanes32
// The active lanes of a step, as a mask.
KILN_INLINE mask active(Full) { return all(true); }
KILN_INLINE mask active(Part lanes) { return lanes32() < (i32)lanes.n; }

//@ as_mask
// The result of a comparison as a bool.
KILN_INLINE bool as_mask(bool x) { return x; }
KILN_INLINE mask as_mask(i32v x) { return x; }
#if defined(__AVX2__) && KILN_W == 4
KILN_INLINE mask as_mask(i64v x) {
  mask h[2];
  __builtin_memcpy(h, &x, sizeof h);
  return __builtin_shuffle(h[0], h[1], mask{0, 2, 4, 6});
}
#else
KILN_INLINE mask as_mask(i64v x) { return __builtin_convertvector(x, mask); }
#endif
KILN_INLINE mask as_mask(i16v x) { return __builtin_convertvector(x, mask); }
KILN_INLINE mask as_mask(i8v x) { return __builtin_convertvector(x, mask); }

//@ halves
// Vectors of 64-bit numbers are two registers, which GCC would compare and select from lane by lane.
#if defined(KILN_AVX512)
typedef long long whole_register __attribute__((vector_size(64)));
typedef f64 float_register __attribute__((vector_size(64)));
template <class R> struct Halves {
  R low, high;
};
KILN_INLINE u16 mask_bits(mask m) { return (u16)__builtin_ia32_cvtd2mask512((vec_of<i32>::type)m); }
KILN_INLINE mask mask_of(u8 low, u8 high) { return (mask)__builtin_ia32_cvtmask2d512((u16)(low | high << 8)); }
template <class R, class V> KILN_INLINE Halves<R> halves(V x) {
  R r[2];
  __builtin_memcpy(r, &x, sizeof r);
  return {r[0], r[1]};
}
template <class V, class R> KILN_INLINE V joined(R low, R high) {
  R r[2] = {low, high};
  V v;
  __builtin_memcpy(&v, r, sizeof v);
  return v;
}
template <class V> KILN_INLINE V chosen(mask c, V x, V y) {
  auto [a, b] = halves<whole_register>(x);
  auto [d, e] = halves<whole_register>(y);
  u16 m = mask_bits(c);
  whole_register low = (whole_register)__builtin_ia32_blendmq_512_mask(d, a, (u8)m);
  whole_register high = (whole_register)__builtin_ia32_blendmq_512_mask(e, b, (u8)(m >> 8));
  return joined<V>(low, high);
}
#endif

//@ sel: halves
// x where c is true, else y.
template <class T> KILN_INLINE T sel(bool c, T x, T y) { return c ? x : y; }
KILN_INLINE f32v sel(mask c, f32v x, f32v y) { return c ? x : y; }
KILN_INLINE i32v sel(mask c, i32v x, i32v y) { return c ? x : y; }
KILN_INLINE u32v sel(mask c, u32v x, u32v y) { return c ? x : y; }
#if defined(KILN_AVX512)
KILN_INLINE f64v sel(mask c, f64v x, f64v y) { return chosen(c, x, y); }
KILN_INLINE i64v sel(mask c, i64v x, i64v y) { return chosen(c, x, y); }
KILN_INLINE u64v sel(mask c, u64v x, u64v y) { return chosen(c, x, y); }
#else
// By bits: GCC would compare the widened mask with 0, lane by lane if the vector is two registers.
template <class V> KILN_INLINE V chosen(mask c, V x, V y) {
  i64v m = __builtin_convertvector(c, i64v);
  return (V)(((i64v)x & m) | ((i64v)y & ~m));
}
KILN_INLINE f64v sel(mask c, f64v x, f64v y) { return chosen(c, x, y); }
KILN_INLINE i64v sel(mask c, i64v x, i64v y) { return chosen(c, x, y); }
KILN_INLINE u64v sel(mask c, u64v x, u64v y) { return chosen(c, x, y); }
#endif
KILN_INLINE i16v sel(mask c, i16v x, i16v y) { return __builtin_convertvector(c, i16v) ? x : y; }
KILN_INLINE u16v sel(mask c, u16v x, u16v y) { return __builtin_convertvector(c, i16v) ? x : y; }
KILN_INLINE i8v sel(mask c, i8v x, i8v y) { return __builtin_convertvector(c, i8v) ? x : y; }
KILN_INLINE u8v sel(mask c, u8v x, u8v y) { return __builtin_convertvector(c, i8v) ? x : y; }

//@ wide32
// Integers of 8 and 16 bits widened to 32; the low halves of 32-bit integers.
template <class V> KILN_INLINE i32v wide32(V x) { return __builtin_convertvector(x, i32v); }
#if defined(KILN_AVX512)
typedef char byte_lanes __attribute__((vector_size(16)));
KILN_INLINE i32v wide32(u8v x) { return (i32v)__builtin_ia32_pmovzxbd512_mask((byte_lanes)x, i32v{}, (u16)-1); }
KILN_INLINE i32v wide32(i8v x) { return (i32v)__builtin_ia32_pmovsxbd512_mask((byte_lanes)x, i32v{}, (u16)-1); }
KILN_INLINE i32v wide32(u16v x) { return (i32v)__builtin_ia32_pmovzxwd512_mask((i16v)x, i32v{}, (u16)-1); }
KILN_INLINE i32v wide32(i16v x) { return (i32v)__builtin_ia32_pmovsxwd512_mask(x, i32v{}, (u16)-1); }
KILN_INLINE u16v low16(u32v x) { return (u16v)__builtin_ia32_pmovdw512_mask((i32v)x, i16v{}, (u16)-1); }
#elif defined(__AVX2__) && KILN_W == 8
typedef char byte_lanes __attribute__((vector_size(16)));
typedef i32 half_lanes __attribute__((vector_size(16)));
template <class V> KILN_INLINE byte_lanes in_register(V x) {
  typedef i64 Two __attribute__((vector_size(16)));
  return (byte_lanes)Two{__builtin_bit_cast(i64, x), 0};
}
KILN_INLINE i32v wide32(u8v x) { return (i32v)__builtin_ia32_pmovzxbd256(in_register(x)); }
KILN_INLINE i32v wide32(i8v x) { return (i32v)__builtin_ia32_pmovsxbd256(in_register(x)); }
KILN_INLINE u16v low16(u32v x) {
  half_lanes h[2];
  __builtin_memcpy(h, &x, sizeof h);
  return (u16v)__builtin_ia32_packusdw128(h[0], h[1]);
}
#else
// Of numbers below 2^16.
KILN_INLINE u16v low16(u32v x) { return __builtin_convertvector(x, u16v); }
#endif

//@ mask_bytes: wide32
// 0 or 1 for each lane.
KILN_INLINE u8v mask_bytes(mask m) {
#if defined(__AVX2__) && KILN_W == 8
  half_lanes h[2];
  __builtin_memcpy(h, &m, sizeof h);
  auto words = __builtin_ia32_packssdw128(h[0], h[1]);
  auto bytes = (byte_lanes)__builtin_ia32_packsswb128(words, words) & 1;
  u8v r;
  __builtin_memcpy(&r, &bytes, sizeof r);
  return r;
#endif
  return __builtin_convertvector(m & 1, u8v);
}

//@ less: as_mask halves
// Comparisons: a bool of numbers, a mask of lanes.
template <class V> KILN_INLINE auto equals(V x, V y) { return as_mask(x == y); }
template <class V> KILN_INLINE auto differs(V x, V y) { return as_mask(x != y); }
template <class V> KILN_INLINE auto less(V x, V y) { return as_mask(x < y); }
template <class V> KILN_INLINE auto at_most(V x, V y) { return as_mask(x <= y); }
#if defined(KILN_AVX512)
template <int How> KILN_INLINE mask compared(i64v x, i64v y) {
  auto [a, b] = halves<whole_register>(x);
  auto [c, d] = halves<whole_register>(y);
  return mask_of(__builtin_ia32_cmpq512_mask(a, c, How, (u8)-1), __builtin_ia32_cmpq512_mask(b, d, How, (u8)-1));
}
template <int How> KILN_INLINE mask compared(u64v x, u64v y) {
  auto [a, b] = halves<whole_register>(x);
  auto [c, d] = halves<whole_register>(y);
  return mask_of(__builtin_ia32_ucmpq512_mask(a, c, How, (u8)-1), __builtin_ia32_ucmpq512_mask(b, d, How, (u8)-1));
}
template <int How> KILN_INLINE mask compared(f64v x, f64v y) {
  auto [a, b] = halves<float_register>(x);
  auto [c, d] = halves<float_register>(y);
  u8 low = __builtin_ia32_cmppd512_mask(a, c, How, (u8)-1, 4), high = __builtin_ia32_cmppd512_mask(b, d, How, (u8)-1, 4);
  return mask_of(low, high);
}
#define KILN_COMPARE(V)                                              \
  KILN_INLINE mask equals(V x, V y) { return compared<0>(x, y); }    \
  KILN_INLINE mask less(V x, V y) { return compared<1>(x, y); }      \
  KILN_INLINE mask at_most(V x, V y) { return compared<2>(x, y); }   \
  KILN_INLINE mask differs(V x, V y) { return compared<4>(x, y); }
KILN_COMPARE(i64v)
KILN_COMPARE(u64v)
KILN_COMPARE(f64v)
#endif
template <class V> KILN_INLINE auto greater(V x, V y) { return less(y, x); }
template <class V> KILN_INLINE auto at_least(V x, V y) { return at_most(y, x); }

//@ floor_div
KILN_INLINE i64 floor_div(i64 a, i64 b) { return a / b - ((a % b != 0) & ((a < 0) != (b < 0))); }
KILN_INLINE i64v floor_div(i64v a, i64v b) { return a / b + (((a % b) != 0) & ((a < 0) != (b < 0))); }
KILN_INLINE i64v floor_div(i64v a, i64 b) { return floor_div(a, all(b)); }
KILN_INLINE i64v floor_div(i64 a, i64v b) { return floor_div(all(a), b); }

//@ floor_mod: floor_div
KILN_INLINE i64 floor_mod(i64 a, i64 b) { return a - b * floor_div(a, b); }
KILN_INLINE i64v floor_mod(i64v a, i64v b) { return a - b * floor_div(a, b); }
KILN_INLINE i64v floor_mod(i64v a, i64 b) { return floor_mod(a, all(b)); }
KILN_INLINE i64v floor_mod(i64 a, i64v b) { return floor_mod(all(a), b); }

//@ min
KILN_INLINE i64 min(i64 a, i64 b) { return a < b ? a : b; }
KILN_INLINE i64v min(i64v a, i64v b) { return a < b ? a : b; }
KILN_INLINE i64v min(i64v a, i64 b) { return min(a, all(b)); }
KILN_INLINE i64v min(i64 a, i64v b) { return min(all(a), b); }

//@ cut
// Where the part that begins at `from` ends: at `at`, if that lies in it.
KILN_INLINE i64 cut(i64 from, i64 at, i64 end) { return at > from && at < end ? at : end; }

//@ max
KILN_INLINE i64 max(i64 a, i64 b) { return a > b ? a : b; }
KILN_INLINE i64v max(i64v a, i64v b) { return a > b ? a : b; }
KILN_INLINE i64v max(i64v a, i64 b) { return max(a, all(b)); }
KILN_INLINE i64v max(i64 a, i64v b) { return max(all(a), b); }

//@ clamp32
// Clamped to 30 bits, which is enough to compare with lane numbers.
KILN_INLINE i32 clamp32(i64 x) {
  constexpr i64 limit = 1 << 30;
  return (i32)(x < -limit ? -limit : x > limit ? limit : x);
}

//@ distance32: clamp32
// to - from, clamped: lanes are few.
KILN_INLINE i32 distance32(i64 to, i64 from) {
  i64 far;
  return clamp32(__builtin_sub_overflow(to, from, &far) ? (to < 0 ? -(1LL << 40) : 1LL << 40) : far);
}

//@ wrapped
// A Python index that is known to be in range.
KILN_INLINE i64 wrapped(i64 at, i64 size) { return at < 0 ? at + size : at; }
KILN_INLINE i64v wrapped(i64v at, i64 size) { return at + ((at >> 63) & size); }

//@ any_negative: halves
KILN_INLINE bool any_negative(i64v x) {
#if defined(KILN_AVX512)
  auto [low, high] = halves<whole_register>(x);
  return __builtin_ia32_cmpq512_mask(low | high, whole_register{}, 1, (u8)-1) != 0;
#elif defined(__AVX2__)
  typedef i64 Part __attribute__((vector_size(32)));
  typedef f64 Doubles __attribute__((vector_size(32)));
  Part parts[sizeof x / sizeof(Part)], either = {};
  __builtin_memcpy(parts, &x, sizeof x);
  for (auto part : parts) either |= part;
  return __builtin_ia32_movmskpd256((Doubles)either) != 0;
#endif
  i64 r = 0;
  for (int k = 0; k < W; ++k) r |= x[k];
  return r < 0;
}

//@ inside: any_negative
// An index into `size` elements; one out of range sets the status.
KILN_INLINE i64 inside(i64 at, i64 size, i64* status) {
  if ((u64)at < (u64)size) return at;
  status[0] = 1;
  return 0;
}
__attribute__((noinline, cold)) static i64v outside(const i64v& at, i64 least, i64 size, i64* status, i64 active) {
  i64v r = at;
  for (i64 k = 0; k < W; ++k)
    if (at[k] < least || at[k] >= size) {
      r[k] = 0;
      if (k < active) status[0] = 1;
    }
  return r;
}
// The distances to both ends are computed without a comparison, for which few machines have an instruction.
template <class L> KILN_INLINE i64v inside(i64v at, i64 size, i64* status, L lanes) {
  if (any_negative(at | (i64v)((u64)size - 1 - (u64v)at))) at = outside(at, 0, size, status, lanes.n);
  return at;
}

//@ within: inside wrapped
// A Python index, from the end if negative.
KILN_INLINE i64 within(i64 at, i64 size, i64* status) { return inside(wrapped(at, size), size, status); }
template <class L> KILN_INLINE i64v within(i64v at, i64 size, i64* status, L lanes) {
  i64v far = (i64v)(((u64v)at + (u64)size) | ((u64)size - 1 - (u64v)at));
  if (any_negative(far)) at = outside(at, -size, size, status, lanes.n);
  return wrapped(at, size);
}
