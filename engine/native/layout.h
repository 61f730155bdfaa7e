// The block's rows: which keys each of them sees.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace native {

// engine.block.RowLayout plus positions, as pointers.
struct Step {
  int32_t num_rows;
  int32_t num_threads;
  const int64_t* positions;
  const int32_t* row_slot;
  const int32_t* row_prefix;
  const int32_t* path_offsets;
  const int32_t* path_rows;

  int num_keys(int row) const { return row_prefix[row] + path_offsets[row + 1] - path_offsets[row]; }

  // Scratch row of the key at an absolute position at or after the row's prefix.
  const int32_t* scratch_row(int row, int position) const {
    return path_rows + path_offsets[row] + position - row_prefix[row];
  }

  int most_keys(int first, int last) const {
    int most = 0;
    for (int row = first; row < last; ++row) most = std::max(most, num_keys(row));
    return most;
  }

  // Whether the keys of `row` at positions first..first+count are also those of `leader`; same slot and prefix.
  bool shares_keys(int row, int leader, int first, int count) const {
    const int own = std::max(first, (int)row_prefix[row]), end = first + count;
    if (own >= end) return true;
    return std::memcmp(scratch_row(row, own), scratch_row(leader, own), sizeof(int32_t) * (end - own)) == 0;
  }
};

}  // namespace native
