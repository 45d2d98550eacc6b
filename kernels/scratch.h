// Pack buffers. One process-wide list keeps what calls gave back, so that a warm call allocates nothing and takes no
// page fault. The calling thread leases for all its workers before anything is written.
#ifndef RAGGEMM_KERNELS_SCRATCH_H_
#define RAGGEMM_KERNELS_SCRATCH_H_

#include <cstdint>

#include "absl/status/status.h"
#include "raggemm/plan.h"

namespace raggemm {

// The buffers of one worker for tiles of `blocking`, all 64-byte aligned, in elements of the compute type T:
//
//   panels  lhs, packed: row tiles of [kChain][mr] back to back, of one chain or of all
//   strip   one strip of rhs, packed: [kChain][nr]
//   chain, total  one register tile of [mr][nr] after the other, strip by strip
//   bias    widened, [columns]
struct Scratch {
  Scratch(const Plan& plan, void* block);  // null: to count the bytes
  static int64_t Bytes(const Plan& plan) { return Scratch(plan, nullptr).bytes; }

  char* panels;
  char* strip;
  char* chain;
  char* total;
  char* bias;
  int64_t bytes = 0;  // of all
};

// What the process keeps for its next calls.
struct KeptBuffers {
  int64_t count, bytes;
};
KeptBuffers CountKeptBuffers();
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

#endif  // RAGGEMM_KERNELS_SCRATCH_H_
