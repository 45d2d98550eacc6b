// The schedule of a call: all decisions before its first product.
#ifndef RAGGEMM_KERNELS_PLAN_SCHEDULE_H_
#define RAGGEMM_KERNELS_PLAN_SCHEDULE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/check/checked.h"
#include "kernels/isa/microkernel.h"
#include "kernels/plan/tile_plan.h"
#include "kernels/threads/team.h"
#include "raggemm/arithmetic.h"
#include "raggemm/plan.h"

namespace raggemm {

// The access of kernels and packers to an operand.
struct OperandAccess {
  DType type = DType::kF32;          // Type that kernels and packers read: the stored type, or the dequantized one.
  Dequantize* dequantize = nullptr;  // Converts stored elements to `type`. Null if they have this type already.
  const Packers* pack = nullptr;
};

// The arithmetic and the kernels of a call.
struct KernelChoice {
  const Arithmetic* arithmetic = &kArithmetics[0];
  const char* because = nullptr;  // Reason for the arithmetic. Null if the operand types leave no choice.
  const Splitting* splitting = &kSplittings[0];
  Cpu cpu = {};
  Isa isa{};
  const KernelRow* row = nullptr;
  const KernelRow* epilogue = nullptr;  // Row of the epilogue: `row`, or the f32 row if s32 sums become floats.
  Activate* activate = nullptr;         // Null if there is no activation.
  OperandAccess lhs = {}, rhs = {};
  int64_t kc = kKc;  // Steps of k that are packed at once.
};

// Returns true if f32 operands are split into bf16 parts.
inline bool IsSplit(const KernelChoice& kernels) { return kernels.splitting->products > 1; }

// Returns the number of steps that kernels compute for k steps of the contraction: k, or more if f32 operands are split
// (Splitting).
int64_t KernelSteps(const KernelChoice& kernels, int64_t k);

// The division of results into tiles.
struct Blocking {
  int64_t m = 0, n = 0;  // Most rows and columns of a tile. Tiles with few rows may have more columns (kMaxCols).
  // True if rhs of all groups is larger than the L2 caches of all threads. Only with ragged M and rhs not transposed.
  bool rhs_streams = false;
  TilePlans plans = {};
};

// Everything that the work on a tile needs to know about its call.
struct TileContext {
  Checked call;
  KernelChoice kernels = {};
  Blocking blocking = {};
  // Totals of earlier steps of k, in f32 and in the layout of out, from which sums continue. The bits are those of a
  // single sum if the number of earlier steps is a multiple of kKc. Null: sums start at 0. Only for one segment without
  // scales.
  const float* earlier_totals = nullptr;
};

// The tiles of a call. Group GEMMs are in the order of their weights in memory.
struct WorkList {
  int64_t gemms = 0;                     // Number of group GEMMs.
  const int64_t* tile_prefix = nullptr;  // [gemms + 1] Number of tiles of all group GEMMs before each one.
  const int64_t* cost_prefix = nullptr;  // [gemms + 1] Sum of GemmCost of all group GEMMs before each one.
  int64_t gemm_tiles = 0;
  int64_t fill_tiles = 0;  // Slices of out to fill (fill.h), numbered after the GEMM tiles.
  int64_t tiles() const { return gemm_tiles + fill_tiles; }
  int64_t cost() const { return cost_prefix[gemms]; }
};

struct Schedule {
  TileContext tile;
  WorkList work = {};
  ThreadChoice threads = {};
};

// Returns the first tile of a thread's own range, or the number of tiles if `thread` is the number of threads. Ranges
// are contiguous and have equal cost. A thread that has finished its range takes tiles of other ranges. This does not
// change the bits of a tile.
int64_t FirstTile(const Schedule& schedule, int64_t thread);
// Returns the index of the tile at which the costs of the tiles, added up in order, reach `cost`.
int64_t TileAtCost(const Schedule& schedule, int64_t cost);

// Checks a problem and builds its schedule, with the errors of MakePlan.
absl::StatusOr<Schedule> MakeSchedule(const GroupedGemmProblem& problem, const Options& options,
                                      absl::Span<int64_t> workspace);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_PLAN_SCHEDULE_H_
