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
  DType type = DType::kF32;          // Type that kernels read: that of stored or of dequantized elements.
  Dequantize* dequantize = nullptr;  // Converts elements to `type`. Null if they have it.
  const Packers* pack = nullptr;
};

// The arithmetic and the kernels of a call.
struct KernelChoice {
  const Arithmetic* arithmetic = &kArithmetics[0];
  const char* because = nullptr;  // Reason for the arithmetic. Null if there is no choice.
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

// Returns the steps that kernels see for k steps of the contraction. Split operands have more (Splitting).
int64_t KernelSteps(const KernelChoice& kernels, int64_t k);

// The division of results into tiles.
struct Blocking {
  int64_t m = 0, n = 0;      // Size of the largest tile.
  bool rhs_streams = false;  // True: rhs exceeds the caches of the cores and is read once.
  TilePlans plans = {};
};

// The inputs of the work on a tile.
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
  const int64_t* tile_prefix = nullptr;  // [gemms + 1] Tiles before each group GEMM.
  const int64_t* cost_prefix = nullptr;  // [gemms + 1] Cost before each group GEMM.
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

// Returns the first tile of a thread's own range, or the end if `thread` is the number of threads. Ranges are
// contiguous and have equal cost. A thread that is done takes tiles of other ranges. This does not change the bits of a
// tile.
int64_t FirstTile(const Schedule& schedule, int64_t thread);
// Returns the GEMM tile at which the running cost reaches `cost`.
int64_t TileAtCost(const Schedule& schedule, int64_t cost);

// Checks a problem and builds its schedule, with the errors of MakePlan.
absl::StatusOr<Schedule> MakeSchedule(const GroupedGemmProblem& problem, const Options& options,
                                      absl::Span<int64_t> workspace);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_PLAN_SCHEDULE_H_
