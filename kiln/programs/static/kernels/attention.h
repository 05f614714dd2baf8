//@ attend: product pack thin
// Softmax(scale * queries * keys + mask) * values, for blocks of rows of queries. Distances of the four dimensions:
// batch, head, row, element.
struct Heads {
  f32* at;
  i64 batch, head, row, col;
};
constexpr i64 QUERY_ROWS = 24;

KILN_INLINE void softmax_row(f32* row, i64 count, i64 seen) {
  f32 most = -__builtin_inff(), sum = 0;
  bool nan = false;
  for (i64 i = 0; i < seen; ++i) {
    most = row[i] > most ? row[i] : most;
    nan |= row[i] != row[i];
  }
  // A row that sees nothing is 0, as eager has it.
  f32 less = most == -__builtin_inff() && !nan ? 0 : most;
  i64 i = 0;
  f32v sums = {};
  for (; i + W <= seen; i += W) {
    f32v e = exp(load(row + i, full) - less);
    sums += e;
    store(row + i, e, full);
  }
  for (; i < seen; ++i) sum += row[i] = exp(row[i] - less);
  for (int lane = 0; lane < W; ++lane) sum += sums[lane];
  f32 share = sum == 0 ? 0 : 1 / sum;
  for (i = 0; i < seen; ++i) row[i] *= share;
  for (i = seen; i < count; ++i) row[i] = 0;
}

// `scratch` holds the panels of keys and values, then QUERY_ROWS rows of scores.
static void attend(i64 batch, i64 heads, i64 shared, i64 queries, i64 keys, i64 width, i64 out_width, Heads q, Heads k,
                   Heads v, Heads mask, Heads out, f32 scale, bool causal, f32* scratch) {
  f32* key_panels = scratch;
  f32* value_panels = key_panels + (keys + NR - 1) / NR * NR * width;
  f32* scores = value_panels + (out_width + NR - 1) / NR * NR * keys;
  for (i64 n = 0; n < batch; ++n)
    for (i64 h = 0; h < heads; ++h) {
      i64 kv = h / shared;
      const f32 *key = k.at + n * k.batch + kv * k.head, *value = v.at + n * v.batch + kv * v.head;
      if (queries > FEW) {
        pack(key, k.col, k.row, width, keys, key_panels);
        pack(value, v.row, v.col, keys, out_width, value_panels);
      }
      for (i64 t = 0; t < queries; t += QUERY_ROWS) {
        i64 rows = min(queries - t, QUERY_ROWS);
        const f32* from = q.at + n * q.batch + h * q.head + t * q.row;
        Left query = {from, q.row, q.col};
        Result score = {scores, keys, 1, scale, false};
        if (queries > FEW || !thin(rows, keys, width, query, key, k.col, k.row, score, key_panels)) {
          if (queries <= FEW) pack(key, k.col, k.row, width, keys, key_panels);
          product(rows, keys, width, query, key_panels, score);
        }
        for (i64 r = 0; r < rows; ++r) {
          f32* row = scores + r * keys;
          const f32* add = mask.at + n * mask.batch + h * mask.head + (t + r) * mask.row;
          if (mask.at)
            for (i64 i = 0; i < keys; ++i) row[i] += add[i * mask.col];
          softmax_row(row, keys, causal ? min(keys, t + r + 1) : keys);
        }
        f32* to = out.at + n * out.batch + h * out.head + t * out.row;
        Left share = {scores, keys, 1};
        Result made = {to, out.row, out.col, 1, false};
        if (queries > FEW || !thin(rows, out_width, keys, share, value, v.row, v.col, made, value_panels)) {
          if (queries <= FEW) pack(value, v.row, v.col, keys, out_width, value_panels);
          product(rows, out_width, keys, share, value_panels, made);
        }
      }
    }
}
