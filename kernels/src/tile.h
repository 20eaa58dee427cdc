// The integer product, as a template over an instruction set's vectors.
//
// A tile is R rows x C vectors of output channels, whose sums stay in registers while the inputs of a group go by: four
// inputs of a row are broadcast, and meet four inputs of each channel. A `Vectors` has:
//   Value            one quantised activation as it is stored
//   channels         output channels of a vector: 8 or 16
//   largest_rows     rows of the tallest tile
//   vectors(rows)    C for a tile of so many rows
//   Sum, Float       int32 sums, and float32 values, of those channels
//   start(sums)      the Sum to start from, given the sums of the group's weights
//   weights(at)      four inputs x `channels` weights
//   inputs(at)       four activations, broadcast
//   dot(sum, x, w)   sum + the products
//   add(f, sum, s)   fma(float(sum), s, f)
//   store(y, f, scales), store_some(y, f, scales, count)   f * scale, of all channels or the first `count`
//
// Include it in one translation unit per instruction set, with a `Vectors` from an unnamed namespace: nothing made of it
// is then shared with code that is compiled for other instructions.
#pragma once

#include "backend.h"

namespace ekiden {

// What a tile reads and writes.
struct TilePlace {
  const unsigned char* activations;  // its first row
  std::int64_t activation_bytes;     // from one row to the next
  const std::int8_t* values;         // its first channel
  const std::int32_t* sums;
  const float* scales;
  float* y;
  std::int64_t y_stride;
  std::int64_t k, group;
  std::int64_t channels;  // how many are left in y
};

template <class V, int R, int C>
void tile(const TilePlace& place) {
  const std::int64_t groups = place.k / place.group;
  const std::int64_t block_bytes = block_channels * place.k;
  typename V::Float total[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) total[r][c] = V::zero();
  }
  const unsigned char* row[R];
  const float* activation_scales[R];
  for (int r = 0; r < R; ++r) {
    row[r] = place.activations + r * place.activation_bytes;
    activation_scales[r] = reinterpret_cast<const float*>(row[r] + place.k * sizeof(typename V::Value));
  }
  const std::int8_t* values = place.values;
  for (std::int64_t g = 0; g < groups; ++g) {
    typename V::Sum sum[R][C];
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
      const int channel = c * V::channels;
      const auto start = V::start(place.sums + (channel / block_channels * groups + g) * block_channels +
                                  channel % block_channels);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) sum[r][c] = start;
    }
    for (std::int64_t i = g * place.group; i < (g + 1) * place.group; i += 4) {
      typename V::Weights w[C];
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) {
        const int channel = c * V::channels;
        w[c] = V::weights(values + channel / block_channels * block_bytes + channel % block_channels * 4);
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const auto x = V::inputs(row[r] + i * static_cast<std::int64_t>(sizeof(typename V::Value)));
#pragma GCC unroll 16
        for (int c = 0; c < C; ++c) sum[r][c] = V::dot(sum[r][c], x, w[c]);
      }
      values += block_channels * 4;
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) total[r][c] = V::add(total[r][c], sum[r][c], activation_scales[r][g]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      const std::int64_t left = place.channels - c * V::channels;
      float* y = place.y + r * place.y_stride + c * V::channels;
      const float* scales = place.scales + c * V::channels;
      if (left >= V::channels) {
        V::store(y, total[r][c], scales);
      } else if (left > 0) {
        V::store_some(y, total[r][c], scales, left);
      }
    }
  }
}

// R rows of one span of channels: a block, or as many blocks as a tile is wide.
template <class V, int R>
void span(TilePlace place, std::int64_t channels) {
  constexpr int vectors = V::vectors(R);
  constexpr std::int64_t width = vectors * V::channels;
  if constexpr (width > block_channels) {
    if (channels < width) return tile<V, R, block_channels / V::channels>(place);  // the last, odd block
  }
  for (std::int64_t channel = 0; channel < channels; channel += width) {
    tile<V, R, vectors>(place);
    place.values += width * 4;
    place.sums += width;
    place.scales += width;
    place.y += width;
    place.channels -= width;
  }
}

template <class V, int R = V::largest_rows>
void span_of_rows(const TilePlace& place, std::int64_t rows, std::int64_t channels) {
  if (rows == R) return span<V, R>(place, channels);
  if constexpr (R > 1) span_of_rows<V, R - 1>(place, rows, channels);
}

template <class V>
void multiply(const void* activations, std::int64_t first_row, std::int64_t last_row, const Weights& weights,
              std::int64_t first_block, std::int64_t last_block, float* y, std::int64_t row_stride) {
  constexpr std::int64_t widest = V::vectors(V::largest_rows) * V::channels;
  constexpr std::int64_t span_blocks = widest > block_channels ? widest / block_channels : 1;
  const std::int64_t activation_bytes = activation_row_bytes(sizeof(typename V::Value), weights.k, weights.group);
  const std::int64_t groups = weights.k / weights.group;
  const std::int64_t rows = last_row - first_row;
  const std::int64_t tiles = (rows + V::largest_rows - 1) / V::largest_rows;
  for (std::int64_t block = first_block; block < last_block; block += span_blocks) {
    const std::int64_t blocks = last_block - block < span_blocks ? last_block - block : span_blocks;
    for (std::int64_t t = 0; t < tiles; ++t) {  // of as equal heights as can be
      const std::int64_t begin = first_row + rows * t / tiles;
      const std::int64_t end = first_row + rows * (t + 1) / tiles;
      const std::int64_t channel = block * block_channels;
      const TilePlace place{static_cast<const unsigned char*>(activations) + begin * activation_bytes,
                            activation_bytes,
                            weights.values + channel * weights.k,
                            weights.sums + channel * groups,
                            weights.scales + channel,
                            y + begin * row_stride + channel,
                            row_stride,
                            weights.k,
                            weights.group,
                            weights.n - channel};
      span_of_rows<V>(place, end - begin, blocks * block_channels);
    }
  }
}

}  // namespace ekiden
