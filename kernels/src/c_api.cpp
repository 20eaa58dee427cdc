// The kernels for tests through ctypes: plain C functions, an instruction set by its number.
#include <vector>

#include "block.h"
#include "elementwise.h"
#include "linear.h"

using ekiden::Isa;

namespace {

// Stands for threads that do so many parts in no particular order: the last part comes first.
struct Parts {
  std::int64_t parts;
  template <class Each>
  void operator()(std::int64_t count, std::int64_t, ekiden::Share, const Each& each) const {
    for (std::int64_t part = parts; part-- > 0;) each(count * part / parts, count * (part + 1) / parts);
  }
};

}  // namespace

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

// float32 residual [rows, hidden] and attended [rows, attended]; `sizes` are those of `BlockSizes` in their order. The
// work is done in so many parts; after the last layer query, key and value may be null.
void ekiden_block(int isa, const float* residual, const float* attended, std::int64_t rows, const std::int64_t* sizes,
                  float epsilon, const std::int8_t* packed, std::int64_t parts, float* hidden, float* query, float* key,
                  float* value) {
  const Isa which = static_cast<Isa>(isa);
  const ekiden::BlockSizes s{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6], sizes[7]};
  std::vector<unsigned char> workspace(ekiden::block_bytes(which, rows, s));
  ekiden::block(which, s, epsilon, packed, rows, residual, attended, {hidden, query, key, value}, workspace.data(),
                Parts{parts});
}

}  // extern "C"
#pragma GCC visibility pop
