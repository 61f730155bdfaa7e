// The attention sub-block: norm, qkv, rotary, attention, output projection.
#pragma once

#include <vector>

#include "attention.h"
#include "layout.h"
#include "rowops.h"
#include "workspace.h"

namespace native {

// What ctypes fills in; pointers are to elements of the model's dtype unless they are float or packed words.
struct AttentionArguments {
  int32_t hidden_size, num_heads, num_kv_heads, head_dim, rotary_stride;
  float epsilon, head_epsilon, scale;
  const void *norm, *query_norm, *key_norm;  // head norms may be null
  const uint32_t *qkv, *output;
  const float *cosines, *sines;
  const void *keys, *values;
  void *scratch_keys, *scratch_values;
  int64_t slot_stride, head_stride, scratch_row_stride;
};

constexpr int kSplitRows = 16;  // up to here the key blocks of a row are spread over threads
constexpr size_t kSplitFloats = 4u << 20;

// Sizes and memory are those of the first layer; all layers of a call share them.
template <class T>
class AttentionBlock {
 public:
  AttentionBlock(const AttentionArguments& shape, const Step& step)
      : s_(shape), step_(step), rows_(step.num_rows), group_(shape.num_heads / shape.num_kv_heads),
        width_((shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim), threads_(step.num_threads) {
    qkv_blocks_ = (width_ + kBlockColumns - 1) / kBlockColumns;
    width_ = qkv_blocks_ * kBlockColumns;
    cut_tasks();
  }

  size_t floats() const {
    return NormedRows::floats(rows_, s_.hidden_size, threads_) + (size_t)rows_ * width_ +
           2 * (size_t)rows_ * s_.num_heads * s_.head_dim + partial_pairs() * (s_.head_dim + 2) +
           threads_ * thread_floats();
  }

  void place(Workspace& workspace) {
    const size_t queries = (size_t)rows_ * s_.num_heads * s_.head_dim, pairs = partial_pairs();
    normed_ = workspace.take(NormedRows::floats(rows_, s_.hidden_size, threads_));
    qkv_ = workspace.take((size_t)rows_ * width_);
    queries_ = workspace.take(queries);
    attended_ = workspace.take(queries);
    partials_ = {workspace.take(pairs), workspace.take(pairs), workspace.take(pairs * s_.head_dim), most_blocks_,
                 (ptrdiff_t)most_blocks_ * s_.head_dim};
    thread_space_ = workspace.take(threads_ * thread_floats());
  }

  // out = the block's output, plus the residual where there is one; out may be the residual.
  void run(const Team& team, const AttentionArguments& a, const T* hidden, T* out, const T* residual) const {
    project_qkv(team, a, hidden);
    team.wait();
    rotate_heads(team, a);
    team.wait();
    attend(team, a);
    team.wait();
    if (split_) {
      merge(team);
      team.wait();
    }
    const int inner = s_.num_heads * s_.head_dim, blocks = (s_.hidden_size + kBlockColumns - 1) / kBlockColumns;
    product<T>(attended_, inner, rows_, a.output, inner / Type<T>::kPerWord, team.share_of(blocks),
               Output<T>{out, residual, s_.hidden_size});
  }

 private:
  struct Segment {
    int first, last, num_blocks;
  };

  void cut_tasks() {
    for (int row = 0; row < rows_;) {
      const int end = step_.segment_end(row, std::max(1, kMaxTaskPairs / group_));
      segments_.push_back({row, end, (step_.most_keys(row, end) + kKeyBlock - 1) / kKeyBlock});
      most_blocks_ = std::max(most_blocks_, segments_.back().num_blocks);
      row = end;
    }
    const size_t partials = (size_t)rows_ * s_.num_heads * most_blocks_ * (s_.head_dim + 2);
    split_ = threads_ > 1 && rows_ <= kSplitRows && partials <= kSplitFloats;
  }

  size_t partial_pairs() const { return split_ ? (size_t)rows_ * s_.num_heads * most_blocks_ : 0; }
  size_t task_pairs() const { return std::max(kMaxTaskPairs, group_); }
  size_t thread_floats() const {
    return (size_t)kKeyBlock * s_.head_dim + task_pairs() * (kKeyBlock + 2 * s_.head_dim + 4) + 128;
  }

  void project_qkv(const Team& team, const AttentionArguments& a, const T* hidden) const {
    const float* normed =
        NormedRows(normed_, rows_, s_.hidden_size).template compute<T>(team, hidden, a.norm, s_.epsilon);
    product<T>(normed, s_.hidden_size, rows_, a.qkv, s_.hidden_size / Type<T>::kPerWord, team.share_of(qkv_blocks_),
               [&](int row, int column, const float* sums) {
                 for (int v = 0; v < kBlockVectors; ++v)
                   store(qkv_ + (ptrdiff_t)row * width_ + column + v * kLanes,
                         Type<T>::round(load<Floats>(sums + v * kLanes)));
               });
  }

  // Head norms and rotary; queries are regrouped as [kv head][row][head of the group], keys and values go to scratch.
  void rotate_heads(const Team& team, const AttentionArguments& a) const {
    const int heads = s_.num_heads + 2 * s_.num_kv_heads, dim = s_.head_dim;
    const Range items = team.share_of(rows_ * heads);
    for (int item = items.first; item < items.last; ++item) {
      const int row = item / heads, head = item % heads;
      float* source = qkv_ + (ptrdiff_t)row * width_ + head * dim;
      const int kv_head = head - s_.num_heads;
      if (kv_head >= s_.num_kv_heads) {
        T* target = (T*)a.scratch_values + row * a.scratch_row_stride + (kv_head - s_.num_kv_heads) * dim;
        store_row(target, source, dim);
        continue;
      }
      const T* weight = (const T*)(kv_head < 0 ? a.query_norm : a.key_norm);
      if (weight) rms_norm(source, weight, dim, s_.head_epsilon, source);
      const ptrdiff_t position = step_.positions[row] * s_.rotary_stride;
      rotate<T>(source, a.cosines + position, a.sines + position, dim);
      if (kv_head < 0) {
        const ptrdiff_t pair = ((ptrdiff_t)(head / group_) * rows_ + row) * group_ + head % group_;
        std::memcpy(queries_ + pair * dim, source, sizeof(float) * dim);
      } else {
        store_row((T*)a.scratch_keys + row * a.scratch_row_stride + kv_head * dim, source, dim);
      }
    }
  }

  // One block of keys for a segment's rows; rows are taken from the last, whose keys the earlier ones mostly share.
  void attend_keys(const AttentionArguments& a, const Segment& segment, int kv_head, int block, TaskBuffers buffers,
                   Partial out) const {
    const int start = block * kKeyBlock;
    for (int leader = segment.last - 1; leader >= segment.first;) {
      const int most = std::min(kKeyBlock, step_.num_keys(leader) - start);
      if (most <= 0) {
        --leader;
        continue;
      }
      int counts[kMaxTaskPairs], first = leader;
      while (first > segment.first) {
        const int count = std::min(kKeyBlock, step_.num_keys(first - 1) - start);
        if (count <= 0 || count > most || !step_.shares_keys(first - 1, leader, start, count)) break;
        --first;
      }
      for (int row = first; row <= leader; ++row)
        counts[row - first] = std::min(kKeyBlock, step_.num_keys(row) - start);
      const T *keys[kKeyBlock], *values[kKeyBlock];
      locate_keys(a, leader, kv_head, start, most, keys, values);
      attend_block<T>(queries_ + ((ptrdiff_t)kv_head * rows_ + first) * group_ * s_.head_dim, keys, values, counts,
                      leader - first + 1, group_, s_.head_dim, s_.scale, buffers,
                      out.at((ptrdiff_t)(first - segment.first) * group_));
      leader = first - 1;
    }
  }

  void locate_keys(const AttentionArguments& a, int row, int kv_head, int start, int count, const T** keys,
                   const T** values) const {
    const int prefix = step_.row_prefix[row];
    const ptrdiff_t cache = step_.row_slot[row] * a.slot_stride + kv_head * a.head_stride;
    for (int index = 0; index < count; ++index) {
      const int position = start + index;
      if (position < prefix) {
        keys[index] = (const T*)a.keys + cache + (ptrdiff_t)position * s_.head_dim;
        values[index] = (const T*)a.values + cache + (ptrdiff_t)position * s_.head_dim;
      } else {
        const ptrdiff_t scratch =
            *step_.scratch_row(row, position) * a.scratch_row_stride + (ptrdiff_t)kv_head * s_.head_dim;
        keys[index] = (const T*)a.scratch_keys + scratch;
        values[index] = (const T*)a.scratch_values + scratch;
      }
    }
  }

  void attend(const Team& team, const AttentionArguments& a) const {
    float* space = thread_space_ + team.thread * thread_floats();
    const int dim = s_.head_dim;
    const size_t pairs = task_pairs();
    const TaskBuffers buffers{(uint32_t*)space, space + (size_t)kKeyBlock * dim};
    float* states = buffers.scores + (size_t)pairs * kKeyBlock;
    const Partial block_state{states, states + pairs, states + 4 * pairs, 1, dim};
    const Partial running{states + 2 * pairs, states + 3 * pairs, states + (size_t)pairs * (4 + dim), 1, dim};
    int item = 0;
    for (const Segment& segment : segments_)
      for (int kv_head = 0; kv_head < s_.num_kv_heads; ++kv_head) {
        const ptrdiff_t pair = ((ptrdiff_t)kv_head * rows_ + segment.first) * group_;
        if (split_) {
          for (int block = 0; block < segment.num_blocks; ++block)
            if (item++ % team.threads == team.thread) {
              Partial target = partials_.at(pair);
              target.maxima += block, target.sums += block, target.outputs += (ptrdiff_t)block * dim;
              attend_keys(a, segment, kv_head, block, buffers, target);
            }
        } else if (item++ % team.threads == team.thread) {
          attend_sequence(a, segment, kv_head, buffers, block_state, running);
        }
      }
  }

  // All blocks of a segment one after the other, for many rows.
  void attend_sequence(const AttentionArguments& a, const Segment& segment, int kv_head, TaskBuffers buffers,
                       Partial block_state, Partial running) const {
    for (int block = 0; block < segment.num_blocks; ++block) {
      attend_keys(a, segment, kv_head, block, buffers, block_state);
      for (int row = segment.first; row < segment.last; ++row)
        if (step_.num_keys(row) > block * kKeyBlock) {
          const ptrdiff_t pair = (ptrdiff_t)(row - segment.first) * group_;
          fold(running.at(pair), block_state.at(pair), group_, s_.head_dim, block == 0);
        }
    }
    for (int row = segment.first; row < segment.last; ++row)
      for (int head = 0; head < group_; ++head)
        finish(row, kv_head, head, running.at((ptrdiff_t)(row - segment.first) * group_ + head));
  }

  // Folds the blocks that different threads computed; the first block's slot becomes the running state.
  void merge(const Team& team) const {
    const Range items = team.share_of(rows_ * s_.num_heads);
    for (int item = items.first; item < items.last; ++item) {
      const int row = item / s_.num_heads, head = item % s_.num_heads;
      const Partial running =
          partials_.at(((ptrdiff_t)(head / group_) * rows_ + row) * group_ + head % group_);
      const int blocks = (step_.num_keys(row) + kKeyBlock - 1) / kKeyBlock;
      for (int block = 0; block < blocks; ++block) {
        const Partial next{running.maxima + block, running.sums + block,
                           running.outputs + (ptrdiff_t)block * s_.head_dim, 0, 0};
        fold(running, next, 1, s_.head_dim, block == 0);
      }
      finish(row, head / group_, head % group_, running);
    }
  }

  void finish(int row, int kv_head, int head, Partial state) const {
    const int dim = s_.head_dim;
    float* target = attended_ + ((ptrdiff_t)row * s_.num_heads + kv_head * group_ + head) * dim;
    unzip<T>(state.outputs, 1.0f / state.sums[0], dim, target);
    for (int index = 0; index < dim; index += kLanes)
      store(target + index, Type<T>::round(load<Floats>(target + index)));
  }

  const AttentionArguments& s_;
  const Step& step_;
  int rows_, group_, width_, threads_;  // width_: columns of qkv with padding
  int qkv_blocks_ = 0, most_blocks_ = 0;
  bool split_ = false;
  std::vector<Segment> segments_;
  float *normed_ = nullptr, *qkv_ = nullptr, *queries_ = nullptr, *attended_ = nullptr, *thread_space_ = nullptr;
  Partial partials_{};
};

}  // namespace native
