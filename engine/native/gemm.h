// Matrix products of a few rows with packed weights, one accumulator chain per (row, column).
//
// Weights are packed in blocks of kBlockColumns output columns, [blocks][words][kBlockColumns] 32-bit words: a word
// holds one fp32 or two bf16 neighbours along the inner dimension. Every (row, column) value is ONE chain of fused
// multiply-adds, or of bf16 dot products where the machine has them, in the order of the inner index, whichever tile
// shape, chunking or thread computes it: chunks park the fp32 accumulators in memory, which is exact. So a row's bits
// never depend on the other rows.
#pragma once

#include <algorithm>

#include "rows.h"
#include "simd.h"
#include "team.h"
#include "tile_avx2.h"

namespace native {

constexpr int kBlockColumns = kLanes * kBlockVectors;
constexpr int kGroupRows = 64;   // rows whose accumulators are parked between chunks
constexpr int kChunkWords = 96;  // inner words per chunk: two chunks of weights fit in L1, one used, one arriving
constexpr ptrdiff_t kStreamAhead = 6144;  // bytes to prefetch ahead when every weight is used once
constexpr ptrdiff_t kWordBytes = sizeof(uint32_t) * kBlockColumns;

// Where the next weights are prefetched from while a tile is computed.
struct Ahead {
  const char* address;
  ptrdiff_t step;  // bytes per word of the inner dimension
};

// sums[row][column] += half of each row's first word x the same half of each of the block's words.
template <class T, int Rows, int Half>
inline void multiply_half(RowView<T> view, const uint32_t* weights, Floats sums[Rows][kBlockVectors]) {
  Floats unpacked[kBlockVectors];
  for (int v = 0; v < kBlockVectors; ++v)
    unpacked[v] = in_register(Type<T>::template unpack<Half>(load<Words>(weights + v * kLanes)));
  for (int row = 0; row < Rows; ++row) {
    const Floats activation = splat(view.rows[row * view.stride + Half]);
    for (int v = 0; v < kBlockVectors; ++v) sums[row][v] = fma(activation, unpacked[v], sums[row][v]);
  }
}

// The whole word: a dot product where rows are packed in pairs, one half after the other elsewhere.
template <class T, int Rows>
inline void multiply_word(RowView<T> view, const uint32_t* weights, Floats sums[Rows][kBlockVectors]) {
  if constexpr (RowType<T>::kPerWord < Type<T>::kPerWord) {
    Words pairs[kBlockVectors];
    for (int v = 0; v < kBlockVectors; ++v) pairs[v] = load<Words>(weights + v * kLanes);
    for (int row = 0; row < Rows; ++row) {
      const Words activation = splat_word(view.rows[row * view.stride]);
      for (int v = 0; v < kBlockVectors; ++v) sums[row][v] = bf16_dot(activation, pairs[v], sums[row][v]);
    }
  } else {
    multiply_half<T, Rows, 0>(view, weights, sums);
    if constexpr (Type<T>::kPerWord == 2) multiply_half<T, Rows, 1>(view, weights, sums);
  }
}

// accumulators[row][column] += rows x one block over `words` words of the inner dimension.
template <class T, int Rows>
inline void tile(RowView<T> view, const uint32_t* weights, int words, float* accumulators, Ahead ahead) {
#ifdef NATIVE_AVX2
  if constexpr (Type<T>::kPerWord == 2 && Rows == 4) {
    tile_bf16_4x3(view.rows, view.stride, weights, words, accumulators, ahead.address, ahead.step);
    return;
  }
#endif
  Floats sums[Rows][kBlockVectors];
  for (int row = 0; row < Rows; ++row)
    for (int v = 0; v < kBlockVectors; ++v) sums[row][v] = load<Floats>(accumulators + row * kBlockColumns + v * kLanes);
  for (int word = 0; word < words; ++word, weights += kBlockColumns, ahead.address += ahead.step) {
    for (int line = 0; line < kWordBytes; line += 48) __builtin_prefetch(ahead.address + line);
    multiply_word<T, Rows>(view.from_word(word), weights, sums);
  }
  for (int row = 0; row < Rows; ++row)
    for (int v = 0; v < kBlockVectors; ++v) store(accumulators + row * kBlockColumns + v * kLanes, sums[row][v]);
}

// Calls tile<T, count> for a count known at run time.
template <class T, int Rows = kMaxTileRows>
inline void tile_of(int count, RowView<T> rows, const uint32_t* weights, int words, float* accumulators, Ahead ahead) {
  if constexpr (Rows > 0) {
    if (count == Rows)
      tile<T, Rows>(rows, weights, words, accumulators, ahead);
    else
      tile_of<T, Rows - 1>(count, rows, weights, words, accumulators, ahead);
  }
}

// All rows over one chunk, in row tiles of nearly equal size; each tile prefetches its share of what follows.
template <class T>
inline void chunk(RowView<T> rows, int num_rows, const uint32_t* weights, int words, float* accumulators,
                  const void* next) {
  const int tiles = (num_rows + kMaxTileRows - 1) / kMaxTileRows;
  const ptrdiff_t step = (kWordBytes + tiles - 1) / tiles;
  for (int index = 0, row = 0; index < tiles; ++index) {
    const int count = (num_rows - row) / (tiles - index);
    tile_of<T>(count, rows.from_row(row), weights, words, accumulators + row * kBlockColumns,
               {(const char*)next + index * step * words, step});
    row += count;
  }
}

// accumulators[num_rows][kBlockColumns] = rows[num_rows][inner] x one block of packed weights; num_rows <= kGroupRows.
template <class T>
inline void block_product(RowView<T> rows, int num_rows, const uint32_t* weights, int words, float* accumulators) {
  std::memset(accumulators, 0, sizeof(float) * kBlockColumns * num_rows);
  const bool once = num_rows <= kMaxTileRows;
  const int chunks = once ? 1 : (words + kChunkWords - 1) / kChunkWords;
  for (int index = 0; index < chunks; ++index) {
    const Range part = share(words, index, chunks);
    const uint32_t* first = weights + (ptrdiff_t)part.first * kBlockColumns;
    const int count = part.last - part.first;
    chunk<T>(rows.from_word(part.first), num_rows, first, count, accumulators,
             (const char*)first + (once ? kStreamAhead : count * kWordBytes));
  }
}

// Products of all rows with a range of blocks; sink(row, column, sums) takes each row's kBlockColumns results.
template <class T, class Sink>
inline void product(const float* rows, ptrdiff_t row_stride, int num_rows, const uint32_t* weights, int words,
                    Range blocks, Sink sink) {
  alignas(64) float accumulators[kGroupRows * kBlockColumns];
  for (int first = 0; first < num_rows; first += kGroupRows) {
    const int count = std::min(kGroupRows, num_rows - first);
    const RowView<T> view = view_rows<T>(rows + first * row_stride, row_stride, count, words);
    for (int block = blocks.first; block < blocks.last; ++block) {
      block_product<T>(view, count, weights + (ptrdiff_t)block * words * kBlockColumns, words, accumulators);
      for (int row = 0; row < count; ++row)
        sink(first + row, block * kBlockColumns, accumulators + row * kBlockColumns);
    }
  }
}

// A sink that rounds results to the model's dtype, adding them to the residual stream where there is one (out may be it).
template <class T>
struct Output {
  T* out;
  const T* residual;
  int size;

  void operator()(int row, int column, const float* sums) const {
    for (int v = 0; v < kBlockVectors && column + v * kLanes < size; ++v) {
      const ptrdiff_t index = (ptrdiff_t)row * size + column + v * kLanes;
      Floats value = load<Floats>(sums + v * kLanes);
      if (residual) value = Type<T>::round(value) + Type<T>::load_floats(residual + index);
      Type<T>::store_floats(out + index, value);
    }
  }
};

}  // namespace native
