// C interface of the native kernels; see modules.py for the Python side and gemm.h for the row-invariance argument.
// Every call is one parallel region.
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "attention_block.h"
#include "eagle3_block.h"
#include "head_block.h"
#include "mlp_block.h"

using namespace native;

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

template <class T>
void attention(const AttentionArguments& arguments, const Step& step, const void* hidden, void* out,
               Workspace& workspace) {
  AttentionBlock<T> block(arguments, step);
  workspace.begin(block.floats());
  block.place(workspace);
  run_team(step.num_threads,
           [&](const Team& team) { block.run(team, arguments, (const T*)hidden, (T*)out, nullptr); });
}

template <class T>
void mlp(const MlpArguments& arguments, int rows, int threads, const void* hidden, void* out, Workspace& workspace) {
  MlpBlock<T> block(arguments, rows, threads);
  workspace.begin(block.floats());
  block.place(workspace);
  run_team(threads, [&](const Team& team) { block.run(team, arguments, (const T*)hidden, (T*)out, nullptr); });
}

// A thread's share of a residual state that somebody wants to see; the state is not written before the next barrier.
template <class T>
void show(const Team& team, const T* hidden, size_t size, T* target) {
  if (!target) return;
  const size_t first = size * team.thread / team.threads, last = size * (team.thread + 1) / team.threads;
  std::memcpy(target + first, hidden + first, (last - first) * sizeof(T));
}

// Consecutive layers on the residual stream `hidden`, in place. `shown` has two places per layer, behind attention and
// behind the MLP: where the stream is copied to, or null.
template <class T>
void layers(const AttentionArguments* const* attentions, const MlpArguments* const* mlps, int num_layers,
            const Step& step, T* hidden, T* const* shown, Workspace& workspace) {
  const size_t size = (size_t)step.num_rows * mlps[0]->hidden_size;
  AttentionBlock<T> attention(*attentions[0], step);
  MlpBlock<T> mlp(*mlps[0], step.num_rows, step.num_threads);
  workspace.begin(attention.floats() + mlp.floats());
  attention.place(workspace);
  mlp.place(workspace);
  run_team(step.num_threads, [&](const Team& team) {
    for (int layer = 0; layer < num_layers; ++layer) {
      attention.run(team, *attentions[layer], hidden, hidden, hidden);
      team.wait();
      show(team, hidden, size, shown[2 * layer]);
      mlp.run(team, *mlps[layer], hidden, hidden, hidden);
      team.wait();
      show(team, hidden, size, shown[2 * layer + 1]);
    }
  });
}

template <class T>
void head(const HeadArguments& arguments, int rows, int threads, const void* hidden, float* values, int64_t* ids,
          float* runner_ups, float* const* logits, Workspace& workspace) {
  HeadBlock<T> block(arguments, rows, threads);
  workspace.begin(block.floats());
  block.place(workspace);
  run_team(threads, [&](const Team& team) { block.run(team, (const T*)hidden, values, ids, runner_ups, logits); });
}

template <class T>
void eagle3(const Eagle3Arguments& arguments, Eagle3Call& call, Workspace& workspace) {
  Eagle3Block<T> block(arguments, call);
  workspace.begin(block.floats());
  block.place(workspace);
  run_team(call.num_threads, [&](const Team& team) { block.run(team); });
}

}  // namespace

EXPORT int native_lanes() { return kLanes; }
EXPORT int native_block_columns() { return kBlockColumns; }

// Asks for huge pages, which spare page walks and let the hardware prefetch across 4 KiB: 20 -> 30 GB/s per core for
// weights, a quarter less time for attention. Only a hint.
EXPORT void native_advise_huge_pages(void* address, size_t size) {
#if defined(__linux__)
  const uintptr_t page = 4096, first = ((uintptr_t)address + page - 1) / page * page;
  const uintptr_t end = ((uintptr_t)address + size) / page * page;
  if (end > first) madvise((void*)first, end - first, MADV_HUGEPAGE);
#else
  (void)address, (void)size;
#endif
}

EXPORT void* native_workspace_create() { return new Workspace; }
EXPORT void native_workspace_destroy(void* workspace) { delete (Workspace*)workspace; }

#define NATIVE_FUNCTIONS(suffix, T)                                                                              \
  EXPORT void native_attention_##suffix(const AttentionArguments* arguments, const Step* step, const void* in,   \
                                        void* out, Workspace* workspace) {                                       \
    attention<T>(*arguments, *step, in, out, *workspace);                                                        \
  }                                                                                                              \
  EXPORT void native_mlp_##suffix(const MlpArguments* arguments, int rows, int threads, const void* in,          \
                                  void* out, Workspace* workspace) {                                             \
    mlp<T>(*arguments, rows, threads, in, out, *workspace);                                                      \
  }                                                                                                              \
  EXPORT void native_layers_##suffix(const AttentionArguments* const* attentions,                                \
                                     const MlpArguments* const* mlps, int num_layers, const Step* step,          \
                                     void* hidden, void* const* shown, Workspace* workspace) {                   \
    layers<T>(attentions, mlps, num_layers, *step, (T*)hidden, (T* const*)shown, *workspace);                    \
  }                                                                                                              \
  EXPORT void native_head_##suffix(const HeadArguments* arguments, int rows, int threads, const void* in,        \
                                   float* values, int64_t* ids, float* runner_ups, float* const* logits,         \
                                   Workspace* workspace) {                                                       \
    head<T>(*arguments, rows, threads, in, values, ids, runner_ups, logits, *workspace);                         \
  }                                                                                                              \
  EXPORT void native_eagle3_##suffix(const Eagle3Arguments* arguments, Eagle3Call* call, Workspace* workspace) { \
    eagle3<T>(*arguments, *call, *workspace);                                                                    \
  }

NATIVE_FUNCTIONS(f32, float)
NATIVE_FUNCTIONS(bf16, BFloat16)
