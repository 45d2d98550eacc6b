#include "kernels/parallel_for.h"

#ifdef _OPENMP
#include <omp.h>
#include <pthread.h>
#endif

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <new>

#include "kernels/fork.h"
#include "kernels/isa.h"
#include "kernels/openmp_stack.h"
#include "kernels/scratch.h"

namespace raggemm {
namespace {

// Whose tile is whose: thread t has those from first(t) to first(t + 1).
struct Shares {
  int64_t threads;
  absl::FunctionRef<int64_t(int64_t thread)> first;
};

struct alignas(64) TileRange {
  std::atomic<int64_t> next;
  int64_t end;
};

// Shared by the caller and its tasks; the last one to leave gives it back to a process-wide list, so that a warm call
// allocates nothing.
class TileCounter {
 public:
  // Null where memory is short.
  static TileCounter* Take(const Shares& shares, const TileBody& body) {
    TileCounter* counter = nullptr;
    {
      const std::lock_guard<std::mutex> lock(lists_mutex);
      if ((counter = free_list) != nullptr) free_list = counter->next_free_;
    }
    if (counter == nullptr) counter = new (std::nothrow) TileCounter;
    if (counter != nullptr) counter->Start(shares, body);
    return counter;
  }

  void AddReference() { references_.fetch_add(1, std::memory_order_relaxed); }
  void Release() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    const std::lock_guard<std::mutex> lock(lists_mutex);
    next_free_ = free_list;
    free_list = this;
  }

  // Takes tiles until there are none. Only a claimed tile makes it touch the body: the caller waits for those.
  void Work(int64_t worker) {
    int64_t done = 0;
    {
      const KernelFloatMode mode;
      for (int64_t i = 0; i < threads_; ++i) {
        TileRange& range = ranges_[(worker + i) % threads_];
        while (range.next.load(std::memory_order_relaxed) < range.end) {
          const int64_t tile = range.next.fetch_add(1, std::memory_order_relaxed);
          if (tile >= range.end) break;
          (*body_)(tile, worker);
          ++done;
        }
      }
    }
    if (done != 0 && remaining_.fetch_sub(done, std::memory_order_acq_rel) == done) remaining_.notify_all();
  }

  void WorkAsNextWorker() { Work(next_worker_.fetch_add(1, std::memory_order_relaxed)); }

  void Wait() {
    for (int64_t left = remaining_.load(std::memory_order_acquire); left != 0;
         left = remaining_.load(std::memory_order_acquire)) {
      remaining_.wait(left, std::memory_order_acquire);
    }
  }

 private:
  void Start(const Shares& shares, const TileBody& body) {
    threads_ = shares.threads;
    references_.store(1, std::memory_order_relaxed);
    next_worker_.store(1, std::memory_order_relaxed);
    remaining_.store(shares.first(threads_), std::memory_order_relaxed);
    body_ = &body;
    for (int64_t t = 0; t < threads_; ++t) {
      ranges_[t].next.store(shares.first(t), std::memory_order_relaxed);
      ranges_[t].end = shares.first(t + 1);
    }
  }

  // As many as there were calls at once, at most; a task that starts late may hold one even when the process ends.
  static constinit TileCounter* free_list;

  int64_t threads_;
  std::atomic<int64_t> references_;
  std::atomic<int64_t> next_worker_;  // 0 is the caller
  std::atomic<int64_t> remaining_;    // tiles not finished
  const TileBody* body_;
  TileCounter* next_free_;
  TileRange ranges_[kMaxThreads];
};

constinit TileCounter* TileCounter::free_list = nullptr;

void RunOnPool(TaskPool& pool, int64_t helpers, TileCounter* counter) {
  for (int64_t i = 0; i < helpers; ++i) {
    counter->AddReference();
    try {
      pool.Schedule([counter] {
        counter->WorkAsNextWorker();
        counter->Release();
      });
    } catch (...) {  // a helper less
      counter->Release();
      break;
    }
  }
  counter->Work(0);
}

// ---- teams of OpenMP threads, as far as they can be had: libgomp ends the process where it cannot make one ----

#ifdef _OPENMP

// Read while the library is loaded, as libgomp reads it; what a program sets later neither takes note of.
const size_t kStackSize = OpenMpStackSize();

void* WaitUntilTried(void* tried) {
  static_cast<const std::atomic<bool>*>(tried)->wait(false);
  return nullptr;
}

// How many of `wanted` more threads could be made, all at once, with the stacks that libgomp's have.
int64_t TryThreads(int64_t wanted) {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return 0;
  // A size that the system refuses libgomp leaves alone too.
  if (kStackSize != 0) pthread_attr_setstacksize(&attributes, kStackSize);
  std::array<pthread_t, kMaxThreads> threads;
  std::atomic<bool> tried = false;
  int64_t made = 0;
  while (made < wanted && pthread_create(&threads[made], &attributes, WaitUntilTried, &tried) == 0) ++made;
  pthread_attr_destroy(&attributes);
  tried = true;
  tried.notify_all();
  for (int64_t i = 0; i < made; ++i) pthread_join(threads[i], nullptr);
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

// body(worker) once on each thread of a team of at most `threads`, worker 0 on the caller's.
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

#else

// As sanitizers need it, which do not see into libgomp: a region has one thread, as OpenMP's specification has it.
void RunOpenMpTeam(int64_t, absl::FunctionRef<void(int64_t worker)> body) { body(0); }

#endif

absl::Status RunShares(const PlanData& plan, const Shares& shares, const TileBody& body) {
  TileCounter* counter = TileCounter::Take(shares, body);
  if (counter == nullptr) return absl::ResourceExhaustedError("no memory for the tile counters");
  if (shares.threads == 1 || plan.executor == Executor::kSerial) {
    counter->Work(0);
  } else if (plan.executor == Executor::kPool) {
    RunOnPool(*plan.pool, shares.threads - 1, counter);
  } else {
    RunOpenMpTeam(shares.threads, [&](int64_t worker) { counter->Work(worker); });
  }
  counter->Wait();
  counter->Release();
  return absl::OkStatus();
}

}  // namespace

int64_t OpenMpThreads() {
#ifdef _OPENMP
  return IsForkedChild() ? 1 : omp_get_max_threads();
#else
  return 1;
#endif
}

int64_t ThreadsOf(Executor executor, const TaskPool* pool) {
  switch (executor) {
    case Executor::kPool:
      return pool->num_threads();
    case Executor::kOpenMp:
      return OpenMpThreads();
    default:
      return 1;
  }
}

absl::Status ParallelFor(const PlanData& plan, TileBody body) {
  return RunShares(plan, {plan.threads, [&](int64_t thread) { return FirstTile(plan, thread); }}, body);
}

absl::Status ParallelFor(const PlanData& first, const PlanData& second, TileBody body) {
  const int64_t threads = std::max(first.threads, second.threads), tiles = first.gemm_tiles + first.fill_tiles;
  const int64_t cost = first.cost_prefix[first.units], all = cost + second.cost_prefix[second.units];
  const auto begin = [&](int64_t thread) {
    if (thread == threads) return tiles + second.gemm_tiles + second.fill_tiles;
    const auto target =
        static_cast<int64_t>(static_cast<double>(all) * static_cast<double>(thread) / static_cast<double>(threads));
    return target < cost ? TileAtCost(first, target) : tiles + TileAtCost(second, target - cost);
  };
  return RunShares(first, {threads, begin}, body);
}

absl::Status ParallelFor(const PlanData& plan, int64_t count, TileBody body) {
  const int64_t threads = std::clamp(count, int64_t{1}, plan.threads);
  return RunShares(plan, {threads, [&](int64_t thread) { return count * thread / threads; }}, body);
}

}  // namespace raggemm
