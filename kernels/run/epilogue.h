// Applies scales and the epilogue to the sums of a tile, and stores the result.
#pragma once

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

  // Returns true if sums are scaled after `block` (Checked::scales_sums). The caller then calls ReadRowScales for the
  // block, ReadColumnScales for each panel, and AddSums after each kernel.
  bool ScalesSumsOf(const Block& block) const { return context_.call.scales_sums && block.ends_sum; }
  void ReadRowScales(const Block& block) const;
  void ReadColumnScales(const Block& block, const Panel& panel, int64_t col) const;
  void AddSums(const Block& block, int64_t row, int64_t mr, const Panel& panel, const MicrokernelArgs& args) const;

  // Sets args.out, usually to scratch. In the last block of k, kernels store whole register tiles to the result itself,
  // unless an epilogue is needed.
  void BindOut(int64_t row, int64_t mr, int64_t col, const Panel& panel, bool last, MicrokernelArgs& args) const;
  // Copies totals of an earlier call to scratch, so that the kernel can add to them.
  void LoadEarlierTotals(int64_t row, int64_t mr, int64_t col, const Panel& panel, const MicrokernelArgs& args) const;

  void PrefetchOut(int64_t row, int64_t mr, int64_t col, int64_t cols) const;

  // Applies the epilogue to a register tile and stores the result. The totals are still in L1.
  void Store(int64_t row, int64_t mr, int64_t col, const Panel& panel, const MicrokernelArgs& args) const;

  // Stores the result of an empty contraction. As in BLAS, alpha is ignored, even if it is a NaN.
  void StoreEmpty() const;

  // Makes nontemporal stores visible to other threads. Must be called before the tile counts as done.
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
  bool is_rounded_;   // True if the result is bf16, to which kernels can round their sums.
  bool plain_;        // True if no epilogue is needed.
  bool nontemporal_;  // True if kernels store past the caches.
};

}  // namespace raggemm
