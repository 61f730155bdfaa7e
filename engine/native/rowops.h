// Row-wise pieces of a decoder layer: RMSNorm, rotary embedding, SiLU. Each row is computed on its own.
#pragma once

#include "simd.h"
#include "team.h"

namespace native {

// Sum of squares with four chains over the row; `size` is a multiple of kLanes.
template <class T>
inline float mean_square(const T* row, int size) {
  Floats sums[4] = {};
  for (int index = 0, chain = 0; index < size; index += kLanes, chain = (chain + 1) & 3) {
    const Floats value = Type<T>::load_floats(row + index);
    sums[chain] = fma(value, value, sums[chain]);
  }
  return lane_sum((sums[0] + sums[1]) + (sums[2] + sums[3])) / size;
}

// out = round(round(x / rms(x)) * weight), as a torch model computes it in dtype T; kept as fp32.
template <class T, class Source>
inline void rms_norm(const Source* row, const T* weight, int size, float epsilon, float* out) {
  const Floats scale = splat(1.0f / std::sqrt(mean_square(row, size) + epsilon));
  for (int index = 0; index < size; index += kLanes) {
    const Floats normed = Type<T>::round(Type<Source>::load_floats(row + index) * scale);
    store(out + index, Type<T>::round(normed * Type<T>::load_floats(weight + index)));
  }
}

// Half-split rotary embedding: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin), rounded to T; out may be the head.
template <class T>
inline void rotate(const float* head, const float* cosines, const float* sines, int head_dim, float* out) {
  const int half = head_dim / 2;
  for (int index = 0; index < half; index += kLanes) {
    const Floats low = load<Floats>(head + index), high = load<Floats>(head + half + index);
    const Floats cosine = load<Floats>(cosines + index), sine = load<Floats>(sines + index);
    store(out + index, Type<T>::round(fma(low, cosine, -(high * sine))));
    store(out + half + index, Type<T>::round(fma(high, cosine, low * sine)));
  }
}

inline Floats silu(Floats x) { return x / (splat(1.0f) + exponential(-x)); }

template <class T>
inline void store_row(T* target, const float* source, int size) {
  for (int index = 0; index < size; index += kLanes)
    Type<T>::store_floats(target + index, load<Floats>(source + index));
}

constexpr int kOwnNormRows = 16;  // up to here every thread norms all rows itself: cheaper than a barrier

// The normed rows of a block in fp32: one copy per thread for a few rows, one for all threads otherwise.
class NormedRows {
 public:
  static size_t floats(int num_rows, int size, int threads) {
    return copy_size(num_rows, size) * (num_rows <= kOwnNormRows ? threads : 1);
  }
  NormedRows(float* space, int num_rows, int size) : space_(space), num_rows_(num_rows), size_(size) {}

  template <class T>
  const float* compute(const Team& team, const T* hidden, const void* weight, float epsilon) const {
    const bool own = num_rows_ <= kOwnNormRows;
    float* normed = space_ + (own ? team.thread * copy_size(num_rows_, size_) : 0);
    const Range rows = own ? Range{0, num_rows_} : team.share_of(num_rows_);
    for (int row = rows.first; row < rows.last; ++row)
      rms_norm(hidden + (ptrdiff_t)row * size_, (const T*)weight, size_, epsilon, normed + (ptrdiff_t)row * size_);
    if (!own) team.wait();
    return normed;
  }

 private:
  static size_t copy_size(int num_rows, int size) { return (size_t)num_rows * size + 32; }
  float* space_;
  int num_rows_, size_;
};

}  // namespace native
