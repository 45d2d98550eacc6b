// Tiles to threads, on any executor. Ranges of tiles are claimed one tile at a time: each worker takes its own range
// first, then what is left of the others', so a thread that the host delays holds up one tile only.
//
// A team stays together for several loops, and its threads spin for a while between them: a loop begins in a
// microsecond, where a sleeping thread would take 50 to wake.
//
// With a pool, the caller never waits for a task that has not started: it takes tiles itself until none are left, then
// waits for those that others have taken. A task that starts later helps with what is left, if anything, and touches
// nothing but a reference-counted counter.
#ifndef RAGGEMM_KERNELS_PARALLEL_FOR_H_
#define RAGGEMM_KERNELS_PARALLEL_FOR_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/schedule.h"

namespace raggemm {

// What `executor` has when all threads are asked for.
int64_t ThreadsOf(Executor executor, const TaskPool* pool);

using TileBody = absl::FunctionRef<void(int64_t tile, int64_t worker)>;

class TeamState;
class Team {
 public:
  Team(TeamState& state, int64_t threads, bool one_loop) : state_(state), threads_(threads), one_loop_(one_loop) {}
  int64_t threads() const { return threads_; }

  // body(tile, worker) for each tile of the plan once, worker < threads(), no two at once with the same worker. The
  // floating point environment is the default one inside (no flush-to-zero) and the caller's again after. body must not
  // throw.
  void For(const Schedule& schedule, TileBody body);
  // Does so for the tiles of two plans, those of the second numbered after those of the first.
  void For(const Schedule& first, const Schedule& second, TileBody body);
  // Does so for `count` tiles of equal cost.
  void For(int64_t count, TileBody body);

 private:
  TeamState& state_;
  const int64_t threads_;
  const bool one_loop_;
};

// caller(team) with the executor and as many threads as the plan has; what it returns. ResourceExhausted before that
// when memory is short. What it throws is thrown here, behind the team's end. With one_loop it begins one at most,
// after which no thread waits for more.
absl::Status WithTeam(const Schedule& schedule, bool one_loop, absl::FunctionRef<absl::Status(Team&)> caller);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_PARALLEL_FOR_H_
