// Kernels that go wrong as a processor might: a product in one channel, and a gate at one place.
//
// Linked instead of avx2_vnni.cpp and avx512_vnni.cpp.
#include "backend.h"

namespace ekiden {
namespace {

const Backend& right = *portable_backend;

void multiply(const void* activations, std::int64_t first_row, std::int64_t last_row, const Weights& weights,
              std::int64_t first_block, std::int64_t last_block, float* y, std::int64_t row_stride) {
  right.multiply(activations, first_row, last_row, weights, first_block, last_block, y, row_stride);
  y[(last_row - 1) * row_stride + weights.n - 1] *= 1.0f + 0x1p-23f;
}

void gate(const float* gate, const float* up, std::int64_t n, float* out) {
  right.gate(gate, up, n, out);
  out[n / 2] = -out[n / 2];
}

const Backend wrong_product{right.value_bytes, right.quantise, multiply, right.rms_norm, right.gate};
const Backend wrong_gate{right.value_bytes, right.quantise, right.multiply, right.rms_norm, gate};

}  // namespace

const Backend* const avx2_vnni_backend = &wrong_product;
const Backend* const avx512_vnni_backend = &wrong_gate;

}  // namespace ekiden
