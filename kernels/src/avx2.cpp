// AVX2 without VNNI. Eight-bit multiply-add saturates here, so both sides are widened to 16 bits: vpmaddwd adds pairs
// of products exactly, and does 16 of them in an instruction where a float32 fma does 8.
//
// Measured on Zen 3 and left out: vpmaddubsw with the weight's sign moved to the activation, which takes as many
// instructions and as long; and Winograd's inner product, (x0 + w1) (x1 + w0), which halves the multiplications and was
// 4 % faster.
#include "backend.h"

#if defined(__AVX2__) && defined(__FMA__)

#include "avx2_common.h"
#include "tile.h"

namespace ekiden {
namespace {

// Of four inputs, those of even place, 0 and 2, are in 32 bits of one vector, and those of odd place, 1 and 3, in
// another. Weights come to be so by shifts, on units that multiplication leaves free; activations are stored so.
struct Avx2 {
  using Value = std::int16_t;
  static constexpr int channels = 8;
  static constexpr int largest_rows = 4;  // 8 sums, 4 vectors of weights and 4 for the rest fill the 16 registers
  static constexpr int vectors = 2;

  using Sum = __m256i;
  using Float = __m256;
  struct Pair {
    __m256i even, odd;
  };
  using Weights = Pair;

  static Float zero() { return _mm256_setzero_ps(); }
  static Sum start(const std::int32_t*) { return _mm256_setzero_si256(); }
  static Weights weights(const std::int8_t* at) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    return {_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8), _mm256_srai_epi16(bytes, 8)};
  }
  static Pair inputs(const Value* at) { return {broadcast(at), broadcast(at + 2)}; }
  static Sum dot(Sum sum, Pair x, Weights w) {
    accumulate(sum, _mm256_madd_epi16(x.even, w.even));
    accumulate(sum, _mm256_madd_epi16(x.odd, w.odd));
    return sum;
  }
  static Float add(Float f, Sum sum, float s) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(s), f);
  }
  static void store(float* y, Float f, const float* scales) { store_scaled(y, f, scales); }
  static void store_some(float* y, Float f, const float* scales, std::int64_t count) {
    store_scaled_some(y, f, scales, count);
  }

  // 16 activations in their order: of every four, inputs 1 and 2 change places.
  static void store_activations(Value* to, __m256i values) {
    const __m256i swapped = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(values, 0xd8), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), swapped);
  }

 private:
  static __m256i broadcast(const Value* at) {
    std::int32_t two;
    __builtin_memcpy(&two, at, sizeof two);
    return _mm256_set1_epi32(two);
  }

  // sum += addend, in place: left to itself, the compiler copies sums to and fro and keeps some in memory.
  static void accumulate(Sum& sum, __m256i addend) { asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(addend)); }
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
