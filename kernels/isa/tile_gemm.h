// The register-tile template. An instruction set is a struct of traits V. scalar_traits.h has the smallest one.
//
//   Scalar, Vec                  type of a sum, vector of sums
//   kWidth                       elements of Vec
//   kPanelVectors                vectors of a packed panel: NR / kWidth
//   kRows                        rows of the tallest register tile
//   kWide[mr]                    vectors of the wide register tile with mr rows
//   Zero() Broadcast(p) Fma(a, b, c) Add(a, b) Mul(a, b)
//   Low(a, b) High(a, b)         first and second half of a0 b0 a1 b1 ...
//   FmaInRegisters(a, b, c)      Fma that overwrites c and has no memory operand
//   Pinned(v)                    v in a register: the compiler never loads it again
//   FmaByLane<i>(a, b, c)        optional: FmaInRegisters with element i of a, which replaces broadcasts
//   Load(const E*)               loads a vector of elements E and converts them
//   Store(E*, Vec)               rounds to E
//   LoadPartial(const E*, n)     optional, for types with masked loads: the first n elements, then zeros
//   StorePartial(E*, Vec, n)     optional, for types with masked stores: the first n elements
//   Stream(p, Vec)               stores past the caches
//   StreamRounded(BFloat16*, Vec, Vec)  optional: rounds two vectors to bf16 and stores them past the caches
//   LoadPairs(const E*)          optional, if two E fill a Scalar: loads 2 * kWidth elements as pairs
//   First(pairs) Second(pairs)   the first or second element of each pair, converted
//   TransposeBlock(Vec (&)[kWidth])  optional, if it is cheaper than perfect shuffles with Low and High
//
// All code is in an unnamed namespace. Otherwise the linker could keep one copy of an inline function for all
// instruction sets, and this copy could use AVX-512, which other CPUs lack.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/isa/dequantize.h"
#include "kernels/isa/epilogue.h"
#include "kernels/isa/microkernel.h"
#include "kernels/isa/pack.h"
#include "kernels/isa/rounding.h"
#include "kernels/isa/split.h"

namespace raggemm {
namespace {

enum class RhsFrom : uint8_t {
  kRows,         // Rows in the stored layout.
  kRowsAndPack,  // Rows in the stored layout. The kernel also stores them as a packed panel.
  kPanel,
};

// Least rows of a tile whose kernels copy the next packed panel of a transposed rhs (CopyAhead). 0: kernels of V copy
// nothing. With fewer rows, the copies take longer than the sums. GFLOP/s if a packer packs each panel before the
// kernels, and if kernels copy it (2048x768, two cores of Zen 4):
//
//     rows             16         20         28         40         64         512
//     f32, AVX-512     124, 144   135, 169   154, 186   171, 199   187, 208   208, 215
//     bf16, AVX-512    same       273, 269   287, 355   326, 377   363, 400   406, 418
//     int8, AVX-512    435, 539   467, 588   528, 621   578, 653   631, 676   693, 714
//
// AVX2 copies nothing. On two cores of Zen 3, packed and copied panels reach 110 and 94 GFLOP/s for 64 rows of
// 2880x2880 f32, and 124 and 106 for 512 rows of 2048x768.
template <class V, int kGroup>
inline constexpr int kCopyingRows = V::kWidth < 16 ? 0
                                    : kGroup == 2  ? 18
                                                   : 15;

template <int kFirst, int kEnd, class F>
RAGGEMM_INLINE inline void ForEach(F f) {
  if constexpr (kFirst < kEnd) {
    f(std::integral_constant<int, kFirst>());
    ForEach<kFirst + 1, kEnd>(f);
  }
}

// Adds one step of k to the sums in `acc`. Loads lhs as vectors and multiplies by single lanes. The last vector may
// extend beyond the panel. Lanes beyond the panel are not used.
template <class V, int kMr, int kNv>
RAGGEMM_INLINE inline void StepByLanes(const typename V::Scalar* a, const typename V::Vec (&y)[kNv],
                                       typename V::Vec (&acc)[kMr][kNv]) {
  constexpr int kWidth = V::kWidth;
  typename V::Vec x[(kMr + kWidth - 1) / kWidth];
  RAGGEMM_UNROLL for (int i = 0; i < kMr; i += kWidth) x[i / kWidth] = V::Load(a + i);
  RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) {
    ForEach<0, kMr>(
        [&](auto i) RAGGEMM_INLINE { acc[i][v] = V::template FmaByLane<i % kWidth>(x[i / kWidth], y[v], acc[i][v]); });
  }
}

// Adds one step of k to the sums in `acc`. A register tile that is wider than a panel keeps the column of lhs in
// registers and walks along the row of rhs, because the row would not fit. All other register tiles keep the row of rhs
// in registers and walk down the column of lhs.
//
// The inline assembly of FmaInRegisters and Pinned prevents two pessimizations of GCC 12. First, GCC repeats a load in
// every fma that uses the value. 4x16 tiles of AVX2 with panels in L1 then reach 65 % of peak instead of 96 % (Zen 3).
// Second, GCC lets an fma overwrite an operand instead of the sum, and sums spill to memory. With a single row,
// repeated loads do no harm, because each value is used once.
template <class V, int kMr, int kNv, bool kStores, class LoadColumns>
RAGGEMM_INLINE inline void Step(const typename V::Scalar* a, LoadColumns load, typename V::Scalar* panel,
                                typename V::Vec (&acc)[kMr][kNv]) {
  using Vec = typename V::Vec;
  if constexpr (kNv > V::kPanelVectors) {
    Vec x[kMr];
    RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) x[i] = V::Broadcast(a + i);
    RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) {
      if constexpr (kMr == 1) {
        acc[0][v] = V::Fma(x[0], load(v), acc[0][v]);
      } else {
        const Vec y = V::Pinned(load(v));
        RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) acc[i][v] = V::FmaInRegisters(x[i], y, acc[i][v]);
      }
    }
  } else {
    Vec y[kNv];
    RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) y[v] = V::Pinned(load(v));
    if constexpr (kStores) {
      RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) V::Store(panel + v * V::kWidth, y[v]);
    }
    if constexpr (requires { V::template FmaByLane<0>(y[0], y[0], y[0]); }) {
      StepByLanes<V>(a, y, acc);
    } else {
      RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) {
        const Vec x = V::Broadcast(a + i);
        RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) acc[i][v] = V::FmaInRegisters(x, y[v], acc[i][v]);
      }
    }
  }
}

template <class V, int kMr, int kNv>
inline void SetZero(typename V::Vec (&acc)[kMr][kNv]) {
  RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) { RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) acc[i][v] = V::Zero(); }
}

// Adds +0 to all sums, which turns -0 into +0. The zero is pinned. Otherwise GCC 12 keeps the zero of SetZero in a
// register for it, and sums of a stack spill: bf16 with AVX2 then runs at 90 instead of 98 % of the fma peak (Zen 4).
template <class V, int kMr, int kNv>
inline void AddZero(typename V::Vec (&acc)[kMr][kNv]) {
  const typename V::Vec zero = V::Pinned(V::Zero());
  RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) {
    RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) acc[i][v] = V::Add(acc[i][v], zero);
  }
}

template <class V, int kMr, int kNv>
RAGGEMM_INLINE inline void LoadTile(const typename V::Scalar* from, int64_t stride, typename V::Vec (&acc)[kMr][kNv]) {
  RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) {
    RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) acc[i][v] = V::Load(from + i * stride + v * V::kWidth);
  }
}
template <class V, int kMr, int kNv>
RAGGEMM_INLINE inline void AddTile(const typename V::Scalar* from, int64_t stride, typename V::Vec (&acc)[kMr][kNv]) {
  RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) {
    RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) {
      acc[i][v] = V::Add(V::Load(from + i * stride + v * V::kWidth), acc[i][v]);
    }
  }
}

template <class V, int kMr, int kNv, class StoreVector>
inline void StoreTile(typename V::Scalar* to, int64_t stride, const typename V::Vec (&acc)[kMr][kNv],
                      StoreVector store) {
  RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) {
    RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) store(to + v * V::kWidth, acc[i][v]);
    to += stride;
  }
}

// The inner loop of kernels for panels of type T. `Next` adds kGroup steps of k, the number that the arithmetic adds at
// once. `Last` adds the remaining steps.
//
// The panel of lhs has kLhsRows rows. The register tile starts at row kFirstRow of them.
template <class V, class E, int kMr, int kNv, bool kStores, ArithmeticId kId, int kLhsRows = kMr, int kFirstRow = 0>
struct FmaSteps {
  using T = typename V::Scalar;
  using Tile = typename V::Vec[kMr][kNv];
  using Source = typename Elements<V, E>::Source;
  static constexpr int kGemvSteps = Elements<V, E>::kGemvSteps;
  static constexpr int kNr = kNv * V::kWidth;
  static constexpr bool kAddsPairs = kId == ArithmeticId::kMmla;
  static constexpr int kGroup = kAddsPairs ? 4 : kId == ArithmeticId::kPairs ? 2 : 1;
  static constexpr bool kHasScales = !std::is_pointer_v<Source>;
  static constexpr bool kRounds = kId == ArithmeticId::kPairs;  // True if kernels can round results to bf16.
  static constexpr bool kCopies =
      kCopyingRows<V, 1> != 0 && kId == ArithmeticId::kF32 && sizeof(E) == 4 && kNv == V::kPanelVectors && !kStores;

  explicit FmaSteps(const MicrokernelArgs& args, int64_t k = 0, int64_t column = 0)
      : a(static_cast<const T*>(args.a) + k * kLhsRows + kFirstRow),
        b(static_cast<Source>(args.b.data) + (k * args.b.stride + column)),
        b_stride(args.b.stride),
        panel(static_cast<T*>(args.panel)) {
    ReadScales(args, k, column);
  }

  RAGGEMM_INLINE void ReadScales(const MicrokernelArgs& args, int64_t k, int64_t column = 0) {
    scales.Read(args.b.scales, k, column, kNr);
  }

  // Prefetches what a GEMV reads `bytes` later in each of `rows` rows of rhs, from step `k` on.
  RAGGEMM_INLINE static void PrefetchAlong(const RhsView& rhs, int64_t k, int64_t column, int64_t rows,
                                           int64_t bytes) requires(!kHasScales) {
    const E* row = static_cast<const E*>(rhs.data) + (k * rhs.stride + column);
    for (int64_t i = 0; i < rows; ++i, row += rhs.stride) {
      __builtin_prefetch(reinterpret_cast<const char*>(row) + bytes, 0, 3);
    }
  }

  RAGGEMM_INLINE void Add(int i, Tile& sums) {
    typename V::Vec two[2];
    const auto load = [&](int v) RAGGEMM_INLINE {
      const Source at = b + (i * b_stride + v * V::kWidth);
      if constexpr (std::is_pointer_v<Source> || kNv % 2 != 0) return scales.Scaled(LoadWhole<V>(at), v);
      if (v % 2 == 0) LoadTwo<V>(at, two);
      return scales.Scaled(two[v % 2], v);
    };
    Step<V, kMr, kNv, kStores>(a + i * kLhsRows, load, kStores ? panel + i * kNr : nullptr, sums);
  }
  // Adds `steps` steps of k in pairs (Arithmetic::adds_pairs). Missing steps count as products of +0 and +0.
  RAGGEMM_INLINE void AddPairs(Tile& sums, int64_t steps) {
    const typename V::Vec zero = V::Zero();
    RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) {
      typename V::Vec y[kGroup];
      RAGGEMM_UNROLL for (int64_t step = 0; step < kGroup; ++step) {
        y[step] = step < steps ? LoadWhole<V>(b + (step * b_stride + v * V::kWidth)) : zero;
        if (kStores && step < steps) V::Store(panel + step * kNr + v * V::kWidth, y[step]);
      }
      RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) {
        const auto at = [&](int64_t step) { return step < steps ? V::Broadcast(a + step * kLhsRows + i) : zero; };
        RAGGEMM_UNROLL for (int step = 0; step < kGroup; step += 2) {
          const typename V::Vec x[2] = {at(step), at(step + 1)};
          sums[i][v] = V::AddPair(x, y + step, sums[i][v]);
        }
      }
    }
  }
  RAGGEMM_INLINE void Next(Tile& sums) {
    if constexpr (kAddsPairs) {
      AddPairs(sums, kGroup);
    } else {
      if constexpr (kGroup == 2) Add(1, sums);
      Add(0, sums);
    }
    MoveOn(kGroup);
  }
  RAGGEMM_INLINE void Last(Tile& sums, int64_t steps) {
    if constexpr (kAddsPairs) return AddPairs(sums, steps);
    AddZero<V>(sums);
    Add(0, sums);
  }
  RAGGEMM_INLINE void MoveOn(int steps) {
    a += steps * kLhsRows;
    b = b + steps * b_stride;
    if constexpr (kStores) panel += steps * kNr;
  }

  const T* a;
  Source b;
  int64_t b_stride;
  T* panel;
  typename Elements<V, E>::template Scales<kNv> scales;
};

// The register tile of a streaming GEMV that starts at row kFirstRow. All kLhsRows rows are divided into tiles of
// similar height, at most kTallest. `Below` is the next tile.
template <class V, class E, int kNv, ArithmeticId kId, int kTallest, int kLhsRows, int kFirstRow = 0>
struct GemvTile {
  static constexpr int kLeft = kLhsRows - kFirstRow, kTiles = (kLeft + kTallest - 1) / kTallest;
  static constexpr int kMr = (kLeft + kTiles - 1) / kTiles;
  struct Steps : FmaSteps<V, E, kMr, kNv, false, kId, kLhsRows, kFirstRow> {
    using FmaSteps<V, E, kMr, kNv, false, kId, kLhsRows, kFirstRow>::FmaSteps;
    // With 8 steps of f32 instead of 16, products of 8 rows take 1.2 to 1.3 times as long (2048x768 and 2880x2880,
    // AVX2, two cores of Zen 4). 32 steps differ by 10 % in either direction.
    static constexpr int kGemvSteps = 2 * Elements<V, E>::kGemvSteps;
    using Below = GemvTile<V, E, kNv, kId, kTallest, kLhsRows, kFirstRow + kMr>;
  };
};
// There is no tile below the last row.
template <class V, class E, int kNv, ArithmeticId kId, int kTallest, int kLhsRows>
struct GemvTile<V, E, kNv, kId, kTallest, kLhsRows, kLhsRows> {
  static constexpr int kMr = 0;
};

// Steps of k between two prefetches, and in the body of an unrolled loop. Without unrolling, GCC 12 reaches 60 to 70 %
// of peak with AVX2.
inline constexpr int kSteps = 4;

// Rounds the sums in `sums` [kMr][kNr] to bf16 and stores them. If it is inlined, GCC 12 keeps its constants in
// registers that the inner loop needs. 32 rows of bf16 then reach 173 instead of 196 GFLOP/s (2880x2880, AVX2, Zen 4).
template <class V, int kMr, int kNr>
__attribute__((noinline)) void RoundTile(const typename V::Scalar* sums, const OutView& view) {
  auto* out = static_cast<BFloat16*>(view.data);
  for (int i = 0; i < kMr; ++i, sums += kNr, out += view.stride) {
    RAGGEMM_UNROLL for (int j = 0; j < kNr; j += V::kWidth) V::Store(out + j, V::Load(sums + j));
  }
}

// Rounds the sums of a register tile to bf16 and stores them.
template <class V, int kMr, int kNv>
RAGGEMM_INLINE inline void StoreRounded(const MicrokernelArgs& args, const typename V::Vec (&sums)[kMr][kNv]) {
  using T = typename V::Scalar;
  constexpr int kNr = kNv * V::kWidth;
  auto* out = static_cast<BFloat16*>(args.out.data);
  if constexpr (kNv % 2 == 0 && requires { V::StreamRounded(out, sums[0][0], sums[0][1]); }) {
    if (args.out.nontemporal) {
      RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) {
        RAGGEMM_UNROLL for (int v = 0; v < kNv; v += 2) {
          V::StreamRounded(out + v * V::kWidth, sums[i][v], sums[i][v + 1]);
        }
        out += args.out.stride;
      }
      return;
    }
  }
  T* chain = static_cast<T*>(args.chain);
  StoreTile<V>(chain, kNr, sums, [](T* to, typename V::Vec x) { V::Store(to, x); });
  RoundTile<V, kMr, kNr>(chain, args.out);
}

template <class V, int kMr, int kNv>
inline void StoreResult(const MicrokernelArgs& args, const typename V::Vec (&sums)[kMr][kNv]) {
  using T = typename V::Scalar;
  T* out = static_cast<T*>(args.out.data);
  if (args.out.nontemporal) {
    StoreTile<V>(out, args.out.stride, sums, [](T* to, typename V::Vec x) { V::Stream(to, x); });
  } else {
    StoreTile<V>(out, args.out.stride, sums, [](T* to, typename V::Vec x) { V::Store(to, x); });
  }
}

// Stores the sums of a register tile as args.end says.
template <class V, bool kRounds, int kMr, int kNv>
RAGGEMM_INLINE inline void EndTile(const MicrokernelArgs& args, typename V::Vec (&acc)[kMr][kNv]) {
  using T = typename V::Scalar;
  constexpr int kNr = kNv * V::kWidth;
  if (args.end == End::kKeepChain) {
    StoreTile<V>(static_cast<T*>(args.chain), kNr, acc, [](T* to, typename V::Vec x) { V::Store(to, x); });
    return;
  }
  if (args.end == End::kAddTotal) AddTile<V>(static_cast<const T*>(args.total), kNr, acc);
  if constexpr (kRounds) {
    if (args.out.is_bf16) return StoreRounded<V>(args, acc);
  }
  StoreResult<V>(args, acc);
}

// Computes a register tile with the inner loop `Steps`.
template <class V, class Steps, int kMr, int kNv>
void TileGemm(const MicrokernelArgs& args) {
  using T = typename V::Scalar;
  using Vec = typename V::Vec;
  constexpr int kNr = kNv * V::kWidth;
  T* chain = static_cast<T*>(args.chain);

  Vec acc[kMr][kNv];
  SetZero<V>(acc);
  if (args.begin == Begin::kResume) LoadTile<V>(chain, kNr, acc);

  Steps steps(args);
  if constexpr (requires { steps.Begin(acc); }) steps.Begin(acc);
  Prefetch prefetch = *args.side.prefetch;
  constexpr int kEach = Steps::kGroup > kSteps ? Steps::kGroup : kSteps;
  const int64_t blocks = args.k / kEach;
  PrefetchShares shares(prefetch, blocks);
  CopyShares<kNr, V::kWidth> copies(Steps::kCopies ? args.side.copy : nullptr, blocks);
  for (int64_t block = 0; block < blocks; ++block) {
    shares.Next(prefetch);
    if constexpr (Steps::kCopies) copies.StartBlock();
    if constexpr (Steps::kHasScales) {
      if (block % (kScaleSteps / kEach) == 0) steps.ReadScales(args, block * kEach);
    }
    RAGGEMM_UNROLL for (int i = 0; i < kEach; i += Steps::kGroup) {
      if constexpr (Steps::kCopies) copies.template Before<Steps::kGroup>(i);
      steps.Next(acc);
    }
  }
  int64_t k = blocks * kEach;
  if constexpr (Steps::kHasScales) {
    if (k % kScaleSteps == 0 && k < args.k) steps.ReadScales(args, k);
  }
  for (; k + Steps::kGroup <= args.k; k += Steps::kGroup) steps.Next(acc);
  if constexpr (Steps::kGroup != 1) {
    if (k < args.k) steps.Last(acc, args.k - k);
  }
  if constexpr (requires { steps.End(acc); }) steps.End(acc);
  MoveOn(prefetch, args.side.prefetch);
  if constexpr (Steps::kCopies) copies.End(args.side.copy);
  EndTile<V, Steps::kRounds>(args, acc);
}

// Computes a stack of register tiles, and also copies a panel if kCopies is true.
template <class V, class Steps, int kMr, int kNv, bool kCopies>
void StackedTiles(const MicrokernelArgs& args) {
  static_assert(kSteps % Steps::kGroup == 0 && !Steps::kHasScales);
  using T = typename V::Scalar;
  constexpr int kTile = kMr * kNv * V::kWidth;
  Prefetch prefetch = *args.side.prefetch;
  const int64_t blocks = args.k / kSteps;
  PrefetchShares shares(prefetch, args.tiles * blocks);
  CopyShares<kNv * V::kWidth, V::kWidth> copies(kCopies ? args.side.copy : nullptr, args.tiles * blocks);
  MicrokernelArgs copy = args;
  MicrokernelArgs* at = &copy;
  // Hides the copy. Otherwise GCC 12 keeps it in registers that the inner loop needs.
  asm("" : "+r"(at) : : "memory");
  for (int64_t left = args.tiles;;) {
    typename V::Vec acc[kMr][kNv];
    SetZero<V>(acc);
    if (at->begin == Begin::kResume) LoadTile<V>(static_cast<const T*>(at->chain), kNv * V::kWidth, acc);
    Steps steps(*at);
    for (int64_t block = 0; block < blocks; ++block) {
      shares.Next(prefetch);
      if constexpr (kCopies) copies.StartBlock();
      RAGGEMM_UNROLL for (int i = 0; i < kSteps; i += Steps::kGroup) {
        if constexpr (kCopies) copies.template Before<Steps::kGroup>(i);
        steps.Next(acc);
      }
    }
    int64_t k = blocks * kSteps;
    for (; k + Steps::kGroup <= at->k; k += Steps::kGroup) steps.Next(acc);
    if constexpr (Steps::kGroup != 1) {
      if (k < at->k) steps.Last(acc, at->k - k);
    }
    EndTile<V, Steps::kRounds>(*at, acc);
    if (--left == 0) break;
    at->a = static_cast<const char*>(at->a) + at->a_step;
    at->chain = static_cast<T*>(at->chain) + kTile;
    at->total = static_cast<const T*>(at->total) + kTile;
    at->out.data = static_cast<char*>(at->out.data) + at->out_step;
  }
  MoveOn(prefetch, args.side.prefetch);
  if constexpr (kCopies) copies.End(args.side.copy);
}

// Computes the args.tiles register tiles of a stack (FormatKernels::stacked). Most stacks copy nothing, so they have a
// loop of their own.
template <class V, class Steps, int kMr, int kNv>
void StackedGemm(const MicrokernelArgs& args) {
  if constexpr (Steps::kCopies) {
    if (args.side.copy != nullptr) return StackedTiles<V, Steps, kMr, kNv, true>(args);
  }
  StackedTiles<V, Steps, kMr, kNv, false>(args);
}

// Calls visit<Tile, kFirstRow>() for the register tile `Tile` and all tiles below it.
template <class Tile, int kFirstRow, class Visit>
RAGGEMM_INLINE inline void ForEachTile(Visit visit) {
  if constexpr (Tile::kMr > 0) {
    visit.template operator()<Tile, kFirstRow>();
    ForEachTile<typename Tile::Steps::Below, kFirstRow + Tile::kMr>(visit);
  }
}

// Adds `count` steps of k to the sums in `acc`. If kUnrolls is true, `count` is a multiple of kSteps.
template <bool kUnrolls, class Steps, class Vec, int kMr, int kNv>
RAGGEMM_INLINE inline void AddPass(Steps& steps, int64_t count, Vec (&acc)[kMr][kNv]) {
  if constexpr (requires { steps.Begin(acc); }) steps.Begin(acc);
  int64_t k = 0;
  if constexpr (kUnrolls) {
    for (; k < count; k += kSteps) {
      RAGGEMM_UNROLL for (int i = 0; i < kSteps; i += Steps::kGroup) steps.Next(acc);
    }
  } else {
    for (; k + Steps::kGroup <= count; k += Steps::kGroup) steps.Next(acc);
    if constexpr (Steps::kGroup != 1) {
      if (k < count) steps.Last(acc, count - k);
    }
  }
  if constexpr (requires { steps.End(acc); }) steps.End(acc);
}

// Multiplies a few rows of lhs by args.columns columns of rhs. A pass adds a few steps of k to the chains of all these
// columns, so it reads rhs in the order of memory. Between passes the chains are in L1. The table has the bandwidth for
// one row of f32, divided by the 62 GB/s of a plain read of memory (Zen 4, two cores). "vectors" is kNv, and "steps"
// are steps of k in a pass:
//
//     vectors     4 steps    8 steps    16 steps
//     2           0.69       0.90       0.77
//     4                      0.79
//     16                     0.60
//
// More than two vectors are slower: long runs of adjacent lines make the hardware prefetch lines that are needed much
// later. If Steps has a type Narrow, an inner loop of fewer vectors, it takes the last columns.
//
// With a type Steps::Below, there are several register tiles (GemvTile). They multiply a few steps of the same columns
// in turn, so only the first one reads them from memory.
template <class V, class Steps, int kMr, int kNv>
void StreamingGemv(const MicrokernelArgs& args) {
  using T = typename V::Scalar;
  using Vec = typename V::Vec;
  constexpr int kNr = kNv * V::kWidth;
  static_assert(kNearSteps % kSteps == 0 && Steps::kGemvSteps % kSteps == 0);
  Prefetch prefetch = *args.side.prefetch;
  const int64_t pass_steps = prefetch.near ? kNearSteps : Steps::kGemvSteps;
  const int64_t width = args.columns, chunks = (width + kNr - 1) / kNr * ((args.k + pass_steps - 1) / pass_steps);
  int64_t lines = prefetch.count;
  const int64_t chunk_lines = (lines + chunks - 1) / chunks;
  T *chain = static_cast<T*>(args.chain), *out = static_cast<T*>(args.out.data);
  const T* total = static_cast<const T*>(args.total);
  // Computes one pass. `within` is false for the first and the last pass. These passes are not unrolled.
  const auto pass = [&](auto within, int64_t k) RAGGEMM_INLINE {
    const int64_t left = within ? pass_steps : args.k - k < pass_steps ? args.k - k : pass_steps;
    const bool start = !within && args.begin == Begin::kZero && k == 0;
    const bool finish = !within && args.end != End::kKeepChain && k + left == args.k;
    const auto tile = [&]<class Loop, int kRows, int kVectors, int kFirstRow>(int64_t column) RAGGEMM_INLINE {
      const int64_t at = kFirstRow * width + column;
      Vec acc[kRows][kVectors];
      SetZero<V>(acc);
      if (!start) LoadTile<V>(chain + at, width, acc);
      Loop steps(args, k, column);
      AddPass<within>(steps, left, acc);
      if constexpr (requires { steps.Arrange(acc); }) {
        if (finish) steps.Arrange(acc);
      }
      if (finish && args.end == End::kAddTotal) AddTile<V>(total + at, width, acc);
      T* to = finish ? out + kFirstRow * args.out.stride + column : chain + at;
      StoreTile<V>(to, finish ? args.out.stride : width, acc, [](T* p, Vec x) { V::Store(p, x); });
    };
    const auto chunk = [&]<class Loop, int kVectors>(int64_t column) RAGGEMM_INLINE {
      PrefetchLines(prefetch, lines < chunk_lines ? lines : chunk_lines);
      lines -= chunk_lines;
      if constexpr (requires { Loop::PrefetchAlong(args.b, k, column, pass_steps, 0); }) {
        if (prefetch.along_rows != 0) Loop::PrefetchAlong(args.b, k, column, pass_steps, prefetch.along_rows);
      }
      tile.template operator()<Loop, kMr, kVectors, 0>(column);
      if constexpr (requires { typename Loop::Below; }) {
        ForEachTile<typename Loop::Below, kMr>([&]<class Tile, int kFirstRow>() RAGGEMM_INLINE {
          tile.template operator()<typename Tile::Steps, Tile::kMr, kVectors, kFirstRow>(column);
        });
      }
    };
    int64_t column = 0;
    for (; column + kNr <= width; column += kNr) chunk.template operator()<Steps, kNv>(column);
    if constexpr (requires { typename Steps::Narrow; }) {
      if (column < width) chunk.template operator()<typename Steps::Narrow, Steps::Narrow::kVectors>(column);
    }
  };
  for (int64_t k = 0; k < args.k; k += pass_steps) {
    k > 0 && k + pass_steps < args.k ? pass(std::true_type(), k) : pass(std::false_type(), k);
  }
  MoveOn(prefetch, args.side.prefetch);
}

// Computes a register tile whose chains have two lanes, one for even and one for odd steps of k. At the end of a chain,
// the sum of both lanes is added to the total.
template <class V, class Steps, int kMr, int kNv>
void TwoLaneGemm(const MicrokernelArgs& args) {
  using T = typename V::Scalar;
  using Vec = typename V::Vec;
  constexpr int kNr = kNv * V::kWidth;
  constexpr int64_t kChain = kArithmetics[static_cast<int>(ArithmeticId::kTiles)].chain;
  T* total = static_cast<T*>(args.chain);

  Steps steps(args);
  Prefetch prefetch = *args.side.prefetch;
  PrefetchShares shares(prefetch, args.k / kSteps);
  for (int64_t k = 0; k < args.k; k += kChain) {
    const int64_t left = args.k - k < kChain ? args.k - k : kChain;
    Vec even[kMr][kNv], odd[kMr][kNv];
    SetZero<V>(even);
    SetZero<V>(odd);
    const auto two = [&]() RAGGEMM_INLINE {
      steps.Add(0, even);
      steps.Add(1, odd);
      steps.MoveOn(2);
    };
    for (int64_t block = 0; block < left / kSteps; ++block) {
      shares.Next(prefetch);
      RAGGEMM_UNROLL for (int i = 0; i < kSteps; i += 2) two();
    }
    if ((left & 2) != 0) two();
    if (left % 2 != 0) steps.Add(0, even);
    // In a short chain, missing steps count as products of +0 and +0, which turn a sum of -0 into +0. Adding +0 to one
    // lane is enough, because +0 plus a zero of either sign is +0.
    if (left < kChain) AddZero<V>(odd);
    const bool start = args.begin == Begin::kZero && k == 0;
    RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) {
      RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) {
        const Vec before = start ? V::Zero() : V::Load(total + i * kNr + v * V::kWidth);
        even[i][v] = V::Add(before, V::Add(even[i][v], odd[i][v]));
      }
    }
    if (args.end != End::kKeepChain && k + kChain >= args.k) {
      StoreResult<V>(args, even);
    } else {
      StoreTile<V>(total, kNr, even, [](T* to, Vec x) { V::Store(to, x); });
    }
  }
  MoveOn(prefetch, args.side.prefetch);
}

}  // namespace
}  // namespace raggemm
