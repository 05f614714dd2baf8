//@ lstm: products read_lanes write_lanes
// An LSTM layer in one direction. The weights lie in panels, with a column for each of the four gates of each cell;
// `scratch` holds the gates and the cells of a step.
static void lstm(i64 steps, i64 rows, i64 width, i64 hidden, bool backwards, Stack x, Stack y, const f32* from_input,
                 const f32* from_hidden, const f32* bias_x, const f32* bias_h, const f32* h, const f32* c0, f32* last,
                 f32* last_cells, f32* scratch) {
  f32 *const gates = scratch, *const cells = scratch + 4 * rows * hidden;
  i64 h_row = hidden, h_col = 1;
  for (i64 i = 0; i < rows * hidden; ++i) cells[i] = c0[i];
  for (i64 k = 0; k < steps; ++k) {
    i64 t = backwards ? steps - 1 - k : k;
    f32* to = (f32*)y.at + t * y.batch;
    for (i64 i = 0; i < rows; ++i)
      for (i64 j = 0; j < 4 * hidden; ++j) gates[i * 4 * hidden + j] = bias_x[j] + bias_h[j];
    Result sum = {gates, 4 * hidden, 1, 1, true};
    product(rows, 4 * hidden, width, {x.at + t * x.batch, x.row, x.col}, from_input, sum);
    product(rows, 4 * hidden, hidden, {h, h_row, h_col}, from_hidden, sum);
    for (i64 i = 0; i < rows; ++i)
      for (i64 j = 0; j < hidden; j += W) {
        i64 count = hidden - j;
        f32* cell = cells + i * hidden + j;
        f32v gate[4];
        for (i64 g = 0; g < 4; ++g) gate[g] = read_lanes(gates + (4 * i + g) * hidden + j, count);
        f32v c = sigmoid(gate[1]) * read_lanes(cell, count) + sigmoid(gate[0]) * tanh(gate[2]);
        f32v made = sigmoid(gate[3]) * tanh(c);
        write_lanes(cell, c, count);
        for (i64 n = 0; n < W && j + n < hidden; ++n) to[i * y.row + (j + n) * y.col] = made[n];
      }
    h = to, h_row = y.row, h_col = y.col;
  }
  for (i64 i = 0; i < rows * hidden; ++i) {
    if (last) last[i] = h[i / hidden * h_row + i % hidden * h_col];
    if (last_cells) last_cells[i] = cells[i];
  }
}
