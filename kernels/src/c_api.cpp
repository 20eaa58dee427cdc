// The kernels for tests through ctypes: plain C functions, an instruction set by its number.
#include <vector>

#include "elementwise.h"
#include "linear.h"

using ekiden::Isa;

#pragma GCC visibility push(default)
extern "C" {

int ekiden_usable(int isa) { return ekiden::usable(static_cast<Isa>(isa)) ? 1 : 0; }

int ekiden_best() { return static_cast<int>(ekiden::best()); }

int ekiden_prefer(int isa) { return ekiden::prefer(static_cast<Isa>(isa)) ? 1 : 0; }

int ekiden_agrees(int isa) { return ekiden::agrees(static_cast<Isa>(isa)) ? 1 : 0; }

// x float32 [rows, k] -> y float32 [rows, n]; the rest as in `Weights`. Rows [first_row, last_row) and blocks
// [first_block, last_block) of y are written.
void ekiden_linear(int isa, const float* x, std::int64_t rows, std::int64_t first_row, std::int64_t last_row,
                   const std::int8_t* values, const float* scales, const std::int32_t* sums, std::int64_t n,
                   std::int64_t k, std::int64_t group, std::int64_t first_block, std::int64_t last_block, float* y) {
  const Isa which = static_cast<Isa>(isa);
  const ekiden::Weights weights{values, scales, sums, n, k, group};
  std::vector<unsigned char> activations(ekiden::activation_bytes(which, rows, k, group));
  ekiden::quantise(which, x, k, first_row, last_row, k, group, activations.data());
  ekiden::multiply(which, activations.data(), rows, first_row, last_row, weights, first_block, last_block, y, n);
}

void ekiden_rms_norm(int isa, const float* x, std::int64_t k, float epsilon, const float* weight, float* out) {
  ekiden::rms_norm(static_cast<Isa>(isa), x, k, epsilon, weight, out);
}

void ekiden_gate(int isa, const float* gate, const float* up, std::int64_t n, float* out) {
  ekiden::gate(static_cast<Isa>(isa), gate, up, n, out);
}

}  // extern "C"
#pragma GCC visibility pop
