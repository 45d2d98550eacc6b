// The results of a tile: where its totals go, and what is added to them on the way.
#ifndef RAGGEMM_KERNELS_EPILOGUE_H_
#define RAGGEMM_KERNELS_EPILOGUE_H_

#include <cstdint>

#include "kernels/block.h"
#include "kernels/microkernel.h"
#include "kernels/plan.h"
#include "kernels/scratch.h"

namespace raggemm {

class TileResult {
 public:
  TileResult(const PlanData& plan, const TilePlace& place, const Scratch& scratch);

  // A kernel's last chain goes straight to out where its totals are out's elements, else to scratch.
  void Aim(int64_t row, int64_t mr, int64_t col, const Strip& strip, bool last, MicrokernelArgs& args) const;

  // After the last chain: what is not in out yet, while it is in L1.
  void Store(int64_t row, int64_t mr, int64_t col, const Strip& strip, const MicrokernelArgs& args) const;

  // An empty contraction gives zero whatever alpha is, as in BLAS.
  void StoreEmpty() const;

  // Stores that went past the caches are ordered before whatever tells others that the tile is done.
  void Finish() const;

 private:
  const char* ValuesOf(const GroupValues& values, int64_t row_elements) const;
  char* OutAt(int64_t row, int64_t col) const;
  void FetchOut(int64_t row, int64_t mr, int64_t col, int64_t cols) const;
  void Store(EpilogueArgs& terms, int64_t row, int64_t col) const;
  bool GoesPastCaches() const;

  const PlanData& plan_;
  const TilePlace& place_;
  const Scratch& scratch_;
  const int64_t size_;  // bytes of an element of the sum
  EpilogueArgs terms_{};
  bool plain_, nontemporal_;
};

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_EPILOGUE_H_
