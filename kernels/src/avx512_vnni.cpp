// AVX-512 VNNI: vectors of 16 channels.
#include "backend.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512VNNI__) && \
    defined(__AVX2__) && defined(__FMA__)

// GCC 12 warns of its own headers, where an operand is undefined on purpose.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include "tile.h"
#include "vnni.h"

namespace ekiden {
namespace {

struct Avx512Vnni {
  using Value = std::uint8_t;
  static constexpr int channels = 16;
  static constexpr int vectors = 2;
  static constexpr int largest_rows = 12;  // 24 sums, 2 vectors of weights and the inputs, in 32 registers

  using Sum = __m512i;
  using Float = __m512;
  using Weights = __m512i;

  static Float zero() { return _mm512_setzero_ps(); }
  static Sum start(const std::int32_t* sums) {
    return _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(_mm512_loadu_si512(sums), 7));
  }
  static Weights weights(const std::int8_t* at) { return _mm512_loadu_si512(at); }
  static __m512i inputs(const Value* at) { return _mm512_set1_epi32(four_inputs(at)); }
  // Not the intrinsic: with it the compiler copies sums to and fro.
  static Sum dot(Sum sum, __m512i x, Weights w) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
    return sum;
  }
  static Float add(Float f, Sum sum, float s) {
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(s), f);
  }
  static void store(float* y, Float f, const float* scales) {
    _mm512_storeu_ps(y, _mm512_mul_ps(f, _mm512_loadu_ps(scales)));
  }
  static void store_some(float* y, Float f, const float* scales, std::int64_t count) {
    const __mmask16 some = static_cast<__mmask16>((1u << count) - 1);
    _mm512_mask_storeu_ps(y, some, _mm512_mul_ps(f, _mm512_loadu_ps(scales)));
  }
  static void store_activations(Value* to, __m256i values) { store_unsigned(to, values); }
};

const Backend backend{sizeof(Avx512Vnni::Value), quantise<Avx512Vnni>, multiply<Avx512Vnni>, rms_norm, gate};

}  // namespace

const Backend* const avx512_vnni_backend = &backend;

}  // namespace ekiden

#else

namespace ekiden {
const Backend* const avx512_vnni_backend = nullptr;
}  // namespace ekiden

#endif
