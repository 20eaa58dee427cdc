// How fast the int8 product is on this machine: the linear layers of SmolLM2-135M, with the weights of 30 layers, so
// that none is in a cache by accident. Weights and inputs are made up.
//
//   bench [threads [rows ...]]      from 1 or 2 threads, each with half of a product's blocks
//
// Of each product the best of a few passes counts, so that other work on the machine weighs less. GMAC/s are
// multiplications with additions; GB/s are bytes of weights.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "linear.h"

namespace {

using namespace ekiden;

constexpr int model_layers = 30;
constexpr std::int64_t group = 192;
constexpr std::int64_t most_head_rows = 64;

struct Shape {
  const char* name;
  std::int64_t k, n;
};
constexpr Shape shapes[] = {
    {"qkv", 576, 960}, {"o", 576, 576}, {"gate+up", 576, 3072}, {"down", 1536, 576}, {"head", 576, 49152}};
constexpr int shape_count = 5;
constexpr int head = 4;

// Made-up weights of one product.
struct Layer {
  std::vector<std::int8_t> values;
  std::vector<float> scales;
  std::vector<std::int32_t> sums;

  explicit Layer(const Shape& shape)
      : values(static_cast<std::size_t>(shape.k * shape.n)),
        scales(static_cast<std::size_t>(shape.n), 0.01f),
        sums(static_cast<std::size_t>(shape.n * (shape.k / group))) {
    std::uint32_t state = 1;
    for (auto& value : values) value = static_cast<std::int8_t>((state = state * 1664525u + 1013904223u) >> 24);
  }
  Weights weights(const Shape& shape) const {
    return {values.data(), scales.data(), sums.data(), shape.n, shape.k, group};
  }
};

// Holds threads until all have come; they spin, as pauses are short.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}
  void wait() {
    const int turn = turn_.load();
    if (arrived_.fetch_add(1) + 1 == threads_) {
      arrived_.store(0);
      turn_.store(turn + 1);
    } else {
      while (turn_.load() == turn) {
      }
    }
  }

 private:
  const int threads_;
  std::atomic<int> arrived_{0}, turn_{0};
};

struct Bench {
  Isa isa;
  int threads;
  std::vector<Layer> layers[shape_count];

  Bench(Isa which, int count) : isa(which), threads(count) {
    for (int s = 0; s < shape_count; ++s) {
      for (int i = 0; i < (s == head ? 1 : model_layers); ++i) layers[s].emplace_back(shapes[s]);
    }
  }

  // Makes `best[shape][layer]`, the seconds of each product with its quantisation, those of one pass where less.
  void pass(std::int64_t rows, const std::vector<float>& x, std::vector<float>& y,
            std::vector<unsigned char>& activations, double (&best)[shape_count][model_layers]) const {
    Barrier barrier(threads);
    const auto work = [&](int thread) {
      for (int l = 0; l <= model_layers; ++l) {
        for (int s = l < model_layers ? 0 : head; s < (l < model_layers ? head : shape_count); ++s) {
          const Shape& shape = shapes[s];
          const std::int64_t m = s == head ? std::min(rows, most_head_rows) : rows;
          const std::int64_t blocks = shape.n / block_channels;
          barrier.wait();
          const auto begin = std::chrono::steady_clock::now();
          quantise(isa, x.data(), shape.k, m * thread / threads, m * (thread + 1) / threads, shape.k, group,
                   activations.data());
          barrier.wait();
          multiply(isa, activations.data(), m, 0, m, layers[s][s == head ? 0 : l].weights(shape),
                   blocks * thread / threads, blocks * (thread + 1) / threads, y.data(), shape.n);
          barrier.wait();
          const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
          double& least = best[s][s == head ? 0 : l];
          if (thread == 0) least = std::min(least, took.count());
        }
      }
    };
    std::vector<std::thread> others;
    for (int thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
    work(0);
    for (auto& other : others) other.join();
  }

  void report(std::int64_t rows) const {
    std::vector<float> x(static_cast<std::size_t>(rows * 1536));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 251) - 125.0f;
    std::vector<float> y(static_cast<std::size_t>(std::max(rows * 3072, std::min(rows, most_head_rows) * 49152)));
    std::vector<unsigned char> activations(activation_bytes(isa, rows, 1536, group));
    double best[shape_count][model_layers];
    for (auto& of_shape : best) std::fill(of_shape, of_shape + model_layers, 1e9);
    for (int i = 0; i < (rows < 64 ? 10 : 4); ++i) pass(rows, x, y, activations, best);
    double all_macs = 0, all_bytes = 0, all_seconds = 0;
    for (int s = 0; s < shape_count; ++s) {
      const std::size_t count = layers[s].size();
      const double bytes = static_cast<double>(shapes[s].k * shapes[s].n) * static_cast<double>(count);
      const double macs = bytes * static_cast<double>(s == head ? std::min(rows, most_head_rows) : rows);
      double seconds = 0;
      for (std::size_t l = 0; l < count; ++l) seconds += best[s][l];
      print(rows, shapes[s].name, macs, bytes, seconds);
      all_macs += macs;
      all_bytes += bytes;
      all_seconds += seconds;
    }
    print(rows, "all", all_macs, all_bytes, all_seconds);
  }

  static void print(std::int64_t rows, const char* name, double macs, double bytes, double seconds) {
    std::printf("  %4ld rows  %-8s %7.1f GMAC/s %6.1f GB/s %9.2f ms\n", static_cast<long>(rows), name,
                macs / seconds / 1e9, bytes / seconds / 1e9, seconds * 1e3);
  }
};

}  // namespace

int main(int count, char** arguments) {
  const int threads = count > 1 ? std::atoi(arguments[1]) : 1;
  std::vector<std::int64_t> rows;
  for (int i = 2; i < count; ++i) rows.push_back(std::atoi(arguments[i]));
  if (rows.empty()) rows = {1, 2, 8, 32, 64, 184, 512};
  const Isa isa = best();
  const char* const names[isa_count] = {"portable", "AVX2", "AVX-VNNI", "AVX-512 VNNI"};
  std::printf("%s, threads: %d\n", names[static_cast<int>(isa)], threads);
  const Bench bench(isa, threads);
  for (const std::int64_t r : rows) bench.report(r);
  return 0;
}
