// The VNNI kernels with AVX2 in the place of vpdpbusd: the same templates, tested where the instruction is missing.
//
// Linked instead of avx2_vnni.cpp and avx512_vnni.cpp.
#include "backend.h"
#include "tile.h"
#include "vnni.h"

namespace ekiden {
namespace {

// Widens both sides; one of 128 bits after the other, so that the fours of products stay in their 32 bits.
struct Instruction {
  static __m256i dpbusd(__m256i sum, __m256i x, __m256i w) {
    __m256i halves[2];
    for (int half = 0; half < 2; ++half) {
      const __m128i x_half = half == 0 ? _mm256_castsi256_si128(x) : _mm256_extracti128_si256(x, 1);
      const __m128i w_half = half == 0 ? _mm256_castsi256_si128(w) : _mm256_extracti128_si256(w, 1);
      halves[half] = _mm256_madd_epi16(_mm256_cvtepu8_epi16(x_half), _mm256_cvtepi8_epi16(w_half));
    }
    const __m256i fours = _mm256_permute4x64_epi64(_mm256_hadd_epi32(halves[0], halves[1]), 0xd8);
    return _mm256_add_epi32(sum, fours);
  }
};

using Eight = Vnni8<Instruction>;

// 16 channels, and the tile of AVX-512.
struct Sixteen {
  using Value = Eight::Value;
  static constexpr int channels = 16;
  static constexpr int vectors = 2;
  static constexpr int largest_rows = 12;

  struct Sum {
    Eight::Sum low, high;
  };
  struct Float {
    Eight::Float low, high;
  };
  using Weights = Sum;

  static Float zero() { return {Eight::zero(), Eight::zero()}; }
  static Sum start(const std::int32_t* sums) { return {Eight::start(sums), Eight::start(sums + 8)}; }
  static Weights weights(const std::int8_t* at) { return {Eight::weights(at), Eight::weights(at + 32)}; }
  static __m256i inputs(const Value* at) { return Eight::inputs(at); }
  static Sum dot(Sum sum, __m256i x, Weights w) {
    return {Eight::dot(sum.low, x, w.low), Eight::dot(sum.high, x, w.high)};
  }
  static Float add(Float f, Sum sum, float s) {
    return {Eight::add(f.low, sum.low, s), Eight::add(f.high, sum.high, s)};
  }
  static void store(float* y, Float f, const float* scales) {
    Eight::store(y, f.low, scales);
    Eight::store(y + 8, f.high, scales + 8);
  }
  static void store_some(float* y, Float f, const float* scales, std::int64_t count) {
    Eight::store_some(y, f.low, scales, count);
    Eight::store_some(y + 8, f.high, scales + 8, count - 8);
  }
  static void store_activations(Value* to, __m256i values) { Eight::store_activations(to, values); }
};

const Backend eight{sizeof(Eight::Value), quantise<Eight>, multiply<Eight>, rms_norm, gate};
const Backend sixteen{sizeof(Sixteen::Value), quantise<Sixteen>, multiply<Sixteen>, rms_norm, gate};

}  // namespace

const Backend* const avx2_vnni_backend = &eight;
const Backend* const avx512_vnni_backend = &sixteen;

}  // namespace ekiden
