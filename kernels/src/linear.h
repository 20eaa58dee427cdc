// A linear layer in int8: y[rows, n] = x[rows, k] * W^T, with weights quantised per output channel and activations
// quantised per row and group of inputs.
//
// The result is the same, bit for bit, on every instruction set, and for a row whatever rows are beside it:
//   - an activation is q = round-to-nearest-even(x / s) with s = max|x| / 127 over its row and group;
//   - the products of a group are summed in int32, which is exact;
//   - then in float32, groups ascending: f = fma(float(sum of the group), s, f), from f = 0; y = f * scale[channel].
//
// The caller shares rows and blocks of channels out among threads: both functions write what they are asked for, and
// read nothing that another call writes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa.h"

namespace ekiden {

constexpr std::int64_t block_channels = 16;
constexpr std::int64_t largest_group = 512;

// int8 weights [n, k], packed for every instruction set in the same way.
struct Weights {
  const std::int8_t* values;  // [ceil(n / 16)][k / 4][16][4]: 16 channels x 4 inputs are 64 bytes; past n: 0
  const float* scales;        // [ceil(n / 16) * 16]
  const std::int32_t* sums;   // [ceil(n / 16)][k / group][16]: the sum of each group's values
  std::int64_t n, k, group;   // group divides k, is a multiple of 32 and at most 512
};

// Bytes of the workspace for the quantised activations of `rows` rows of k inputs.
std::size_t activation_bytes(Isa isa, std::int64_t rows, std::int64_t k, std::int64_t group);

// Quantises rows [first_row, last_row) of x (float32 [rows, k], rows `row_stride` floats apart) into `activations`.
// A group of zeros becomes zeros. A row that holds a NaN or an infinity makes that row's outputs NaN, and no other's.
void quantise(Isa isa, const float* x, std::int64_t row_stride, std::int64_t first_row, std::int64_t last_row,
              std::int64_t k, std::int64_t group, void* activations);

// Writes rows [first_row, last_row) of y (float32 [rows, n], rows `row_stride` floats apart), and in them the channels
// of blocks [first_block, last_block). `rows` is how many rows `activations` has room for. Nothing past channel n is
// written.
void multiply(Isa isa, const void* activations, std::int64_t rows, std::int64_t first_row, std::int64_t last_row,
              const Weights& weights, std::int64_t first_block, std::int64_t last_block, float* y,
              std::int64_t row_stride);

}  // namespace ekiden
