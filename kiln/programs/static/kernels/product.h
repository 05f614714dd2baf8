//@ read_lanes
// A vector of up to W numbers, zeros behind them.
static f32v read_lanes(const f32* from, i64 count) {
  f32v made = {};
  if (count >= W) __builtin_memcpy(&made, from, sizeof made);
  else __builtin_memcpy(&made, from, count * sizeof(f32));
  return made;
}

//@ write_lanes
static void write_lanes(f32* to, f32v value, i64 count) {
  if (count >= W) __builtin_memcpy(to, &value, sizeof value);
  else __builtin_memcpy(to, &value, count * sizeof(f32));
}

//@ tile
// Products of float32 matrices, by tiles that stay in registers. The right operand lies in panels of NR columns, row
// by row, with zeros behind the last column; the left operand and the result are read and written where they lie.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int MR = 12;
#else
constexpr int MR = 6;
#endif
constexpr int NV = 2, NR = NV * W;
constexpr i64 DEPTH_BLOCK = 512, ROW_BLOCK = 24 * MR;  // a block of the left operand stays in the second cache
constexpr i64 EXACT = 256;                             // numbers that one sum adds up: longer ones lose digits

struct Left {
  const f32* at;
  i64 row, col;
};
struct Result {
  f32* at;
  i64 row, col;
  f32 alpha;
  bool add;
};

// R rows and up to NR columns: result (+)= alpha * left * panel. Where `P`, the left operand is packed, R numbers for
// each step: rows whose distance is a power of two would share a few sets of the first cache.
template <int R, bool P>
__attribute__((noinline)) static void tile(Left a, const f32* panel, i64 depth, Result c, i64 columns) {
  constexpr int CHAINS = R >= 4 ? 1 : 4;  // few rows: independent sums hide the latency
  f32v sums[CHAINS][R][NV] = {};
  auto step = [&](i64 k, int chain) KILN_LAMBDA {
    f32v b[NV];  // loaded one by one: a copy of all would go through memory, and so would the sums with it
#pragma GCC unroll 2
    for (int v = 0; v < NV; ++v) b[v] = load(panel + k * NR + v * W, full);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      f32v x = all(P ? a.at[k * R + r] : a.at[r * a.row + k * a.col]);
#pragma GCC unroll 2
      for (int v = 0; v < NV; ++v) sums[chain][r][v] = mad(x, b[v], sums[chain][r][v]);
    }
  };
  if (P)
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) __builtin_prefetch(c.at + r * c.row, 1), __builtin_prefetch(c.at + r * c.row + W, 1);
  i64 k = 0;
  for (; k + CHAINS <= depth; k += CHAINS)
#pragma GCC unroll 4
    for (int chain = 0; chain < CHAINS; ++chain) step(k + chain, chain);
  for (; k < depth; ++k) step(k, 0);
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    f32v done[NV];
#pragma GCC unroll 2
    for (int v = 0; v < NV; ++v) {
      done[v] = sums[0][r][v];
#pragma GCC unroll 4
      for (int chain = 1; chain < CHAINS; ++chain) done[v] += sums[chain][r][v];
      done[v] *= c.alpha;
    }
    f32* to = c.at + r * c.row;
    if (columns >= NR && c.col == 1) {
#pragma GCC unroll 2
      for (int v = 0; v < NV; ++v) store(to + v * W, c.add ? done[v] + load(to + v * W, full) : done[v], full);
    } else {
      f32 row[NR];
#pragma GCC unroll 2
      for (int v = 0; v < NV; ++v) store(row + v * W, done[v], full);
      for (i64 j = 0; j < columns && j < NR; ++j) to[j * c.col] = c.add ? to[j * c.col] + row[j] : row[j];
    }
  }
}

//@ tiles: tile
template <int R, bool P> static void tiles(i64 rows, Left a, const f32* panel, i64 depth, Result c, i64 columns) {
  if (rows >= R) return tile<R, P>(a, panel, depth, c, columns);
  if constexpr (R > 1) tiles<R - 1, P>(rows, a, panel, depth, c, columns);
}

//@ product: tiles
// result (+)= alpha * left * right, where `panels` are those of the right operand. `packed` has room for a block of the
// left operand.
template <bool P>
static void product_of(i64 rows, i64 columns, i64 depth, Left a, const f32* panels, Result c, f32* packed) {
  for (i64 k = 0; k < depth || k == 0; k += DEPTH_BLOCK) {
    Result part = {c.at, c.row, c.col, c.alpha, c.add || k > 0};
    i64 deep = min(depth - k, DEPTH_BLOCK);
    for (i64 first = 0; first < rows; first += ROW_BLOCK) {
      i64 last = min(rows, first + ROW_BLOCK);
      if constexpr (P)
        for (i64 i = first; i < last; i += MR) {
          i64 count = min(last - i, MR);
          for (i64 r = 0; r < count; ++r)
            for (i64 at = 0; at < deep; ++at)
              packed[(i - first) * deep + at * count + r] = a.at[(i + r) * a.row + (k + at) * a.col];
        }
      for (i64 j = 0; j < columns; j += NR) {
        const f32* panel = panels + j * depth + k * NR;
        for (i64 i = first; i < last; i += MR)
          for (i64 at = 0; at < deep || at == 0; at += EXACT) {
            i64 skipped = P ? (i - first) * deep + at * min(last - i, MR) : i * a.row + (k + at) * a.col;
            Left from = {(P ? packed : a.at) + skipped, a.row, a.col};
            Result to = {part.at + i * part.row + j * part.col, part.row, part.col, part.alpha, part.add || at > 0};
            tiles<MR, P>(last - i, from, panel + at * NR, min(deep - at, EXACT), to, columns - j);
          }
      }
    }
  }
}
static void product(i64 rows, i64 columns, i64 depth, Left a, const f32* panels, Result c) {
  product_of<false>(rows, columns, depth, a, panels, c, nullptr);
}

//@ transpose
// W vectors of W numbers.
KILN_INLINE void transpose(f32v* rows) {
#pragma GCC unroll 4
  for (int half = W / 2; half; half /= 2) {
    i32v low, high;
    for (int l = 0; l < W; ++l) low[l] = l & half ? W + (l ^ half) : l, high[l] = l & half ? W + l : l ^ half;
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i)
      if (!(i & half)) {
        f32v a = rows[i], b = rows[i + half];
        rows[i] = __builtin_shuffle(a, b, low);
        rows[i + half] = __builtin_shuffle(a, b, high);
      }
  }
}

//@ pack: tile transpose
// The panels of a matrix of `depth` rows.
static void pack(const f32* b, i64 row, i64 col, i64 depth, i64 columns, f32* to) {
  for (i64 j = 0; j < columns; j += NR, b += NR * col, to += NR * depth) {
    i64 count = min(columns - j, NR), k = 0;
    if (row == 1 && count == NR)
      for (; k + W <= depth; k += W)
        for (int v = 0; v < NV; ++v) {
          f32v rows[W];
#pragma GCC unroll 16
          for (int i = 0; i < W; ++i) rows[i] = load(b + (v * W + i) * col + k, full);
          transpose(rows);
#pragma GCC unroll 16
          for (int i = 0; i < W; ++i) store(to + (k + i) * NR + v * W, rows[i], full);
        }
    if (col == 1 && count == NR)
      for (; k < depth; ++k)
#pragma GCC unroll 2
        for (int v = 0; v < NV; ++v) store(to + k * NR + v * W, load(b + k * row + v * W, full), full);
    for (; k < depth; ++k) {
      for (i64 i = 0; i < count; ++i) to[k * NR + i] = b[k * row + i * col];
      for (i64 i = count; i < NR; ++i) to[k * NR + i] = 0;
    }
  }
}

//@ thin: product pack transpose read_lanes
// Products of few rows, for which packing the right operand would cost more than they do: it is read once.
constexpr i64 FEW = 4;

// R rows and V vectors of columns that lie side by side: sums of short sums, which are more exact.
template <int R, int V> static void stripe(Left a, const f32* b, i64 row, i64 depth, Result c) {
  f32v sums[R][V] = {};
  for (i64 k = 0; k < depth;) {
    f32v part[R][V] = {};
    for (i64 end = min(depth, k + EXACT / 2); k < end; ++k) {
      f32v right[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) right[v] = load(b + k * row + v * W, full);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        f32v x = all(a.at[r * a.row + k * a.col]);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) part[r][v] = mad(x, right[v], part[r][v]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sums[r][v] += part[r][v];
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      f32* to = c.at + r * c.row + v * W * c.col;
      f32v made = sums[r][v] * c.alpha;
      if (c.col == 1) store(to, c.add ? made + load(to, full) : made, full);
      else
        for (int i = 0; i < W; ++i) to[i * c.col] = c.add ? to[i * c.col] + made[i] : made[i];
    }
}

template <int R, int V> static void few_rows(i64 rows, Left a, const f32* b, i64 row, i64 depth, Result c) {
  if (rows == R) return stripe<R, V>(a, b, row, depth, c);
  if constexpr (R > 1) few_rows<R - 1, V>(rows, a, b, row, depth, c);
}

// Stripes of V vectors, all rows for each, then narrower ones from column `j`. Returns how many columns are done.
template <int R, int V>
static i64 stripes(i64 rows, i64 columns, Left a, const f32* b, i64 row, i64 depth, Result c, i64 j = 0) {
  for (; j + V * W <= columns; j += V * W)
    for (i64 r = 0; r < rows; r += R) {
      Result to = {c.at + r * c.row + j * c.col, c.row, c.col, c.alpha, c.add};
      few_rows<R, V>(min(rows - r, R), {a.at + r * a.row, a.row, a.col}, b + j, row, depth, to);
    }
  if constexpr (V > 1) return stripes<R, V / 2>(rows, columns, a, b, row, depth, c, j);
  return j;
}

// A row by columns whose elements lie side by side, as those of the row do: W sums of vectors at a time.
static void dots(i64 columns, i64 depth, const f32* a, const f32* b, i64 col, f32* c, i64 step, f32 alpha, bool add) {
  for (i64 j = 0; j < columns; j += W) {
    i64 count = min(columns - j, W), k = 0;
    f32v sums[W] = {};
    auto at = [&](i64 i) KILN_LAMBDA { return b + (j + min(i, count - 1)) * col; };
    for (; k + W <= depth; k += W) {
      f32v x = load(a + k, full);
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i) sums[i] = mad(x, load(at(i) + k, full), sums[i]);
    }
    if (k < depth) {
      f32v x = read_lanes(a + k, depth - k);
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i) sums[i] = mad(x, read_lanes(at(i) + k, depth - k), sums[i]);
    }
    transpose(sums);
    f32v total = sums[0];
#pragma GCC unroll 16
    for (int i = 1; i < W; ++i) total += sums[i];
    for (i64 i = 0; i < count; ++i) {
      f32* to = c + (j + i) * step;
      *to = add ? *to + alpha * total[i] : alpha * total[i];
    }
  }
}

// Whether this is such a product. `scratch` has room for a panel.
static bool thin(i64 rows, i64 columns, i64 depth, Left a, const f32* b, i64 row, i64 col, Result c, f32* scratch) {
  if (col == 1 && rows <= 3 * FEW) {
    i64 j = rows == 1 ? stripes<1, 8>(1, columns, a, b, row, depth, c)
                      : stripes<FEW, 2>(rows, columns, a, b, row, depth, c);
    if (j == columns) return true;
    pack(b + j, row, 1, depth, columns - j, scratch);
    product(rows, columns - j, depth, a, scratch, {c.at + j * c.col, c.row, c.col, c.alpha, c.add});
    return true;
  }
  if (row != 1 || a.col != 1 || rows > FEW) return false;
  for (i64 r = 0; r < rows; ++r)
    dots(columns, depth, a.at + r * a.row, b, col, c.at + r * c.row, c.col, c.alpha, c.add);
  return true;
}

//@ products: product pack thin
struct Stack {
  const f32* at;
  i64 batch, row, col;
};
// A product for each of a batch, plus beta * `start` where that is given. Without `scratch`, `b` is packed already.
// `packed` has room for a block of the left operand, where packing it pays.
static void products(i64 batch, i64 rows, i64 columns, i64 depth, Stack a, Stack b, f32* c, i64 cb, i64 cr, i64 cc,
                     f32 alpha, f32 beta, Stack start, f32* scratch, f32* packed) {
  for (i64 n = 0; n < batch; ++n, c += cb) {
    if (start.at)
      for (i64 i = 0; i < rows; ++i)
        for (i64 j = 0; j < columns; ++j)
          c[i * cr + j * cc] = beta * start.at[n * start.batch + i * start.row + j * start.col];
    Left left = {a.at + n * a.batch, a.row, a.col};
    Result to = {c, cr, cc, alpha, start.at != nullptr};
    const f32* panels = b.at;
    if (scratch) {
      const f32* right = b.at + n * b.batch;
      if (thin(rows, columns, depth, left, right, b.row, b.col, to, scratch)) continue;
      if (n == 0 || b.batch) pack(right, b.row, b.col, depth, columns, scratch);
      panels = scratch;
    }
    if (packed && rows > MR && columns > 4 * NR) product_of<true>(rows, columns, depth, left, panels, to, packed);
    else product(rows, columns, depth, left, panels, to);
  }
}
