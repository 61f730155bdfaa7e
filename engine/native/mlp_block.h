// The gated MLP sub-block: norm, gate and up, SiLU product, down.
//
// Gate and up blocks alternate in the packed weights, so the thread that has a gate column also has its up column.
#pragma once

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
class MlpBlock {
 public:
  MlpBlock(const MlpArguments& shape, int num_rows, int threads)
      : s_(shape), rows_(num_rows), threads_(threads),
        pairs_((shape.intermediate_size + kBlockColumns - 1) / kBlockColumns), width_(pairs_ * kBlockColumns) {}

  size_t floats() const { return NormedRows::floats(rows_, s_.hidden_size, threads_) + (size_t)rows_ * width_; }

  void place(Workspace& workspace) {
    normed_ = workspace.take(NormedRows::floats(rows_, s_.hidden_size, threads_));
    inner_ = workspace.take((size_t)rows_ * width_);
  }

  // out = the block's output, plus the residual where there is one; out may be the residual.
  void run(const Team& team, const MlpArguments& a, const T* hidden, T* out, const T* residual) const {
    constexpr int per_word = Type<T>::kPerWord;
    gate_up(team, a, hidden);
    team.wait();
    const int blocks = (s_.hidden_size + kBlockColumns - 1) / kBlockColumns;
    product<T>(inner_, width_, rows_, a.down, (s_.intermediate_size + per_word - 1) / per_word, team.share_of(blocks),
               Output<T>{out, residual, s_.hidden_size});
  }

 private:
  void gate_up(const Team& team, const MlpArguments& a, const T* hidden) const {
    const float* normed =
        NormedRows(normed_, rows_, s_.hidden_size).template compute<T>(team, hidden, a.norm, s_.epsilon);
    alignas(64) float gate[kGroupRows * kBlockColumns];
    const Range own = team.share_of(pairs_);
    product<T>(normed, s_.hidden_size, rows_, a.gate_up, s_.hidden_size / Type<T>::kPerWord,
               {2 * own.first, 2 * own.last}, [&](int row, int column, const float* sums) {
                 const int block = column / kBlockColumns;
                 float* kept = gate + (row % kGroupRows) * kBlockColumns;
                 if (block % 2 == 0) {
                   std::memcpy(kept, sums, sizeof(float) * kBlockColumns);
                   return;
                 }
                 float* target = inner_ + (ptrdiff_t)row * width_ + block / 2 * kBlockColumns;
                 for (int v = 0; v < kBlockVectors; ++v) {
                   const Floats gated = silu(load<Floats>(kept + v * kLanes)) * load<Floats>(sums + v * kLanes);
                   store(target + v * kLanes, Type<T>::round(gated));
                 }
               });
  }

  const MlpArguments& s_;
  int rows_, threads_, pairs_, width_;
  float *normed_ = nullptr, *inner_ = nullptr;
};

}  // namespace native
