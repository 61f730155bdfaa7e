// The threads of a call: who I am, my share of the work, and a barrier.
#pragma once

#include <omp.h>

#include <atomic>
#include <cstdint>
#include <thread>

namespace native {

// Contiguous share of `total` items for one of `parts`.
struct Range {
  int first, last;
};

inline Range share(int total, int part, int parts) {
  return {(int)((int64_t)total * part / parts), (int)((int64_t)total * (part + 1) / parts)};
}

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// OpenMP's own barriers spin for milliseconds before they give way, which is fatal when other processes need the core;
// this one spins for about 50 microseconds, then yields.
class Barrier {
 public:
  void wait(int threads) {
    if (threads == 1) return;
    const int phase = phase_.load(std::memory_order_relaxed);
    if (waiting_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
      waiting_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      return;
    }
    for (int spin = 0; phase_.load(std::memory_order_acquire) == phase; ++spin)
      if (spin < kSpins)
        pause_briefly();
      else
        std::this_thread::yield();
  }

 private:
  static constexpr int kSpins = 4000;
  alignas(64) std::atomic<int> waiting_{0};
  alignas(64) std::atomic<int> phase_{0};
};

struct Team {
  int thread, threads;
  Barrier& barrier;

  Range share_of(int total) const { return share(total, thread, threads); }
  void wait() const { barrier.wait(threads); }
};

// Calls work(team) on each thread of one parallel region.
template <class Work>
inline void run_team(int num_threads, Work work) {
  Barrier barrier;
#pragma omp parallel num_threads(num_threads) if (num_threads > 1)
  work(Team{omp_get_thread_num(), omp_get_num_threads(), barrier});
}

}  // namespace native
