// Attention of a block's rows over the committed cache and then the block's own new rows, as ONE sequence of keys.
//
// Keys are processed in blocks aligned to the absolute position. A block's scores, its own maximum, its exponentials
// and its weighted values are computed first; blocks are then folded in order of position. Nothing depends on where the
// boundary between cache and scratch lies, on the other rows, or on which thread computes a block.
#pragma once

#include <utility>

#include "gemm.h"

namespace native {

constexpr int kKeyBlock = 2 * kBlockColumns;

// Lanes of the first (below kLanes) or second vector, chosen by Pattern::lane at compile time.
template <class Pattern, size_t... Lane>
inline Words shuffle(Words a, Words b, std::index_sequence<Lane...>) {
  return __builtin_shufflevector(a, b, Pattern::lane(Lane)...);
}

// Within every 4 lanes, interleaves runs of Run lanes from the lower or upper halves: one instruction everywhere.
template <int Run, bool Upper>
struct Interleave {
  static constexpr int lane(int to) {
    const int within = to % 4, source = within / Run % 2, from = within / (2 * Run) * Run + within % Run;
    return to - within + from + (Upper ? 2 : 0) + (source ? kLanes : 0);
  }
};

// Exchanges blocks of Run lanes between two vectors.
template <int Run, bool Upper>
struct Exchange {
  static constexpr int lane(int to) {
    const bool second = to / Run % 2;
    return Upper ? (second ? kLanes + to : to + Run) : (second ? kLanes + to - Run : to);
  }
};

template <template <int, bool> class Pattern, int Run>
inline void cross(Words& a, Words& b) {
  constexpr auto lanes = std::make_index_sequence<kLanes>{};
  const Words low = shuffle<Pattern<Run, false>>(a, b, lanes), high = shuffle<Pattern<Run, true>>(a, b, lanes);
  a = low, b = high;
}

template <int Run>
inline void exchange_blocks(Words square[kLanes]) {
  if constexpr (Run < kLanes) {
    for (int index = 0; index < kLanes; ++index)
      if (!(index & Run)) cross<Exchange, Run>(square[index], square[index + Run]);
    exchange_blocks<2 * Run>(square);
  }
}

// Transposes a square of words: 4 by 4 within groups of four lanes, then whole groups.
inline void transpose(Words square[kLanes]) {
  for (int row = 0; row < kLanes; row += 4) {
    Words* quad = square + row;
    cross<Interleave, 1>(quad[0], quad[1]);
    cross<Interleave, 1>(quad[2], quad[3]);
    cross<Interleave, 2>(quad[0], quad[2]);
    cross<Interleave, 2>(quad[1], quad[3]);
    std::swap(quad[1], quad[2]);
  }
  exchange_blocks<4>(square);
}

// Packs keys like weights: [blocks of kBlockColumns keys][words of a key][kBlockColumns]; missing keys become zeros.
template <class T>
inline void pack_keys(const T* const* keys, int num_keys, int words, uint32_t* packed) {
  for (int first = 0; first < num_keys; first += kLanes) {
    uint32_t* target = packed + (ptrdiff_t)(first / kBlockColumns) * words * kBlockColumns + first % kBlockColumns;
    for (int word = 0; word < words; word += kLanes) {
      Words square[kLanes];
      for (int lane = 0; lane < kLanes; ++lane)
        square[lane] = first + lane < num_keys ? load<Words>((const uint32_t*)keys[first + lane] + word) : Words{};
      transpose(square);
      for (int lane = 0; lane < kLanes; ++lane) store(target + (ptrdiff_t)(word + lane) * kBlockColumns, square[lane]);
    }
  }
}

// Scales a row of scores in place, hides keys from `count` on, and returns the maximum.
inline float scale_scores(float* scores, int count, float scale) {
  Floats top = splat(-INFINITY);
  for (int v = 0; v < kKeyBlock / kLanes; ++v) {
    Floats value = load<Floats>(scores + v * kLanes) * splat(scale);
    if (count < kKeyBlock)
      value = select(lane_index() < (Ints)splat_word(count - v * kLanes), value, splat(-INFINITY));
    store(scores + v * kLanes, value);
    top = maximum(value, top);
  }
  return lane_max(top);
}

// In place: scores -> exp(score - highest); returns their sum.
inline float exponentiate(float* scores, float highest) {
  Floats sum = {};
  for (int v = 0; v < kKeyBlock / kLanes; ++v) {
    const Floats weight = exponential(load<Floats>(scores + v * kLanes) - splat(highest));
    store(scores + v * kLanes, weight);
    sum = sum + weight;
  }
  return lane_sum(sum);
}

constexpr int kMaxValueRows = 6;

// out[Rows][2 * kLanes] = weights[Rows][keys] x values[keys][dims from `dim`], in the order of the keys. The two halves of
// a bf16 word stay in separate vectors; `unzip` restores the order once at the end.
template <class T, int Rows>
inline void weigh_span(const float* weights, const T* const* values, int num_keys, int dim, float* out,
                       ptrdiff_t out_stride, const T* ahead) {
  Floats sums[Rows][2] = {};
  for (int key = 0; key < num_keys; ++key) {
    __builtin_prefetch(ahead + key * 2 * kLanes);
    Floats value[2];
    Type<T>::load_pair(values[key] + dim, value);
    value[0] = in_register(value[0]), value[1] = in_register(value[1]);
    for (int row = 0; row < Rows; ++row) {
      const Floats weight = splat(weights[row * kKeyBlock + key]);
      sums[row][0] = fma(weight, value[0], sums[row][0]);
      sums[row][1] = fma(weight, value[1], sums[row][1]);
    }
  }
  for (int row = 0; row < Rows; ++row)
    for (int v = 0; v < 2; ++v) store(out + row * out_stride + dim + v * kLanes, sums[row][v]);
}

template <class T, int Rows = kMaxValueRows>
inline void weigh_values(int count, const float* weights, const T* const* values, int num_keys, int head_dim, float* out,
                         ptrdiff_t out_stride, const T* ahead) {
  if constexpr (Rows > 0) {
    if (count != Rows)
      return weigh_values<T, Rows - 1>(count, weights, values, num_keys, head_dim, out, out_stride, ahead);
    for (int dim = 0; dim < head_dim; dim += 2 * kLanes)
      weigh_span<T, Rows>(weights, values, num_keys, dim, out, out_stride, ahead + (ptrdiff_t)dim * kKeyBlock);
  }
}

// First (or second) half of the alternation of two vectors.
template <bool Upper>
struct Zip {
  static constexpr int lane(int to) { return (Upper ? kLanes / 2 : 0) + to / 2 + (to % 2 ? kLanes : 0); }
};

// out = source * scale, rounded to T, in the order of the dimensions again.
template <class T>
inline void unzip(const float* source, float scale, int head_dim, float* out) {
  constexpr auto lanes = std::make_index_sequence<kLanes>{};
  for (int dim = 0; dim < head_dim; dim += 2 * kLanes) {
    Floats low = Type<T>::round(load<Floats>(source + dim) * splat(scale));
    Floats high = Type<T>::round(load<Floats>(source + dim + kLanes) * splat(scale));
    if constexpr (Type<T>::kPerWord == 2) {
      const Words even = (Words)low, odd = (Words)high;
      low = (Floats)shuffle<Zip<false>>(even, odd, lanes), high = (Floats)shuffle<Zip<true>>(even, odd, lanes);
    }
    store(out + dim, low), store(out + dim + kLanes, high);
  }
}

// Softmax state of one (row, head): over one block of keys, or folded over several.
struct Partial {
  float *maxima, *sums, *outputs;
  ptrdiff_t state_stride, output_stride;  // between (row, head) pairs

  Partial at(ptrdiff_t pair) const {
    return {maxima + pair * state_stride, sums + pair * state_stride, outputs + pair * output_stride, state_stride,
            output_stride};
  }
};

// Adds a later block to the running state of `pairs` (row, head) pairs.
inline void fold(Partial running, Partial block, int pairs, int head_dim, bool first) {
  for (int pair = 0; pair < pairs; ++pair) {
    const Partial a = running.at(pair), b = block.at(pair);
    const float top = first || b.maxima[0] > a.maxima[0] ? b.maxima[0] : a.maxima[0];
    const Floats keep = first ? Floats{} : exponential(splat(a.maxima[0] - top));
    const Floats take = exponential(splat(b.maxima[0] - top));
    for (int dim = 0; dim < head_dim; dim += kLanes) {
      const Floats added = load<Floats>(b.outputs + dim) * take;
      store(a.outputs + dim, first ? added : fma(load<Floats>(a.outputs + dim), keep, added));
    }
    const float added = b.sums[0] * take[0];
    a.sums[0] = first ? added : a.sums[0] * keep[0] + added;
    a.maxima[0] = top;
  }
}

// Per-thread buffers of a task.
struct TaskBuffers {
  uint32_t* packed_keys;  // [kKeyBlock * words]
  float* scores;          // [pairs][kKeyBlock]
};

// Committed keys and values that will be needed next: asked for while a block is computed.
template <class T>
struct KeyBlock {
  const T *keys, *values;
};

// One block of keys for consecutive rows that see (a prefix of) the same keys: `counts[row]` of them.
template <class T>
inline void attend_block(const float* queries, const T* const* keys, const T* const* values, const int* counts,
                         int num_rows, int group, int head_dim, float scale, TaskBuffers buffers, Partial out,
                         KeyBlock<T> next) {
  const int words = head_dim / Type<T>::kPerWord, pairs = num_rows * group;
  const int most = *std::max_element(counts, counts + num_rows);
  pack_keys(keys, most, words, buffers.packed_keys);
  float accumulators[kGroupRows * kBlockColumns];
  for (int first = 0; first < pairs; first += kGroupRows) {
    const int count = std::min(kGroupRows, pairs - first);
    const RowView<T> view = view_rows<T>(queries + (ptrdiff_t)first * head_dim, head_dim, count, words);
    for (int column = 0; column < most; column += kBlockColumns) {
      const uint32_t* block = buffers.packed_keys + (ptrdiff_t)(column / kBlockColumns) * words * kBlockColumns;
      std::memset(accumulators, 0, sizeof(float) * kBlockColumns * count);
      chunk<T>(view, count, block, words, accumulators, next.keys + (ptrdiff_t)column * head_dim);
      for (int pair = 0; pair < count; ++pair)
        std::memcpy(buffers.scores + (ptrdiff_t)(first + pair) * kKeyBlock + column,
                    accumulators + pair * kBlockColumns, sizeof(float) * kBlockColumns);
    }
  }
  for (int pair = 0; pair < pairs; ++pair)
    *out.at(pair).maxima = scale_scores(buffers.scores + (ptrdiff_t)pair * kKeyBlock, counts[pair / group], scale);
  for (int pair = 0; pair < pairs; ++pair)
    *out.at(pair).sums = exponentiate(buffers.scores + (ptrdiff_t)pair * kKeyBlock, *out.at(pair).maxima);
  for (int pair = 0; pair < pairs;) {  // pairs that see equally many keys share a tile
    const int count = counts[pair / group];
    int tile = 1;
    while (tile < kMaxValueRows && pair + tile < pairs && counts[(pair + tile) / group] == count) ++tile;
    weigh_values<T>(tile, buffers.scores + (ptrdiff_t)pair * kKeyBlock, values, count, head_dim, out.at(pair).outputs,
                    out.output_stride, next.values);
    pair += tile;
  }
}

}  // namespace native
