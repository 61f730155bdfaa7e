// The attention sub-block in one parallel region: norm, qkv, rotary, attention, output projection.
#pragma once

#include <omp.h>

#include <vector>

#include "attention.h"
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

constexpr int kSplitRows = 16;         // up to here the key blocks of a row are spread over threads
constexpr size_t kSplitFloats = 4u << 20;

template <class T>
class AttentionBlock {
 public:
  AttentionBlock(const AttentionArguments& arguments, const Step& step, const T* hidden, T* out, Workspace& workspace)
      : a_(arguments), step_(step), hidden_(hidden), out_(out), rows_(step.num_rows),
        group_(a_.num_heads / a_.num_kv_heads), words_(a_.hidden_size / Type<T>::kPerWord),
        qkv_columns_((a_.num_heads + 2 * a_.num_kv_heads) * a_.head_dim),
        qkv_blocks_((qkv_columns_ + kBlockColumns - 1) / kBlockColumns),
        task_rows_(std::max(1, kMaxTasksRows / group_)), threads_(step.num_threads) {
    cut_tasks();
    plan(workspace);
  }

  void run() {
#pragma omp parallel num_threads(threads_) if (threads_ > 1)
    {
      const int thread = omp_get_thread_num(), threads = omp_get_num_threads();
      project_qkv(thread, threads);
#pragma omp barrier
      rotate_heads(thread, threads);
#pragma omp barrier
      attend(thread, threads);
#pragma omp barrier
      if (split_) {
        merge(thread, threads);
#pragma omp barrier
      }
      project_output(thread, threads);
    }
  }

 private:
  struct Segment {
    int first, last, num_blocks;
  };

  void cut_tasks() {
    for (int row = 0; row < rows_;) {
      const int end = step_.segment_end(row, task_rows_), keys = step_.most_keys(row, end);
      segments_.push_back({row, end, (keys + kKeyBlock - 1) / kKeyBlock});
      most_blocks_ = std::max(most_blocks_, segments_.back().num_blocks);
      row = end;
    }
    const size_t partials = (size_t)rows_ * a_.num_heads * most_blocks_ * (a_.head_dim + 2);
    split_ = threads_ > 1 && rows_ <= kSplitRows && partials <= kSplitFloats;
  }

  void plan(Workspace& workspace) {
    const int pairs = std::max(kMaxTasksRows, group_), heads = a_.num_heads, dim = a_.head_dim;
    const size_t norm_copies = rows_ <= kOwnNormRows ? threads_ : 1;
    const size_t partial_pairs = split_ ? (size_t)rows_ * heads * most_blocks_ : 0;
    norm_size_ = (size_t)rows_ * a_.hidden_size + 32;
    thread_size_ = (size_t)kKeyBlock * dim + (size_t)pairs * (kKeyBlock + 2 * dim + 4) + 128;
    workspace.begin(norm_copies * norm_size_ + (size_t)rows_ * qkv_blocks_ * kBlockColumns +
                    2 * (size_t)rows_ * heads * dim + partial_pairs * (dim + 2) + threads_ * thread_size_);
    normed_ = workspace.take(norm_copies * norm_size_);
    qkv_ = workspace.take((size_t)rows_ * qkv_blocks_ * kBlockColumns);
    queries_ = workspace.take((size_t)rows_ * heads * dim);
    attended_ = workspace.take((size_t)rows_ * heads * dim);
    partials_.maxima = workspace.take(partial_pairs);
    partials_.sums = workspace.take(partial_pairs);
    partials_.outputs = workspace.take(partial_pairs * dim);
    partials_.state_stride = most_blocks_;
    partials_.output_stride = (ptrdiff_t)most_blocks_ * dim;
    thread_space_ = workspace.take(threads_ * thread_size_);
  }

  void project_qkv(int thread, int threads) {
    const float* normed =
        norm_rows(hidden_, a_.norm, rows_, a_.hidden_size, a_.epsilon, normed_, norm_size_, thread, threads);
    const int width = qkv_blocks_ * kBlockColumns;
    product<T>(normed, a_.hidden_size, rows_, a_.qkv, words_, share(qkv_blocks_, thread, threads),
               [&](int row, int column, const float* sums) {
                 for (int v = 0; v < kBlockVectors; ++v)
                   store(qkv_ + (ptrdiff_t)row * width + column + v * kLanes,
                         Type<T>::round(load<Floats>(sums + v * kLanes)));
               });
  }

  // Head norms and rotary; queries are regrouped as [kv head][row][head of the group], keys and values go to scratch.
  void rotate_heads(int thread, int threads) {
    const int heads = a_.num_heads + 2 * a_.num_kv_heads, dim = a_.head_dim;
    const Range items = share(rows_ * heads, thread, threads);
    for (int item = items.first; item < items.last; ++item) {
      const int row = item / heads, head = item % heads;
      float* source = qkv_ + (ptrdiff_t)row * qkv_blocks_ * kBlockColumns + head * dim;
      const int kv_head = head - a_.num_heads;
      if (kv_head >= a_.num_kv_heads) {
        T* target = (T*)a_.scratch_values + row * a_.scratch_row_stride + (kv_head - a_.num_kv_heads) * dim;
        store_row(target, source, dim);
        continue;
      }
      const T* weight = (const T*)(kv_head < 0 ? a_.query_norm : a_.key_norm);
      if (weight) rms_norm(source, weight, dim, a_.head_epsilon, source);
      const ptrdiff_t position = step_.positions[row] * a_.rotary_stride;
      rotate<T>(source, a_.cosines + position, a_.sines + position, dim);
      if (kv_head < 0) {
        const ptrdiff_t pair = ((ptrdiff_t)(head / group_) * rows_ + row) * group_ + head % group_;
        std::memcpy(queries_ + pair * dim, source, sizeof(float) * dim);
      } else {
        store_row((T*)a_.scratch_keys + row * a_.scratch_row_stride + kv_head * dim, source, dim);
      }
    }
  }

  // One block of keys for a segment's rows; rows are taken from the last, whose keys the earlier ones mostly share.
  void attend_keys(const Segment& segment, int kv_head, int block, TaskBuffers buffers, Partial out) const {
    const int start = block * kKeyBlock;
    for (int leader = segment.last - 1; leader >= segment.first;) {
      const int most = std::min(kKeyBlock, step_.num_keys(leader) - start);
      if (most <= 0) {
        --leader;
        continue;
      }
      int counts[kMaxTasksRows], first = leader;
      while (first > segment.first) {
        const int count = std::min(kKeyBlock, step_.num_keys(first - 1) - start);
        if (count <= 0 || count > most || !step_.shares_keys(first - 1, leader, start, count)) break;
        --first;
      }
      for (int row = first; row <= leader; ++row)
        counts[row - first] = std::min(kKeyBlock, step_.num_keys(row) - start);
      const T *keys[kKeyBlock], *values[kKeyBlock];
      locate_keys(leader, kv_head, start, most, keys, values);
      attend_block<T>(queries_ + ((ptrdiff_t)kv_head * rows_ + first) * group_ * a_.head_dim, keys, values, counts,
                      leader - first + 1, group_, a_.head_dim, a_.scale, buffers,
                      out.at((ptrdiff_t)(first - segment.first) * group_));
      leader = first - 1;
    }
  }

  void locate_keys(int row, int kv_head, int start, int count, const T** keys, const T** values) const {
    const int prefix = step_.row_prefix[row];
    const ptrdiff_t cache = step_.row_slot[row] * a_.slot_stride + kv_head * a_.head_stride;
    for (int index = 0; index < count; ++index) {
      const int position = start + index;
      if (position < prefix) {
        keys[index] = (const T*)a_.keys + cache + (ptrdiff_t)position * a_.head_dim;
        values[index] = (const T*)a_.values + cache + (ptrdiff_t)position * a_.head_dim;
      } else {
        const ptrdiff_t scratch =
            *step_.scratch_row(row, position) * a_.scratch_row_stride + (ptrdiff_t)kv_head * a_.head_dim;
        keys[index] = (const T*)a_.scratch_keys + scratch;
        values[index] = (const T*)a_.scratch_values + scratch;
      }
    }
  }

  void attend(int thread, int threads) {
    float* space = thread_space_ + thread * thread_size_;
    const int pairs = std::max(kMaxTasksRows, group_), dim = a_.head_dim;
    const TaskBuffers buffers{(uint32_t*)space, space + (size_t)kKeyBlock * dim};
    float* states = buffers.scores + (size_t)pairs * kKeyBlock;
    const Partial block_state{states, states + pairs, states + 4 * pairs, 1, dim};
    const Partial running{states + 2 * pairs, states + 3 * pairs, states + (size_t)pairs * (4 + dim), 1, dim};
    int item = 0;
    for (const Segment& segment : segments_)
      for (int kv_head = 0; kv_head < a_.num_kv_heads; ++kv_head) {
        const ptrdiff_t pair = ((ptrdiff_t)kv_head * rows_ + segment.first) * group_;
        if (split_) {
          for (int block = 0; block < segment.num_blocks; ++block)
            if (item++ % threads == thread) {
              Partial target = partials_.at(pair);
              target.maxima += block, target.sums += block, target.outputs += (ptrdiff_t)block * dim;
              attend_keys(segment, kv_head, block, buffers, target);
            }
        } else if (item++ % threads == thread) {
          attend_sequence(segment, kv_head, buffers, block_state, running);
        }
      }
  }

  // All blocks of a segment one after the other, for many rows.
  void attend_sequence(const Segment& segment, int kv_head, TaskBuffers buffers, Partial block_state, Partial running) {
    for (int block = 0; block < segment.num_blocks; ++block) {
      attend_keys(segment, kv_head, block, buffers, block_state);
      for (int row = segment.first; row < segment.last; ++row)
        if (step_.num_keys(row) > block * kKeyBlock) {
          const ptrdiff_t pair = (ptrdiff_t)(row - segment.first) * group_;
          fold(running.at(pair), block_state.at(pair), group_, a_.head_dim, block == 0);
        }
    }
    for (int row = segment.first; row < segment.last; ++row)
      for (int head = 0; head < group_; ++head)
        finish(row, kv_head, head, running.at((ptrdiff_t)(row - segment.first) * group_ + head));
  }

  // Folds the blocks that different threads computed; the first block's slot becomes the running state.
  void merge(int thread, int threads) {
    const Range items = share(rows_ * a_.num_heads, thread, threads);
    for (int item = items.first; item < items.last; ++item) {
      const int row = item / a_.num_heads, head = item % a_.num_heads;
      const Partial running =
          partials_.at(((ptrdiff_t)(head / group_) * rows_ + row) * group_ + head % group_);
      const int blocks = (step_.num_keys(row) + kKeyBlock - 1) / kKeyBlock;
      for (int block = 0; block < blocks; ++block) {
        const Partial next{running.maxima + block, running.sums + block,
                           running.outputs + (ptrdiff_t)block * a_.head_dim, 0, 0};
        fold(running, next, 1, a_.head_dim, block == 0);
      }
      finish(row, head / group_, head % group_, running);
    }
  }

  void finish(int row, int kv_head, int head, Partial state) {
    const int dim = a_.head_dim;
    float* target = attended_ + ((ptrdiff_t)row * a_.num_heads + kv_head * group_ + head) * dim;
    unzip<T>(state.outputs, 1.0f / state.sums[0], dim, target);
    for (int index = 0; index < dim; index += kLanes)
      store(target + index, Type<T>::round(load<Floats>(target + index)));
  }

  void project_output(int thread, int threads) {
    const int inner = a_.num_heads * a_.head_dim, blocks = (a_.hidden_size + kBlockColumns - 1) / kBlockColumns;
    product<T>(attended_, inner, rows_, a_.output, inner / Type<T>::kPerWord, share(blocks, thread, threads),
               [&](int row, int column, const float* sums) {
                 for (int v = 0; v < kBlockVectors && column + v * kLanes < a_.hidden_size; ++v)
                   Type<T>::store_floats(out_ + (ptrdiff_t)row * a_.hidden_size + column + v * kLanes,
                                         load<Floats>(sums + v * kLanes));
               });
  }

  const AttentionArguments& a_;
  const Step& step_;
  const T* hidden_;
  T* out_;
  int rows_, group_, words_, qkv_columns_, qkv_blocks_, task_rows_, threads_;
  int most_blocks_ = 0;
  bool split_ = false;
  std::vector<Segment> segments_;
  size_t norm_size_ = 0, thread_size_ = 0;
  float *normed_ = nullptr, *qkv_ = nullptr, *queries_ = nullptr, *attended_ = nullptr, *thread_space_ = nullptr;
  Partial partials_{};
};

}  // namespace native
