#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/check/checked.h"
#include "kernels/check/matrices.h"
#include "kernels/isa/microkernel.h"
#include "kernels/plan/tile_plan.h"
#include "kernels/threads/team.h"
#include "raggemm/arithmetic.h"
#include "raggemm/plan.h"

namespace raggemm {

struct OperandAccess {
  DType type = DType::kF32;          // Type that kernels and packers read: stored or dequantized.
  Dequantize* dequantize = nullptr;  // Converts stored elements to `type`. Null if no conversion is needed.
  const Packers* pack = nullptr;
};

struct KernelChoice {
  const Arithmetic* arithmetic = &kArithmetics[0];
  // Reason for this arithmetic. Null if the operand types leave no choice.
  const char* because = nullptr;
  const Splitting* splitting = &kSplittings[0];
  Cpu cpu = {};
  Isa isa{};
  const KernelRow* row = nullptr;
  // Entry of the kernel table that has the epilogue: `row`, or the entry of f32 if s32 sums become floats.
  const KernelRow* epilogue = nullptr;
  const KernelRow* floats = nullptr;  // Entry of f32.
  Activate* activate = nullptr;       // Null if the call has no activation.
  OperandAccess lhs = {}, rhs = {};
  int64_t kc = kKc;  // Steps of k that are packed at once.
};

inline bool IsSplit(const KernelChoice& kernels) { return kernels.splitting->products > 1; }

// Returns how many steps kernels compute for k steps of the contraction. More than k if f32 is split.
int64_t KernelSteps(const KernelChoice& kernels, int64_t k);

// The size of the largest tile of out, and the plans of tiles.
struct Blocking {
  // Rows and columns of a full tile. Tiles with fewer than m rows may have more than n columns, up to kMaxCols.
  int64_t m = 0, n = 0;
  // True if rhs of all groups exceeds the L2 caches of all threads. Only with ragged M, and if rhs is not transposed.
  bool rhs_streams = false;
  TilePlans plans = {};
};

// All rows of lhs, quantized. Null `codes`: the caller has not quantized them.
struct RoundedLhs {
  int8_t* codes = nullptr;  // [rows,CodesStride(K)]
  float* scales = nullptr;  // [rows,blocks] One scale for each block of a row.
};
// Returns the bytes from one row of codes to the next, for rows of k steps. Kernels store whole vectors of codes.
inline int64_t CodesStride(int64_t k) { return RoundUp(k, kMostVector); }

struct TileContext {
  Checked call;
  KernelChoice kernels = {};
  Blocking blocking = {};
  // Totals of an earlier call that the sums continue: f32, in the layout of out. Null: sums start at 0. The bits are
  // those of a single sum if the earlier call had a multiple of kKc steps of k. Only for one problem with one replica,
  // and without scales.
  const float* earlier_totals = nullptr;
  RoundedLhs rounded_lhs = {};  // Only with Checked::lhs_block. Replaces the quantization of lhs.
};

struct WorkList {
  int64_t gemms = 0;
  const int64_t* tile_prefix = nullptr;  // [gemms + 1] Tiles of all previous group GEMMs.
  const int64_t* cost_prefix = nullptr;  // [gemms + 1] Sum of GemmCost of all previous group GEMMs.
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

// Returns the first tile of a thread's own range. The range ends where that of the next thread begins. `thread` may be
// the number of threads. The GEMM tiles of all ranges have about equal cost. Fill tiles are in the last range.
int64_t FirstTile(const Schedule& schedule, int64_t thread);
// Returns the tile at which the running sum of costs reaches `cost`.
int64_t TileAtCost(const Schedule& schedule, int64_t cost);

// Checks a problem and builds its schedule. The errors are those of MakePlan (grouped_gemm.h).
absl::StatusOr<Schedule> MakeSchedule(const GroupedGemmProblem& problem, const Options& options,
                                      absl::Span<int64_t> workspace);

}  // namespace raggemm
