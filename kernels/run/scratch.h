// Pack buffers. One process-wide list keeps what calls gave back, so that a warm call allocates nothing and takes no
// page fault. The calling thread leases for all its workers before anything is written.
#ifndef RAGGEMM_KERNELS_RUN_SCRATCH_H_
#define RAGGEMM_KERNELS_RUN_SCRATCH_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/plan/schedule.h"

namespace raggemm {

// The buffers of one worker for tiles of `blocking`, all from the start of a cache line:
//
//   panels  lhs, packed in the kernels' layout: row tiles of KernelChoice::panel steps back to back, of one panel or of all
//   strips  two of rhs, packed in the kernels' layout; the second for kernels that pack ahead
//   chain, total  one register tile of [mr][nr] sums after the other, strip by strip
//   bias    as sums, [columns]
//   gate, result  a row of f32 each, [columns]: where there is an activation
//   scaled  as total, row_scales, column_scales: where scales multiply sums
struct Scratch {
  Scratch(const TileContext& context, void* block);  // null: to count the bytes
  static int64_t Bytes(const TileContext& context) { return Scratch(context, nullptr).bytes; }

  char* packed_lhs;
  char* panels[2];
  char* chain;
  char* total;
  char* bias;
  float *gate, *result;
  char* scaled;
  float *row_scales, *column_scales;
  int64_t bytes = 0;  // of all
};

inline constexpr int64_t kMostKeptBuffers = 64;  // 128 MiB with the largest blocking here

class ScratchLease {
 public:
  ScratchLease() = default;
  ~ScratchLease();
  ScratchLease(const ScratchLease&) = delete;
  ScratchLease& operator=(const ScratchLease&) = delete;

  // ResourceExhausted when memory is short.
  absl::Status Acquire(int64_t count, int64_t bytes);
  void* at(int64_t i) const { return blocks_[i]; }

 private:
  int64_t count_ = 0;
  void* blocks_[kMaxThreads];
};

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_RUN_SCRATCH_H_
