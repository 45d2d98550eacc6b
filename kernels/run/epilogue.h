// Computes the results of a tile from its sums: scales, epilogue, stores to out.
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

  // Returns true if the block ends sums that are scaled. The caller then reads the scales of the tile's rows, and of
  // the columns of each panel. AddSums scales the sums of a register tile and adds them to its totals.
  bool ScalesSumsOf(const Block& block) const { return context_.call.scales_sums && block.ends_sum; }
  void ReadRowScales(const Block& block) const;
  void ReadColumnScales(const Block& block, const Panel& panel, int64_t col) const;
  void AddSums(const Block& block, int64_t row, int64_t mr, const Panel& panel, const MicrokernelArgs& args) const;

  // Sets the output of a kernel: out for a whole register tile whose last chain needs no epilogue, otherwise scratch.
  void BindOut(int64_t row, int64_t mr, int64_t col, const Panel& panel, bool last, MicrokernelArgs& args) const;
  // Copies TileContext::earlier_totals of a register tile to the buffer that its kernel continues from.
  void LoadEarlierTotals(int64_t row, int64_t mr, int64_t col, const Panel& panel, const MicrokernelArgs& args) const;

  // Prefetches the lines of out that are written after the kernel.
  void PrefetchOut(int64_t row, int64_t mr, int64_t col, int64_t cols) const;

  // Runs the epilogue of a register tile whose totals are in scratch, while they are in L1.
  void Store(int64_t row, int64_t mr, int64_t col, const Panel& panel, const MicrokernelArgs& args) const;

  // Stores the result of an empty contraction. The sums are zero whatever alpha is, as in BLAS.
  void StoreEmpty() const;

  // Orders nontemporal stores before the store that tells other threads that the tile is done.
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
  const int64_t size_;  // Bytes of a sum.
  EpilogueArgs epilogue_{};
  bool plain_;        // True: totals are stored to out without an epilogue.
  bool nontemporal_;  // True: they bypass the caches.
};

}  // namespace raggemm

#endif  // RAGGEMM_KERNELS_RUN_EPILOGUE_H_
