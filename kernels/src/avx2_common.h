// Quantisation and the elementwise kernels on vectors of 8 floats, for every instruction set from AVX2 on.
//
// Everything is in an unnamed namespace: each translation unit has its own copy, compiled for its instructions.
#pragma once

#include <immintrin.h>

#include "backend.h"
#include "silu.h"

namespace ekiden {
namespace {

constexpr std::int64_t lanes = 8;
constexpr int to_nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

// The mask of a vector of which `left` lanes are there, 0 to 8.
inline __m256i lanes_left(std::int64_t left) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(left)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

inline float largest_lane(__m256i bits) {
  const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
  const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1))));
}

// x / s of 8 values, rounded, in 32 bits. Where s is subnormal, rounding it may have made x / s larger than 127.
inline __m256i quantised(const float* x, __m256 s) {
  const __m256 q = _mm256_div_ps(_mm256_loadu_ps(x), s);
  return _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(q, _mm256_set1_ps(-127.0f)), _mm256_set1_ps(127.0f)));
}

// `Store` says how activations are kept: their Value, and `store_activations` of 16, given in 16 bits each.
template <class Store>
void quantise(const float* x, std::int64_t row_stride, std::int64_t first_row, std::int64_t last_row, std::int64_t k,
              std::int64_t group, void* activations) {
  using Value = typename Store::Value;
  const std::int64_t bytes = activation_row_bytes(sizeof(Value), k, group);
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  for (std::int64_t row = first_row; row < last_row; ++row) {
    auto* values = reinterpret_cast<Value*>(static_cast<unsigned char*>(activations) + row * bytes);
    auto* scales = reinterpret_cast<float*>(values + k);
    const float* from = x + row * row_stride;
    for (std::int64_t at = 0; at < k; at += group) {
      __m256i largest = _mm256_setzero_si256();  // as integers: infinity and NaN are beyond all others
      for (std::int64_t i = at; i < at + group; i += lanes) {
        const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
        largest = _mm256_max_epi32(largest, _mm256_and_si256(bits, magnitude));
      }
      const float most = largest_lane(largest);
      const float s = most < __builtin_inff() ? most / 127.0f : __builtin_nanf("");
      *scales++ = s;
      const bool zero = !(s > 0.0f);
      for (std::int64_t i = at; i < at + group; i += 2 * lanes) {
        const __m256 divisor = _mm256_set1_ps(s);
        const __m256i packed = _mm256_packs_epi32(quantised(from + i, divisor), quantised(from + i + lanes, divisor));
        const __m256i ordered = _mm256_permute4x64_epi64(packed, 0xd8);
        Store::store_activations(values + i, zero ? _mm256_setzero_si256() : ordered);
      }
    }
  }
}

// The sum of 16 lanes, those 8, 4, 2 and 1 apart added in turn.
inline float tree_sum(__m256 low, __m256 high) {
  const __m256 eight = _mm256_add_ps(low, high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

void rms_norm(const float* x, std::int64_t k, float epsilon, const float* weight, float* out) {
  __m256 sums[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  std::int64_t i = 0;
  for (; i + 2 * lanes <= k; i += 2 * lanes) {
    const __m256 low = _mm256_loadu_ps(x + i), high = _mm256_loadu_ps(x + i + lanes);
    sums[0] = _mm256_fmadd_ps(low, low, sums[0]);
    sums[1] = _mm256_fmadd_ps(high, high, sums[1]);
  }
  for (int part = 0; i < k; i += lanes, ++part) {
    const __m256 some = _mm256_maskload_ps(x + i, lanes_left(k - i));
    sums[part] = _mm256_fmadd_ps(some, some, sums[part]);
  }
  const __m128 mean = _mm_set_ss(tree_sum(sums[0], sums[1]) / static_cast<float>(k) + epsilon);
  const __m256 inverse = _mm256_set1_ps(1.0f / _mm_cvtss_f32(_mm_sqrt_ss(mean)));
  for (i = 0; i < k; i += lanes) {
    const __m256i mask = lanes_left(k - i);
    __m256 normed = _mm256_mul_ps(_mm256_maskload_ps(x + i, mask), inverse);
    if (weight != nullptr) normed = _mm256_mul_ps(normed, _mm256_maskload_ps(weight + i, mask));
    _mm256_maskstore_ps(out + i, mask, normed);
  }
}

inline __m256 power_of_two(__m256i exponent) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(exponent, _mm256_set1_epi32(127)), 23));
}

// Minimum and maximum answer their second operand where one is NaN: it stays one.
inline __m256 silu(__m256 g) {
  const __m256 bounded = _mm256_max_ps(_mm256_set1_ps(silu_least), g);
  const __m256 minus = _mm256_xor_ps(bounded, _mm256_set1_ps(-0.0f));
  const __m256 x = _mm256_min_ps(_mm256_set1_ps(-silu_least), _mm256_max_ps(_mm256_set1_ps(exp_least), minus));
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(log2_e)), to_nearest);
  const __m256 r =
      _mm256_fnmadd_ps(n, _mm256_set1_ps(ln2_low), _mm256_fnmadd_ps(n, _mm256_set1_ps(ln2_high), x));
  __m256 p = _mm256_set1_ps(exp_terms[5]);
  for (int i = 4; i >= 0; --i) p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(exp_terms[i]));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  const __m256i exponent = _mm256_cvtps_epi32(n);
  const __m256i large = _mm256_set1_epi32(large_exponent);
  const __m256i shift = _mm256_and_si256(large, _mm256_cmpgt_epi32(exponent, large));
  const __m256 h = power_of_two(_mm256_sub_epi32(_mm256_setzero_si256(), shift));
  const __m256 denominator = _mm256_fmadd_ps(p, power_of_two(_mm256_sub_epi32(exponent, shift)), h);
  return _mm256_div_ps(_mm256_mul_ps(bounded, h), denominator);
}

void gate(const float* gate, const float* up, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; i += lanes) {
    const __m256i mask = lanes_left(n - i);
    const __m256 g = _mm256_maskload_ps(gate + i, mask), u = _mm256_maskload_ps(up + i, mask);
    _mm256_maskstore_ps(out + i, mask, _mm256_mul_ps(silu(g), u));
  }
}

// f * scale of 8 channels, all or the first `count`.
inline void store_scaled(float* y, __m256 f, const float* scales) {
  _mm256_storeu_ps(y, _mm256_mul_ps(f, _mm256_loadu_ps(scales)));
}

inline void store_scaled_some(float* y, __m256 f, const float* scales, std::int64_t count) {
  _mm256_maskstore_ps(y, lanes_left(count), _mm256_mul_ps(f, _mm256_loadu_ps(scales)));
}

}  // namespace
}  // namespace ekiden
