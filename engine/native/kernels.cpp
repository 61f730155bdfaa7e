// C interface of the native kernels; see modules.py for the Python side and gemm.h for the row-invariance argument.
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "attention_block.h"
#include "head_block.h"
#include "mlp_block.h"

using namespace native;

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

template <class T>
void attention(const AttentionArguments* arguments, const Step* step, const void* hidden, void* out, void* workspace) {
  AttentionBlock<T>(*arguments, *step, (const T*)hidden, (T*)out, *(Workspace*)workspace).run();
}

template <class T>
void mlp(const MlpArguments* arguments, int rows, int threads, const void* hidden, void* out, void* workspace) {
  run_mlp<T>(*arguments, rows, threads, (const T*)hidden, (T*)out, *(Workspace*)workspace);
}

template <class T>
void head(const HeadArguments* arguments, int rows, int threads, const void* hidden, float* values, int64_t* ids,
          float* runner_ups, void* workspace) {
  run_head<T>(*arguments, rows, threads, (const T*)hidden, values, ids, runner_ups, *(Workspace*)workspace);
}

}  // namespace

EXPORT int native_lanes() { return kLanes; }
EXPORT int native_block_columns() { return kBlockColumns; }

// Asks for huge pages, which let the hardware prefetch across 4 KiB: 20 -> 30 GB/s per core. A hint; may do nothing.
EXPORT void native_advise_huge_pages(void* address, size_t size) {
#if defined(__linux__)
  madvise(address, size, MADV_HUGEPAGE);
#else
  (void)address, (void)size;
#endif
}

EXPORT void* native_workspace_create() { return new Workspace; }
EXPORT void native_workspace_destroy(void* workspace) { delete (Workspace*)workspace; }

EXPORT void native_attention_f32(const AttentionArguments* arguments, const Step* step, const void* hidden, void* out,
                                 void* workspace) {
  attention<float>(arguments, step, hidden, out, workspace);
}
EXPORT void native_attention_bf16(const AttentionArguments* arguments, const Step* step, const void* hidden, void* out,
                                  void* workspace) {
  attention<BFloat16>(arguments, step, hidden, out, workspace);
}
EXPORT void native_mlp_f32(const MlpArguments* arguments, int rows, int threads, const void* hidden, void* out,
                           void* workspace) {
  mlp<float>(arguments, rows, threads, hidden, out, workspace);
}
EXPORT void native_mlp_bf16(const MlpArguments* arguments, int rows, int threads, const void* hidden, void* out,
                            void* workspace) {
  mlp<BFloat16>(arguments, rows, threads, hidden, out, workspace);
}
EXPORT void native_head_f32(const HeadArguments* arguments, int rows, int threads, const void* hidden, float* values,
                            int64_t* ids, float* runner_ups, void* workspace) {
  head<float>(arguments, rows, threads, hidden, values, ids, runner_ups, workspace);
}
EXPORT void native_head_bf16(const HeadArguments* arguments, int rows, int threads, const void* hidden, float* values,
                             int64_t* ids, float* runner_ups, void* workspace) {
  head<BFloat16>(arguments, rows, threads, hidden, values, ids, runner_ups, workspace);
}
