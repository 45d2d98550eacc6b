// How a call is computed: everything that was decided before its first sum. The planner writes it (plan.cc); ways and
// tiles read it.
#ifndef RAGGEMM_KERNELS_SCHEDULE_H_
#define RAGGEMM_KERNELS_SCHEDULE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/checked.h"
#include "kernels/microkernel.h"
#include "kernels/recipe.h"
#include "raggemm/arithmetic.h"
#include "raggemm/plan.h"

namespace raggemm {

// How kernels and packers read an operand.
struct Reading {
  DType type = DType::kF32;  // what they read: the operand's own, or what it is expanded to
  Expand* expand = nullptr;  // to `type`, where that is another than the operand's
  const Packers* pack = nullptr;
};

// Cache blocks: rows and columns of the largest tile.
struct Blocking {
  int64_t m = 0;
  int64_t n = 0;
};

// A unit is the product of one group (and replica, but for ragged K), in memory order of the weights.
struct Schedule : Checked {
  const Arithmetic* arithmetic = &kArithmetics[0];
  const char* arithmetic_because = nullptr;  // null where the types leave no choice
  const Splitting* splitting = &kSplittings[0];

  Cpu cpu = {};
  Isa isa{};
  const KernelRow* kernels = nullptr;
  const KernelRow* ends = nullptr;  // what follows the sums: the kernels', or those of f32 behind sums of s32
  Activate* activate = nullptr;     // to out, where there is an activation
  Reading read_lhs = {}, read_rhs = {};
  int64_t panel = kPanel;  // steps of k that are packed at once

  Executor executor = Executor::kSerial;
  int64_t threads = 1;
  TaskPool* pool = nullptr;

  Blocking blocking = {};
  Recipes recipes = {};
  int64_t units = 0;
  const int64_t* tile_prefix = nullptr;  // [units + 1] tiles before each unit
  const int64_t* cost_prefix = nullptr;  // [units + 1] cost before each unit
  bool rhs_streams = false;              // what is read of it once does not stay in the caches of the cores
  int64_t gemm_tiles = 0;
  int64_t fill_tiles = 0;  // slices of out with elements of no processed group, numbered after the gemm tiles

  // Totals of earlier steps of k, f32, laid out as out. The sums go on from them, with the bits of one sum over all
  // steps if the earlier ones are a multiple of kPanel. Null: the sums begin here. For one segment without scales.
  const float* earlier_totals = nullptr;
};

// What becomes of so many steps of k: those that kernels take, whole groups of each product where operands are split.
int64_t KernelSteps(const Schedule& schedule, int64_t k);

// Tiles of a thread's own range: cost-equal, contiguous, in order of thread. Which thread computes a tile never
// changes its bits, so threads that are done take tiles from the others' ranges. thread == schedule.threads gives the
// end.
int64_t FirstTile(const Schedule& schedule, int64_t thread);
// The gemm tile at which the running cost, as cost_prefix has it, reaches `cost`.
int64_t TileAtCost(const Schedule& schedule, int64_t cost);

// MakePlan's, and what its Plan holds.
absl::StatusOr<Schedule> MakeSchedule(const GroupedGemmProblem& problem, const Options& options,
                                      absl::Span<int64_t> workspace);
absl::Status Run(const Schedule& schedule);
class Team;  // parallel_for.h
absl::Status Run(const Schedule& schedule, Team& team);
// Both at once: neither reads what the other writes.
absl::Status Run(const Schedule& first, const Schedule& second, Team& team);
std::string ToString(const Schedule& schedule);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_SCHEDULE_H_
