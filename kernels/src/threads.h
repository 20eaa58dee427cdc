// How operations run within OpenVINO: its threads, and memory that is reused from pass to pass.
#pragma once

#include <tbb/parallel_for.h>

#include <cstddef>
#include <memory>
#include <new>

#include "products.h"

namespace ekiden {

// Memory of one thread of OpenVINO's, aligned to 64 bytes.
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

struct Threads {
  template <class Each>
  void operator()(std::int64_t count, std::int64_t at_once, Share share, const Each& each) const {
    if (count <= at_once) return each(std::int64_t{0}, count);
    const auto part = [&](const tbb::blocked_range<std::int64_t>& range) { each(range.begin(), range.end()); };
    const tbb::blocked_range<std::int64_t> all(0, count, static_cast<std::size_t>(at_once));
    if (share == Share::equally) {
      tbb::parallel_for(all, part, tbb::static_partitioner());
    } else {
      tbb::parallel_for(all, part);
    }
  }
};

}  // namespace ekiden
