// Pack buffers, which are leased before a call writes anything. A process-wide list keeps the buffers of finished
// calls, so that later calls neither allocate nor take page faults.
#ifndef RAGGEMM_KERNELS_RUN_SCRATCH_H_
#define RAGGEMM_KERNELS_RUN_SCRATCH_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/plan/schedule.h"

namespace raggemm {

// The buffers of one worker. Each starts at a cache line.
struct Scratch {
  // Divides `block` into the buffers. Only counts their bytes if `block` is null.
  Scratch(const TileContext& context, void* block);
  static int64_t Bytes(const TileContext& context) { return Scratch(context, nullptr).bytes; }

  char* packed_lhs;  // Panels of lhs, by register tile. One KC block, or all of them.
  char* panels[2];   // Packed panels of rhs. The second one is for kernels that pack ahead.
  char* chain;       // Chains [mr][nr], by panel, then by register tile.
  char* total;       // Totals, in the layout of chain.
  char* bias;        // Bias [columns], in the type of the sums.
  // Rows of f32 [columns], only for activations.
  float *gate, *result;
  // Only if sums are scaled: totals in the layout of chain, and scales of the tile's rows and of a panel's columns.
  char* scaled;
  float *row_scales, *column_scales;
  int64_t bytes = 0;  // Bytes of all buffers.
};

// Most buffers on the list: 128 MiB with the largest blocking.
inline constexpr int64_t kMostKeptBuffers = 64;

// Pack buffers of a call. The destructor gives them back.
class ScratchLease {
 public:
  ScratchLease() = default;
  ~ScratchLease();
  ScratchLease(const ScratchLease&) = delete;
  ScratchLease& operator=(const ScratchLease&) = delete;

  // Leases `count` buffers. Returns ResourceExhausted if there is not enough memory.
  absl::Status Acquire(int64_t count, int64_t bytes);
  void* at(int64_t i) const { return blocks_[i]; }

 private:
  int64_t count_ = 0;
  void* blocks_[kMaxThreads];
};

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_RUN_SCRATCH_H_
