// Tiles to threads, on any executor. Ranges of tiles are claimed one tile at a time: each worker takes its own range
// first, then what is left of the others', so a thread that the host delays holds up one tile only.
//
// With a pool, the caller never waits for a task that has not started: it takes tiles itself until none are left, then
// waits for those that others have taken. A task that starts later finds no tile, and touches nothing but a
// reference-counted counter.
#ifndef RAGGEMM_KERNELS_PARALLEL_FOR_H_
#define RAGGEMM_KERNELS_PARALLEL_FOR_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/plan.h"

namespace raggemm {

// What `executor` has when all threads are asked for.
int64_t ThreadsOf(Executor executor, const TaskPool* pool);

using TileBody = absl::FunctionRef<void(int64_t tile, int64_t worker)>;

// body(tile, worker) for each tile of the plan once, worker < plan.threads, no two at once with the same worker. The
// floating point environment is the default one inside (no flush-to-zero) and the caller's again after.
// ResourceExhausted before the first body when memory is short. body must not throw.
absl::Status ParallelFor(const PlanData& plan, TileBody body);

// Likewise for the tiles of two plans, those of the second numbered after those of the first.
absl::Status ParallelFor(const PlanData& first, const PlanData& second, TileBody body);

// Likewise for `count` tiles of equal cost, on as many of the plan's threads.
absl::Status ParallelFor(const PlanData& plan, int64_t count, TileBody body);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_PARALLEL_FOR_H_
