// Rows of activations as the matrix products read them.
//
// They are fp32 numbers already rounded to the model's dtype. Where the machine multiplies pairs of bf16, two neighbours
// become one 32-bit word, exactly, like the words of the weights; elsewhere rows are read as they are.
#pragma once

#include <vector>

#include "simd.h"

namespace native {

template <class T>
struct RowType {
  using Element = float;
  static constexpr int kPerWord = Type<T>::kPerWord;  // elements per word of the inner dimension
};

#if defined(NATIVE_BF16_DOT)
template <>
struct RowType<BFloat16> {
  using Element = uint32_t;
  static constexpr int kPerWord = 1;
};
#endif

template <class T>
struct RowView {
  const typename RowType<T>::Element* rows;
  ptrdiff_t stride;  // elements between rows

  RowView from_word(int word) const { return {rows + word * RowType<T>::kPerWord, stride}; }
  RowView from_row(int row) const { return {rows + row * stride, stride}; }
};

// A view of `num_rows` rows of `words` words; a packed one is valid until this thread asks for the next.
template <class T>
inline RowView<T> view_rows(const float* rows, ptrdiff_t stride, int num_rows, int words) {
  if constexpr (RowType<T>::kPerWord == Type<T>::kPerWord) {
    return {rows, stride};
  } else {
    static thread_local std::vector<uint32_t> packed;
    if (packed.size() < (size_t)num_rows * words) packed.resize((size_t)num_rows * words);
    for (int row = 0; row < num_rows; ++row) {
      const char* source = (const char*)(rows + row * stride);
      uint32_t* target = packed.data() + (ptrdiff_t)row * words;
      for (int word = 0; word < words; ++word) {
        uint64_t pair;
        std::memcpy(&pair, source + (ptrdiff_t)word * sizeof pair, sizeof pair);
        target[word] = (uint32_t)(pair >> 16 & 0xffff) | (uint32_t)(pair >> 32 & 0xffff0000u);
      }
    }
    return {packed.data(), words};
  }
}

}  // namespace native
