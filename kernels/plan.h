// Everything that was decided of a call, before its first sum.
#ifndef RAGGEMM_KERNELS_PLAN_H_
#define RAGGEMM_KERNELS_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/microkernel.h"
#include "kernels/recipe.h"
#include "raggemm/activation.h"
#include "raggemm/arithmetic.h"
#include "raggemm/plan.h"
#include "raggemm/problem.h"

namespace raggemm {

// One of the six dims arrays, read and checked: [P,R,G] sizes, and for each group where it starts within its
// segment. Where both axes of an operand are ragged, first's starts are those of the blocks, in elements.
struct GroupExtents {
  const int64_t* sizes = nullptr;  // null where the array is not set
  const int64_t* starts = nullptr;
};

// Of an operand, from its start.
struct Elements {
  const char* data = nullptr;  // null where it is not given
  DType dtype = DType::kF32;
};

// alpha, beta or bias: one row per group, per group and replica, or for all.
struct GroupValues {
  enum class Per : uint8_t { kCall, kGroup, kReplica };
  const char* data = nullptr;  // null where it is not given
  DType dtype = DType::kF32;
  Per per = Per::kCall;
};

// Scales or zero points. One for each group, or of blocks of the stored matrices on top of each other.
struct PlannedFactor {
  GroupValues values;
  bool of_blocks = false;
  int64_t row_block = 1, col_block = 1;  // of blocks: rows and columns that share a value
  int64_t rows = 0, cols = 0;            // of blocks: values; where there are fewer rows than blocks, they begin again
  bool of_elements = false;              // which are multiplied before products are summed; else sums are
  bool is_given() const { return values.data != nullptr; }
};

// A checked operand: equal repetitions of rows x cols elements, one per segment, group or problem.
struct PlannedOperand {
  enum class Repeat : uint8_t { kSegment, kGroup, kProblem };
  char* data = nullptr;
  DType dtype = DType::kF32;
  DType expanded = DType::kF32;  // what is multiplied
  DType read = DType::kF32;      // what kernels and packers read: `expanded`, or dtype where they have it
  bool is_trans = false;
  bool packed = false;
  Repeat repeat = Repeat::kSegment;
  int64_t rows = 0;  // as stored, before is_trans; a ragged axis has its full extent
  int64_t cols = 0;
  int64_t block_cols = 0;  // of column blocks: how many columns one has
  GroupExtents first, last;
  PlannedFactor scale, zero;
  Expand* expand = nullptr;  // from dtype to `read`, where that is another
  Elements row_index;        // of lhs, a row of out each: which of its rows; null where it has its own
};

// Cache blocks: rows and columns of the largest tile.
struct Blocking {
  int64_t m = 0;
  int64_t n = 0;
};

struct PlanData {
  // What, checked.
  RaggedMode mode = RaggedMode::kUniform;
  const Arithmetic* arithmetic = &kArithmetics[0];
  const char* arithmetic_because = nullptr;  // null where the types leave no choice
  const Splitting* splitting = &kSplittings[0];
  int64_t problems = 1, replicas = 1, groups = 0;  // P, R, G
  int64_t local_groups = 0;
  PlannedOperand lhs, rhs, out;
  const char* c = nullptr;
  GroupValues alpha, beta, bias;
  std::optional<Activation> activation;
  Elements gate;  // as out lies
  // Sums are multiplied by scales, or are integers and out is not: those over so many steps of k, 0 being all.
  bool scales_sums = false;
  int64_t sum_steps = 0;
  const int64_t* first_group = nullptr;  // [P,R], that is processed

  // How. A unit is the product of one group (and replica, but for ragged K), in memory order of the weights.
  Executor executor = Executor::kSerial;
  int64_t threads = 1;
  TaskPool* pool = nullptr;
  Cpu cpu;
  Isa isa{};
  const KernelRow* kernels = nullptr;
  const KernelRow* ends = nullptr;  // what follows the sums: the kernels', or those of f32 behind sums of s32
  Activate* activate = nullptr;     // to out, where there is an activation
  const Packers* pack_lhs = nullptr;
  const Packers* pack_rhs = nullptr;
  int64_t panel = kPanel;  // steps of k that are packed at once
  Blocking blocking;
  Recipes recipes;
  int64_t units = 0;
  const int64_t* tile_prefix = nullptr;  // [units + 1] tiles before each unit
  const int64_t* cost_prefix = nullptr;  // [units + 1] cost before each unit
  bool rhs_streams = false;              // what is read of it once does not stay in the caches of the cores
  int64_t gemm_tiles = 0;
  int64_t fill_tiles = 0;  // slices of out with elements of no processed group, numbered after the gemm tiles
};

// What becomes of so many steps of k: those that kernels take, whole groups of each product where operands are split.
int64_t KernelSteps(const PlanData& plan, int64_t k);

// Tiles of a thread's own range: cost-equal, contiguous, in order of thread. Which thread computes a tile never
// changes its bits, so threads that are done take tiles from the others' ranges. thread == plan.threads gives the end.
int64_t FirstTile(const PlanData& plan, int64_t thread);
// The one of its gemm tiles before which they cost so much, of plan.cost_prefix.
int64_t TileAtCost(const PlanData& plan, int64_t cost);

// MakePlan's, and what its Plan holds.
absl::StatusOr<PlanData> MakePlanData(const GroupedGemmProblem& problem, const Options& options,
                                      absl::Span<int64_t> workspace);
absl::Status Run(const PlanData& plan);
class Team;  // parallel_for.h
absl::Status Run(const PlanData& plan, Team& team);
// Both at once: neither reads what the other writes.
absl::Status Run(const PlanData& first, const PlanData& second, Team& team);
std::string ToString(const PlanData& plan);

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_PLAN_H_
