// The attention sub-block: norm, qkv, rotary, attention, output projection.
#pragma once

#include "attention_tasks.h"
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

// Sizes and memory are those of the first layer; all layers of a call share them.
template <class T>
class AttentionBlock {
 public:
  AttentionBlock(const AttentionArguments& shape, const Step& step)
      : s_(shape), step_(step), rows_(step.num_rows), group_(shape.num_heads / shape.num_kv_heads),
        threads_(step.num_threads), plan_(step, shape.num_kv_heads, group_, shape.head_dim) {
    const int columns = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim;
    qkv_blocks_ = (columns + kBlockColumns - 1) / kBlockColumns;
    width_ = qkv_blocks_ * kBlockColumns;
  }

  size_t floats() const {
    return NormedRows::floats(rows_, s_.hidden_size, threads_) + (size_t)rows_ * (width_ + s_.num_heads * s_.head_dim) +
           partial_pairs() * (s_.head_dim + 2) + threads_ * TaskSpace::floats(group_, s_.head_dim);
  }

  void place(Workspace& workspace) {
    const size_t pairs = partial_pairs();
    normed_ = workspace.take(NormedRows::floats(rows_, s_.hidden_size, threads_));
    qkv_ = workspace.take((size_t)rows_ * width_);
    attended_ = workspace.take((size_t)rows_ * s_.num_heads * s_.head_dim);
    partials_ = {workspace.take(pairs), workspace.take(pairs), workspace.take(pairs * s_.head_dim), plan_.most_blocks,
                 (ptrdiff_t)plan_.most_blocks * s_.head_dim};
    thread_space_ = workspace.take(threads_ * TaskSpace::floats(group_, s_.head_dim));
  }

  // out = the block's output, plus the residual where there is one; out may be the residual.
  void run(const Team& team, const AttentionArguments& a, const T* hidden, T* out, const T* residual) const {
    project_qkv(team, a, hidden);
    team.wait();
    write_scratch(team, a);
    team.wait();
    attend(team, a);
    team.wait();
    if (plan_.split) {
      merge(team);
      team.wait();
    }
    const int inner = s_.num_heads * s_.head_dim, blocks = (s_.hidden_size + kBlockColumns - 1) / kBlockColumns;
    product<T>(attended_, inner, rows_, a.output, inner / Type<T>::kPerWord, team.share_of(blocks),
               Output<T>{out, residual, s_.hidden_size});
  }

 private:
  size_t partial_pairs() const { return plan_.split ? (size_t)rows_ * s_.num_heads * plan_.most_blocks : 0; }

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

  // The new keys, normed and rotated, and values: to the cache's scratch.
  void write_scratch(const Team& team, const AttentionArguments& a) const {
    const int dim = s_.head_dim;
    const Range items = team.share_of(rows_ * s_.num_kv_heads);
    for (int item = items.first; item < items.last; ++item) {
      const int row = item / s_.num_kv_heads, head = item % s_.num_kv_heads;
      const ptrdiff_t target = row * a.scratch_row_stride + (ptrdiff_t)head * dim;
      float* key = qkv_ + (ptrdiff_t)row * width_ + (s_.num_heads + head) * dim;
      rotate_head(a, row, a.key_norm, key, key);
      store_row((T*)a.scratch_keys + target, key, dim);
      store_row((T*)a.scratch_values + target, key + s_.num_kv_heads * dim, dim);
    }
  }

  void rotate_head(const AttentionArguments& a, int row, const void* norm, const float* source, float* target) const {
    if (norm) rms_norm(source, (const T*)norm, s_.head_dim, s_.head_epsilon, target), source = target;
    const ptrdiff_t position = step_.positions[row] * s_.rotary_stride;
    rotate<T>(source, a.cosines + position, a.sines + position, s_.head_dim, target);
  }

  // A segment's queries of one kv head, normed and rotated: [row][head of the group].
  void gather_queries(const AttentionArguments& a, const Segment& segment, int kv_head, float* queries) const {
    for (int row = segment.first; row < segment.last; ++row)
      for (int head = kv_head * group_; head < (kv_head + 1) * group_; ++head, queries += s_.head_dim)
        rotate_head(a, row, a.query_norm, qkv_ + (ptrdiff_t)row * width_ + head * s_.head_dim, queries);
  }

  // One block of keys for a segment's rows; rows are taken from the last, whose keys the earlier ones mostly share.
  void attend_keys(const AttentionArguments& a, const Segment& segment, int kv_head, int block,
                   const TaskSpace& space, Partial out, KeyBlock<T> next) const {
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
      const ptrdiff_t pair = (ptrdiff_t)(first - segment.first) * group_;
      attend_block<T>(space.queries + pair * s_.head_dim, keys, values, counts, leader - first + 1, group_,
                      s_.head_dim, s_.scale, space.buffers, out.at(pair), next);
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

  // Where the committed keys and values of a block begin; the caller may be done, then any address will do.
  KeyBlock<T> key_block(const AttentionArguments& a, const Segment& segment, int kv_head, int block) const {
    const ptrdiff_t first = step_.row_slot[segment.first] * a.slot_stride + kv_head * a.head_stride +
                            (ptrdiff_t)block * kKeyBlock * s_.head_dim;
    return {(const T*)a.keys + first, (const T*)a.values + first};
  }

  void attend(const Team& team, const AttentionArguments& a) const {
    const size_t size = TaskSpace::floats(group_, s_.head_dim);
    const TaskSpace space(thread_space_ + team.thread * size, group_, s_.head_dim);
    if (plan_.split) return attend_blocks(a, team.share_of((int)plan_.tasks.size()), space);
    // interleaved, because the tasks of later rows of a prompt are longer
    for (size_t item = team.thread; item < plan_.tasks.size(); item += team.threads)
      attend_sequence(a, plan_.segments[plan_.tasks[item].segment], plan_.tasks[item].kv_head, space);
  }

  // A thread's share of single blocks, for `merge`.
  void attend_blocks(const AttentionArguments& a, Range own, const TaskSpace& space) const {
    for (int item = own.first; item < own.last; ++item) {
      const Task task = plan_.tasks[item], next = plan_.tasks[std::min(item + 1, own.last - 1)];
      const Segment& segment = plan_.segments[task.segment];
      if (item == own.first || task.block == 0) gather_queries(a, segment, task.kv_head, space.queries);
      Partial target = partials_.at(((ptrdiff_t)task.kv_head * rows_ + segment.first) * group_);
      target.maxima += task.block, target.sums += task.block;
      target.outputs += (ptrdiff_t)task.block * s_.head_dim;
      attend_keys(a, segment, task.kv_head, task.block, space, target,
                  key_block(a, plan_.segments[next.segment], next.kv_head, next.block));
    }
  }

  // All blocks of a segment one after the other.
  void attend_sequence(const AttentionArguments& a, const Segment& segment, int kv_head, const TaskSpace& space) const {
    gather_queries(a, segment, kv_head, space.queries);
    for (int block = 0; block < segment.num_blocks; ++block) {
      attend_keys(a, segment, kv_head, block, space, space.block, key_block(a, segment, kv_head, block + 1));
      for (int row = segment.first; row < segment.last; ++row)
        if (step_.num_keys(row) > block * kKeyBlock) {
          const ptrdiff_t pair = (ptrdiff_t)(row - segment.first) * group_;
          fold(space.running.at(pair), space.block.at(pair), group_, s_.head_dim, block == 0);
        }
    }
    for (int row = segment.first; row < segment.last; ++row)
      for (int head = 0; head < group_; ++head)
        finish(row, kv_head, head, space.running.at((ptrdiff_t)(row - segment.first) * group_ + head));
  }

  // Folds the blocks that different threads computed; the first block's slot becomes the running state.
  void merge(const Team& team) const {
    const Range items = team.share_of(rows_ * s_.num_heads);
    for (int item = items.first; item < items.last; ++item) {
      const int head = item / rows_, row = item % rows_;
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
  }

  const AttentionArguments& s_;
  const Step& step_;
  int rows_, group_, threads_;
  TaskPlan plan_;
  int qkv_blocks_ = 0, width_ = 0;  // columns of qkv, with padding
  float *normed_ = nullptr, *qkv_ = nullptr, *attended_ = nullptr, *thread_space_ = nullptr;
  Partial partials_{};
};

}  // namespace native
