// OpenVINO operations around the kernels. Each computes every row of its input by itself, with the same bits whatever
// rows are beside it. They have few inputs, since the plugin, which cannot tell their outputs' shapes, clones node and
// inputs at every call.

#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>
#include <openvino/op/op.hpp>
#include <tbb/task_arena.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "block.h"
#include "threads.h"

namespace ekiden {
namespace {

// Calls `compute(workspace)` with so many bytes. It is isolated: a thread that waits for others must not begin another
// operation, which would use the same workspace.
template <class Compute>
void with_workspace(std::size_t bytes, const Compute& compute) {
  static thread_local Scratch scratch;
  void* workspace = scratch.at_least(bytes);
  tbb::this_task_arena::isolate([&] { compute(workspace); });
}

template <class Shape>
Shape with_channels(Shape shape, std::int64_t channels) {
  shape[shape.size() - 1] = channels;
  return shape;
}

}  // namespace

// Inputs: x [..., k], and W as PackedWeights reads it. Output: x * W^T.
class Int8Linear : public ov::op::Op {
 public:
  OPENVINO_OP("Int8Linear", "ekiden");
  Int8Linear() = default;
  Int8Linear(const ov::OutputVector& inputs, std::int64_t channels, std::int64_t group)
      : Op(inputs), channels_(channels), group_(group) {
    constructor_validate_and_infer_types();
  }

  void validate_and_infer_types() override {
    set_output_type(0, ov::element::f32, with_channels(get_input_partial_shape(0), channels_));
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
    const auto& shape = inputs[0].get_shape();
    const auto k = static_cast<std::int64_t>(shape.back());
    const std::int64_t rows = static_cast<std::int64_t>(inputs[0].get_size()) / k;
    const Weights w = PackedWeights(inputs[1].data<std::int8_t>()).next(channels_, k, group_);
    outputs[0].set_shape(with_channels(shape, channels_));
    const float* x = inputs[0].data<float>();
    float* y = outputs[0].data<float>();
    const Isa isa = best();
    with_workspace(activation_bytes(isa, rows, k, group_), [&](void* activations) {
      Threads{}(rows, 8, Share::as_free, [&](std::int64_t begin, std::int64_t end) {
        quantise(isa, x, k, begin, end, k, group_, activations);
      });
      multiply_rows(isa, activations, rows, {{w, y}}, Threads{});
    });
    return true;
  }

 private:
  std::int64_t channels_ = 0, group_ = 0;
};

// Inputs: the residual stream [..., hidden], what attention gave [..., attended], and the weights. Outputs: the residual
// stream, and the next layer's query, key and value; after the last layer the residual stream alone.
class Int8Block : public ov::op::Op {
 public:
  OPENVINO_OP("Int8Block", "ekiden");
  Int8Block() = default;
  Int8Block(const ov::OutputVector& inputs, const BlockSizes& sizes, float epsilon)
      : Op(inputs), sizes_(sizes), epsilon_(epsilon) {
    constructor_validate_and_infer_types();
  }

  void validate_and_infer_types() override {
    const auto& shape = get_input_partial_shape(0);
    for (std::size_t i = 0; i < output_count(); ++i) {
      set_output_type(i, ov::element::f32, with_channels(shape, channels_of(i)));
    }
  }

  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
    return std::make_shared<Int8Block>(inputs, sizes_, epsilon_);
  }

  bool visit_attributes(ov::AttributeVisitor& visitor) override {
    visitor.on_attribute("hidden", sizes_.hidden);
    visitor.on_attribute("attended", sizes_.attended);
    visitor.on_attribute("intermediate", sizes_.intermediate);
    visitor.on_attribute("query", sizes_.query);
    visitor.on_attribute("key_value", sizes_.key_value);
    visitor.on_attribute("hidden_group", sizes_.hidden_group);
    visitor.on_attribute("attended_group", sizes_.attended_group);
    visitor.on_attribute("intermediate_group", sizes_.intermediate_group);
    visitor.on_attribute("epsilon", epsilon_);
    return true;
  }

  bool has_evaluate() const override { return true; }

  bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
    const std::int64_t rows = static_cast<std::int64_t>(inputs[0].get_size()) / sizes_.hidden;
    float* y[4] = {};
    for (std::size_t i = 0; i < output_count(); ++i) {
      outputs[i].set_shape(with_channels(inputs[0].get_shape(), channels_of(i)));
      y[i] = outputs[i].data<float>();
    }
    const Isa isa = best();
    with_workspace(block_bytes(isa, rows, sizes_), [&](void* workspace) {
      block(isa, sizes_, epsilon_, inputs[2].data<std::int8_t>(), rows, inputs[0].data<float>(),
            inputs[1].data<float>(), {y[0], y[1], y[2], y[3]}, workspace, Threads{});
    });
    return true;
  }

 private:
  std::size_t output_count() const { return sizes_.query == 0 ? 1 : 4; }
  std::int64_t channels_of(std::size_t output) const {
    return output == 0 ? sizes_.hidden : output == 1 ? sizes_.query : sizes_.key_value;
  }

  BlockSizes sizes_{};
  float epsilon_ = 0;
};

}  // namespace ekiden

OPENVINO_CREATE_EXTENSIONS(std::vector<ov::Extension::Ptr>({
  std::make_shared<ov::OpExtension<ekiden::Int8Linear>>(),
  std::make_shared<ov::OpExtension<ekiden::Int8Block>>(),
}))
