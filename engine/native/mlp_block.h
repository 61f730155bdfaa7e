// The gated MLP sub-block in one parallel region: norm, gate and up, SiLU product, down.
//
// Gate and up blocks alternate in the packed weights, so the thread that has a gate column also has its up column.
#pragma once

#include <omp.h>

#include "gemm.h"
#include "rowops.h"
#include "workspace.h"

namespace native {

struct MlpArguments {
  int32_t hidden_size, intermediate_size;
  float epsilon;
  const void* norm;
  const uint32_t *gate_up, *down;
};

template <class T>
void run_mlp(const MlpArguments& a, int num_rows, int num_threads, const T* hidden, T* out, Workspace& workspace) {
  const int pairs = (a.intermediate_size + kBlockColumns - 1) / kBlockColumns, width = pairs * kBlockColumns;
  const int blocks = (a.hidden_size + kBlockColumns - 1) / kBlockColumns, words = a.hidden_size / Type<T>::kPerWord;
  const int down_words = (a.intermediate_size + Type<T>::kPerWord - 1) / Type<T>::kPerWord;
  const size_t copy = (size_t)num_rows * a.hidden_size + 32, copies = num_rows <= kOwnNormRows ? num_threads : 1;
  workspace.begin(copy * copies + (size_t)num_rows * width);
  float* const space = workspace.take(copy * copies);
  float* const inner = workspace.take((size_t)num_rows * width);
#pragma omp parallel num_threads(num_threads) if (num_threads > 1)
  {
    const int thread = omp_get_thread_num(), threads = omp_get_num_threads();
    const float* normed = norm_rows(hidden, a.norm, num_rows, a.hidden_size, a.epsilon, space, copy, thread, threads);
    alignas(64) float gate[kGroupRows * kBlockColumns];
    const Range own = share(pairs, thread, threads);
    product<T>(normed, a.hidden_size, num_rows, a.gate_up, words, {2 * own.first, 2 * own.last},
               [&](int row, int column, const float* sums) {
                 const int block = column / kBlockColumns;
                 float* kept = gate + (row % kGroupRows) * kBlockColumns;
                 if (block % 2 == 0) {
                   std::memcpy(kept, sums, sizeof(float) * kBlockColumns);
                   return;
                 }
                 float* target = inner + (ptrdiff_t)row * width + block / 2 * kBlockColumns;
                 for (int v = 0; v < kBlockVectors; ++v) {
                   const Floats product = silu(load<Floats>(kept + v * kLanes)) * load<Floats>(sums + v * kLanes);
                   store(target + v * kLanes, Type<T>::round(product));
                 }
               });
#pragma omp barrier
    product<T>(inner, width, num_rows, a.down, down_words, share(blocks, thread, threads),
               [&](int row, int column, const float* sums) {
                 for (int v = 0; v < kBlockVectors && column + v * kLanes < a.hidden_size; ++v)
                   Type<T>::store_floats(out + (ptrdiff_t)row * a.hidden_size + column + v * kLanes,
                                         load<Floats>(sums + v * kLanes));
               });
  }
}

}  // namespace native
