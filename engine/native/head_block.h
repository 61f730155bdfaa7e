// The end of a decoder: final norm, vocabulary projection and arg-max, fused so that logits are written out only for the
// rows that are sampled from.
#pragma once

#include "gemm.h"
#include "rowops.h"
#include "workspace.h"

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
class HeadBlock {
 public:
  HeadBlock(const HeadArguments& arguments, int num_rows, int threads)
      : a_(arguments), rows_(num_rows), threads_(threads) {}

  size_t floats() const {
    return NormedRows::floats(rows_, a_.hidden_size, threads_) +
           threads_ * rows_ * (sizeof(LaneTop) + sizeof(Top)) / sizeof(float);
  }

  void place(Workspace& workspace) {
    normed_ = workspace.take(NormedRows::floats(rows_, a_.hidden_size, threads_));
    lane_tops_ = (LaneTop*)workspace.take(threads_ * rows_ * sizeof(LaneTop) / sizeof(float));
    tops_ = (Top*)workspace.take(threads_ * rows_ * sizeof(Top) / sizeof(float));
  }

  // `logits` has one place per row: where its vocab_size logits go, or null; null itself when no row's are wanted.
  void run(const Team& team, const T* hidden, float* values, int64_t* ids, float* runner_ups,
           float* const* logits) const {
    search(team, hidden, lane_tops_ + (ptrdiff_t)team.thread * rows_, logits);
    for (int row = 0; row < rows_; ++row)
      tops_[team.thread * rows_ + row] = lane_tops_[team.thread * rows_ + row].merge();
    team.wait();
    const Range own = team.share_of(rows_);
    for (int row = own.first; row < own.last; ++row) {
      Top best = tops_[row];
      for (int thread = 1; thread < team.threads; ++thread) best.add(tops_[thread * rows_ + row]);
      values[row] = best.value, ids[row] = a_.first_id + best.id, runner_ups[row] = best.runner_up;
    }
  }

 private:
  void search(const Team& team, const T* hidden, LaneTop* tops, float* const* logits) const {
    const float* normed =
        NormedRows(normed_, rows_, a_.hidden_size).template compute<T>(team, hidden, a_.norm, a_.epsilon);
    for (int row = 0; row < rows_; ++row) tops[row] = LaneTop::none();
    const int blocks = (a_.vocab_size + kBlockColumns - 1) / kBlockColumns;
    product<T>(normed, a_.hidden_size, rows_, a_.head, a_.hidden_size / Type<T>::kPerWord, team.share_of(blocks),
               [&](int row, int column, const float* sums) {
                 for (int v = 0; v < kBlockVectors; ++v) {
                   const Ints ids = lane_index() + (column + v * kLanes);
                   const Floats values = load<Floats>(sums + v * kLanes);
                   tops[row].add(select(ids < (Ints)splat_word(a_.vocab_size), values, splat(-INFINITY)), ids);
                 }
                 if (logits && logits[row])
                   std::copy_n(sums, std::min(kBlockColumns, a_.vocab_size - column), logits[row] + column);
               });
  }

  const HeadArguments& a_;
  int rows_, threads_;
  float* normed_ = nullptr;
  LaneTop* lane_tops_ = nullptr;
  Top* tops_ = nullptr;
};

}  // namespace native
