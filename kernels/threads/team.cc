#include "kernels/threads/team.h"

#ifdef _OPENMP
#include <omp.h>
#include <pthread.h>
#endif

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <mutex>
#include <new>

#include "kernels/target/target.h"
#include "kernels/threads/fork.h"
#include "kernels/threads/openmp_stack.h"

namespace raggemm {
namespace {

// Range::next and Range::end have a tile in the low kTileBits bits, and the loop number in the high bits.
constexpr int kTileBits = 40;
constexpr int64_t kTileMask = (int64_t{1} << kTileBits) - 1;

// Helpers stop after a loop number with bit kLast. A team for one loop uses the number 1. A team for several loops uses
// 2, 4, 6 and so on. Team::End then sets kEnded, which has bit kLast but no tiles.
constexpr int64_t kLast = 1, kEnded = -1;

// Number of checks before a thread sleeps. The value usually changes within microseconds, and waking a thread takes 50
// us. On Zen 4 one check takes 64 cycles, and all checks take 25 us.
constexpr int kSpins = 1000;

int64_t AwaitChange(const std::atomic<int64_t>& value, int64_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (const int64_t now = value.load(std::memory_order_acquire); now != old) return now;
    Pause();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

// Head of the list of teams that calls gave back. Teams are never freed: a task that starts late may hold a team even
// when the process ends.
constinit Team* free_teams = nullptr;

}  // namespace

Team* Team::Take(int64_t threads, bool one_loop) {
  Team* team = nullptr;
  {
    const std::lock_guard<std::mutex> lock(lists_mutex);
    if ((team = free_teams) != nullptr) free_teams = team->next_free_;
  }
  if (team == nullptr) team = new (std::nothrow) Team;
  if (team == nullptr) return nullptr;
  team->threads_ = threads;
  team->one_loop_ = one_loop;
  team->caller_ = std::this_thread::get_id();
  team->references_.store(1, std::memory_order_relaxed);
  team->next_worker_.store(1, std::memory_order_relaxed);
  for (int64_t t = 0; t < threads; ++t) {
    team->ranges_[t].next.store(0, std::memory_order_relaxed);
    team->ranges_[t].end.store(0, std::memory_order_relaxed);
  }
  team->loop_.store(0, std::memory_order_relaxed);
  return team;
}

void Team::Release() {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const std::lock_guard<std::mutex> lock(lists_mutex);
  next_free_ = free_teams;
  free_teams = this;
}

void Team::For(const TileRanges& ranges, TileBody body) {
  const int64_t loop = loop_.load(std::memory_order_relaxed) + (one_loop_ ? 1 : 2), before = loop << kTileBits;
  body_ = &body;
  remaining_.store(ranges.first(ranges.count), std::memory_order_relaxed);
  const int64_t count = std::min(ranges.count, threads_);
  for (int64_t t = 0; t < threads_; ++t) {
    const auto first = [&](int64_t i) { return ranges.first(std::min(i, count) * ranges.count / count); };
    ranges_[t].end.store(before + first(t + 1), std::memory_order_relaxed);
    ranges_[t].next.store(before + first(t), std::memory_order_release);
  }
  loop_.store(loop, std::memory_order_release);
  loop_.notify_all();
  Work(0);
  for (int64_t left = remaining_.load(std::memory_order_acquire); left != 0;) left = AwaitChange(remaining_, left);
}

void Team::For(int64_t count, TileBody body) {
  For({threads_, [&](int64_t thread) { return count * thread / threads_; }}, body);
}

// Reads body_ only after a claim: the caller then waits for the claimed tile, so body_ cannot change. A late claim for
// an old loop may meet Range::end of a newer loop. So a claim counts only if Range::end has the same loop number.
void Team::Work(int64_t worker) {
  int64_t done = 0;
  {
    const FloatMode mode;
    for (int64_t i = 0; i < threads_; ++i) {
      Range& range = ranges_[(worker + i) % threads_];
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

// Works on the team's loops until the last one is done. Does nothing on the caller's thread, which would wait for
// itself.
void Team::Help(int64_t worker) {
  if (std::this_thread::get_id() == caller_) return;
  int64_t loop = 0;
  do {
    loop = AwaitChange(loop_, loop);
    if (loop != kEnded) Work(worker);
  } while (!(loop & kLast));
}

void Team::StartHelpers(TaskPool& pool) {
  for (int64_t i = 1; i < threads_; ++i) {
    references_.fetch_add(1, std::memory_order_relaxed);
    try {
      pool.Schedule([this] {
        Help(next_worker_.fetch_add(1, std::memory_order_relaxed));
        Release();
      });
    } catch (...) {  // If the pool throws, the team works with fewer helpers.
      Release();
      break;
    }
  }
}

void Team::End() {
  if (loop_.load(std::memory_order_relaxed) & kLast) return;
  loop_.store(kEnded, std::memory_order_release);
  loop_.notify_all();
}

namespace {

// ---- Teams of OpenMP threads. libgomp ends the process if it cannot make a thread. ----

#ifdef _OPENMP

// Stack size of libgomp's threads. libgomp also reads it when the library is loaded.
const size_t kStackSize = OpenMpStackSize();

void* WaitUntilTried(void* tried) {
  static_cast<const std::atomic<bool>*>(tried)->wait(false);
  return nullptr;
}

// Returns how many more threads the process can have, up to `wanted`.
int64_t TryThreads(int64_t wanted) {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return 0;
  // If the system refuses the stack size, the threads get the default size, as in libgomp.
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

// Returns how many threads libgomp can give a team, at most `wanted`. `kept` of them exist since the last team. libgomp
// ends the process if it gets no thread or no memory. So this function creates the missing threads and allocates the
// memory on trial. libgomp can still fail if other code takes the last thread in between, or has run a smaller team on
// this thread.
int64_t AvailableThreads(int64_t wanted, int64_t kept) {
  if (IsForkedChild()) return 1;  // libgomp would wait for threads that only the parent process has.
  if (wanted <= kept) return wanted;
  if (omp_get_active_level() >= omp_get_max_active_levels()) return 1;
  const int64_t threads = kept + TryThreads(wanted - kept);
  constexpr int64_t kTeam = 16 << 10, kThread = 1 << 10;  // Bytes per team and per thread in libgomp 12, rounded up.
  const std::unique_ptr<char[]> memory(new (std::nothrow) char[kTeam + threads * kThread]);
  asm("" : : "r"(memory.get()));  // Keeps the compiler from removing the allocation.
  return memory == nullptr ? 1 : threads;
}

// Calls body(worker) once on each thread of a team of at most `threads` threads.
void RunOpenMpTeam(int64_t threads, absl::FunctionRef<void(int64_t worker)> body) {
  // Threads in the last team that this thread started. libgomp keeps them, unless the team was nested. initial-exec
  // puts the variable into memory that exists already, so the first use allocates nothing.
  __attribute__((tls_model("initial-exec"))) thread_local int64_t last_team = 1;
  const bool nested = omp_get_active_level() > 0;
  threads = AvailableThreads(threads, nested ? 1 : last_team);
  if (threads == 1) return body(0);
#pragma omp parallel num_threads(static_cast <int>(threads))
  {
    if (omp_get_thread_num() == 0 && !nested) last_team = omp_get_num_threads();
    body(omp_get_thread_num());
  }
}

#else

// Calls body on the calling thread only. For builds without OpenMP, such as sanitizer builds.
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

namespace {

absl::Status NoMemory() { return absl::ResourceExhaustedError("no memory for the tile counters"); }

bool IsOpenMp(const ThreadChoice& threads) { return threads.executor == Executor::kOpenMp && threads.count > 1; }

}  // namespace

struct Membership {
  ~Membership() {
    team->End();
    team->Release();
  }
  Team* team;
};

absl::Status ParallelFor(const ThreadChoice& threads, const TileRanges& ranges, TileBody body) {
  Team* const team = Team::Take(threads.count, /*one_loop=*/true);
  if (team == nullptr) return NoMemory();
  const Membership membership{team};
  if (IsOpenMp(threads)) {
    RunOpenMpTeam(threads.count, [&](int64_t worker) { worker == 0 ? team->For(ranges, body) : team->Help(worker); });
  } else {
    if (threads.executor == Executor::kPool) team->StartHelpers(*threads.pool);
    team->For(ranges, body);
  }
  return absl::OkStatus();
}

absl::Status WithTeam(const ThreadChoice& threads, absl::FunctionRef<absl::Status(Team&)> caller) {
  Team* const team = Team::Take(threads.count, /*one_loop=*/false);
  if (team == nullptr) return NoMemory();
  const Membership membership{team};
  if (!IsOpenMp(threads)) {
    if (threads.executor == Executor::kPool) team->StartHelpers(*threads.pool);
    return caller(*team);
  }
  absl::Status status;
  // Exceptions must not leave the parallel region.
  std::exception_ptr thrown;
  RunOpenMpTeam(threads.count, [&](int64_t worker) {
    if (worker != 0) return team->Help(worker);
    try {
      status = caller(*team);
    } catch (...) {
      thrown = std::current_exception();
    }
    team->End();
  });
  if (thrown != nullptr) std::rethrow_exception(thrown);
  return status;
}

}  // namespace raggemm
