// Thread teams: they run parallel loops over tiles on any executor. Each worker claims tiles one at a time, first those of
// its own range, then those that are left of other ranges. So a thread that the host delays holds up one tile only.
//
// A team stays together for several loops. Its threads spin for a while between loops, because a loop then starts in a
// microsecond, and waking a sleeping thread takes 50.
//
// With a pool, the caller never waits for a task that has not started: it runs tiles itself until none are left, then
// waits for tiles that others have claimed. A task that starts later helps with what is left, if anything, and touches
// nothing but the reference-counted Team.
#ifndef RAGGEMM_KERNELS_THREADS_TEAM_H_
#define RAGGEMM_KERNELS_THREADS_TEAM_H_

#include <atomic>
#include <cstdint>
#include <thread>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "raggemm/plan.h"

namespace raggemm {

// The threads of a call.
struct ThreadChoice {
  Executor executor = Executor::kSerial;
  int64_t count = 1;
  TaskPool* pool = nullptr;
};

// Returns the number of threads of an executor.
int64_t ThreadsOf(Executor executor, const TaskPool* pool);

// Ranges of tiles: range i of `count` is [first(i), first(i + 1)).
struct TileRanges {
  int64_t count;
  absl::FunctionRef<int64_t(int64_t range)> first;
};
using TileBody = absl::FunctionRef<void(int64_t tile, int64_t worker)>;

class Team {
 public:
  int64_t threads() const { return threads_; }

  // Calls body(tile, worker) once for each tile, worker < threads(), never twice at once with the same worker. Inside the
  // floating point environment is the default one (no flush-to-zero). Afterwards it is the caller's again. body must not
  // throw.
  void For(const TileRanges& ranges, TileBody body);
  // Does so for `count` tiles of equal cost.
  void For(int64_t count, TileBody body);

 private:
  friend absl::Status ParallelFor(const ThreadChoice& threads, const TileRanges& ranges, TileBody body);
  friend absl::Status WithTeam(const ThreadChoice& threads, absl::FunctionRef<absl::Status(Team&)> caller);
  friend struct Membership;

  // Memory orders, for CPUs that keep none by themselves: a loop (body_, remaining_, end) is written before the release
  // of `next`. A claim acquires that value, or one that earlier claims made of it, and so sees the loop. A claim of an
  // older value has the number of an older loop, and counts for nothing. Results are written before Work releases its
  // count of finished tiles, and the caller acquires the last of these counts.
  struct alignas(64) Range {
    std::atomic<int64_t> next, end;
  };

  // Returns a team of the process-wide list, or a new one. Null if memory is short.
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
  std::atomic<int64_t> loop_;         // Number of the loop, 0 before the first.
  std::atomic<int64_t> remaining_;    // Tiles that are not finished.
  const TileBody* body_;
  Team* next_free_;
  Range ranges_[kMaxThreads];
};

// Runs one loop as Team::For does, with the executor and as many threads as `threads` names. ResourceExhausted, with no
// call of body, if memory is short.
absl::Status ParallelFor(const ThreadChoice& threads, const TileRanges& ranges, TileBody body);

// Calls caller(team) with a team for any number of loops, and returns its status. ResourceExhausted, with no call, if
// memory is short. An exception of the caller leaves after the end of the team.
absl::Status WithTeam(const ThreadChoice& threads, absl::FunctionRef<absl::Status(Team&)> caller);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_THREADS_TEAM_H_
