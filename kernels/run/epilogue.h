// The results of a tile: where its totals go, and what is added to them on the way.
#ifndef RAGGEMM_KERNELS_RUN_EPILOGUE_H_
#define RAGGEMM_KERNELS_RUN_EPILOGUE_H_

#include <cstdint>

#include "kernels/isa/microkernel.h"
#include "kernels/plan/block.h"
#include "kernels/plan/quant_params.h"
#include "kernels/plan/rhs_mode.h"
#include "kernels/plan/schedule.h"
#include "kernels/run/scratch.h"

namespace raggemm {

class TileResult {
 public:
  TileResult(const TileContext& context, const TileTask& task, const Scratch& scratch);

  // Where a block ends sums that have scales: those of its rows, then of the columns of each strip; and the sums of a
  // register tile times them.
  bool ScalesSumsOf(const Block& block) const { return context_.call.scales_sums && block.ends_sum; }
  void ReadRowScales(const Block& block) const;
  void ReadColumnScales(const Block& block, const Panel& panel, int64_t col) const;
  void AddSums(const Block& block, int64_t row, int64_t mr, const Panel& panel, const MicrokernelArgs& args) const;

  // A kernel's last chain goes straight to out where its totals are out's elements, else to scratch.
  void BindOut(int64_t row, int64_t mr, int64_t col, const Panel& panel, bool last, MicrokernelArgs& args) const;
  // Copies TileContext::earlier_totals of a register tile to where its kernel reads the sums so far.
  void LoadEarlierTotals(int64_t row, int64_t mr, int64_t col, const Panel& panel, const MicrokernelArgs& args) const;

  // The lines that will be written, while the kernel computes.
  void PrefetchOut(int64_t row, int64_t mr, int64_t col, int64_t cols) const;

  // After the last chain, of kernels whose result is the total: what is not in out yet, while it is in L1.
  void Store(int64_t row, int64_t mr, int64_t col, const Panel& panel, const MicrokernelArgs& args) const;

  // An empty contraction gives zero whatever alpha is, as in BLAS.
  void StoreEmpty() const;

  // Stores that went past the caches are ordered before whatever tells others that the tile is done.
  void Finish() const;

 private:
  const char* ValuesOf(const GroupValues& values, int64_t row_elements) const;
  char* OutAt(int64_t row, int64_t col) const;
  char* TotalOf(const MicrokernelArgs& args) const;
  void ReadScales(const Operand& x, const Matrix& matrix, const Block& block, const StoredPosition& at, float* scales,
                  int64_t n) const;
  void Store(EpilogueArgs& epilogue, int64_t row, int64_t col) const;
  void ReadRow(const char* from, DType dtype, int64_t columns, void* to) const;
  void StoreActivated(const EpilogueArgs& epilogue) const;
  bool GoesPastCaches() const;

  const TileContext& context_;
  const TileTask& task_;
  const Scratch& scratch_;
  const int64_t size_;  // bytes of an element of the sum
  EpilogueArgs epilogue_{};
  bool plain_, nontemporal_;
};

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_RUN_EPILOGUE_H_
