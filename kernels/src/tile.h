// The integer product, as a template over an instruction set's vectors.
//
// A tile is some rows x some vectors of output channels, whose sums stay in registers while the inputs of a group go
// by: four inputs of a row are broadcast, and meet four inputs of each channel. A `Vectors` has:
//   Value          one quantised activation as it is stored
//   channels       output channels of a vector: 8 or 16
//   vectors        of a tile
//   largest_rows   rows of the tallest tile
//   Sum, Float     int32 sums, and float32 values, of those channels
//   zero()         a Float
//   start(sums)    the Sum to start a group from, given the sums of its weights
//   weights(at)    four inputs of each channel
//   inputs(at)     four activations, broadcast
//   dot(sum, x, w)                     sum + the products
//   add(f, sum, s)                     fma(float(sum), s, f)
//   store(y, f, scales)                f * scale, of all channels of a vector
//   store_some(y, f, scales, count)    or of the first `count`
//
// Include it in one translation unit per instruction set, with a `Vectors` from an unnamed namespace: nothing made of
// it is then shared with code that is compiled for other instructions.
#pragma once

#include "backend.h"

namespace ekiden {

// The cache that weights are fetched into ahead of their use, as __builtin_prefetch has it. The first would lose what the
// tile is using: with it, passes of 4 to 12 rows took up to 1.6 times as long (AVX-512).
constexpr int second_level = 2;

// Activations that a second-level cache has room for beside weights: so many rows meet a block one after another.
constexpr std::int64_t chunk_bytes = 1 << 18;

// What a tile reads and writes.
struct TilePlace {
  const unsigned char* activations;  // its first row
  std::int64_t activation_bytes;     // from one row to the next
  const std::int8_t* values;         // its first channel
  const std::int8_t* ahead;          // weights of the next blocks to be fetched meanwhile, for each block of the tile,
  std::int64_t ahead_stride;         // and from one four of inputs to the next
  const std::int32_t* sums;
  const float* scales;
  float* y;
  std::int64_t y_stride;
  std::int64_t k, group;
  std::int64_t channels;  // how many are left in y
};

// Where in its block, and in which block, vector c of a tile begins.
template <class V>
constexpr std::int64_t block_of(int c) {
  return c * V::channels / block_channels;
}
template <class V>
constexpr std::int64_t within_block(int c) {
  return c * V::channels % block_channels;
}

template <class V, int R, int C>
void tile(const TilePlace& place) {
  const std::int64_t groups = place.k / place.group;
  const typename V::Value* row[R];
  const float* activation_scales[R];
  typename V::Float total[R][C];
  for (int r = 0; r < R; ++r) {
    row[r] = reinterpret_cast<const typename V::Value*>(place.activations + r * place.activation_bytes);
    activation_scales[r] = reinterpret_cast<const float*>(row[r] + place.k);
    for (int c = 0; c < C; ++c) total[r][c] = V::zero();
  }
  const std::int8_t* values = place.values;
  const std::int8_t* ahead = place.ahead;
  for (std::int64_t g = 0; g < groups; ++g) {
    typename V::Sum sum[R][C];
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
      const auto start = V::start(place.sums + (block_of<V>(c) * groups + g) * block_channels + within_block<V>(c));
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) sum[r][c] = start;
    }
    for (std::int64_t i = g * place.group; i < (g + 1) * place.group; i += 4) {
      typename V::Weights w[C];
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) {
        const std::int8_t* at = values + block_of<V>(c) * block_channels * place.k + within_block<V>(c) * 4;
        if (within_block<V>(c) == 0) {
          __builtin_prefetch(ahead + block_of<V>(c) * block_channels * place.k, 0, second_level);
        }
        w[c] = V::weights(at);
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const auto x = V::inputs(row[r] + i);
#pragma GCC unroll 16
        for (int c = 0; c < C; ++c) sum[r][c] = V::dot(sum[r][c], x, w[c]);
      }
      values += block_channels * 4;
      ahead += place.ahead_stride;
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

// A tile of `rows` rows over so many vectors as `blocks` have.
template <class V, int R = V::largest_rows>
void tile_of(std::int64_t rows, std::int64_t blocks, const TilePlace& place) {
  if (rows == R) {
    constexpr int of_block = block_channels / V::channels;
    if constexpr (V::vectors > of_block) {
      if (blocks == 1) return tile<V, R, of_block>(place);  // an odd block is left over
    }
    return tile<V, R, V::vectors>(place);
  }
  if constexpr (R > 1) tile_of<V, R - 1>(rows, blocks, place);
}

template <class V>
void multiply(const void* activations, std::int64_t first_row, std::int64_t last_row, const Weights& weights,
              std::int64_t first_block, std::int64_t last_block, float* y, std::int64_t row_stride) {
  constexpr std::int64_t blocks_of_tile = V::vectors * V::channels / block_channels;
  const std::int64_t bytes = activation_row_bytes(sizeof(typename V::Value), weights.k, weights.group);
  const std::int64_t block_bytes = block_channels * weights.k;
  const std::int64_t rows = last_row - first_row;
  const std::int64_t tiles = (rows + V::largest_rows - 1) / V::largest_rows;
  const std::int64_t tiles_of_chunk = 1 + chunk_bytes / (bytes * V::largest_rows);
  for (std::int64_t chunk = 0; chunk < tiles; chunk += tiles_of_chunk) {
    const std::int64_t chunk_end = tiles - chunk < tiles_of_chunk ? tiles : chunk + tiles_of_chunk;
    for (std::int64_t block = first_block; block < last_block; block += blocks_of_tile) {
      const std::int64_t channel = block * block_channels;
      TilePlace place;
      place.activation_bytes = bytes;
      place.values = weights.values + block * block_bytes;
      place.sums = weights.sums + channel * (weights.k / weights.group);
      place.scales = weights.scales + channel;
      place.y_stride = row_stride;
      place.k = weights.k;
      place.group = weights.group;
      place.channels = weights.n - channel;
      // Tiles that use a block one after another fetch a part each of what comes next, so that memory never waits.
      place.ahead_stride = (64 + chunk_end - chunk - 1) / (chunk_end - chunk);
      for (std::int64_t t = chunk; t < chunk_end; ++t) {
        // As equally tall as can be: a tile costs what a taller one costs, but for its rows.
        const std::int64_t begin = first_row + rows * t / tiles, end = first_row + rows * (t + 1) / tiles;
        const std::int64_t part = block_bytes * (t - chunk) / (chunk_end - chunk);
        place.activations = static_cast<const unsigned char*>(activations) + begin * bytes;
        place.y = y + begin * row_stride + channel;
        place.ahead = place.values + blocks_of_tile * block_bytes + part;
        tile_of<V>(end - begin, last_block - block, place);
      }
    }
  }
}

}  // namespace ekiden
