// Scratch memory of a call, grown on demand and kept between calls; owned by Python through an opaque handle.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

namespace native {

class Workspace {
 public:
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  ~Workspace() { std::free(base_); }

  // Starts a call that will take at most `floats` in at most 32 pieces.
  void begin(size_t floats) {
    const size_t bytes = (floats + 32 * kAlign) * sizeof(float);
    used_ = 0;
    if (bytes <= capacity_) return;
    std::free(base_);
    capacity_ = (bytes + 4095) / 4096 * 4096;
    base_ = static_cast<float*>(std::aligned_alloc(4096, capacity_));
    if (!base_) throw std::bad_alloc();
  }

  float* take(size_t floats) {
    float* piece = base_ + used_;
    used_ += (floats + kAlign - 1) / kAlign * kAlign;
    return piece;
  }

 private:
  static constexpr size_t kAlign = 32;  // floats: two cache lines, so that threads do not share one
  float* base_ = nullptr;
  size_t capacity_ = 0, used_ = 0;
};

}  // namespace native
