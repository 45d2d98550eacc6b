// The pack buffers of threads. A process-wide list keeps the buffers of finished calls, so that later calls neither
// allocate nor take page faults.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/plan/schedule.h"

namespace raggemm {

// The buffers of one thread, aligned to cache lines.
struct Scratch {
  // Divides `block` into the buffers. If `block` is null, only counts the bytes.
  Scratch(const TileContext& context, void* block);
  static int64_t Bytes(const TileContext& context) { return Scratch(context, nullptr).bytes; }

  // Packed panels of lhs for one KC block, or for all KC blocks with BlockShape::k_inner.
  char* packed_lhs;
  char* panels[2];  // Packed panels of rhs. The second one is for kernels that pack ahead.
  // Accumulation chains, [mr][nr] for each register tile: first all tiles of the first panel, then of the next panel.
  char* chain;
  char* total;  // Sums of finished chains, in the layout of `chain`.
  char* bias;   // Bias [columns], in the compute type.
  // One row of the gate, and one row of results before the activation. Only for calls with an activation.
  float *gate, *result;
  // Only for calls that scale sums (Checked::scales_sums).
  char* scaled;                       // Totals of scaled sums, in the layout of `chain`.
  float *row_scales, *column_scales;  // Scales of the rows of a tile, and of the columns of a panel.
  // Only for rounded rows. Scales and sums of codes of pieces (Stretches) are in the order of KC blocks, pieces, rows.
  // block_scales has the scale of each row's current block.
  float *piece_scales, *block_scales;
  int32_t *piece_sums, *column_zeros;
  int64_t bytes = 0;
};

// Largest number of buffers that the process-wide list keeps. With 2 MiB of L2, a buffer usually has 2 MiB, or 4 MiB if
// scales multiply sums.
inline constexpr int64_t kMostKeptBuffers = 64;

// The pack buffers of a call. The destructor returns them to the process-wide list.
class ScratchLease {
 public:
  ScratchLease() = default;
  ~ScratchLease();
  ScratchLease(const ScratchLease&) = delete;
  ScratchLease& operator=(const ScratchLease&) = delete;

  // Takes `count` buffers of at least `bytes` bytes from the process-wide list, or allocates them. Returns
  // ResourceExhausted if memory is short.
  absl::Status Acquire(int64_t count, int64_t bytes);
  void* at(int64_t i) const { return blocks_[i]; }

 private:
  int64_t count_ = 0;
  void* blocks_[kMaxThreads];
};

}  // namespace raggemm
