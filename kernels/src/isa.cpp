// Finds the kernels of an instruction set, and checks them against the portable ones.
#include "isa.h"

#include <atomic>
#include <cassert>
#include <cstring>
#include <vector>

#include "backend.h"
#include "elementwise.h"
#include "linear.h"

namespace ekiden {

namespace {

const Backend* backend_of(Isa isa) {
  switch (isa) {
    case Isa::portable:
      return portable_backend;
    case Isa::avx2:
      return avx2_backend;
    case Isa::avx2_vnni:
      return avx2_vnni_backend;
    case Isa::avx512_vnni:
      return avx512_vnni_backend;
  }
  return nullptr;
}

bool processor_has(Isa isa) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  switch (isa) {
    case Isa::portable:
      return true;
    case Isa::avx2:
      return avx2;
    case Isa::avx2_vnni:
      return avx2 && __builtin_cpu_supports("avxvnni");
    case Isa::avx512_vnni:
      return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
  }
  return false;
#else
  return isa == Isa::portable;
#endif
}

Isa fastest() {
  for (int i = isa_count - 1; i > 0; --i) {
    if (usable(static_cast<Isa>(i))) return static_cast<Isa>(i);
  }
  return Isa::portable;
}

std::atomic<Isa>& chosen() {
  static std::atomic<Isa> isa{fastest()};
  return isa;
}

// Made-up values in [-1, 1): a linear congruential generator, the same on every machine.
struct Made {
  std::uint32_t state;
  float next() {
    state = state * 1664525u + 1013904223u;
    return static_cast<float>(static_cast<std::int32_t>(state) >> 8) * 0x1p-23f;
  }
  std::vector<float> floats(std::int64_t count, float scale) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = next() * scale;
    return values;
  }
};

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool linear_agrees(Isa isa, std::int64_t rows, std::int64_t n, std::int64_t k, std::int64_t group) {
  Made made{static_cast<std::uint32_t>(rows * 31 + n)};
  const std::int64_t blocks = (n + block_channels - 1) / block_channels;
  const std::vector<float> x = made.floats(rows * k, 3.0f);
  const std::vector<float> scales = made.floats(blocks * block_channels, 0.01f);
  std::vector<std::int8_t> values(static_cast<std::size_t>(blocks * block_channels * k));
  std::vector<std::int32_t> sums(static_cast<std::size_t>(blocks * block_channels * (k / group)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<std::int8_t>(made.next() * 128.0f);
    const std::int64_t at = static_cast<std::int64_t>(i);
    const std::int64_t block = at / (block_channels * k);
    const std::int64_t input = at % (block_channels * k) / (block_channels * 4) * 4;
    const std::int64_t channel = at / 4 % block_channels;
    sums[static_cast<std::size_t>((block * (k / group) + input / group) * block_channels + channel)] += values[i];
  }
  const Weights weights{values.data(), scales.data(), sums.data(), n, k, group};
  std::vector<float> y[2];
  for (int i = 0; i < 2; ++i) {
    const Isa which = i == 0 ? Isa::portable : isa;
    std::vector<unsigned char> activations(activation_bytes(which, rows, k, group));
    y[i].assign(static_cast<std::size_t>(rows * n), 0.0f);
    quantise(which, x.data(), k, 0, rows, k, group, activations.data());
    multiply(which, activations.data(), rows, 0, rows, weights, 0, blocks, y[i].data(), n);
  }
  return same(y[0], y[1]);
}

bool elementwise_agrees(Isa isa) {
  constexpr std::int64_t count = 163;
  Made made{7};
  const std::vector<float> a = made.floats(count, 100.0f);
  const std::vector<float> b = made.floats(count, 2.0f);
  std::vector<float> gated[2], normed[2];
  for (int i = 0; i < 2; ++i) {
    const Isa which = i == 0 ? Isa::portable : isa;
    gated[i].resize(count);
    normed[i].resize(count);
    gate(which, a.data(), b.data(), count, gated[i].data());
    rms_norm(which, a.data(), count, 1e-5f, b.data(), normed[i].data());
  }
  return same(gated[0], gated[1]) && same(normed[0], normed[1]);
}

}  // namespace

bool usable(Isa isa) { return backend_of(isa) != nullptr && processor_has(isa); }

Isa best() { return chosen().load(std::memory_order_relaxed); }

bool prefer(Isa isa) {
  if (!usable(isa)) return false;
  chosen().store(isa, std::memory_order_relaxed);
  return true;
}

bool agrees(Isa isa) {
  // Every height of a tile; two blocks, and an odd one that is not full; one group and three.
  for (std::int64_t rows = 1; rows <= 14; ++rows) {
    if (!linear_agrees(isa, rows, 41, 96, rows % 2 == 0 ? 32 : 96)) return false;
  }
  return elementwise_agrees(isa);
}

std::size_t activation_bytes(Isa isa, std::int64_t rows, std::int64_t k, std::int64_t group) {
  return static_cast<std::size_t>(rows * activation_row_bytes(backend_of(isa)->value_bytes, k, group));
}

void quantise(Isa isa, const float* x, std::int64_t row_stride, std::int64_t first_row, std::int64_t last_row,
              std::int64_t k, std::int64_t group, void* activations) {
  assert(group % 32 == 0 && group <= largest_group && k % group == 0);
  backend_of(isa)->quantise(x, row_stride, first_row, last_row, k, group, activations);
}

void multiply(Isa isa, const void* activations, [[maybe_unused]] std::int64_t rows, std::int64_t first_row,
              std::int64_t last_row, const Weights& weights, std::int64_t first_block, std::int64_t last_block,
              float* y, std::int64_t row_stride) {
  assert(first_row >= 0 && last_row <= rows);
  assert(first_block >= 0 && last_block <= (weights.n + block_channels - 1) / block_channels);
  backend_of(isa)->multiply(activations, first_row, last_row, weights, first_block, last_block, y, row_stride);
}

void rms_norm(Isa isa, const float* x, std::int64_t k, float epsilon, const float* weight, float* out) {
  backend_of(isa)->rms_norm(x, k, epsilon, weight, out);
}

void gate(Isa isa, const float* gate, const float* up, std::int64_t n, float* out) {
  backend_of(isa)->gate(gate, up, n, out);
}

}  // namespace ekiden
