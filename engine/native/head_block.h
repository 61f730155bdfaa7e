// The end of a decoder: final norm, vocabulary projection and arg-max, fused so that logits are never written out.
#pragma once

#include "mlp_block.h"

namespace native {

struct HeadArguments {
  int32_t hidden_size, vocab_size;
  float epsilon;
  int64_t first_id;
  const void* norm;
  const uint32_t* head;
};

// Largest value with the lowest id that has it, and the second largest value (equal to the largest on a tie).
struct Top {
  float value, runner_up;
  int64_t id;

  void add(Top other) {
    const bool wins = other.value > value || (other.value == value && other.id < id);
    const float loser = wins ? value : other.value, second = wins ? other.runner_up : runner_up;
    if (wins) value = other.value, id = other.id;
    runner_up = loser > second ? loser : second;
  }
};

// The same per lane; columns come in rising order, so a strict comparison keeps the lowest id.
struct LaneTop {
  Floats values, runner_ups;
  Ints ids;

  static LaneTop none() {
    return {splat(-INFINITY), splat(-INFINITY), lane_index()};
  }

  void add(Floats candidate, Ints candidate_ids) {
    const Ints wins = candidate > values;
    runner_ups = maximum(runner_ups, select(wins, values, candidate));
    values = select(wins, candidate, values);
    ids = (candidate_ids & wins) | (ids & ~wins);
  }

  Top merge() const {
    Top top{values[0], runner_ups[0], ids[0]};
    for (int lane = 1; lane < kLanes; ++lane) top.add({values[lane], runner_ups[lane], ids[lane]});
    return top;
  }
};

template <class T>
void run_head(const HeadArguments& a, int num_rows, int num_threads, const T* hidden, float* values, int64_t* ids,
              float* runner_ups, Workspace& workspace) {
  const int blocks = (a.vocab_size + kBlockColumns - 1) / kBlockColumns, words = a.hidden_size / Type<T>::kPerWord;
  const size_t copy = (size_t)num_rows * a.hidden_size + 32, copies = num_rows <= kOwnNormRows ? num_threads : 1;
  const size_t lane_tops = num_rows * sizeof(LaneTop) / sizeof(float), tops = num_rows * sizeof(Top) / sizeof(float);
  const size_t top_size = lane_tops + tops + 64;
  workspace.begin(copy * copies + top_size * num_threads);
  float* const space = workspace.take(copy * copies);
  float* const top_space = workspace.take(top_size * num_threads);
  int team = 1;
#pragma omp parallel num_threads(num_threads) if (num_threads > 1)
  {
    const int thread = omp_get_thread_num(), threads = omp_get_num_threads();
    const float* normed = norm_rows(hidden, a.norm, num_rows, a.hidden_size, a.epsilon, space, copy, thread, threads);
    LaneTop* const lanes = (LaneTop*)(top_space + (top_size / 32 * 32) * thread);
    for (int row = 0; row < num_rows; ++row) lanes[row] = LaneTop::none();
    product<T>(normed, a.hidden_size, num_rows, a.head, words, share(blocks, thread, threads),
               [&](int row, int column, const float* sums) {
                 for (int v = 0; v < kBlockVectors; ++v) {
                   const Ints own_ids = lane_index() + (column + v * kLanes);
                   const Floats logits = load<Floats>(sums + v * kLanes);
                   lanes[row].add(select(own_ids < (Ints)splat_word(a.vocab_size), logits, splat(-INFINITY)), own_ids);
                 }
               });
    Top* const tops_of_thread = (Top*)(lanes + num_rows);
    for (int row = 0; row < num_rows; ++row) tops_of_thread[row] = lanes[row].merge();
    if (thread == 0) team = threads;
  }
  for (int row = 0; row < num_rows; ++row) {
    Top best{};
    for (int thread = 0; thread < team; ++thread) {
      const LaneTop* lanes = (const LaneTop*)(top_space + (top_size / 32 * 32) * thread);
      const Top own = ((const Top*)(lanes + num_rows))[row];
      if (thread == 0)
        best = own;
      else
        best.add(own);
    }
    values[row] = best.value, ids[row] = a.first_id + best.id, runner_ups[row] = best.runner_up;
  }
}

}  // namespace native
