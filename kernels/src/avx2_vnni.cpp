// AVX-VNNI: vectors of 8 channels.
#include "backend.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__AVXVNNI__)

#include "tile.h"
#include "vnni.h"

namespace ekiden {
namespace {

// Not the intrinsic: with it the compiler copies sums to and fro.
struct Instruction {
  static __m256i dpbusd(__m256i sum, __m256i x, __m256i w) {
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(x), "x"(w));
    return sum;
  }
};

using Vectors = Vnni8<Instruction>;

const Backend backend{sizeof(Vectors::Value), quantise<Vectors>, multiply<Vectors>, rms_norm, gate};

}  // namespace

const Backend* const avx2_vnni_backend = &backend;

}  // namespace ekiden

#else

namespace ekiden {
const Backend* const avx2_vnni_backend = nullptr;
}  // namespace ekiden

#endif
