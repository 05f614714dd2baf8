//@ Windows
// Images and the windows that slide over them: batch, channels, height and width with their distances in memory.
struct Image {
  i64 batch, channels, height, width, to_batch, to_channel, to_row, to_col;
};
struct Windows {
  i64 height, width, stride_y, stride_x, pad_y, pad_x, step_y, step_x;
};

//@ window_panel: Windows tile
// The panel of `count` windows from number `first` on: a row for each channel and place in the window.
static void window_panel(const Image& in, const f32* x, i64 channels, const Windows& w, i64 across, i64 first,
                         i64 count, f32* to) {
  i64 top[NR], left[NR];
  for (i64 i = 0; i < NR; ++i) {
    i64 at = first + (i < count ? i : 0);
    top[i] = at / across * w.stride_y - w.pad_y;
    left[i] = at % across * w.stride_x - w.pad_x;
  }
  // All windows in one row, side by side: rows of the panel are pieces of rows of the image.
  bool together = count == NR && top[0] == top[NR - 1] && w.stride_x == 1 && in.to_col == 1;
  for (i64 c = 0; c < channels; ++c)
    for (i64 dy = 0; dy < w.height; ++dy)
      for (i64 dx = 0; dx < w.width; ++dx, to += NR) {
        const f32* plane = x + c * in.to_channel;
        i64 shift_y = dy * w.step_y, shift_x = dx * w.step_x, y = top[0] + shift_y, z = left[0] + shift_x;
        if (together && y >= 0 && y < in.height && z >= 0 && z + NR <= in.width) {
          __builtin_memcpy(to, plane + y * in.to_row + z, NR * sizeof(f32));
          continue;
        }
        for (i64 i = 0; i < NR; ++i) {
          i64 at_y = top[i] + shift_y, at_x = left[i] + shift_x;
          bool inside = i < count && (u64)at_y < (u64)in.height && (u64)at_x < (u64)in.width;
          to[i] = inside ? plane[at_y * in.to_row + at_x * in.to_col] : 0;
        }
      }
}

//@ convolve: window_panel product
// weight[out, in / groups, height, width] is contiguous, and so are the rows and columns of a channel of `out`.
// `scratch` holds one panel.
static void convolve(const Image& in, const f32* x, const Windows& w, const f32* weight, const f32* bias, i64 groups,
                     const Image& out, f32* y, f32* scratch) {
  i64 channels = in.channels / groups, made = out.channels / groups, pixels = out.height * out.width;
  i64 depth = channels * w.height * w.width;
  for (i64 n = 0; n < in.batch; ++n)
    for (i64 g = 0; g < groups; ++g)
      for (i64 j = 0; j < pixels; j += NR) {
        i64 count = min(pixels - j, NR);
        const f32* from = x + n * in.to_batch + g * channels * in.to_channel;
        window_panel(in, from, channels, w, out.width, j, count, scratch);
        f32* to = y + n * out.to_batch + g * made * out.to_channel + j * out.to_col;
        if (bias)
          for (i64 o = 0; o < made; ++o)
            for (i64 i = 0; i < count; ++i) to[o * out.to_channel + i * out.to_col] = bias[g * made + o];
        Result c = {to, out.to_channel, out.to_col, 1, bias != nullptr};
        product(made, count, depth, {weight + g * made * depth, depth, 1}, scratch, c);
      }
}

//@ inside: Windows
// The first channel of a pixel under the window of row i and column j, nullptr outside of the image.
KILN_INLINE const f32* inside(const Image& in, const f32* x, const Windows& w, i64 i, i64 j, i64 dy, i64 dx) {
  i64 at_y = i * w.stride_y - w.pad_y + dy * w.step_y, at_x = j * w.stride_x - w.pad_x + dx * w.step_x;
  bool is_inside = (u64)at_y < (u64)in.height && (u64)at_x < (u64)in.width;
  return is_inside ? x + at_y * in.to_row + at_x * in.to_col : nullptr;
}

//@ convolve_channels: inside product
// Channels of a pixel lie side by side. `panels` has a row for each place in the window and channel of `in`; `scratch`
// holds a row for each of the pixels that are computed at a time.
static void convolve_channels(const Image& in, const f32* x, const Windows& w, const f32* panels, const f32* bias,
                              const Image& out, f32* y, f32* scratch, i64 at_a_time) {
  i64 depth = in.channels * w.height * w.width, pixels = out.height * out.width;
  bool as_is = w.height * w.width * w.stride_y * w.stride_x == 1 && !w.pad_y && !w.pad_x &&
               in.to_row == in.width * in.to_col;
  for (i64 n = 0; n < in.batch; ++n)
    for (i64 first = 0; first < pixels; first += at_a_time) {
      i64 count = min(pixels - first, at_a_time);
      const f32* image = x + n * in.to_batch;
      Left rows = {image + first * in.to_col, in.to_col, 1};
      if (!as_is) {
        rows = {scratch, depth, 1};
        f32* row = scratch;
        for (i64 i = first; i < first + count; ++i)
          for (i64 dy = 0; dy < w.height; ++dy)
            for (i64 dx = 0; dx < w.width; ++dx, row += in.channels) {
              const f32* from = inside(in, image, w, i / out.width, i % out.width, dy, dx);
              if (from) __builtin_memcpy(row, from, in.channels * sizeof(f32));
              else __builtin_memset(row, 0, in.channels * sizeof(f32));
            }
      }
      f32* to = y + n * out.to_batch + first * out.to_col;
      if (bias)
        for (i64 i = 0; i < count; ++i) __builtin_memcpy(to + i * out.to_col, bias, out.channels * sizeof(f32));
      product(count, out.channels, depth, rows, panels, {to, out.to_col, 1, 1, bias != nullptr});
    }
}

//@ convolve_depthwise: inside read_lanes write_lanes
// Each channel on its own; the channels of a pixel lie side by side, and so do those of a place in `weight`.
static void convolve_depthwise(const Image& in, const f32* x, const Windows& w, const f32* weight, const f32* bias,
                               const Image& out, f32* y) {
  for (i64 n = 0; n < in.batch; ++n)
    for (i64 pixel = 0; pixel < out.height * out.width; ++pixel) {
      i64 i = pixel / out.width, j = pixel % out.width;
      for (i64 c = 0; c < out.channels; c += W) {
        i64 count = out.channels - c;
        f32v sum = {};
        if (bias) sum = read_lanes(bias + c, count);
        const f32* place = weight + c;
        for (i64 dy = 0; dy < w.height; ++dy)
          for (i64 dx = 0; dx < w.width; ++dx, place += out.channels) {
            const f32* from = inside(in, x + n * in.to_batch, w, i, j, dy, dx);
            if (from) sum = mad(read_lanes(from + c, count), read_lanes(place, count), sum);
          }
        write_lanes(y + n * out.to_batch + pixel * out.to_col + c, sum, count);
      }
    }
}

//@ convolve_transposed: Windows product pack
// weight[in, out / groups, height, width] is contiguous. Each pixel of `in` times the weights is added to a window of
// `out`; `scratch` holds the panel of some pixels and a row of products for each channel and place in the window.
static void convolve_transposed(const Image& in, const f32* x, const Windows& w, const f32* weight, const f32* bias,
                                i64 groups, const Image& out, f32* y, f32* scratch) {
  i64 channels = in.channels / groups, made = out.channels / groups, rows = made * w.height * w.width;
  f32* const products = scratch + channels * NR;
  for (i64 n = 0; n < out.batch; ++n)
    for (i64 o = 0; o < out.channels; ++o)
      for (i64 i = 0; i < out.height * out.width; ++i)
        y[n * out.to_batch + o * out.to_channel + i * out.to_col] = bias ? bias[o] : 0;
  for (i64 n = 0; n < in.batch; ++n)
    for (i64 g = 0; g < groups; ++g)
      for (i64 line = 0; line < in.height; ++line)
        for (i64 first = 0; first < in.width; first += NR) {
          i64 count = min(in.width - first, NR);
          const f32* from = x + n * in.to_batch + g * channels * in.to_channel + line * in.to_row + first * in.to_col;
          pack(from, in.to_channel, in.to_col, channels, count, scratch);
          Result c = {products, NR, 1, 1, false};
          product(rows, count, channels, {weight + g * channels * rows, 1, rows}, scratch, c);
          const f32* row = products;
          for (i64 o = 0; o < made; ++o)
            for (i64 dy = 0; dy < w.height; ++dy)
              for (i64 dx = 0; dx < w.width; ++dx, row += NR) {
                i64 at_y = line * w.stride_y - w.pad_y + dy * w.step_y;
                if ((u64)at_y >= (u64)out.height) continue;
                f32* to = y + n * out.to_batch + (g * made + o) * out.to_channel + at_y * out.width * out.to_col;
                for (i64 i = 0; i < count; ++i) {
                  i64 at_x = (first + i) * w.stride_x - w.pad_x + dx * w.step_x;
                  if ((u64)at_x < (u64)out.width) to[at_x * out.to_col] += row[i];
                }
              }
        }
}

//@ max_pool: Windows
// The largest of each window, a NaN if there is one, and where it lies in its plane if `places` is given.
static void max_pool(const Image& in, const f32* x, const Windows& w, const Image& out, f32* y, i64* places) {
  for (i64 n = 0; n < out.batch; ++n)
    for (i64 c = 0; c < out.channels; ++c)
      for (i64 i = 0; i < out.height; ++i)
        for (i64 j = 0; j < out.width; ++j) {
          const f32* plane = x + n * in.to_batch + c * in.to_channel;
          f32 best = -__builtin_inff();
          i64 place = -1;
          for (i64 dy = 0; dy < w.height; ++dy)
            for (i64 dx = 0; dx < w.width; ++dx) {
              i64 at_y = i * w.stride_y - w.pad_y + dy * w.step_y, at_x = j * w.stride_x - w.pad_x + dx * w.step_x;
              if ((u64)at_y >= (u64)in.height || (u64)at_x >= (u64)in.width) continue;
              f32 value = plane[at_y * in.to_row + at_x * in.to_col];
              if (place < 0 || value > best || value != value) best = value, place = at_y * in.width + at_x;
            }
          i64 to = n * out.to_batch + c * out.to_channel + i * out.to_row + j * out.to_col;
          y[to] = best;
          if (places) places[to] = place;
        }
}

//@ copy_elements
// Elements of `size` bytes from one layout to another; distances in elements.
static void copy_elements(u8* to, const i64* to_strides, const u8* from, const i64* from_strides, const i64* sizes,
                          int rank, i64 size) {
  if (rank == 0) {
    __builtin_memcpy(to, from, size);
    return;
  }
  for (i64 i = 0; i < sizes[0]; ++i)
    copy_elements(to + i * to_strides[0] * size, to_strides + 1, from + i * from_strides[0] * size, from_strides + 1,
                  sizes + 1, rank - 1, size);
}

//@ widen
// Of bfloat16 numbers.
static void widen(const u16* from, i64 count, f32* to) {
  for (i64 i = 0; i < count; ++i) {
    u32 bits = (u32)from[i] << 16;
    __builtin_memcpy(to + i, &bits, 4);
  }
}

//@ narrow
// To the nearest bfloat16 number, of two the even one.
static void narrow(const f32* from, i64 count, u16* to) {
  for (i64 i = 0; i < count; ++i) {
    u32 bits;
    __builtin_memcpy(&bits, from + i, 4);
    to[i] = from[i] != from[i] ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  }
}
