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
constexpr i64 DEPTH_BLOCK = 256, ROW_BLOCK = 8 * MR;  // a block of the left operand stays in the second cache

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

// R rows and up to NR columns: result (+)= alpha * left * panel.
template <int R> __attribute__((noinline)) static void tile(Left a, const f32* panel, i64 depth, Result c, i64 columns) {
  constexpr int CHAINS = R >= 4 ? 1 : 4;  // few rows: independent sums hide the latency
  f32v sums[CHAINS][R][NV] = {};
  auto step = [&](i64 k, int chain) KILN_LAMBDA {
    f32v b[NV];  // loaded one by one: a copy of all would go through memory, and so would the sums with it
#pragma GCC unroll 2
    for (int v = 0; v < NV; ++v) b[v] = load(panel + k * NR + v * W, full);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      f32v x = all(a.at[r * a.row + k * a.col]);
#pragma GCC unroll 2
      for (int v = 0; v < NV; ++v) sums[chain][r][v] = mad(x, b[v], sums[chain][r][v]);
    }
  };
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
template <int R> static void tiles(i64 rows, Left a, const f32* panel, i64 depth, Result c, i64 columns) {
  if (rows >= R) return tile<R>(a, panel, depth, c, columns);
  if constexpr (R > 1) tiles<R - 1>(rows, a, panel, depth, c, columns);
}

//@ product: tiles
// result (+)= alpha * left * right, where `panels` are those of the right operand.
static void product(i64 rows, i64 columns, i64 depth, Left a, const f32* panels, Result c) {
  for (i64 k = 0; k < depth || k == 0; k += DEPTH_BLOCK) {
    Result part = {c.at, c.row, c.col, c.alpha, c.add || k > 0};
    i64 deep = min(depth - k, DEPTH_BLOCK);
    for (i64 first = 0; first < rows; first += ROW_BLOCK) {
      i64 last = min(rows, first + ROW_BLOCK);
      for (i64 j = 0; j < columns; j += NR) {
        const f32* panel = panels + j * depth + k * NR;
        for (i64 i = first; i < last; i += MR) {
          Left from = {a.at + i * a.row + k * a.col, a.row, a.col};
          Result to = {part.at + i * part.row + j * part.col, part.row, part.col, part.alpha, part.add};
          tiles<MR>(last - i, from, panel, deep, to, columns - j);
        }
      }
    }
  }
}

//@ pack: tile
// The panels of a matrix of `depth` rows.
static void pack(const f32* b, i64 row, i64 col, i64 depth, i64 columns, f32* to) {
  for (i64 j = 0; j < columns; j += NR, b += NR * col, to += NR * depth) {
    i64 count = min(columns - j, NR);
    for (i64 k = 0; k < depth; ++k) {
      for (i64 i = 0; i < count; ++i) to[k * NR + i] = b[k * row + i * col];
      for (i64 i = count; i < NR; ++i) to[k * NR + i] = 0;
    }
  }
}

//@ products: product pack
struct Stack {
  const f32* at;
  i64 batch, row, col;
};
// A product for each of a batch, plus beta * `start` where that is given. Without `scratch`, `b` is packed already.
static void products(i64 batch, i64 rows, i64 columns, i64 depth, Stack a, Stack b, f32* c, i64 cb, i64 cr, i64 cc,
                     f32 alpha, f32 beta, Stack start, f32* scratch) {
  for (i64 n = 0; n < batch; ++n, c += cb) {
    if (start.at)
      for (i64 i = 0; i < rows; ++i)
        for (i64 j = 0; j < columns; ++j)
          c[i * cr + j * cc] = beta * start.at[n * start.batch + i * start.row + j * start.col];
    const f32* panels = b.at;
    if (scratch) {
      if (n == 0 || b.batch) pack(b.at + n * b.batch, b.row, b.col, depth, columns, scratch);
      panels = scratch;
    }
    product(rows, columns, depth, {a.at + n * a.batch, a.row, a.col}, panels, {c, cr, cc, alpha, start.at != nullptr});
  }
}
