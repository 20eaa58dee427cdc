// What stands between a model's linear layers, in float32. The same bits on every instruction set.
#pragma once

#include <cstdint>

#include "isa.h"

namespace ekiden {

// out[i] = x[i] / sqrt(mean(x^2) + epsilon), times weight[i] where `weight` is not null; k values. `out` may be `x`.
// The squares are summed in 16 lanes, lane i over x[16 j + i] by fma, then lanes 8, 4, 2 and 1 apart are added.
void rms_norm(Isa isa, const float* x, std::int64_t k, float epsilon, const float* weight, float* out);

// out[i] = up[i] * silu(gate[i]) with silu(g) = g / (1 + exp(-g)), within 2e-7 of it relatively; n values. silu is -0
// at minus infinity. `out` may be `gate` or `up`.
void gate(Isa isa, const float* gate, const float* up, std::int64_t n, float* out);

}  // namespace ekiden
