// An EAGLE-3 head drafting for one sequence: new pairs into its cache, then a greedy chain (drafters/eagle3.py).
//
// A pair is the feature of a position with the token behind it. Only the newest pair is answered, so the others need no
// query, attention or MLP. Everything of a step is shared by all threads; a barrier stands between its parts.
#pragma once

#include "attention_tasks.h"
#include "head_block.h"
#include "mlp_block.h"

namespace native {

// What ctypes fills in: the head's weights; pointers are to elements of its dtype unless they say more.
struct Eagle3Arguments {
  int32_t hidden_size, num_heads, num_kv_heads, head_dim, rotary_stride, norm_before_residual, norm_feedback;
  float epsilon, scale;
  const void *embedding, *input_norm, *hidden_norm;
  const uint32_t *qkv, *output;
  const float *cosines, *sines;
  const int64_t* target_ids;  // verifier's id of each drafted one
  const MlpArguments* mlp;
  const HeadArguments* head;
};

// One draft. Keys and values are [kv heads][positions][head_dim], with room for all pairs and drafts.
struct Eagle3Call {
  int32_t num_threads, num_pairs, num_drafts;
  float min_probability;  // the chain ends where its probability falls below
  int64_t start;          // position of the first new pair
  const void* features;   // [num_pairs][hidden_size]
  const int64_t* token_ids;
  void *keys, *values;
  int64_t head_stride;
  void* newest;      // [hidden_size]: the layer's output for the newest pair; an input without new pairs
  int64_t* drafted;  // [num_drafts], verifier's ids
  int32_t num_drafted;
};

template <class T>
class Eagle3Block {
 public:
  Eagle3Block(const Eagle3Arguments& arguments, Eagle3Call& call)
      : a_(arguments), c_(call), group_(a_.num_heads / a_.num_kv_heads), mlp_(*a_.mlp, 1, call.num_threads) {
    qkv_blocks_ = blocks_of((a_.num_heads + 2 * a_.num_kv_heads) * a_.head_dim);
    vocab_blocks_ = blocks_of(a_.head->vocab_size);
    rows_ = std::max(1, (int)call.num_pairs);
    most_key_blocks_ = (int)((call.start + call.num_pairs + call.num_drafts + kKeyBlock - 1) / kKeyBlock);
  }

  size_t floats() const {
    return (size_t)rows_ * (2 * a_.hidden_size + qkv_blocks_ * kBlockColumns) + 2 * inner() +
           (size_t)a_.num_heads * most_key_blocks_ * (a_.head_dim + 2) + c_.num_threads * thread_floats() +
           4 * (size_t)a_.hidden_size + (size_t)vocab_blocks_ * kBlockColumns +
           c_.num_threads * sizeof(ThreadTop) / sizeof(float) + mlp_.floats();
  }

  void place(Workspace& workspace) {
    const size_t partials = (size_t)a_.num_heads * most_key_blocks_;
    joined_ = workspace.take((size_t)rows_ * 2 * a_.hidden_size);
    qkv_ = workspace.take((size_t)rows_ * qkv_blocks_ * kBlockColumns);
    queries_ = workspace.take(inner());
    attended_ = workspace.take(inner());
    partials_ = {workspace.take(partials), workspace.take(partials), workspace.take(partials * a_.head_dim),
                 most_key_blocks_, (ptrdiff_t)most_key_blocks_ * a_.head_dim};
    thread_space_ = workspace.take(c_.num_threads * thread_floats());
    for (T** row : {&residual_, &middle_, &hidden_, &fed_back_}) *row = (T*)workspace.take(a_.hidden_size);
    logits_ = workspace.take((size_t)vocab_blocks_ * kBlockColumns);
    tops_ = (ThreadTop*)workspace.take(c_.num_threads * sizeof(ThreadTop) / sizeof(float));
    mlp_.place(workspace);
  }

  void run(const Team& team) {
    if (c_.num_pairs) layer(team, (const T*)c_.features, c_.token_ids, c_.num_pairs, c_.start, (T*)c_.newest);
    const T* hidden = (const T*)c_.newest;
    float probability = 1.0f;
    for (int drafted = 0; drafted < c_.num_drafts; ++drafted) {
      const Choice choice = choose(team, hidden);
      probability *= choice.probability;
      if (probability < c_.min_probability) return;
      if (team.thread == 0) c_.drafted[drafted] = a_.target_ids[choice.id], c_.num_drafted = drafted + 1;
      if (drafted + 1 == c_.num_drafts) return;
      if (team.thread == 0 && a_.norm_feedback) feed_back(hidden);
      team.wait();
      layer(team, a_.norm_feedback ? fed_back_ : hidden, c_.drafted + drafted, 1, c_.start + c_.num_pairs + drafted,
            hidden_);
      hidden = hidden_;
    }
  }

 private:
  struct ThreadTop {
    Top top;
    float sum;
    float unused[3];
  };
  struct Choice {
    int64_t id;
    float probability;
  };

  static int blocks_of(int columns) { return (columns + kBlockColumns - 1) / kBlockColumns; }
  size_t inner() const { return (size_t)a_.num_heads * a_.head_dim; }
  size_t thread_floats() const {
    return std::max(TaskSpace::floats(group_, a_.head_dim), (size_t)a_.hidden_size);
  }

  // The decoder layer: keys and values of all pairs, output of the last; a barrier stands behind it.
  void layer(const Team& team, const T* features, const int64_t* token_ids, int num_pairs, int64_t start, T* out) {
    join(team, features, token_ids, num_pairs);
    team.wait();
    const int width = qkv_blocks_ * kBlockColumns;
    product<T>(joined_, 2 * a_.hidden_size, num_pairs, a_.qkv, 2 * a_.hidden_size / Type<T>::kPerWord,
               team.share_of(qkv_blocks_), [&](int row, int column, const float* sums) {
                 for (int v = 0; v < kBlockVectors; ++v)
                   store(qkv_ + (ptrdiff_t)row * width + column + v * kLanes,
                         Type<T>::round(load<Floats>(sums + v * kLanes)));
               });
    team.wait();
    write_cache(team, num_pairs, start);
    team.wait();
    attend(team, (int)(start + num_pairs));
    team.wait();
    merge(team, (int)(start + num_pairs));
    team.wait();
    product<T>(attended_, (ptrdiff_t)inner(), 1, a_.output, (int)inner() / Type<T>::kPerWord,
               team.share_of(blocks_of(a_.hidden_size)), Output<T>{middle_, residual_, a_.hidden_size});
    team.wait();
    mlp_.run(team, *a_.mlp, middle_, out, middle_);
    team.wait();
  }

  // [input_norm(embedding); hidden_norm(feature)] of each pair, and the last one's residual.
  void join(const Team& team, const T* features, const int64_t* token_ids, int num_pairs) const {
    const int size = a_.hidden_size;
    const Range own = team.share_of(num_pairs);
    for (int row = own.first; row < own.last; ++row) {
      const T* feature = features + (ptrdiff_t)row * size;
      float* joined = joined_ + (ptrdiff_t)row * 2 * size;
      rms_norm((const T*)a_.embedding + token_ids[row] * size, (const T*)a_.input_norm, size, a_.epsilon, joined);
      rms_norm(feature, (const T*)a_.hidden_norm, size, a_.epsilon, joined + size);
      if (row + 1 < num_pairs) continue;
      if (a_.norm_before_residual)
        store_row(residual_, joined + size, size);
      else
        std::memcpy(residual_, feature, size * sizeof(T));
    }
  }

  void turn(const float* source, int64_t position, float* target) const {
    const int64_t at = position * a_.rotary_stride;
    rotate<T>(source, a_.cosines + at, a_.sines + at, a_.head_dim, target);
  }

  void write_cache(const Team& team, int num_pairs, int64_t start) const {
    const int dim = a_.head_dim, width = qkv_blocks_ * kBlockColumns;
    const Range items = team.share_of(num_pairs * a_.num_kv_heads);
    for (int item = items.first; item < items.last; ++item) {
      const int row = item / a_.num_kv_heads, head = item % a_.num_kv_heads;
      const int64_t target = head * c_.head_stride + (start + row) * dim;
      float* key = qkv_ + (ptrdiff_t)row * width + (a_.num_heads + head) * dim;
      turn(key, start + row, key);
      store_row((T*)c_.keys + target, key, dim);
      store_row((T*)c_.values + target, key + a_.num_kv_heads * dim, dim);
    }
    const Range heads = team.share_of(a_.num_heads);
    const float* last = qkv_ + (ptrdiff_t)(num_pairs - 1) * width;
    for (int head = heads.first; head < heads.last; ++head)
      turn(last + head * dim, start + num_pairs - 1, queries_ + head * dim);
  }

  // The newest pair's attention, by kv head and block of keys; `merge` folds the blocks.
  void attend(const Team& team, int num_keys) const {
    const int dim = a_.head_dim, num_blocks = (num_keys + kKeyBlock - 1) / kKeyBlock;
    const TaskSpace space(thread_space_ + team.thread * thread_floats(), group_, dim);
    const Range items = team.share_of(a_.num_kv_heads * num_blocks);
    for (int item = items.first; item < items.last; ++item) {
      const int head = item / num_blocks, block = item % num_blocks, first = block * kKeyBlock;
      const int count = std::min(kKeyBlock, num_keys - first);
      const int64_t cached = head * c_.head_stride + (int64_t)first * dim;
      const T *keys[kKeyBlock], *values[kKeyBlock];
      for (int index = 0; index < count; ++index) {
        keys[index] = (const T*)c_.keys + cached + index * dim;
        values[index] = (const T*)c_.values + cached + index * dim;
      }
      Partial target = partials_.at((ptrdiff_t)head * group_);
      target.maxima += block, target.sums += block, target.outputs += (ptrdiff_t)block * dim;
      attend_block<T>(queries_ + (ptrdiff_t)head * group_ * dim, keys, values, &count, 1, group_, dim, a_.scale,
                      space.buffers, target, KeyBlock<T>{keys[0], values[0]});
    }
  }

  void merge(const Team& team, int num_keys) const {
    const int dim = a_.head_dim;
    const Range heads = team.share_of(a_.num_heads);
    for (int head = heads.first; head < heads.last; ++head) {
      const Partial running = partials_.at(head);
      for (int block = 0; block * kKeyBlock < num_keys; ++block)
        fold(running,
             Partial{running.maxima + block, running.sums + block, running.outputs + (ptrdiff_t)block * dim, 0, 0}, 1,
             dim, block == 0);
      unzip<T>(running.outputs, 1.0f / running.sums[0], dim, attended_ + (ptrdiff_t)head * dim);
    }
  }

  // The likeliest token behind an output, and its probability among the draft vocabulary.
  Choice choose(const Team& team, const T* hidden) const {
    ThreadTop& own = tops_[team.thread];
    const Range blocks = team.share_of(vocab_blocks_);
    own.top = project(team, hidden, blocks);
    team.wait();
    Top best = tops_[0].top;
    for (int thread = 1; thread < team.threads; ++thread) best.add(tops_[thread].top);
    if (c_.min_probability <= 0.0f) return {best.id, 1.0f};
    Floats sum = {};
    for (int column = blocks.first * kBlockColumns; column < blocks.last * kBlockColumns; column += kLanes)
      sum = sum + exponential(load<Floats>(logits_ + column) - splat(best.value));
    own.sum = lane_sum(sum);
    team.wait();
    float total = 0.0f;
    for (int thread = 0; thread < team.threads; ++thread) total += tops_[thread].sum;
    return {best.id, 1.0f / total};
  }

  Top project(const Team& team, const T* hidden, Range blocks) const {
    const HeadArguments& head = *a_.head;
    float* normed = thread_space_ + team.thread * thread_floats();
    rms_norm(hidden, (const T*)head.norm, head.hidden_size, head.epsilon, normed);
    LaneTop tops = LaneTop::none();
    product<T>(normed, head.hidden_size, 1, head.head, head.hidden_size / Type<T>::kPerWord, blocks,
               [&](int, int column, const float* sums) {
                 for (int v = 0; v < kBlockVectors; ++v) {
                   const Ints ids = lane_index() + (column + v * kLanes);
                   const Ints real = ids < (Ints)splat_word(head.vocab_size);
                   const Floats logits = select(real, load<Floats>(sums + v * kLanes), splat(-INFINITY));
                   store(logits_ + column + v * kLanes, logits);
                   tops.add(logits, ids);
                 }
               });
    return tops.merge();
  }

  void feed_back(const T* hidden) const {
    rms_norm(hidden, (const T*)a_.head->norm, a_.hidden_size, a_.epsilon, joined_);
    store_row(fed_back_, joined_, a_.hidden_size);
  }

  const Eagle3Arguments& a_;
  Eagle3Call& c_;
  int group_, rows_, qkv_blocks_, vocab_blocks_, most_key_blocks_;
  MlpBlock<T> mlp_;
  float *joined_ = nullptr, *qkv_ = nullptr, *queries_ = nullptr, *attended_ = nullptr, *thread_space_ = nullptr;
  float* logits_ = nullptr;
  T *residual_ = nullptr, *middle_ = nullptr, *hidden_ = nullptr, *fed_back_ = nullptr;
  ThreadTop* tops_ = nullptr;
  Partial partials_{};
};

}  // namespace native
