//@ copy_some
// n < W numbers, in pieces of constant size: memcpy would be a call.
template <class T> KILN_INLINE void copy_some(T* to, const T* from, i64 n) {
#pragma GCC unroll 8
  for (int piece = W / 2; piece; piece /= 2)
    if (n & piece) __builtin_memcpy(to, from, piece * sizeof(T)), to += piece, from += piece;
}

//@ read: copy_some lanes64
// The active lanes as they are in memory; the others are 0.
template <class T> KILN_INLINE typename vec_of<T>::type read(const T* p, Full) {
  typename vec_of<T>::type r;
  __builtin_memcpy(&r, p, sizeof r);
  return r;
}
template <class T> KILN_INLINE typename vec_of<T>::type read(const T* p, Part lanes) {
  typename vec_of<T>::type r = {};
  copy_some((T*)&r, p, lanes.n);
  return r;
}
#if defined(__AVX2__) && KILN_W == 8
KILN_INLINE f32v read(const f32* p, Part lanes) {
  return __builtin_ia32_maskloadps256((const f32v*)p, lanes32() < (i32)lanes.n);
}
KILN_INLINE i32v read(const i32* p, Part lanes) {
  return __builtin_ia32_maskloadd256((const i32v*)p, lanes32() < (i32)lanes.n);
}
#elif defined(__AVX2__) && KILN_W == 4
KILN_INLINE f64v read(const f64* p, Part lanes) {
  return __builtin_ia32_maskloadpd256((const f64v*)p, lanes64() < lanes.n);
}
KILN_INLINE i64v read(const i64* p, Part lanes) {
  typedef long long whole __attribute__((vector_size(32)));
  return (i64v)__builtin_ia32_maskloadq256((const whole*)p, (whole)(lanes64() < lanes.n));
}
#endif
#if defined(__AVX512F__) && KILN_W == 16
KILN_INLINE f32v read(const f32* p, Part lanes) {
  return (f32v)__builtin_ia32_loadups512_mask(p, f32v{}, (u16)((1u << lanes.n) - 1));
}
#endif

//@ load: read widen wide32
template <class T, class L> KILN_INLINE vec<T> load(const T* p, L lanes) { return read(p, lanes); }
template <class L> KILN_INLINE f32v load(const bf16* p, L lanes) { return widen_bf16(read((const u16*)p, lanes)); }
template <class L> KILN_INLINE f32v load(const f16* p, L lanes) { return widen_f16(read((const u16*)p, lanes)); }
template <class L> KILN_INLINE mask load(const bool* p, L lanes) {
  return wide32(read((const u8*)p, lanes)) != 0;
}

//@ get: widen
// One element, in the type in which it is computed.
template <class T> KILN_INLINE T get(const T* p) { return *p; }
KILN_INLINE f32 get(const bf16* p) { return widen_bf16(p->bits); }
KILN_INLINE f32 get(const f16* p) { return widen_f16(p->bits); }

//@ load_if: load get active all_lanes halves
// Lanes outside of m are not read and give 0.
#if defined(KILN_AVX512)
template <class L> KILN_INLINE f32v load_if(const f32* p, mask m, L lanes) {
  return (f32v)__builtin_ia32_loadups512_mask(p, f32v{}, mask_bits(m & active(lanes)));
}
#endif
template <class T, class L> KILN_INLINE vec<T> load_if(const T* p, mask m, L lanes) {
  if (all_lanes(m | ~active(lanes))) return load(p, lanes);
  vec<T> r = {};
  for (i64 k = 0; k < lanes.n; ++k)
    if (m[k]) r[k] = get(p + k);
  return r;
}
template <class L> KILN_INLINE mask load_if(const bool* p, mask m, L lanes) {
  if (all_lanes(m | ~active(lanes))) return load(p, lanes);
  mask r = {};
  for (i64 k = 0; k < lanes.n; ++k)
    if (m[k]) r[k] = -(i32)p[k];
  return r;
}

//@ load_step: get
// One element every `step`.
template <class T, class L> KILN_INLINE vec<T> load_step(const T* p, i64 step, L lanes) {
  vec<T> r = {};
  for (i64 k = 0; k < lanes.n; ++k) r[k] = get(p + k * step);
  return r;
}
template <class L> KILN_INLINE mask load_step(const bool* p, i64 step, L lanes) {
  mask r = {};
  for (i64 k = 0; k < lanes.n; ++k) r[k] = -(i32)p[k * step];
  return r;
}

//@ backwards: lane_numbers
template <class V, int... K> KILN_INLINE V backwards(V v, LaneNumbers<K...>) {
  if constexpr (sizeof v == 8 && W == 8) return __builtin_bit_cast(V, __builtin_bswap64(__builtin_bit_cast(u64, v)));
  return __builtin_shuffle(v, v, decltype(V{} == V{}){(W - 1 - K)...});
}

//@ load_back: load backwards load_step lanes32
// Lane k is p[-k].
template <class T, class L> KILN_INLINE vec<T> load_back(const T* p, L lanes) {
  if (lanes.n < W) {
    if constexpr (sizeof(T) == 4) return __builtin_shuffle(load(p - (lanes.n - 1), lanes), (i32)(lanes.n - 1) - lanes32());
    return load_step(p, -1, lanes);
  }
  return backwards(load(p - (W - 1), full), lane_numbers<W>::all);
}

//@ transpose: lane_numbers
// W vectors of W lanes, rows to columns in log2(W) steps of exchanges.
template <int Size> struct same_size {
  typedef i32 type;
};
template <> struct same_size<2> {
  typedef i16 type;
};
template <> struct same_size<8> {
  typedef i64 type;
};
template <class T> using tile_row = typename vec_of<typename same_size<sizeof(T)>::type>::type;
template <class T> constexpr bool has_tile_row = sizeof(T) > 1 && sizeof(T) * W <= register_bytes;
// Lanes with bit S of their number go from the one to the other.
template <int S, class V, int... K> KILN_INLINE void exchange(V& a, V& b, LaneNumbers<K...>) {
  typedef decltype(V{} == V{}) Places;
  V low = __builtin_shuffle(a, b, Places{(K & S ? W + K - S : K)...});
  b = __builtin_shuffle(a, b, Places{(K & S ? W + K : K + S)...});
  a = low;
}
template <int S, class V> KILN_INLINE void transpose(V* r) {
  if constexpr (S < W) {
#pragma GCC unroll 64
    for (int k = 0; k < W; ++k)
      if (!(k & S)) exchange<S>(r[k], r[k + S], lane_numbers<W>::all);
    transpose<2 * S>(r);
  }
}
template <class T>
__attribute__((noinline)) static void transpose_tile(T* to, i64 to_step, const T* from, i64 from_step) {
  tile_row<T> r[W];
#pragma GCC unroll 64
  for (int k = 0; k < W; ++k) __builtin_memcpy(&r[k], from + k * from_step, sizeof r[k]);
  transpose<1>(r);
#pragma GCC unroll 64
  for (int k = 0; k < W; ++k) __builtin_memcpy(to + k * to_step, &r[k], sizeof r[k]);
}

//@ few_rows: transpose
// R vectors whose lanes lie next to each other, R numbers each, and the way back: flat[lane * R + row] is row's lane.
template <int R, int Row, int From, class V, int... K>
KILN_INLINE void take_row(V& row, const V& flat, LaneNumbers<K...>) {
  typedef decltype(V{} == V{}) Places;
  if (From == 0) row = flat;
  row = __builtin_shuffle(row, flat, Places{((K * R + Row) / W == From ? W + (K * R + Row) % W : K)...});
}
template <int R, int Row, int To, class V, int... K>
KILN_INLINE void put_row(V& flat, const V& row, LaneNumbers<K...>) {
  typedef decltype(V{} == V{}) Places;
  if (Row == 0) flat = row;
  flat = __builtin_shuffle(flat, row, Places{((W * To + K) % R == Row ? W + (W * To + K) / R : K)...});
}
template <int R, bool Apart, int Row = 0, int Flat = 0, class V> KILN_INLINE void few_rows(V* to, const V* from) {
  if constexpr (Row < R) {
    if constexpr (Apart) take_row<R, Row, Flat>(to[Row], from[Flat], lane_numbers<W>::all);
    else put_row<R, Row, Flat>(to[Flat], from[Row], lane_numbers<W>::all);
    constexpr int next = Flat + 1 == R;
    few_rows<R, Apart, Row + next, next ? 0 : Flat + 1>(to, from);
  }
}
// The lanes of one of three rows lie in different places of the vectors: these are blended, then permuted at once.
template <int Row> constexpr int third(int place) {
  while (place % 3 != Row) place += W;
  return place;
}
template <int Row, class V, int... K> KILN_INLINE V take_third(const V* flat, LaneNumbers<K...>) {
  typedef decltype(V{} == V{}) Places;
  V row = __builtin_shuffle(flat[0], flat[1], Places{(third<Row>(K) / W == 1 ? W + K : K)...});
  row = __builtin_shuffle(row, flat[2], Places{(third<Row>(K) / W == 2 ? W + K : K)...});
  return __builtin_shuffle(row, Places{((3 * K + Row) % W)...});
}
template <int Row, class V, int... K> KILN_INLINE V spread_third(V row, LaneNumbers<K...>) {
  return __builtin_shuffle(row, decltype(V{} == V{}){(third<Row>(K) / 3)...});
}
template <int Flat, class V, int... K> KILN_INLINE V join_thirds(V a, V b, V c, LaneNumbers<K...>) {
  typedef decltype(V{} == V{}) Places;
  V flat = __builtin_shuffle(a, b, Places{((W * Flat + K) % 3 == 1 ? W + K : K)...});
  return __builtin_shuffle(flat, c, Places{((W * Flat + K) % 3 == 2 ? W + K : K)...});
}
template <bool Apart, class V> KILN_INLINE void three_rows(V* to, const V* from) {
  constexpr auto all = lane_numbers<W>::all;
  if constexpr (Apart) {
    to[0] = take_third<0>(from, all), to[1] = take_third<1>(from, all), to[2] = take_third<2>(from, all);
  } else {
    V a = spread_third<0>(from[0], all), b = spread_third<1>(from[1], all), c = spread_third<2>(from[2], all);
    to[0] = join_thirds<0>(a, b, c, all), to[1] = join_thirds<1>(a, b, c, all), to[2] = join_thirds<2>(a, b, c, all);
  }
}
template <int R, bool Apart, class T> KILN_INLINE void move_few_rows(T* to, const T* from) {
  tile_row<T> a[R], b[R];
#pragma GCC unroll 64
  for (int k = 0; k < R; ++k) __builtin_memcpy(&a[k], from + k * W, sizeof a[k]);
  if constexpr (R == 3) three_rows<Apart>(b, a);
  else few_rows<R, Apart>(b, a);
#pragma GCC unroll 64
  for (int k = 0; k < R; ++k) __builtin_memcpy(to + k * W, &b[k], sizeof b[k]);
}
template <bool Apart, class T> KILN_INLINE bool has_few_rows(T* to, const T* from, i64 rows) {
  if (rows == 2) return move_few_rows<2, Apart>(to, from), true;
  if (rows == 3) return move_few_rows<3, Apart>(to, from), true;
  if (rows == 4) return move_few_rows<4, Apart>(to, from), true;
  return false;
}

//@ most_rows: transpose read write
// More than half of W rows, and not all: each lane goes as a whole vector, the surplus of which belongs to the next lane
// in memory; the last one, which has none, as it is.
KILN_INLINE bool has_most_rows(i64 step, i64 rows) {
  return 2 * rows > W && rows < W && (step < 0 ? -step : step) + rows >= W;
}
template <class T>
__attribute__((noinline)) static void load_most_rows(T* tile, const T* p, i64 step, i64 rows) {
  tile_row<T> r[W];
#pragma GCC unroll 64
  for (int k = 0; k < W; ++k) {
    auto from = (const typename same_size<sizeof(T)>::type*)(p + k * step);
    r[k] = k == (step < 0 ? 0 : W - 1) ? read(from, Part{rows}) : read(from, full);
  }
  transpose<1>(r);
#pragma GCC unroll 64
  for (int k = 0; k < W; ++k) __builtin_memcpy(tile + k * W, &r[k], sizeof r[k]);
}
template <class T> __attribute__((noinline)) static void store_most_rows(T* p, i64 rows, const T* tile) {
  tile_row<T> r[W];
#pragma GCC unroll 64
  for (int k = 0; k < W; ++k) __builtin_memcpy(&r[k], tile + k * W, sizeof r[k]);
  transpose<1>(r);
#pragma GCC unroll 64
  for (int k = 0; k < W - 1; ++k) __builtin_memcpy(p + k * rows, &r[k], sizeof r[k]);
  write((typename same_size<sizeof(T)>::type*)(p + (W - 1) * rows), r[W - 1], Part{rows});
}

//@ load_tile: few_rows most_rows
// tile[row][lane] = p[lane * step + row]: each lane is read in order.
template <class T, class L> KILN_INLINE void load_tile(T* tile, const T* p, i64 step, i64 rows, L lanes) {
  if constexpr (has_tile_row<T>) {
    if (lanes.n == W && rows == W) return transpose_tile(tile, W, p, step);
    if (lanes.n == W && rows == step && has_few_rows<true>(tile, p, rows)) return;
    if (lanes.n == W && has_most_rows(step, rows)) return load_most_rows(tile, p, step, rows);
  }
  for (i64 k = 0; k < lanes.n; ++k)
    for (i64 row = 0; row < rows; ++row) tile[row * W + k] = p[k * step + row];
}

//@ load_tile_back: load_tile backwards
// The same for a step below zero.
template <class T, class L> KILN_INLINE void load_tile_back(T* tile, const T* p, i64 step, i64 rows, L lanes) {
  if constexpr (has_tile_row<T>) {
    if (lanes.n == W && rows == -step && has_few_rows<true>(tile, p + (W - 1) * step, rows)) {
      for (i64 row = 0; row < rows; ++row) {
        tile_row<T> v;
        __builtin_memcpy(&v, tile + row * W, sizeof v);
        v = backwards(v, lane_numbers<W>::all);
        __builtin_memcpy(tile + row * W, &v, sizeof v);
      }
      return;
    }
  }
  load_tile(tile, p, step, rows, lanes);
}

//@ store_tile: few_rows most_rows
// p[lane * step + row] = tile[row][lane]: each lane is written in order.
template <class T, class L> KILN_INLINE void store_tile(T* p, i64 step, i64 rows, const T* tile, L lanes) {
  if constexpr (has_tile_row<T>) {
    if (lanes.n == W && rows == W) return transpose_tile(p, step, tile, W);
    if (lanes.n == W && rows == step && has_few_rows<false>(p, tile, rows)) return;
    if (lanes.n == W && rows == step && has_most_rows(step, rows)) return store_most_rows(p, rows, tile);
  }
  for (i64 k = 0; k < lanes.n; ++k)
    for (i64 row = 0; row < rows; ++row) p[k * step + row] = tile[row * W + k];
}

//@ gather_register: halves active
// The lanes of m, of 32 or 64 bits, by the gather instruction; the others are 0.
#if defined(KILN_AVX512)
template <class T> constexpr bool has_gather = sizeof(T) == 4 || sizeof(T) == 8;
template <class T> KILN_INLINE vec<T> gather_register(const T* p, i64v at, u16 m) {
  auto [low, high] = halves<whole_register>(at);
  u8 first = (u8)m, second = (u8)(m >> 8);
  if constexpr (sizeof(T) == 4) {
    typedef f32 Half __attribute__((vector_size(32)));
    Half a = __builtin_ia32_gatherdiv16sf(Half{}, p, low, first, 4);
    Half b = __builtin_ia32_gatherdiv16sf(Half{}, p, high, second, 4);
    return (vec<T>)__builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  } else {
    float_register a = __builtin_ia32_gatherdiv8df(float_register{}, p, low, first, 8);
    float_register b = __builtin_ia32_gatherdiv8df(float_register{}, p, high, second, 8);
    return joined<vec<T>>(a, b);
  }
}
KILN_INLINE u16 lane_bits(Full) { return (u16)-1; }
KILN_INLINE u16 lane_bits(Part lanes) { return (u16)((1u << lanes.n) - 1); }
#else
template <class T> constexpr bool has_gather = false;
#endif

//@ gather: get gather_register
template <class T, class L> KILN_INLINE vec<T> gather(const T* p, i64v at, L lanes) {
#if defined(KILN_AVX512)
  if constexpr (has_gather<T>) return gather_register(p, at, lane_bits(lanes));
#endif
  vec<T> r = {};
  for (i64 k = 0; k < lanes.n; ++k) r[k] = get(p + at[k]);
  return r;
}
template <class L> KILN_INLINE mask gather(const bool* p, i64v at, L lanes) {
  mask r = {};
  for (i64 k = 0; k < lanes.n; ++k) r[k] = -(i32)p[at[k]];
  return r;
}

//@ gather_if: get gather_register
template <class T, class L> KILN_INLINE vec<T> gather_if(const T* p, i64v at, mask m, L lanes) {
#if defined(KILN_AVX512)
  if constexpr (has_gather<T>) return gather_register(p, at, mask_bits(m) & lane_bits(lanes));
#endif
  vec<T> r = {};
  for (i64 k = 0; k < lanes.n; ++k)
    if (m[k]) r[k] = get(p + at[k]);
  return r;
}
template <class L> KILN_INLINE mask gather_if(const bool* p, i64v at, mask m, L lanes) {
  mask r = {};
  for (i64 k = 0; k < lanes.n; ++k)
    if (m[k]) r[k] = -(i32)p[at[k]];
  return r;
}

//@ write: copy_some lane_numbers
// Vectors of two registers GCC would copy to memory first, then from there in pieces of 16 bytes.
template <class T, class V, int... K> KILN_INLINE void write_halves(T* p, V v, LaneNumbers<K...>) {
  auto low = __builtin_shufflevector(v, v, K...), high = __builtin_shufflevector(v, v, (W / 2 + K)...);
  __builtin_memcpy(p, &low, sizeof low), __builtin_memcpy(p + W / 2, &high, sizeof high);
}
template <class T, class V> KILN_INLINE void write(T* p, V v, Full) {
  if constexpr (sizeof v > register_bytes) write_halves(p, v, lane_numbers<W / 2>::all);
  else __builtin_memcpy(p, &v, sizeof v);
}
template <class T, class V> KILN_INLINE void write(T* p, V v, Part lanes) {
  copy_some(p, (const T*)&v, lanes.n);
}
#if defined(__AVX512F__) && KILN_W == 16
KILN_INLINE void write(f32* p, f32v v, Part lanes) {
  __builtin_ia32_storeups512_mask(p, v, (u16)((1u << lanes.n) - 1));
}
#endif

//@ store: write narrow mask_bytes
template <class T, class L> KILN_INLINE void store(T* p, vec<T> v, L lanes) { write(p, v, lanes); }
template <class L> KILN_INLINE void store(bf16* p, f32v v, L lanes) { write((u16*)p, narrow_bf16(v), lanes); }
template <class L> KILN_INLINE void store(f16* p, f32v v, L lanes) { write((u16*)p, narrow_f16(v), lanes); }
template <class L> KILN_INLINE void store(bool* p, mask v, L lanes) {
  write((u8*)p, mask_bytes(v), lanes);
}

//@ put: narrow
template <class T, class X> KILN_INLINE void put(T* p, X x) { *p = (T)x; }
KILN_INLINE void put(bf16* p, f32 x) { p->bits = narrow_bf16(x); }
KILN_INLINE void put(f16* p, f32 x) { p->bits = narrow_f16(x); }

//@ store_step: put
template <class T, class V, class L> KILN_INLINE void store_step(T* p, i64 step, V v, L lanes) {
  for (i64 k = 0; k < lanes.n; ++k) put(p + k * step, v[k]);
}

//@ spill
// The lanes in memory: GCC needs several instructions to extract a lane from a register.
template <class T, class V> KILN_INLINE void spill(T (&to)[W], V v) {
  __builtin_memcpy(to, &v, sizeof v);
  __asm__("" : "+m"(to));
}

//@ scatter: put spill gather_register
// Lanes in order, so that the last of equal indices wins.
template <class T, class V, class L> KILN_INLINE void scatter(T* p, i64v at, V v, L lanes) {
#if defined(KILN_AVX512)
  if constexpr (sizeof(T) == 4 && sizeof(V) == 4 * W) {
    typedef f32 Half __attribute__((vector_size(32)));
    auto [low, high] = halves<whole_register>(at);
    u16 m = lane_bits(lanes);
    f32v x = (f32v)v;
    __builtin_ia32_scatterdiv16sf(p, (u8)m, low, __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7), 4);
    __builtin_ia32_scatterdiv16sf(p, (u8)(m >> 8), high, __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15), 4);
    return;
  }
#endif
  auto first = v[0];
  alignas(64) decltype(first) each[W];
  alignas(64) i64 places[W];
  spill(each, v), spill(places, at);
  for (i64 k = 0; k < lanes.n; ++k) put(p + places[k], each[k]);
}

//@ widen: wide32
KILN_INLINE f32 widen_bf16(u16 bits) { return __builtin_bit_cast(f32, (u32)bits << 16); }
KILN_INLINE f32v widen_bf16(u16v bits) { return (f32v)(wide32(bits) << 16); }
// Exponent and fraction in place, then times 2^112, which is right for subnormal numbers too.
KILN_INLINE f32 widen_f16(u16 bits) {
  u32 size = (u32)(bits & 0x7fff) << 13, sign = (u32)(bits & 0x8000) << 16;
  u32 wide = __builtin_bit_cast(u32, __builtin_bit_cast(f32, size) * 0x1p112f);
  return __builtin_bit_cast(f32, (size >= 0x0f800000 ? size | 0x7f800000 : wide) | sign);
}
KILN_INLINE f32v widen_f16(u16v bits) {
#if defined(__AVX512F__) && KILN_W == 16
  return (f32v)__builtin_ia32_vcvtph2ps512_mask((i16v)bits, (f32v){}, (u16)-1, 4);
#elif defined(__F16C__) && KILN_W == 8
  return (f32v)__builtin_ia32_vcvtph2ps256((i16v)bits);
#else
  f32v r;
  for (int k = 0; k < W; ++k) r[k] = widen_f16((u16)bits[k]);
  return r;
#endif
}

//@ narrow: wide32
// To the nearest, ties to even; NaN stays NaN.
KILN_INLINE u16 narrow_bf16(f32 x) {
  u32 bits = __builtin_bit_cast(u32, x);
  return x != x ? 0x7fc0 : (u16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
// In the high half of a lane; the low half is anything.
KILN_INLINE u32v nearest_bf16(f32v x) {
  u32v bits = (u32v)x;
  return (x != x) ? (u32v{} + 0x7fc00000u) : bits + 0x7fff + ((bits >> 16) & 1);
}
KILN_INLINE u16v narrow_bf16(f32v x) { return low16(nearest_bf16(x) >> 16); }
// Not by _Float16: GCC may omit its conversions as excess precision.
KILN_INLINE u16 narrow_f16(f32 x) {
  u32 bits = __builtin_bit_cast(u32, x), size = bits & 0x7fffffff, sign = (bits >> 16) & 0x8000;
  if (size > 0x7f800000) return (u16)(sign | 0x7e00);
  if (size >= 0x477ff000) return (u16)(sign | 0x7c00);
  if (size < 0x38800000) {
    f32 shifted = __builtin_bit_cast(f32, size) + 0.5f;
    return (u16)(sign | (__builtin_bit_cast(u32, shifted) - 0x3f000000));
  }
  return (u16)(sign | ((size - 0x38000000 + 0xfff + ((size >> 13) & 1)) >> 13));
}
KILN_INLINE u16v narrow_f16(f32v x) {
#if defined(__AVX512F__) && KILN_W == 16
  return (u16v)__builtin_ia32_vcvtps2ph512_mask(x, 0, i16v{}, (u16)-1);
#elif defined(__F16C__) && KILN_W == 8
  return (u16v)__builtin_ia32_vcvtps2ph256(x, 0);
#else
  u16v r;
  for (int k = 0; k < W; ++k) r[k] = narrow_f16((f32)x[k]);
  return r;
#endif
}

//@ rounded: widen narrow
KILN_INLINE f32 rounded_bf16(f32 x) { return widen_bf16(narrow_bf16(x)); }
KILN_INLINE f32v rounded_bf16(f32v x) { return (f32v)(nearest_bf16(x) & 0xffff0000u); }
template <class V> KILN_INLINE V rounded_f16(V x) { return widen_f16(narrow_f16(x)); }
