#include "kernels/parallel_for.h"

#ifdef _OPENMP
#include <omp.h>
#include <pthread.h>
#endif

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>

#include "kernels/fork.h"
#include "kernels/isa.h"
#include "kernels/openmp_stack.h"
#include "kernels/scratch.h"
#include "kernels/target/target.h"

namespace raggemm {
namespace {

// Shares of tiles: share t of `count` has those from first(t) to first(t + 1).
struct Shares {
  int64_t count;
  absl::FunctionRef<int64_t(int64_t share)> first;
};

// A number of a loop and a tile, so that a claim says which loop it is of.
constexpr int kTileBits = 40;
constexpr int64_t kTileMask = (int64_t{1} << kTileBits) - 1;

// Memory orders, for CPUs that keep none by themselves: what a loop is (body_, remaining_, end) is written before the
// release of `next`. A claim acquires that value, or one that earlier claims made of it, and so sees all that; a claim
// of an older value has an older loop's number, and is none. Results are written before Work releases its count of
// finished tiles, and the caller acquires the last of these counts.
struct alignas(64) TileRange {
  std::atomic<int64_t> next, end;
};

// What is awaited comes within microseconds, while others finish a tile or the caller plans the next loop; a sleeping
// thread takes 50 of them to wake. Of Zen 4, 64 cycles each, this is 25 us.
constexpr int kSpins = 1000;

// Returns when value is another than `old`: what it is then.
int64_t AwaitChange(const std::atomic<int64_t>& value, int64_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (const int64_t now = value.load(std::memory_order_acquire); now != old) return now;
    Pause();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

}  // namespace

// Shared by the caller and its tasks; the last one to leave gives it back to a process-wide list, so that a warm call
// allocates nothing.
class TeamState {
 public:
  // Null where memory is short.
  static TeamState* Take(int64_t threads) {
    TeamState* state = nullptr;
    {
      const std::lock_guard<std::mutex> lock(lists_mutex);
      if ((state = free_list) != nullptr) free_list = state->next_free_;
    }
    if (state == nullptr) state = new (std::nothrow) TeamState;
    if (state != nullptr) state->Start(threads);
    return state;
  }

  void AddReference() { references_.fetch_add(1, std::memory_order_relaxed); }
  void Release() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    const std::lock_guard<std::mutex> lock(lists_mutex);
    next_free_ = free_list;
    free_list = this;
  }

  // On the caller's thread: all tiles of one loop, the team's last or not.
  void RunLoop(const Shares& shares, const TileBody& body, bool last) {
    const int64_t loop = loop_.load(std::memory_order_relaxed) + (last ? 1 : 2), before = loop << kTileBits;
    body_ = &body;
    remaining_.store(shares.first(shares.count), std::memory_order_relaxed);
    const int64_t count = std::min(shares.count, threads_);
    for (int64_t t = 0; t < threads_; ++t) {
      const auto first = [&](int64_t i) { return shares.first(std::min(i, count) * shares.count / count); };
      ranges_[t].end.store(before + first(t + 1), std::memory_order_relaxed);
      ranges_[t].next.store(before + first(t), std::memory_order_release);
    }
    loop_.store(loop, std::memory_order_release);
    loop_.notify_all();
    Work(0);
    for (int64_t left = remaining_.load(std::memory_order_acquire); left != 0;) left = AwaitChange(remaining_, left);
  }
  void End() {
    if (loop_.load(std::memory_order_relaxed) & kLast) return;
    loop_.store(kEnded, std::memory_order_release);
    loop_.notify_all();
  }

  // Takes part in loops until the team ends. On the caller's own thread, where there is nothing to wait for, in none.
  void Help(int64_t worker) {
    if (std::this_thread::get_id() == caller_) return;
    int64_t loop = 0;
    do {
      loop = AwaitChange(loop_, loop);
      if (loop != kEnded) Work(worker);
    } while (!(loop & kLast));
  }
  void HelpAsNextWorker() { Help(next_worker_.fetch_add(1, std::memory_order_relaxed)); }

 private:
  static constexpr int64_t kLast = 1, kEnded = -1;  // loops have even numbers, but for the last one

  void Start(int64_t threads) {
    threads_ = threads;
    caller_ = std::this_thread::get_id();
    references_.store(1, std::memory_order_relaxed);
    next_worker_.store(1, std::memory_order_relaxed);
    for (int64_t t = 0; t < threads_; ++t) {
      ranges_[t].next.store(0, std::memory_order_relaxed);
      ranges_[t].end.store(0, std::memory_order_relaxed);
    }
    loop_.store(0, std::memory_order_relaxed);
  }

  // Takes tiles until there are none. Only a claimed tile makes it touch the body: the caller waits for those, so that
  // the loop of a claimed tile is the present one. A claim beyond the end of a loop may find the end of a later one.
  void Work(int64_t worker) {
    int64_t done = 0;
    {
      const FloatMode mode;
      for (int64_t i = 0; i < threads_; ++i) {
        TileRange& range = ranges_[(worker + i) % threads_];
        while (range.next.load(std::memory_order_relaxed) < range.end.load(std::memory_order_relaxed)) {
          const int64_t tile = range.next.fetch_add(1, std::memory_order_acquire);
          const int64_t end = range.end.load(std::memory_order_relaxed);
          if (tile >= end || tile >> kTileBits != end >> kTileBits) break;
          (*body_)(tile & kTileMask, worker);
          ++done;
        }
      }
    }
    if (done != 0 && remaining_.fetch_sub(done, std::memory_order_acq_rel) == done) remaining_.notify_all();
  }

  // Holds as many as there were calls at once, at most; a task that starts late may hold one even when the process
  // ends.
  static constinit TeamState* free_list;

  int64_t threads_;
  std::thread::id caller_;
  std::atomic<int64_t> references_;
  std::atomic<int64_t> next_worker_;  // 0 is the caller
  std::atomic<int64_t> loop_;         // 0 before the first
  std::atomic<int64_t> remaining_;    // tiles not finished
  const TileBody* body_;
  TeamState* next_free_;
  TileRange ranges_[kMaxThreads];
};

constinit TeamState* TeamState::free_list = nullptr;

namespace {

void RunOnPool(TaskPool& pool, int64_t helpers, TeamState* state, absl::FunctionRef<void()> caller) {
  for (int64_t i = 0; i < helpers; ++i) {
    state->AddReference();
    try {
      pool.Schedule([state] {
        state->HelpAsNextWorker();
        state->Release();
      });
    } catch (...) {  // a helper less
      state->Release();
      break;
    }
  }
  caller();
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

// Runs a region on one thread, as OpenMP's specification allows: for sanitizers, which do not see into libgomp.
void RunOpenMpTeam(int64_t, absl::FunctionRef<void(int64_t worker)> body) { body(0); }

#endif

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

absl::Status WithTeam(const Schedule& schedule, bool one_loop, absl::FunctionRef<absl::Status(Team&)> caller) {
  TeamState* state = TeamState::Take(schedule.threads);
  if (state == nullptr) return absl::ResourceExhaustedError("no memory for the tile counters");
  absl::Status status;
  std::exception_ptr thrown;  // as the text of a status is, where memory is short
  const auto run = [&] {
    Team team(*state, schedule.threads, one_loop);
    try {
      status = caller(team);
    } catch (...) {
      thrown = std::current_exception();
    }
    state->End();
  };
  if (schedule.threads == 1) {  // as with the executor SERIAL
    run();
  } else if (schedule.executor == Executor::kPool) {
    RunOnPool(*schedule.pool, schedule.threads - 1, state, run);
  } else {
    RunOpenMpTeam(schedule.threads, [&](int64_t worker) { worker == 0 ? run() : state->Help(worker); });
  }
  state->Release();
  if (thrown != nullptr) std::rethrow_exception(thrown);
  return status;
}

void Team::For(const Schedule& schedule, TileBody body) {
  state_.RunLoop({schedule.threads, [&](int64_t thread) { return FirstTile(schedule, thread); }}, body, one_loop_);
}

void Team::For(const Schedule& first, const Schedule& second, TileBody body) {
  const int64_t tiles = first.gemm_tiles + first.fill_tiles;
  const int64_t cost = first.cost_prefix[first.units], all = cost + second.cost_prefix[second.units];
  const auto begin = [&](int64_t thread) {
    if (thread == threads_) return tiles + second.gemm_tiles + second.fill_tiles;
    const auto target =
        static_cast<int64_t>(static_cast<double>(all) * static_cast<double>(thread) / static_cast<double>(threads_));
    return target < cost ? TileAtCost(first, target) : tiles + TileAtCost(second, target - cost);
  };
  state_.RunLoop({threads_, begin}, body, one_loop_);
}

void Team::For(int64_t count, TileBody body) {
  state_.RunLoop({threads_, [&](int64_t thread) { return count * thread / threads_; }}, body, one_loop_);
}

}  // namespace raggemm
