#include "kernels/openmp_team.h"

#ifdef _OPENMP

#include <omp.h>

#include <array>
#include <atomic>
#include <exception>
#include <memory>
#include <new>
#include <thread>

#include "kernels/fork.h"
#include "kernels/scratch.h"

namespace raggemm {
namespace {

// How many of `wanted` more threads could be made, all at once.
int64_t TryThreads(int64_t wanted) {
  std::array<std::thread, kMaxThreads> threads;
  std::atomic<bool> tried = false;
  int64_t made = 0;
  try {
    for (; made < wanted; ++made) threads[made] = std::thread([&tried] { tried.wait(false); });
  } catch (const std::exception&) {  // no thread, or no memory for one
  }
  tried = true;
  tried.notify_all();
  for (int64_t i = 0; i < made; ++i) threads[i].join();
  return made;
}

// Threads and memory are tried before libgomp may want them, beyond the `kept` threads that it has. What is left is
// that somebody else takes the last one between, and that other code had a smaller team on this thread since.
int64_t ThreadsToBeHad(int64_t wanted, int64_t kept) {
  if (IsForkedChild()) return 1;  // libgomp would wait for the parent's threads
  if (wanted <= kept) return wanted;
  if (omp_get_active_level() >= omp_get_max_active_levels()) return 1;
  const int64_t threads = kept + TryThreads(wanted - kept);
  constexpr int64_t kTeam = 16 << 10, kThread = 1 << 10;  // bytes, of libgomp 12, rounded up
  const std::unique_ptr<char[]> memory(new (std::nothrow) char[kTeam + threads * kThread]);
  asm("" : : "r"(memory.get()));  // or the compiler leaves it out
  return memory == nullptr ? 1 : threads;
}

}  // namespace

int64_t OpenMpThreads() { return IsForkedChild() ? 1 : omp_get_max_threads(); }

void RunOpenMpTeam(int64_t threads, absl::FunctionRef<void(int64_t worker)> body) {
  // Libgomp keeps the threads of the last team of each thread that had one, but for nested teams. This variable is in
  // the block that is set aside for libraries loaded late: there the first use asks for no memory.
  __attribute__((tls_model("initial-exec"))) thread_local int64_t last_team = 1;
  const bool nested = omp_get_active_level() > 0;
  threads = ThreadsToBeHad(threads, nested ? 1 : last_team);
  if (threads == 1) return body(0);
#pragma omp parallel num_threads(static_cast <int>(threads))
  {
    if (omp_get_thread_num() == 0 && !nested) last_team = omp_get_num_threads();
    body(omp_get_thread_num());
  }
}

}  // namespace raggemm

#else

namespace raggemm {

int64_t OpenMpThreads() { return 1; }

void RunOpenMpTeam(int64_t, absl::FunctionRef<void(int64_t worker)> body) { body(0); }

}  // namespace raggemm

#endif
