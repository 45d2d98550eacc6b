// Register tiles of rounded rows (rounded_gemm.h) for a matrix unit that multiplies tiles of bytes (amx_gemm.h). lhs
// has lines of 64 codes of one row, and packed panels of rhs have words of four u8.
//
// A tile of lhs has 64, 32 or 16 steps of k, so that a stretch has whole tiles (StepsOfTile). If stretches have 32
// steps, each Dot multiplies half of the lines:
//
//     lines of lhs     |      64 steps     |      64 steps     |
//     tiles            |  Dot    |  Dot    |  Dot    |  Dot    |
//     stretches        |    0    |    1    |    2    |    3    |
//
// At the end of a stretch, the kernel stores the s32 sums to a buffer in L1. From there it scales them and adds them to
// the totals. MicrokernelArgs::chain has the layout of rounded_gemm.h.
//
// The traits V are those of rounded_gemm.h without DotGroup, and those of word_gemm.h that MakeTileRow needs.
#pragma once

#include <cstdint>

#include "kernels/isa/amx_gemm.h"
#include "kernels/isa/rounded_gemm.h"

namespace raggemm {
namespace {

// Returns the steps of k in a tile of lhs or rhs: the largest of 64, 32 and 16 that divides a stretch. A stretch that
// is no multiple of 16 is a whole row. Zeros fill up its last tile.
constexpr int64_t StepsOfTile(int64_t stretch) { return stretch % 64 == 0 ? 64 : stretch % 32 == 0 ? 32 : 16; }

template <class V, class Tiles, int kRowTiles>
class RoundedTiles {
 public:
  using Vec = typename V::Vec;
  using F = typename V::Floats;
  static constexpr int64_t kRows = kRowTiles * kTileRows, kWidth = V::kWidth, kNr = 2 * kWidth;

  explicit RoundedTiles(const MicrokernelArgs& args)
      : args_(args), stretches_(*args.stretches), totals_(static_cast<float*>(args.chain)) {}

  RAGGEMM_INLINE void Run() {
    const int64_t tile_steps = StepsOfTile(stretches_.steps);
    Prefetch prefetch = *args_.side.prefetch;
    PrefetchShares shares(prefetch, (args_.k + tile_steps - 1) / tile_steps);
    int64_t before = stretches_.before;
    Piece piece = {};
    piece.is_corrected = before != 0 && !stretches_.starts;
    piece.has_totals = args_.begin == Begin::kResume;
    for (int64_t k = 0; k < args_.k; ++piece.index) {
      const int64_t left = args_.k - k, in_stretch = stretches_.steps - before;
      const int64_t steps = left < in_stretch ? left : in_stretch;
      BeginPiece(k == 0 && before != 0);
      for (int64_t end = k + steps; k < end; k += tile_steps) {
        DotStep<Tiles, int8_t, uint8_t, kRowTiles>(LhsAt(k), RhsAt(k));
        shares.Next(prefetch);
      }
      const bool is_last = steps == left;
      piece.ends = steps == in_stretch || (is_last && stretches_.ends);
      piece.is_last = is_last && args_.end != End::kKeepChain;
      EndPiece(piece);
      piece.has_totals = true;
      piece.is_corrected = false;
      before = 0;
    }
    MoveOn(prefetch, args_.side.prefetch);
  }

 private:
  struct Piece {
    int64_t index;
    bool is_corrected;  // True if an earlier block added the corrections.
    bool ends;          // True if the stretch ends with the piece.
    bool has_totals;    // True if totals exist before the piece.
    bool is_last;       // True if the contraction ends with the piece.
  };

  const char* LhsAt(int64_t k) const {
    return static_cast<const char*>(args_.a) + k / kLine * (kRows * kLine) + k % kLine;
  }
  const char* RhsAt(int64_t k) const { return static_cast<const char*>(args_.b.data) + k / 4 * kPanelLine; }
  int32_t* Unfinished() const { return reinterpret_cast<int32_t*>(totals_ + kRows * kNr); }

  RAGGEMM_INLINE void BeginPiece(bool resumes) const {
    if (resumes) return MoveTotals<Tiles, kRowTiles, true>(reinterpret_cast<char*>(Unfinished()), kPanelLine);
    ZeroTotals<Tiles, kRowTiles>();
  }

  // Corrects the sums. Then adds the scaled sums to the totals, or keeps the sums for the next block. The elements of
  // rhs in a panel are too large by their offsets and zero points.
  RAGGEMM_INLINE void EndPiece(const Piece& piece) {
    MoveTotals<Tiles, kRowTiles, false>(reinterpret_cast<char*>(sums_), kPanelLine);
    const int32_t* const row_sums = stretches_.row_sums + piece.index * stretches_.row_stride;
    const float* const row_scales = stretches_.row_scales + piece.index * stretches_.row_stride;
    const float* const column_scales =
        stretches_.column_scales + stretches_.scale_rows[piece.index] * stretches_.scale_stride;
    const int64_t first_zero =
        stretches_.column_zeros == nullptr ? 0 : stretches_.zero_rows[piece.index] * stretches_.column_stride;
    const bool corrects = !piece.is_corrected && (stretches_.column_zeros != nullptr || stretches_.offset != 0);
    Vec zeros[2];
    typename F::Vec scales[2];
    RAGGEMM_UNROLL for (int v = 0; v < 2; ++v) {
      scales[v] = F::Load(column_scales + v * kWidth);
      zeros[v] = stretches_.column_zeros != nullptr ? V::Load(stretches_.column_zeros + first_zero + v * kWidth)
                                                    : V::Broadcast(&stretches_.offset);
    }
    float* const to = piece.is_last ? static_cast<float*>(args_.out.data) : totals_;
    const int64_t stride = piece.is_last ? args_.out.stride : kNr;
    for (int64_t i = 0; i < kRows; ++i) {
      const Vec excess = V::Broadcast(row_sums + i);
      const typename F::Vec scale = F::Broadcast(row_scales + i);
      RAGGEMM_UNROLL for (int v = 0; v < 2; ++v) {
        const int64_t at = i * kNr + v * kWidth;
        Vec x = V::Load(sums_ + at);
        if (corrects) x = V::Add(x, V::Mul(zeros[v], excess));
        if (piece.ends) {
          const typename F::Vec before = piece.has_totals ? F::Load(totals_ + at) : F::Zero();
          F::Store(to + i * stride + v * kWidth, F::Fma(F::Mul(scale, scales[v]), V::ToFloats(x), before));
          continue;
        }
        V::Store(Unfinished() + at, x);
        if (!piece.has_totals) F::Store(totals_ + at, F::Zero());
      }
    }
  }

  const MicrokernelArgs& args_;
  const Stretches& stretches_;
  float* const totals_;
  alignas(kLine) int32_t sums_[kRows * kNr];
};

template <class V, class Tiles, int kRowTiles>
void RoundedTilesKernel(const MicrokernelArgs& args) {
  RoundedTiles<V, Tiles, kRowTiles>(args).Run();
}

template <class Tiles>
void SetUpRoundedTiles(void* saved, int64_t stretch) {
  Tiles::SetUp(saved, StepsOfTile(stretch));
}

// Calls a streaming GEMV that reads lhs in words. It copies lhs, which is small beside rhs.
template <Microkernel* kGemv, int kMr>
void GemvOfLines(const MicrokernelArgs& args) {
  constexpr int64_t kLineWords = kLine / 4;
  uint32_t words[kWordBlockKc / 4 * kMr];
  const auto* const lines = static_cast<const uint32_t*>(args.a);
  for (int64_t word = 0; 4 * word < args.k; ++word) {
    const uint32_t* const from = lines + word / kLineWords * (kTileRows * kLineWords) + word % kLineWords;
    for (int i = 0; i < kMr; ++i) words[word * kMr + i] = from[i * kLineWords];
  }
  MicrokernelArgs in_words = args;
  in_words.a = words;
  kGemv(in_words);
}

template <const FormatKernels& kCodes, int kMr = kGemvRows>
constexpr void AddGemvsOfLines(FormatKernels& kernels) {
  if constexpr (kMr > 0) {
    if constexpr (kCodes.gemv[kMr].run != nullptr) {
      kernels.gemv[kMr] = {GemvOfLines<kCodes.gemv[kMr].run, kMr>, kCodes.gemv[kMr].nr};
    }
    if constexpr (kCodes.word_gemv[kMr] != nullptr) kernels.word_gemv[kMr] = GemvOfLines<kCodes.word_gemv[kMr], kMr>;
    AddGemvsOfLines<kCodes, kMr - 1>(kernels);
  }
}

// Adds the kernels for an rhs of type `dtype`. kCodes has its packers and its streaming GEMVs for lhs in words.
template <class V, class Tiles, const FormatKernels& kCodes>
constexpr void AddRoundedTilesFormat(KernelRow& row, DType dtype) {
  FormatKernels& kernels = row.formats[static_cast<int>(dtype)];
  for (int mr = 1; mr <= row.rows; ++mr) {
    kernels.packed[mr] = mr <= kTileRows ? RoundedTilesKernel<V, Tiles, 1> : RoundedTilesKernel<V, Tiles, 2>;
  }
  AddGemvsOfLines<kCodes>(kernels);
  kernels.rhs = kCodes.rhs;
  kernels.code_offset = kCodes.code_offset;
}

// Kernels do not pack ahead: a streaming GEMV, which packs no panel, may follow them in the same tile.
template <class V, class Tiles>
constexpr KernelRow MakeRoundedTilesRow() {
  KernelRow row = MakeTileRow<V, Tiles>(ArithmeticId::kRounded, DType::kS8);
  row.ahead_slice = 0;
  row.set_up = SetUpRoundedTiles<Tiles>;
  AddRounding<typename V::Floats>(row);
  return row;
}

}  // namespace
}  // namespace raggemm
