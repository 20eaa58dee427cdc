// What AVX-VNNI and AVX-512 VNNI have in common: activations as unsigned bytes.
//
// vpdpbusd multiplies unsigned by signed bytes. So 128 is added to activations, and 128 times the sum of the weights is
// taken off: sums of a group start there.
#pragma once

#include "avx2_common.h"

namespace ekiden {
namespace {

inline void store_unsigned(std::uint8_t* to, __m256i values) {
  const __m256i shifted = _mm256_add_epi16(values, _mm256_set1_epi16(128));
  const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(shifted), _mm256_extracti128_si256(shifted, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
}

inline std::int32_t four_inputs(const std::uint8_t* at) {
  std::int32_t four;
  __builtin_memcpy(&four, at, sizeof four);
  return four;
}

// Vectors of 8 channels, with `Instruction::dpbusd`, the instruction itself or what stands for it in tests.
template <class Instruction>
struct Vnni8 {
  using Value = std::uint8_t;
  static constexpr int channels = 8;
  static constexpr int vectors = 2;
  static constexpr int largest_rows = 6;  // 12 sums, 2 vectors of weights and one of inputs, in 16 registers

  using Sum = __m256i;
  using Float = __m256;
  using Weights = __m256i;

  static Float zero() { return _mm256_setzero_ps(); }
  static Sum start(const std::int32_t* sums) {
    const __m256i of_group = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums));
    return _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(of_group, 7));
  }
  static Weights weights(const std::int8_t* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }
  static __m256i inputs(const Value* at) { return _mm256_set1_epi32(four_inputs(at)); }
  static Sum dot(Sum sum, __m256i x, Weights w) { return Instruction::dpbusd(sum, x, w); }
  static Float add(Float f, Sum sum, float s) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(s), f);
  }
  static void store(float* y, Float f, const float* scales) { store_scaled(y, f, scales); }
  static void store_some(float* y, Float f, const float* scales, std::int64_t count) {
    store_scaled_some(y, f, scales, count);
  }
  static void store_activations(Value* to, __m256i values) { store_unsigned(to, values); }
};

}  // namespace
}  // namespace ekiden
