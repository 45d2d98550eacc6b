// Thread teams run parallel loops over tiles, on any executor. Each worker claims one tile after the other, first from
// its own range, then from other ranges. So a thread that the host delays holds up only one tile.
//
// Threads of a team spin for a while between loops, so the next loop starts within a microsecond.
//
// With a thread pool, the caller never waits for a task that has not started. It runs tiles itself until none are left,
// and then waits for the tiles that other threads have claimed. A task that starts later touches nothing but the
// reference-counted Team.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "raggemm/plan.h"

namespace raggemm {

struct ThreadChoice {
  Executor executor = Executor::kSerial;
  int64_t count = 1;
  TaskPool* pool = nullptr;
};

int64_t ThreadsOf(Executor executor, const TaskPool* pool);

// Range i has the tiles [first(i), first(i + 1)).
struct TileRanges {
  int64_t count;
  absl::FunctionRef<int64_t(int64_t range)> first;
};
using TileBody = absl::FunctionRef<void(int64_t tile, int64_t worker)>;

class Team {
 public:
  int64_t threads() const { return threads_; }

  // Calls body(tile, worker) once for each tile, with worker < threads(). Calls at the same time have different
  // workers. body must not throw. It runs in the default floating-point environment, without flush-to-zero.
  void For(const TileRanges& ranges, TileBody body);
  // Runs `count` tiles of equal cost.
  void For(int64_t count, TileBody body);

 private:
  friend absl::Status ParallelFor(const ThreadChoice& threads, const TileRanges& ranges, TileBody body);
  friend absl::Status WithTeam(const ThreadChoice& threads, absl::FunctionRef<absl::Status(Team&)> caller);
  friend struct Membership;

  // A range of tiles of a loop. `next` is the first tile that no thread has claimed. Memory orders matter on CPUs such
  // as aarch64:
  //
  // - Team::For writes body_, remaining_ and `end`, then stores `next` with release order. To claim a tile, Team::Work
  //   increments `next` with acquire order. So the claiming thread sees what Team::For wrote. A claim with the number
  //   of an older loop is ignored.
  // - Team::Work writes results, then subtracts its finished tiles from remaining_ with release order. Team::For loads
  //   the final 0 with acquire order. So the caller sees all results.
  struct alignas(64) Range {
    std::atomic<int64_t> next, end;
  };

  // Returns a free team, or a new one. Null if memory is short.
  static Team* Take(int64_t threads, bool one_loop);
  void Release();
  void Work(int64_t worker);
  void Help(int64_t worker);
  void StartHelpers(TaskPool& pool);
  void End();

  int64_t threads_;
  bool one_loop_;
  std::thread::id caller_;
  std::atomic<int64_t> references_;
  std::atomic<int64_t> next_worker_;  // The caller is worker 0.
  std::atomic<int64_t> loop_;         // Number of the current loop.
  std::atomic<int64_t> remaining_;    // Unfinished tiles of the current loop.
  const TileBody* body_;
  Team* next_free_;
  Range ranges_[kMaxThreads];
};

// Runs one loop like Team::For, on a new team. Returns ResourceExhausted, without calling `body`, if memory is short.
absl::Status ParallelFor(const ThreadChoice& threads, const TileRanges& ranges, TileBody body);

// Calls caller(team) and returns the status of `caller`. Returns ResourceExhausted, without calling `caller`, if memory
// is short. Passes on exceptions of `caller`.
absl::Status WithTeam(const ThreadChoice& threads, absl::FunctionRef<absl::Status(Team&)> caller);

}  // namespace raggemm
