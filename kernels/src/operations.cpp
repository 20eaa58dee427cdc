// OpenVINO operations around the kernels. Each computes every row of its input by itself, with the same bits whatever
// rows are beside it.

#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>
#include <openvino/op/op.hpp>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "elementwise.h"
#include "linear.h"

namespace ekiden {
namespace {

// Memory of one thread of OpenVINO's, reused from pass to pass.
class Scratch {
 public:
  void* at_least(std::size_t bytes) {
    if (bytes > size_) {
      memory_.reset();  // before the larger piece is asked for
      memory_.reset(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{64})));
      size_ = bytes;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t{64}); }
  };
  std::unique_ptr<std::byte[], Free> memory_;
  std::size_t size_ = 0;
};

// The weights at inputs `first` to `first + 2`.
Weights weights(const ov::TensorVector& inputs, std::size_t first, std::int64_t channels, std::int64_t group) {
  const auto k = static_cast<std::int64_t>(inputs[first].get_shape()[1]) * 4;  // of [blocks, k / 4, 16, 4]
  return {inputs[first].data<std::int8_t>(),
          inputs[first + 1].data<float>(),
          inputs[first + 2].data<std::int32_t>(),
          channels,
          k,
          group};
}

// Calls `each(begin, end)` for parts of [0, count), in OpenVINO's threads where there are more than `at_once`. They are
// isolated: a thread that waits for others must not begin another operation, which would use this one's scratch memory.
template <class Each>
void in_parallel(std::int64_t count, std::int64_t at_once, const Each& each) {
  if (count <= at_once) return each(std::int64_t{0}, count);
  using Range = tbb::blocked_range<std::int64_t>;
  tbb::this_task_arena::isolate([&] {
    tbb::parallel_for(Range(0, count, static_cast<std::size_t>(at_once)),
                      [&](const Range& part) { each(part.begin(), part.end()); });
  });
}

// Quantises rows of w.k inputs that are `row_stride` floats apart.
void quantise_rows(const float* x, std::int64_t row_stride, std::int64_t rows, const Weights& w, void* activations) {
  in_parallel(rows, 8, [&](std::int64_t begin, std::int64_t end) {
    quantise(best(), x, row_stride, begin, end, w.k, w.group, activations);
  });
}

void multiply_rows(const void* activations, std::int64_t rows, const Weights& w, float* y) {
  const std::int64_t blocks = (w.n + block_channels - 1) / block_channels;
  in_parallel(blocks, 2, [&](std::int64_t begin, std::int64_t end) {
    multiply(best(), activations, rows, 0, rows, w, begin, end, y, w.n);
  });
}

// y[rows, n] = x[rows, k] * W^T
void linear(const float* x, std::int64_t row_stride, std::int64_t rows, const Weights& w, float* y) {
  static thread_local Scratch scratch;
  void* activations = scratch.at_least(activation_bytes(best(), rows, w.k, w.group));
  quantise_rows(x, row_stride, rows, w, activations);
  multiply_rows(activations, rows, w, y);
}

// y[rows, hidden] = (silu(x * G^T) * (x * U^T)) * D^T, where G and U are the halves of `gate_up`.
void gated_mlp(const float* x, std::int64_t rows, const Weights& gate_up, const Weights& down, float* y) {
  static thread_local Scratch scratch;
  const std::int64_t inner = down.k;
  auto* both = static_cast<float*>(scratch.at_least(static_cast<std::size_t>(rows * gate_up.n) * sizeof(float)));
  linear(x, gate_up.k, rows, gate_up, both);
  in_parallel(rows, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      float* gates = both + row * gate_up.n;
      gate(best(), gates, gates + inner, inner, gates);
    }
  });
  linear(both, gate_up.n, rows, down, y);
}

}  // namespace

class Int8Linear : public ov::op::Op {
 public:
  OPENVINO_OP("Int8Linear", "ekiden");
  Int8Linear() = default;
  Int8Linear(const ov::OutputVector& inputs, std::int64_t channels, std::int64_t group)
      : Op(inputs), channels_(channels), group_(group) {
    constructor_validate_and_infer_types();
  }

  void validate_and_infer_types() override {
    auto shape = get_input_partial_shape(0);
    shape[shape.size() - 1] = channels_;
    set_output_type(0, ov::element::f32, shape);
  }

  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
    return std::make_shared<Int8Linear>(inputs, channels_, group_);
  }

  bool visit_attributes(ov::AttributeVisitor& visitor) override {
    visitor.on_attribute("channels", channels_);
    visitor.on_attribute("group", group_);
    return true;
  }

  bool has_evaluate() const override { return true; }

  bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
    auto shape = inputs[0].get_shape();
    const Weights w = weights(inputs, 1, channels_, group_);
    const std::int64_t rows = static_cast<std::int64_t>(inputs[0].get_size()) / w.k;
    shape.back() = static_cast<std::size_t>(channels_);
    outputs[0].set_shape(shape);
    linear(inputs[0].data<float>(), w.k, rows, w, outputs[0].data<float>());
    return true;
  }

 private:
  std::int64_t channels_ = 0, group_ = 0;
};

class Int8GatedMlp : public ov::op::Op {
 public:
  OPENVINO_OP("Int8GatedMlp", "ekiden");
  Int8GatedMlp() = default;
  Int8GatedMlp(const ov::OutputVector& inputs, std::int64_t group, std::int64_t inner_group)
      : Op(inputs), group_(group), inner_group_(inner_group) {
    constructor_validate_and_infer_types();
  }

  void validate_and_infer_types() override { set_output_type(0, ov::element::f32, get_input_partial_shape(0)); }

  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
    return std::make_shared<Int8GatedMlp>(inputs, group_, inner_group_);
  }

  bool visit_attributes(ov::AttributeVisitor& visitor) override {
    visitor.on_attribute("group", group_);
    visitor.on_attribute("inner_group", inner_group_);
    return true;
  }

  bool has_evaluate() const override { return true; }

  bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
    const auto& shape = inputs[0].get_shape();
    const auto hidden = static_cast<std::int64_t>(shape.back());
    const Weights down = weights(inputs, 4, hidden, inner_group_);
    const Weights gate_up = weights(inputs, 1, 2 * down.k, group_);
    outputs[0].set_shape(shape);
    const std::int64_t rows = static_cast<std::int64_t>(inputs[0].get_size()) / hidden;
    gated_mlp(inputs[0].data<float>(), rows, gate_up, down, outputs[0].data<float>());
    return true;
  }

 private:
  std::int64_t group_ = 0, inner_group_ = 0;
};

}  // namespace ekiden

OPENVINO_CREATE_EXTENSIONS(std::vector<ov::Extension::Ptr>({
  std::make_shared<ov::OpExtension<ekiden::Int8Linear>>(),
  std::make_shared<ov::OpExtension<ekiden::Int8GatedMlp>>(),
}))
