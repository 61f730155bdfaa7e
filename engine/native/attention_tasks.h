// How a block's attention is cut into tasks for threads. Cutting never changes a row's bits (see attention.h).
#pragma once

#include <algorithm>
#include <vector>

#include "attention.h"
#include "layout.h"

namespace native {

constexpr int kMaxTaskPairs = 48;  // (row, head) pairs that share the keys of one kv head in a task
constexpr size_t kSplitFloats = 4u << 20;

// Rows that share a slot and a prefix.
struct Segment {
  int first, last, num_blocks;
};

// One kv head of a segment: one block of keys, or all of them.
struct Task {
  int segment, kv_head, block;
};

struct TaskPlan {
  std::vector<Segment> segments;
  std::vector<Task> tasks;
  int most_blocks = 0;
  bool split = false;  // tasks are single blocks, to be folded afterwards: for so few rows that threads would idle

  TaskPlan(const Step& step, int num_kv_heads, int group, int head_dim) {
    const int threads = step.num_threads, rows_per_thread = (step.num_rows + threads - 1) / threads;
    cut_segments(step, std::max(1, std::min(std::max(2, rows_per_thread), kMaxTaskPairs / group)));
    const size_t partials = (size_t)step.num_rows * num_kv_heads * group * most_blocks * (head_dim + 2);
    split = threads > 1 && (int)segments.size() * num_kv_heads < 2 * threads && partials <= kSplitFloats;
    for (int index = 0; index < (int)segments.size(); ++index)
      for (int kv_head = 0; kv_head < num_kv_heads; ++kv_head)
        for (int block = 0; block < (split ? segments[index].num_blocks : 1); ++block)
          tasks.push_back({index, kv_head, block});
  }

 private:
  void cut_segments(const Step& step, int most_rows) {
    for (int first = 0, end; first < step.num_rows; first = end) {
      for (end = first + 1; end < step.num_rows && end - first < most_rows; ++end)
        if (step.row_slot[end] != step.row_slot[first] || step.row_prefix[end] != step.row_prefix[first]) break;
      segments.push_back({first, end, (step.most_keys(first, end) + kKeyBlock - 1) / kKeyBlock});
      most_blocks = std::max(most_blocks, segments.back().num_blocks);
    }
  }
};

// Memory of one thread.
struct TaskSpace {
  TaskBuffers buffers;
  float* queries;  // [pairs][head_dim]
  Partial block, running;

  static size_t pairs(int group) { return std::max(kMaxTaskPairs, group); }
  static size_t floats(int group, int head_dim) {
    return (size_t)kKeyBlock * head_dim + pairs(group) * (kKeyBlock + 3 * head_dim + 4) + 64;
  }

  TaskSpace(float* space, int group, int dim) {
    const size_t count = pairs(group);
    buffers = {(uint32_t*)space, space + (size_t)kKeyBlock * dim};
    queries = buffers.scores + count * kKeyBlock;
    float* states = queries + count * dim;
    block = {states, states + count, states + 4 * count, 1, dim};
    running = {states + 2 * count, states + 3 * count, states + count * (4 + dim), 1, dim};
  }
};

}  // namespace native
