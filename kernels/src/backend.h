// One instruction set's kernels, and how they store quantised activations. Private to the library.
#pragma once

#include <cstddef>
#include <cstdint>

#include "linear.h"

namespace ekiden {

struct Backend {
  std::int64_t value_bytes;  // of one quantised activation
  void (*quantise)(const float* x, std::int64_t row_stride, std::int64_t first_row, std::int64_t last_row,
                   std::int64_t k, std::int64_t group, void* activations);
  void (*multiply)(const void* activations, std::int64_t first_row, std::int64_t last_row, const Weights& weights,
                   std::int64_t first_block, std::int64_t last_block, float* y, std::int64_t row_stride);
  void (*rms_norm)(const float* x, std::int64_t k, float epsilon, const float* weight, float* out);
  void (*gate)(const float* gate, const float* up, std::int64_t n, float* out);
};

// Each in a file of its own, compiled for its instructions; null in a build without them.
extern const Backend* const portable_backend;
extern const Backend* const avx2_backend;
extern const Backend* const avx2_vnni_backend;
extern const Backend* const avx512_vnni_backend;

// A row of quantised activations: k values, then a float32 scale for each group, up to a whole cache line. Static, as
// no translation unit may use what another compiled for its instructions.
static constexpr std::int64_t activation_row_bytes(std::int64_t value_bytes, std::int64_t k, std::int64_t group) {
  const std::int64_t bytes = k * value_bytes + k / group * 4;
  return (bytes + 63) / 64 * 64;
}

}  // namespace ekiden
