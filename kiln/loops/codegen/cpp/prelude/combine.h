//@ keep: sel active
// v in the active lanes, `other` in the rest.
template <class V> KILN_INLINE V keep(V v, V other, Full) { return v; }
template <class V> KILN_INLINE V keep(V v, V other, Part lanes) { return sel(active(lanes), v, other); }

//@ lane
// A lane's value; of a bool 0 or 1.
KILN_INLINE bool truth(i32 lane) { return lane != 0; }

//@ tree_lanes: lane_numbers
// A tree of halves, always in this order. In registers: a loop over lanes in memory is not unrolled, and each of its
// loads waits for stores of another width. Below 16 bytes a register keeps its width, and its upper lanes are not used.
template <class T, int First, class V, int... K> KILN_INLINE auto lanes_from(V v, LaneNumbers<K...>) {
  typedef T part __attribute__((vector_size(sizeof(T) * sizeof...(K))));
  return part{v[(First + K) % (sizeof v / sizeof(T))]...};
}
template <class T, int N, class V, class F> KILN_INLINE T tree_of(V v, F combine) {
  constexpr int half = N / 2, kept = sizeof(V) > 16 ? half : sizeof(V) / sizeof(T);
  if constexpr (N == 1) return v[0];
  else {
    constexpr auto numbers = lane_numbers<kept>::all;
    return tree_of<T, half>(combine(lanes_from<T, 0>(v, numbers), lanes_from<T, half>(v, numbers)), combine);
  }
}
template <class T, class V, class F> KILN_INLINE T tree_lanes(V v, F combine) { return tree_of<T, W>(v, combine); }

//@ sum_lanes: tree_lanes
template <class T, class V> KILN_INLINE T sum_lanes(V v) {
  return tree_lanes<T>(v, [](auto a, auto b) KILN_LAMBDA { return (decltype(a))(a + b); });
}

//@ prod_lanes: tree_lanes
template <class T, class V> KILN_INLINE T prod_lanes(V v) {
  return tree_lanes<T>(v, [](auto a, auto b) KILN_LAMBDA { return (decltype(a))(a * b); });
}

//@ amax_lanes: tree_lanes maximum
template <class T, class V> KILN_INLINE T amax_lanes(V v) {
  return tree_lanes<T>(v, [](auto a, auto b) KILN_LAMBDA { return maximum(a, b); });
}

//@ amin_lanes: tree_lanes minimum
template <class T, class V> KILN_INLINE T amin_lanes(V v) {
  return tree_lanes<T>(v, [](auto a, auto b) KILN_LAMBDA { return minimum(a, b); });
}

//@ any_lanes
KILN_INLINE bool any_lanes(mask v) {
#if defined(KILN_AVX512)
  return __builtin_ia32_ptestmd512((vec_of<i32>::type)v, (vec_of<i32>::type)v, (u16)-1) != 0;
#elif defined(__AVX__) && KILN_W == 8
  return __builtin_ia32_movmskps256((f32v)v) != 0;
#elif defined(__SSE__) && KILN_W == 4
  return __builtin_ia32_movmskps((f32v)v) != 0;
#endif
  i32 r = 0;
  for (int k = 0; k < W; ++k) r |= v[k];
  return r != 0;
}

//@ all_lanes: any_lanes
KILN_INLINE bool all_lanes(mask v) {
#if defined(KILN_AVX512) || (defined(__AVX__) && KILN_W == 8) || (defined(__SSE__) && KILN_W == 4)
  return !any_lanes(~v);
#endif
  i32 r = -1;
  for (int k = 0; k < W; ++k) r &= v[k];
  return r != 0;
}

//@ Best: sel less beats
// The extreme value so far and its index: the first of equals, NaN before all.
template <class V, class I> struct Best {
  V value;
  I at;
};

//@ beats: less
// Does x come before y? It does unless it is at most (at least) that: a comparison with NaN is false.
template <bool Largest, class V> KILN_INLINE auto beats(V x, V y) {
  return as_mask((Largest ? at_most(x, y) : at_least(x, y)) == 0) & equals(y, y);
}

//@ take: Best
template <bool Largest, class V, class I, class M> KILN_INLINE void take(Best<V, I>& best, V x, I at, M real) {
  auto better = beats<Largest>(x, best.value) & real;
  best.value = sel(better, x, best.value);
  best.at = sel(better, at, best.at);
}

//@ best_lane: Best
template <bool Largest, class T, class V, class I> KILN_INLINE Best<T, i64> best_lane(Best<V, I> lanes) {
  Best<T, i64> best{(T)lanes.value[0], (i64)lanes.at[0]};
  for (int k = 1; k < W; ++k) {
    T x = lanes.value[k];
    i64 at = lanes.at[k];
    bool tie = (x == best.value || (x != x && best.value != best.value)) && at < best.at;
    if (beats<Largest>(x, best.value) || tie) best = {x, at};
  }
  return best;
}

//@ scan_lanes
// Lane by lane combined into `run`; each lane gets the value after it. In memory, where lanes are cheap to access.
template <class R, class V, class L, class F> KILN_INLINE V scan_lanes(V v, R& run, L lanes, F combine) {
  auto first = v[0];
  typedef decltype(first) T;
  T part[W];
  __builtin_memcpy(part, &v, sizeof v);
  R now = run;
  for (i64 k = 0; k < lanes.n; ++k) part[k] = (T)(now = combine(now, (R)part[k]));
  run = now;
  __builtin_memcpy(&v, part, sizeof v);
  return v;
}

//@ fill
template <class T> KILN_INLINE void fill(T* p, i64 count, T value) {
  for (i64 k = 0; k < count; ++k) p[k] = value;
}

//@ clear_row: write
// In whole vectors, including the last.
KILN_INLINE void clear_row(f32* row, i64 count) {
  for (i64 k = 0; k < count; k += W) write(row + k, f32v{}, full);
}

//@ add_row: read write
// A row of short chains is added to the row of their sums.
KILN_INLINE void add_row(f64* to, const f32* from, i64 count) {
  i64 k = 0;
  for (; k + W <= count; k += W)
    write(to + k, read(to + k, full) + __builtin_convertvector(read(from + k, full), f64v), full);
  for (; k < count; ++k) to[k] += (f64)from[k];
}

//@ scan_sum: keep lane_numbers
// Prefix sums on top of `run`, in 64 bits: in each register by doubling distances.
constexpr int scan_width = register_bytes / 8 < W ? register_bytes / 8 : W;
template <class T> struct scan_register {
  typedef T type __attribute__((vector_size(sizeof(T) * scan_width)));
};
template <int D, class R, int... K> KILN_INLINE R moved_up(R x, LaneNumbers<K...>) {
  return __builtin_shuffle(x, R{}, decltype(R{} == R{}){(K < D ? scan_width : K - D)...});
}
template <int D, class R> KILN_INLINE R scanned(R x) {
  if constexpr (D < scan_width) return scanned<2 * D>(x + moved_up<D>(x, lane_numbers<scan_width>::all));
  else return x;
}
// One addition after the other is that of a whole vector to `run`.
template <class T> KILN_INLINE vec<T> scan_on(vec<T> v, T& run) {
  constexpr int parts = W / scan_width, last = scan_width - 1;
  typename scan_register<T>::type part[parts];
  __builtin_memcpy(part, &v, sizeof v);
#pragma GCC unroll 4
  for (int k = 0; k < parts; ++k) part[k] = scanned<1>(part[k]);
#pragma GCC unroll 4
  for (int k = 1; k < parts; ++k) part[k] = part[k] + part[k - 1][last];
  T before = run;
  run += part[parts - 1][last];
#pragma GCC unroll 4
  for (int k = 0; k < parts; ++k) part[k] = part[k] + before;
  __builtin_memcpy(&v, part, sizeof v);
  return v;
}
template <class L> KILN_INLINE f32v scan_sum(f32v v, f64& run, L lanes) {
  v = keep(v, f32v{}, lanes);
  return __builtin_convertvector(scan_on<f64>(__builtin_convertvector(v, f64v), run), f32v);
}
template <class L> KILN_INLINE i64v scan_sum(i64v v, i64& run, L lanes) {
  return scan_on<i64>(keep(v, i64v{}, lanes), run);
}
