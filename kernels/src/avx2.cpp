// AVX2 without VNNI. Eight-bit multiply-add saturates here, so both sides are widened to 16 bits: vpmaddwd adds pairs
// of products exactly, and does 16 of them in an instruction where a float32 fma does 8.
#include "backend.h"

#if defined(__AVX2__) && defined(__FMA__)

#include "avx2_common.h"
#include "tile.h"

namespace ekiden {
namespace {

struct Avx2 {
  using Value = std::int16_t;
  static constexpr int channels = 8;
  static constexpr int largest_rows = 6;
  static constexpr int vectors(int rows) { return rows <= 3 ? 2 : 1; }

  // Four channels each; two neighbouring lanes are the halves of a channel's sum.
  struct Sum {
    __m256i low, high;
  };
  struct Weights {
    __m256i low, high;
  };
  using Float = __m256;

  static Float zero() { return _mm256_setzero_ps(); }
  static Sum start(const std::int32_t*) { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static Weights weights(const std::int8_t* at) {
    return {_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))),
            _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 16)))};
  }
  static __m256i inputs(const void* at) { return _mm256_set1_epi64x(*static_cast<const std::int64_t*>(at)); }
  static Sum dot(Sum sum, __m256i x, Weights w) {
    return {_mm256_add_epi32(sum.low, _mm256_madd_epi16(x, w.low)),
            _mm256_add_epi32(sum.high, _mm256_madd_epi16(x, w.high))};
  }
  static Float add(Float f, Sum sum, float s) {
    const __m256i halves = _mm256_hadd_epi32(sum.low, sum.high);  // channels 0 1 4 5 2 3 6 7
    const __m256i whole = _mm256_permute4x64_epi64(halves, 0xd8);
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), _mm256_set1_ps(s), f);
  }
  static void store(float* y, Float f, const float* scales) { store_scaled(y, f, scales); }
  static void store_some(float* y, Float f, const float* scales, std::int64_t count) {
    store_scaled_some(y, f, scales, count);
  }
  static void sixteen(Value* to, __m256i values) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), values); }
};

const Backend backend{sizeof(Avx2::Value), quantise<Avx2>, multiply<Avx2>, rms_norm, gate};

}  // namespace

const Backend* const avx2_backend = &backend;

}  // namespace ekiden

#else

namespace ekiden {
const Backend* const avx2_backend = nullptr;
}  // namespace ekiden

#endif
