// Matrix products of quantised rows, shared out among threads.
//
// `in_parallel(count, at_once, share, each)` calls `each(begin, end)` for parts of [0, count), in any order and at the
// same time; fewer than `at_once` are not worth a thread. Tests cut the parts as they like.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "linear.h"

namespace ekiden {

// How parts are dealt out: one to each thread, as equal as can be, or small ones as threads get free.
enum class Share { equally, as_free };

// So few rows wait for weights more than they compute. Each thread then reads one long stretch of them.
constexpr std::int64_t few_rows = 12;

// The matrices of a node, one after another in one constant: values, scales and sums of each.
class PackedWeights {
 public:
  explicit PackedWeights(const std::int8_t* at) : at_(at) {}

  Weights next(std::int64_t n, std::int64_t k, std::int64_t group) {
    const std::int64_t channels = (n + block_channels - 1) / block_channels * block_channels;
    const std::int8_t* values = at_;
    const auto* scales = reinterpret_cast<const float*>(values + channels * k);
    const auto* sums = reinterpret_cast<const std::int32_t*>(scales + channels);
    at_ = reinterpret_cast<const std::int8_t*>(sums + channels * (k / group));
    return {values, scales, sums, n, k, group};
  }

 private:
  const std::int8_t* at_;
};

// y[rows, n] = activations * W^T; and sum[rows, n] += addend[rows, n] where there is a sum. `y` may be either of them.
struct Product {
  Weights weights;
  float* y;
  float* sum = nullptr;
  const float* addend = nullptr;
};

// Blocks are shared out in pairs, which are a tile of the widest vectors.
constexpr std::int64_t pair_channels = 2 * block_channels;

inline std::int64_t pairs_of(const Weights& weights) { return (weights.n + pair_channels - 1) / pair_channels; }

inline void multiply_pairs(Isa isa, const void* activations, std::int64_t rows, const Product& product,
                           std::int64_t first, std::int64_t last) {
  const Weights& w = product.weights;
  const std::int64_t blocks = (w.n + block_channels - 1) / block_channels;
  multiply(isa, activations, rows, 0, rows, w, first * 2, std::min(last * 2, blocks), product.y, w.n);
  if (product.sum == nullptr) return;
  const std::int64_t begin = first * pair_channels, count = std::min(last * pair_channels, w.n) - begin;
  for (std::int64_t row = 0; row < rows; ++row) {
    float* sum = product.sum + row * w.n + begin;
    const float* addend = product.addend + row * w.n + begin;
    for (std::int64_t i = 0; i < count; ++i) sum[i] += addend[i];
  }
}

// Products of the same activations.
template <class InParallel>
void multiply_rows(Isa isa, const void* activations, std::int64_t rows, std::initializer_list<Product> products,
                   const InParallel& in_parallel) {
  std::int64_t pairs = 0;
  for (const Product& product : products) pairs += pairs_of(product.weights);
  const Share share = rows <= few_rows ? Share::equally : Share::as_free;
  in_parallel(pairs, std::int64_t{1}, share, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t before = 0;
    for (const Product& product : products) {
      const std::int64_t own = pairs_of(product.weights);
      const std::int64_t first = std::max<std::int64_t>(begin - before, 0), last = std::min(end - before, own);
      if (first < last) multiply_pairs(isa, activations, rows, product, first, last);
      before += own;
    }
  });
}

}  // namespace ekiden
