// The kernels in plain C++: what all others must equal, and what runs where none of them can.
#include <cmath>
#include <cstring>
#include <limits>

#include "backend.h"
#include "silu.h"

namespace ekiden {

namespace {

struct Row {
  const std::int8_t* values;
  const float* scales;
};

void quantise_group(const float* x, std::int64_t group, std::int8_t* values, float* scale) {
  float largest = 0.0f;
  bool finite = true;
  for (std::int64_t i = 0; i < group; ++i) {
    finite = finite && std::isfinite(x[i]);
    largest = std::fmax(largest, std::fabs(x[i]));
  }
  const float s = finite ? largest / 127.0f : std::numeric_limits<float>::quiet_NaN();
  *scale = s;
  for (std::int64_t i = 0; i < group; ++i) {
    // Where s is subnormal, rounding it may have made x / s larger than 127.
    values[i] = s > 0.0f ? static_cast<std::int8_t>(std::nearbyint(std::fmin(std::fmax(x[i] / s, -127.0f), 127.0f)))
                         : std::int8_t{0};
  }
}

void quantise(const float* x, std::int64_t row_stride, std::int64_t first_row, std::int64_t last_row, std::int64_t k,
              std::int64_t group, void* activations) {
  const std::int64_t bytes = activation_row_bytes(1, k, group);
  for (std::int64_t row = first_row; row < last_row; ++row) {
    auto* values = static_cast<std::int8_t*>(activations) + row * bytes;
    auto* scales = reinterpret_cast<float*>(values + k);
    for (std::int64_t g = 0; g < k / group; ++g) {
      quantise_group(x + row * row_stride + g * group, group, values + g * group, scales + g);
    }
  }
}

float channel_sum(const Row& row, const std::int8_t* values, std::int64_t k, std::int64_t group) {
  float f = 0.0f;
  for (std::int64_t g = 0; g < k / group; ++g) {
    std::int32_t sum = 0;
    for (std::int64_t i = g * group; i < (g + 1) * group; ++i) {
      sum += row.values[i] * values[i / 4 * (block_channels * 4) + i % 4];
    }
    f = std::fmaf(static_cast<float>(sum), row.scales[g], f);
  }
  return f;
}

void multiply(const void* activations, std::int64_t first_row, std::int64_t last_row, const Weights& weights,
              std::int64_t first_block, std::int64_t last_block, float* y, std::int64_t row_stride) {
  const std::int64_t bytes = activation_row_bytes(1, weights.k, weights.group);
  for (std::int64_t row = first_row; row < last_row; ++row) {
    const auto* x = static_cast<const std::int8_t*>(activations) + row * bytes;
    const Row quantised{x, reinterpret_cast<const float*>(x + weights.k)};
    for (std::int64_t channel = first_block * block_channels; channel < last_block * block_channels; ++channel) {
      if (channel == weights.n) break;
      const std::int8_t* values =
          weights.values + channel / block_channels * block_channels * weights.k + channel % block_channels * 4;
      y[row * row_stride + channel] =
          channel_sum(quantised, values, weights.k, weights.group) * weights.scales[channel];
    }
  }
}

void rms_norm(const float* x, std::int64_t k, float epsilon, const float* weight, float* out) {
  float lanes[16] = {};
  for (std::int64_t i = 0; i < k; ++i) lanes[i % 16] = std::fmaf(x[i], x[i], lanes[i % 16]);
  for (int apart = 8; apart > 0; apart /= 2) {
    for (int i = 0; i < apart; ++i) lanes[i] += lanes[i + apart];
  }
  const float inverse = 1.0f / std::sqrt(lanes[0] / static_cast<float>(k) + epsilon);
  for (std::int64_t i = 0; i < k; ++i) {
    const float normed = x[i] * inverse;
    out[i] = weight == nullptr ? normed : normed * weight[i];
  }
}

float power_of_two(int exponent) {
  const std::uint32_t bits = static_cast<std::uint32_t>(exponent + 127) << 23;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

float silu(float g) {
  if (std::isnan(g)) return g;
  const float bounded = std::fmax(g, silu_least);
  const float x = std::fmin(std::fmax(-bounded, exp_least), -silu_least);
  const float n = std::nearbyint(x * log2_e);
  const float r = std::fmaf(-n, ln2_low, std::fmaf(-n, ln2_high, x));
  float p = exp_terms[5];
  for (int i = 4; i >= 0; --i) p = std::fmaf(p, r, exp_terms[i]);
  p = std::fmaf(p, r, 1.0f);
  p = std::fmaf(p, r, 1.0f);
  const int exponent = static_cast<int>(n);
  const int shift = exponent > large_exponent ? large_exponent : 0;
  const float h = power_of_two(-shift);
  return bounded * h / std::fmaf(p, power_of_two(exponent - shift), h);
}

void gate(const float* gate, const float* up, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = silu(gate[i]) * up[i];
}

const Backend backend{1, quantise, multiply, rms_norm, gate};

}  // namespace

const Backend* const portable_backend = &backend;

}  // namespace ekiden
