// The pack buffers of threads. A process-wide list keeps the buffers of finished calls, so that later calls neither
// allocate nor take page faults.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/plan/schedule.h"

namespace raggemm {

// The buffers of one thread, aligned to cache lines.
struct Scratch {
  // Divides `block` into the buffers. Null: only counts their bytes.
  Scratch(const TileContext& context, void* block);
  static int64_t Bytes(const TileContext& context) { return Scratch(context, nullptr).bytes; }

  // Packed panels of lhs, one for each register tile: of one KC block, or of all KC blocks with BlockShape::k_inner.
  char* packed_lhs;
  char* panels[2];  // Packed panels of rhs. The second one is for kernels that pack ahead.
  // Accumulation chains: an array [mr][nr] for each register tile of the first panel, then of the next.
  char* chain;
  char* total;  // Sums of finished chains, in the layout of `chain`.
  char* bias;   // Bias [columns], in the compute type.
  // Only for calls with an activation: a row of the gate and a row of results before the activation, f32 [columns].
  float *gate, *result;
  // Only for calls that scale sums (Checked::scales_sums). `scaled` has the totals of scaled sums in the layout of
  // `chain`. The scales are those of the tile's rows and of one panel's columns.
  char* scaled;
  float *row_scales, *column_scales;
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
