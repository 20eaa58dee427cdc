// All that lies between two attentions of a decoder: from the residual stream h and what an attention gave,
//   h = h + attended * O^T
//   h = h + (silu(n * G^T) * (n * U^T)) * D^T   with n = rms_norm(h)
//   q, k, v = n * Q^T, n * K^T, n * V^T         with n = rms_norm(h): the next layer's; after the last layer none
//
// Products are those of linear.h, norm and gate those of elementwise.h, and sums are rounded once each. So a row has the
// same bits on every instruction set, whatever rows are beside it and however the work is shared out. A value that is
// not finite spoils its own row only. Norms have no weights: rotated models have them in the matrices that follow.
#pragma once

#include "elementwise.h"
#include "products.h"

namespace ekiden {

struct BlockSizes {
  std::int64_t hidden, attended, intermediate;  // channels
  std::int64_t query, key_value;                // of the next layer; 0 after the last
  std::int64_t hidden_group, attended_group, intermediate_group;
};

// float32 [rows, channels] each; the last three are not used after the last layer.
struct BlockOutputs {
  float *hidden, *query, *key, *value;
};

// More rows are computed one part after another, so that what is between the products stays small: for long prompts
// that saves memory, and as much time as reading the weights again costs.
constexpr std::int64_t rows_at_once = 128;

// Bytes of the workspace for `rows` rows.
inline std::size_t block_bytes(Isa isa, std::int64_t rows, const BlockSizes& s) {
  const std::int64_t most = std::min(rows, rows_at_once);
  const std::size_t activations = std::max({activation_bytes(isa, most, s.attended, s.attended_group),
                                            activation_bytes(isa, most, s.hidden, s.hidden_group),
                                            activation_bytes(isa, most, s.intermediate, s.intermediate_group)});
  return activations + static_cast<std::size_t>(most * std::max(s.hidden, 2 * s.intermediate)) * sizeof(float);
}

// Computes rows that are few enough for the workspace.
template <class InParallel>
void block_part(Isa isa, const BlockSizes& s, float epsilon, const std::int8_t* packed, std::int64_t rows,
                const float* residual, const float* attended, const BlockOutputs& out, void* workspace,
                const InParallel& in_parallel) {
  PackedWeights weights(packed);
  const Weights output = weights.next(s.hidden, s.attended, s.attended_group);
  const Weights gate_up = weights.next(2 * s.intermediate, s.hidden, s.hidden_group);
  const Weights down = weights.next(s.hidden, s.intermediate, s.intermediate_group);
  auto* wide = static_cast<float*>(workspace);
  void* activations = wide + rows * std::max(s.hidden, 2 * s.intermediate);

  const auto normed = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      rms_norm(isa, out.hidden + row * s.hidden, s.hidden, epsilon, nullptr, wide + row * s.hidden);
    }
    quantise(isa, wide, s.hidden, begin, end, s.hidden, s.hidden_group, activations);
  };

  in_parallel(rows, std::int64_t{8}, Share::as_free, [&](std::int64_t begin, std::int64_t end) {
    quantise(isa, attended, s.attended, begin, end, s.attended, s.attended_group, activations);
  });
  multiply_rows(isa, activations, rows, {{output, out.hidden, out.hidden, residual}}, in_parallel);

  in_parallel(rows, std::int64_t{8}, Share::as_free, normed);
  multiply_rows(isa, activations, rows, {{gate_up, wide}}, in_parallel);
  in_parallel(rows, std::int64_t{4}, Share::as_free, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      float* gates = wide + row * gate_up.n;
      gate(isa, gates, gates + s.intermediate, s.intermediate, gates);
    }
    quantise(isa, wide, gate_up.n, begin, end, s.intermediate, s.intermediate_group, activations);
  });
  multiply_rows(isa, activations, rows, {{down, wide, out.hidden, wide}}, in_parallel);

  if (s.query == 0) return;
  const Weights query = weights.next(s.query, s.hidden, s.hidden_group);
  const Weights key = weights.next(s.key_value, s.hidden, s.hidden_group);
  const Weights value = weights.next(s.key_value, s.hidden, s.hidden_group);
  in_parallel(rows, std::int64_t{8}, Share::as_free, normed);
  multiply_rows(isa, activations, rows, {{query, out.query}, {key, out.key}, {value, out.value}}, in_parallel);
}

// `packed` holds O, G above U, D, Q, K and V, as PackedWeights reads them. Outputs and inputs do not overlap.
template <class InParallel>
void block(Isa isa, const BlockSizes& s, float epsilon, const std::int8_t* packed, std::int64_t rows,
           const float* residual, const float* attended, const BlockOutputs& out, void* workspace,
           const InParallel& in_parallel) {
  const std::int64_t parts = (rows + rows_at_once - 1) / rows_at_once;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t first = rows * part / parts, last = rows * (part + 1) / parts;
    const BlockOutputs of_part{out.hidden + first * s.hidden, out.query + first * s.query,
                               out.key + first * s.key_value, out.value + first * s.key_value};
    block_part(isa, s, epsilon, packed, last - first, residual + first * s.hidden, attended + first * s.attended,
               of_part, workspace, in_parallel);
  }
}

}  // namespace ekiden
