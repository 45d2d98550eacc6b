// Streaming GEMVs of rounded rows (rounded_gemm.h), which read rhs in its stored layout and in the order of memory. A
// pass has at most kPassSteps steps of one stretch, and all columns:
//
//     steps     +-----------+
//     0 to 31   | 0 | 1 | 2 |    The numbers are the order of the chunks of kColumns columns.
//     32 to 63  | 3 | 4 | 5 |
//               +-----------+
//
// Totals and the sums of unfinished stretches are in MicrokernelArgs::chain, [mr][columns] each. The columns of a chunk
// may have another order there. The decoders D have:
//
//   Bytes(columns)               bytes of columns in a row of rhs
//   kColumns                     columns of a chunk
//   Load(p, stride, rows, y)     y[v]: words of bytes of four rows of rhs, from p on. Rows from `rows` on do not exist.
//                                They are multiplied by zeros.
//   LoadArranged(p, x)           loads values of the columns in the order of the sums
//   Restore(x)                   moves vectors of columns back to the order of memory
//   Sum(v, sum)                  optional: divides a sum of words y[v] by the factor that Load gave them
//   Stored<type>(p)              optional: stored scales of a type, which LoadArranged takes in place of floats. The
//                                decoder then also has kFactor: Load multiplies all elements by it.
//
// The traits V are those of rounded_gemm.h, and these:
//
//   kMostSums                    sums that fit in registers, beside words of rhs
//   Bits(x)                      the bits of floats as integers
#pragma once

#include <cstdint>

#include "kernels/isa/rounded_gemm.h"

namespace raggemm {
namespace {

// Most steps of a pass.
inline constexpr int64_t kPassSteps = 32;
// Most bytes of rhs in a pass, unless it has only kLeastPassSteps steps. L1 then holds the lines of the pass. With more
// than four rows, arithmetic takes longer than memory, and long passes are best. Milliseconds for 8 groups on two cores
// of Zen 4:
//
//     steps of a pass               8      16     32
//     int4, 1 row, 2048x768         0.21   0.22   0.20
//     int4, 1 row, 768x2048         0.20   0.21   0.26
//     int4, 4 rows, 2048x768        0.44   0.38   0.30
//     int8, 1 row, 2048x768         0.40   0.39   0.44
//     int8, 1 row, 768x2048         0.38   0.41   0.45
//     int8, 8 rows, 2048x768        1.14   0.97   0.84
inline constexpr int64_t kPassBytes = 12 << 10, kLeastPassSteps = 8;

// Stored scales are prefetched this many pieces ahead.
inline constexpr int64_t kStoredAhead = 2;

// `steps` steps of a piece, from step k of the block on.
struct RoundedPass {
  int64_t k, steps, piece;
  bool begins_piece;         // True if corrections must be added.
  bool resumes, ends;        // True if sums exist before the pass, and if the stretch ends with it.
  bool has_totals, is_last;  // True if totals exist before the pass, and if the contraction ends with it.
};

// Multiplies kMr rows of lhs by a chunk. If all sums fit in registers, each word of rhs is multiplied as soon as it is
// decoded. Otherwise the words of a pass go to a buffer, and slices of kSlice vectors of columns are multiplied one after
// the other.
template <class V, class D, int kMr>
class RoundedChunk {
 public:
  using Vec = typename V::Vec;
  using Words = typename V::Words;
  using F = typename V::Floats;
  using Scales = typename F::Vec;
  static constexpr int kWidth = V::kWidth, kColumns = D::kColumns, kNv = kColumns / kWidth;
  static constexpr int kSlice = [] {
    int slice = kNv;
    while (slice > 1 && slice * kMr > V::kMostSums) slice /= 2;
    return slice;
  }();

  explicit RoundedChunk(const MicrokernelArgs& args)
      : args_(args), stretches_(*args.stretches), totals_(static_cast<float*>(args.chain)) {}

  RAGGEMM_INLINE void Run(const RoundedPass& pass, int64_t column) const {
    const auto* a = static_cast<const uint32_t*>(args_.a) + pass.k / 4 * kMr;
    const int64_t stride = D::Bytes(args_.b.stride);
    const auto* b = static_cast<const uint8_t*>(args_.b.data) + pass.k * stride + D::Bytes(column);
    Arranged scales = {};
    if (pass.ends) LoadScales(pass, column, scales);
    if constexpr (kSlice == kNv) {
      Vec sums[kMr][kSlice];
      SetZero<V>(sums);
      for (int64_t left = pass.steps; left > 0; left -= 4, a += kMr, b += 4 * stride) {
        Words y[kNv];
        D::Load(b, stride, left, y);
        if constexpr (HasLanes<V>) {
          DotByLanes<V>(a, y, sums);
        } else {
          ForEachSum([&](int i, int v) { sums[i][v] = V::DotWord(a + i, y[v], sums[i][v]); });
        }
      }
      EndSums(pass, column, 0, scales, sums);
    } else {
      Words buffer[kPassSteps / 4][kNv];
      for (int64_t word = 0; 4 * word < pass.steps; ++word, b += 4 * stride) {
        D::Load(b, stride, pass.steps - 4 * word, buffer[word]);
      }
      for (int first = 0; first < kNv; first += kSlice) {
        Vec sums[kMr][kSlice];
        SetZero<V>(sums);
        for (int64_t word = 0; 4 * word < pass.steps; ++word) {
          Words y[kSlice];
          RAGGEMM_UNROLL for (int v = 0; v < kSlice; ++v) y[v] = V::Pinned(buffer[word][first + v]);
          if constexpr (HasLanes<V>) {
            DotByLanes<V>(a + word * kMr, y, sums);
          } else {
            ForEachSum([&](int i, int v) { sums[i][v] = V::DotWord(a + word * kMr + i, y[v], sums[i][v]); });
          }
        }
        EndSums(pass, column, first, scales, sums);
      }
    }
    if (pass.ends && pass.is_last) StoreResults(column);
  }

 private:
  struct Arranged {
    Scales x[kNv];
  };

  template <class Function>
  RAGGEMM_INLINE static void ForEachSum(Function f) {
    RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) { RAGGEMM_UNROLL for (int v = 0; v < kSlice; ++v) f(i, v); }
  }
  int32_t* Unfinished(int i, int64_t column) const {
    return static_cast<int32_t*>(args_.chain) + (kMr + i) * args_.columns + column;
  }

  RAGGEMM_INLINE void LoadScales(const RoundedPass& pass, int64_t column, Arranged& to) const {
    if constexpr (requires { D::kFactor; }) {
      switch (stretches_.stored_type) {
        case DType::kF16:
          return LoadStored<DType::kF16>(pass, column, to);
        case DType::kBF16:
          return LoadStored<DType::kBF16>(pass, column, to);
        case DType::kF8E8M0FNU:
          return LoadStored<DType::kF8E8M0FNU>(pass, column, to);
        default:
          break;
      }
    }
    D::LoadArranged(stretches_.column_scales + stretches_.scale_rows[pass.piece] * stretches_.scale_stride + column,
                    to.x);
  }
  template <DType kType>
  RAGGEMM_INLINE void LoadStored(const RoundedPass& pass, int64_t column, Arranged& to) const {
    constexpr int64_t kBytes = kType == DType::kF8E8M0FNU ? 1 : 2;
    const int64_t stride = stretches_.stored_stride;
    const char* const from = stretches_.stored_scales + stretches_.scale_rows[pass.piece] * stride + kBytes * column;
    for (int64_t byte = 0; byte < kBytes * kColumns; byte += kLineBytes) {
      __builtin_prefetch(from + kStoredAhead * stride + byte, 0, 2);
    }
    D::LoadArranged(typename D::template Stored<kType>(from), to.x);
    if constexpr (D::kFactor != 1) {
      const float inverse = 1.0F / D::kFactor;
      for (Scales& x : to.x) x = F::Mul(x, F::Broadcast(&inverse));
    }
  }

  // Completes sums of a pass: adds corrections, and sums of earlier passes.
  RAGGEMM_INLINE void AddOtherSums(const RoundedPass& pass, int64_t column, int first, Vec (&sums)[kMr][kSlice]) const {
    if constexpr (requires { D::Sum(0, sums[0][0]); }) {
      ForEachSum([&](int i, int v) { sums[i][v] = D::Sum(first + v, sums[i][v]); });
    }
    if (pass.resumes) {
      ForEachSum([&](int i, int v) {
        sums[i][v] = V::Add(sums[i][v], V::Load(Unfinished(i, column) + (first + v) * kWidth));
      });
    }
    if (!pass.begins_piece) return;
    if (stretches_.column_zeros == nullptr) return AddCorrections<V>(stretches_, pass.piece, column, sums);
    const int32_t* const row_sums = stretches_.row_sums + pass.piece * stretches_.row_stride;
    const int32_t* const zeros =
        stretches_.column_zeros + stretches_.zero_rows[pass.piece] * stretches_.column_stride + column;
    Scales z[kNv];
    D::LoadArranged(reinterpret_cast<const float*>(zeros), z);
    ForEachSum([&](int i, int v) {
      sums[i][v] = V::Add(sums[i][v], V::Mul(V::Bits(z[first + v]), V::Broadcast(row_sums + i)));
    });
  }

  // Adds the scaled sums to the totals if the stretch ends. Otherwise stores the sums for the next pass.
  RAGGEMM_INLINE void EndSums(const RoundedPass& pass, int64_t column, int first, const Arranged& scales,
                              Vec (&sums)[kMr][kSlice]) const {
    AddOtherSums(pass, column, first, sums);
    const float* const row_scales = stretches_.row_scales + pass.piece * stretches_.row_stride;
    ForEachSum([&](int i, int v) {
      float* const total = totals_ + i * args_.columns + column + (first + v) * kWidth;
      if (pass.ends) {
        const Scales before = pass.has_totals ? F::Load(total) : F::Zero();
        const Scales scale = F::Mul(F::Broadcast(row_scales + i), scales.x[first + v]);
        F::Store(total, F::Fma(scale, V::ToFloats(sums[i][v]), before));
        return;
      }
      V::Store(Unfinished(i, column) + (first + v) * kWidth, sums[i][v]);
      if (!pass.has_totals) F::Store(total, F::Zero());
    });
  }

  RAGGEMM_INLINE void StoreResults(int64_t column) const {
    RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) {
      Scales x[kNv];
      RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) {
        x[v] = F::Load(totals_ + i * args_.columns + column + v * kWidth);
      }
      D::Restore(x);
      float* const to = static_cast<float*>(args_.out.data) + i * args_.out.stride + column;
      RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) F::Store(to + v * kWidth, x[v]);
    }
  }

  const MicrokernelArgs& args_;
  const Stretches& stretches_;
  float* const totals_;
};

// Wide is the decoder of most chunks. D decodes the last columns, if they are too few for Wide.
template <class V, class Wide, class D, int kMr>
void RoundedGemv(const MicrokernelArgs& args) {
  const Stretches& stretches = *args.stretches;
  Prefetch prefetch = *args.side.prefetch;
  int64_t pass_steps = kPassSteps;
  while (kMr <= 4 && pass_steps > kLeastPassSteps && pass_steps * D::Bytes(args.columns) > kPassBytes) pass_steps /= 2;
  const int64_t chunks = args.columns / D::kColumns * ((args.k + pass_steps - 1) / pass_steps);
  const int64_t chunk_lines = (prefetch.count + chunks - 1) / chunks;
  int64_t lines = prefetch.count, before = stretches.before;
  const RoundedChunk<V, Wide, kMr> wide(args);
  const RoundedChunk<V, D, kMr> chunk(args);
  RoundedPass pass = {};
  pass.begins_piece = stretches.starts || before == 0;
  pass.has_totals = args.begin == Begin::kResume;
  for (; pass.k < args.k; pass.k += pass.steps) {
    const int64_t left = args.k - pass.k, in_stretch = stretches.steps - before;
    pass.steps = left < in_stretch ? left : in_stretch;
    pass.steps = pass.steps < pass_steps ? pass.steps : pass_steps;
    const bool is_last = pass.steps == left;
    pass.resumes = before != 0;
    pass.ends = pass.steps == in_stretch || (is_last && stretches.ends);
    pass.is_last = is_last && args.end != End::kKeepChain;
    int64_t column = 0;
    for (; column + Wide::kColumns <= args.columns; column += Wide::kColumns) {
      constexpr int kChunks = Wide::kColumns / D::kColumns;
      PrefetchLines(prefetch, lines < kChunks * chunk_lines ? lines : kChunks * chunk_lines);
      lines -= kChunks * chunk_lines;
      wide.Run(pass, column);
    }
    for (; column < args.columns; column += D::kColumns) {
      PrefetchLines(prefetch, lines < chunk_lines ? lines : chunk_lines);
      lines -= chunk_lines;
      chunk.Run(pass, column);
    }
    pass.has_totals = true;
    pass.begins_piece = pass.ends;
    pass.piece += pass.ends;
    before = pass.ends ? 0 : before + pass.steps;
  }
  MoveOn(prefetch, args.side.prefetch);
}

template <class V, class D, class Wide = D, int kMr = kGemvRows>
constexpr void AddRoundedGemvs(FormatKernels& kernels) {
  if constexpr (kMr > 0) {
    kernels.gemv[kMr] = {RoundedGemv<V, Wide, D, kMr>, D::kColumns};
    AddRoundedGemvs<V, D, Wide, kMr - 1>(kernels);
  }
}

}  // namespace
}  // namespace raggemm
