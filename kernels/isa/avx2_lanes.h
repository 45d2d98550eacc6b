// Streaming GEMVs of AVX2 for one to three rows and a quantized rhs. They decode elements in the order in which the
// instructions emit them. Sums have the same order of columns, also between passes. Arrange restores the order when a
// chain ends. The chain of each element has the same steps of fma as in FmaSteps.
//
// Elements of 4 bits and of f8e4m3fn: the upper two bytes of an f32 suffice for each element. Table look-ups find the
// low and the high byte of 32 elements at once. Both bytes are interleaved to 16-bit words. A mask turns the upper word
// of each 32-bit lane into an f32, and a shift turns the lower word into another one.
//
// Elements of f8e5m2: each one is the high byte of an f16.
//
// Integers of 8 bits: the instruction that widens bytes in order is faster than other instructions that emit another
// order.
//
// Block scales: see LaneScaling.
//
// GFLOP/s for one row and rhs of 256x2048 in L2, on one core of Zen 4. "In order" is FmaSteps.
//
//     format      in order    this file    alternative
//     int4        27          51           48: integers in the fraction of a large float, which is then subtracted
//     MXFP4       19          46           37: scales multiply elements
//     int8        30          56           48: VPMADDUBSW and VPMADDWD widen bytes out of order
//     f8e4m3fn    21          32
//     f8e5m2                  43
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <type_traits>

#include "kernels/isa/dequantize.h"
#include "kernels/isa/tile_gemm.h"

namespace raggemm {
namespace {

// Two decoded vectors, and the indices of their vectors of sums.
template <int kFirst, int kSecond>
struct TwoColumns {
  static constexpr int kIndices[] = {kFirst, kSecond};
  __m256 values[2];
};

struct alignas(32) ByteTable {
  uint8_t bytes[32];
};
RAGGEMM_INLINE inline __m256i At(const ByteTable& table) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(table.bytes));
}
// Returns a table for look-ups of bytes, with at(i) in byte i of both 128-bit lanes.
template <class Entry>
constexpr ByteTable TableOf(Entry at) {
  ByteTable table{};
  for (uint32_t i = 0; i < 32; ++i) table.bytes[i] = static_cast<uint8_t>(at(i % 16));
  return table;
}
constexpr ByteTable Repeated(uint8_t byte) {
  return TableOf([byte](uint32_t) { return byte; });
}
// Selects the upper half of each 32-bit word.
inline constexpr ByteTable kUpperHalves = TableOf([](uint32_t i) { return i % 4 < 2 ? 0 : 255; });

RAGGEMM_INLINE inline __m256i LoadBytes32(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

// Calls `give` with the elements that have the bytes `low` and `high` of an f32, in four vectors. In 128-bit lane h of
// vector kFirst + kStep * (2 * u + q), element i comes from byte 16 * h + 8 * u + 2 * i + q.
template <int kFirst, int kStep, class Give>
RAGGEMM_INLINE inline void GiveBytes(__m256i low, __m256i high, Give give) {
  const auto words = [&](auto u, __m256i x) RAGGEMM_INLINE {
    constexpr int kVector = kFirst + 2 * kStep * u;
    give(TwoColumns<kVector, kVector + kStep>{
        {_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)), _mm256_castsi256_ps(_mm256_and_si256(x, At(kUpperHalves)))}});
  };
  words(std::integral_constant<int, 0>(), _mm256_unpacklo_epi8(low, high));
  words(std::integral_constant<int, 1>(), _mm256_unpackhi_epi8(low, high));
}

// The decoders follow. Each one decodes one step of k for kNv vectors of columns. Decode reads the step from p, and
// calls `give` with two vectors at a time. Arrange puts a row of sums in order. The comments say which column element i
// of a vector has. h is the 128-bit lane of the element, which has elements i = 0 to 3 unless a comment says otherwise.

// Decodes elements of 4 bits. p = 0 is the lower half of a byte. u counts units of 16 columns.
//
//     kNv = 8    vector 4 * u + 2 * q + p: column 32 * h + 16 * u + 4 * i + 2 * q + p
//     kNv = 4    vector 2 * u + q:         column 16 * u + 4 * i + 2 * q + p, with p = h
template <int kIndex, int kNv>
struct Avx2NibbleLanes {
  static_assert(kNv == 4 || kNv == 8);

  template <class Give>
  RAGGEMM_INLINE static void Decode(const uint8_t* p, Give give) {
    const auto look_up = [&](auto first, auto step, __m256i bytes) RAGGEMM_INLINE {
      const __m256i codes = _mm256_and_si256(bytes, At(kTables.code));
      GiveBytes<first, step>(_mm256_shuffle_epi8(At(kTables.low), codes), _mm256_shuffle_epi8(At(kTables.high), codes),
                             give);
    };
    const std::integral_constant<int, 0> zero;
    const std::integral_constant<int, 1> one;
    const std::integral_constant<int, 2> two;
    if constexpr (kNv == 8) {
      const __m256i x = LoadBytes32(p);
      look_up(zero, two, x);
      look_up(one, two, _mm256_srli_epi16(x, 4));
    } else {
      const __m256i x = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
      look_up(zero, one, _mm256_srlv_epi32(x, At(kTables.shifts)));
    }
  }

  RAGGEMM_INLINE static void Arrange(__m256 (&r)[kNv]) {
    if constexpr (kNv == 8) {
      __m256 t[8];
      RAGGEMM_UNROLL for (int u = 0; u < 8; u += 4) TransposeLanes(r + u);
      RAGGEMM_UNROLL for (int i = 0; i < 4; ++i) {
        t[i] = _mm256_permute2f128_ps(r[2 * i], r[2 * i + 1], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(r[2 * i], r[2 * i + 1], 0x31);
      }
      RAGGEMM_UNROLL for (int i = 0; i < 8; ++i) r[i] = t[i];
    } else {
      const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
      RAGGEMM_UNROLL for (int i = 0; i < 4; i += 2) {
        const __m256 low = _mm256_unpacklo_ps(r[i], r[i + 1]), high = _mm256_unpackhi_ps(r[i], r[i + 1]);
        r[i] = _mm256_permutevar8x32_ps(low, order);
        r[i + 1] = _mm256_permutevar8x32_ps(high, order);
      }
    }
  }

  // Calls give(v, words) for each vector v of sums. The bytes p[0] to p[8 * kNv - 1] belong to columns. Each word is
  // the byte of the column that the same element of v has.
  template <class Give>
  RAGGEMM_INLINE static void ArrangeBytes(const uint8_t* p, Give give) {
    const __m256i x = LoadBytes32(p), byte = _mm256_set1_epi32(255);
    if constexpr (kNv == 8) {
      const __m256i y = LoadBytes32(p + 32);
      const __m256i units[] = {_mm256_permute2x128_si256(x, y, 0x20), _mm256_permute2x128_si256(x, y, 0x31)};
      RAGGEMM_UNROLL for (int v = 0; v < 8; ++v) {
        give(v, _mm256_and_si256(_mm256_srli_epi32(units[v / 4], v % 4 * 8), byte));
      }
    } else {
      const __m256i units[] = {_mm256_permute4x64_epi64(x, 0x44), _mm256_permute4x64_epi64(x, 0xee)};
      RAGGEMM_UNROLL for (int v = 0; v < 4; ++v) {
        const int q = v % 2 * 16;
        const __m256i shifts = _mm256_setr_epi32(q, q, q, q, q + 8, q + 8, q + 8, q + 8);
        give(v, _mm256_and_si256(_mm256_srlv_epi32(units[v / 2], shifts), byte));
      }
    }
  }

 private:
  struct Tables {
    ByteTable low, high, code, shifts;
  };
  static constexpr Tables kTables = [] {
    Tables tables{.low = TableOf([](uint32_t code) { return NibbleBits(kQuantized[kIndex], code) >> 16; }),
                  .high = TableOf([](uint32_t code) { return NibbleBits(kQuantized[kIndex], code) >> 24; }),
                  .code = Repeated(15),
                  .shifts = {}};
    for (int i = 16; i < 32; i += 4) tables.shifts.bytes[i] = 4;
    return tables;
  }();

  // Transposes the 4x4 elements of each 128-bit lane.
  RAGGEMM_INLINE static void TransposeLanes(__m256* r) {
    const __m256 a = _mm256_unpacklo_ps(r[0], r[1]), b = _mm256_unpackhi_ps(r[0], r[1]);
    const __m256 c = _mm256_unpacklo_ps(r[2], r[3]), d = _mm256_unpackhi_ps(r[2], r[3]);
    r[0] = _mm256_shuffle_ps(a, c, 0x44);
    r[1] = _mm256_shuffle_ps(a, c, 0xee);
    r[2] = _mm256_shuffle_ps(b, d, 0x44);
    r[3] = _mm256_shuffle_ps(b, d, 0xee);
  }
};

// Decodes integers of 8 bits. Their columns are in order.
template <int kIndex, int kNv>
struct Avx2IntegerLanes {
  template <class Give>
  RAGGEMM_INLINE static void Decode(const uint8_t* p, Give give) {
    const auto load = [&](int v) RAGGEMM_INLINE {
      const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8 * v));
      return _mm256_cvtepi32_ps(kQuantized[kIndex].is_signed ? _mm256_cvtepi8_epi32(bytes)
                                                             : _mm256_cvtepu8_epi32(bytes));
    };
    ForEach<0, kNv / 2>([&](auto i) RAGGEMM_INLINE {
      give(TwoColumns<2 * i, 2 * i + 1>{{load(2 * i), load(2 * i + 1)}});
    });
  }
  RAGGEMM_INLINE static void Arrange(__m256 (&)[kNv]) {}
};

// Decodes f8e5m2. In each unit of 32 columns, element i (0 to 7) of vector 2 * h + p has column 16 * h + 2 * i + p. The
// conversion from f16 never flushes denormals.
template <int kIndex, int kNv>
struct Avx2E5M2Lanes {
  template <class Give>
  RAGGEMM_INLINE static void Decode(const uint8_t* p, Give give) {
    ForEach<0, kNv / 4>([&](auto unit) RAGGEMM_INLINE {
      const __m256i x = LoadBytes32(p + 32 * unit);
      const __m256i even = _mm256_slli_epi16(x, 8), odd = _mm256_and_si256(x, _mm256_set1_epi16(-256));
      constexpr int kFirst = 4 * unit;
      give(TwoColumns<kFirst, kFirst + 1>{
          {_mm256_cvtph_ps(_mm256_castsi256_si128(even)), _mm256_cvtph_ps(_mm256_castsi256_si128(odd))}});
      give(TwoColumns<kFirst + 2, kFirst + 3>{
          {_mm256_cvtph_ps(_mm256_extracti128_si256(even, 1)), _mm256_cvtph_ps(_mm256_extracti128_si256(odd, 1))}});
    });
  }
  RAGGEMM_INLINE static void Arrange(__m256 (&r)[kNv]) {
    RAGGEMM_UNROLL for (int i = 0; i < kNv; i += 2) {
      const __m256 low = _mm256_unpacklo_ps(r[i], r[i + 1]), high = _mm256_unpackhi_ps(r[i], r[i + 1]);
      r[i] = _mm256_permute2f128_ps(low, high, 0x20);
      r[i + 1] = _mm256_permute2f128_ps(low, high, 0x31);
    }
  }
};

// Decodes f8e4m3fn. In each unit of 32 columns, vector 2 * u + q has column 16 * h + 8 * u + 2 * i + q.
//
// The high byte of an f32 follows from the upper four bits of the element, and the low byte from the lower four. Zeros,
// denormals and NaNs need corrections. The magnitude plus 1, modulo 128, is 0 to 8 for these elements, and selects the
// correction. A saturating addition of 112 sets the top bit of all values from 16 on. A look-up then returns 0, which
// corrects nothing.
template <int kIndex, int kNv>
struct Avx2E4M3Lanes {
  template <class Give>
  RAGGEMM_INLINE static void Decode(const uint8_t* p, Give give) {
    ForEach<0, kNv / 4>([&](auto unit) RAGGEMM_INLINE {
      const __m256i x = LoadBytes32(p + 32 * unit);
      const __m256i next = _mm256_and_si256(_mm256_add_epi8(x, At(kTables.one)), At(kTables.magnitude));
      const __m256i at = _mm256_adds_epu8(next, At(kTables.beyond_table));
      const __m256i upper = _mm256_and_si256(_mm256_srli_epi16(x, 4), At(kTables.code));
      const __m256i low = _mm256_and_si256(_mm256_slli_epi16(x, 4), At(kTables.upper_code));
      const __m256i high = _mm256_shuffle_epi8(At(kTables.high), upper);
      GiveBytes<4 * unit, 1>(_mm256_xor_si256(low, _mm256_shuffle_epi8(At(kTables.low_corrections), at)),
                             _mm256_xor_si256(high, _mm256_shuffle_epi8(At(kTables.high_corrections), at)), give);
    });
  }
  RAGGEMM_INLINE static void Arrange(__m256 (&r)[kNv]) {
    RAGGEMM_UNROLL for (int i = 0; i < kNv; i += 4) {
      __m256 low[2], high[2];
      RAGGEMM_UNROLL for (int u = 0; u < 2; ++u) {
        low[u] = _mm256_unpacklo_ps(r[i + 2 * u], r[i + 2 * u + 1]);
        high[u] = _mm256_unpackhi_ps(r[i + 2 * u], r[i + 2 * u + 1]);
      }
      RAGGEMM_UNROLL for (int u = 0; u < 2; ++u) {
        r[i + u] = _mm256_permute2f128_ps(low[u], high[u], 0x20);
        r[i + 2 + u] = _mm256_permute2f128_ps(low[u], high[u], 0x31);
      }
    }
  }

 private:
  struct Tables {
    ByteTable high, low_corrections, high_corrections, one, magnitude, beyond_table, code, upper_code;
  };
  // Returns the f32 bits of an element.
  static constexpr uint32_t Bits(uint32_t code) {
    return MagnitudeBits(kQuantized[kIndex], code & 127) | (code & 128) << 24;
  }
  // Returns the magnitude that has the successor `next`, modulo 128.
  static constexpr uint32_t Before(uint32_t next) { return (next + 127) % 128; }
  static constexpr Tables kTables = {
      // Code 8 is the smallest normal element.
      .high = TableOf([](uint32_t upper) { return Bits(upper << 4 | 8) >> 24; }),
      .low_corrections = TableOf([](uint32_t next) { return Bits(Before(next)) >> 16 ^ Before(next) << 4; }),
      .high_corrections =
          TableOf([](uint32_t next) { return (Bits(Before(next)) ^ Bits((Before(next) & 112) | 8)) >> 24; }),
      .one = Repeated(1),
      .magnitude = Repeated(127),
      .beyond_table = Repeated(112),
      .code = Repeated(15),
      .upper_code = Repeated(15 << 4),
  };
};

template <int kIndex, int kNv>
constexpr auto Avx2LanesOf() {
  if constexpr (kQuantized[kIndex].bits == 4) {
    return Avx2NibbleLanes<kIndex, kNv>();
  } else if constexpr (kQuantized[kIndex].is_integer) {
    return Avx2IntegerLanes<kIndex, kNv>();
  } else if constexpr (kQuantized[kIndex].is_ieee()) {
    return Avx2E5M2Lanes<kIndex, kNv>();
  } else {
    return Avx2E4M3Lanes<kIndex, kNv>();
  }
}

// The ways to apply block scales.
//
//     kNone        There are no block scales.
//     kElements    Scales multiply elements.
//     kSums        Sums are divided by their scales before the first step of a block, and multiplied by them after its
//                  last step. This gives the same bits if CanScaleSums returns true.
enum class LaneScaling : uint8_t { kNone, kElements, kSums };

// The inner loop of a streaming GEMV with kNv vectors of columns.
template <class V, int kIndex, int kMr, int kNv, ArithmeticId kId, LaneScaling kScaling>
struct Avx2LaneSteps {
  using Lanes = decltype(Avx2LanesOf<kIndex, kNv>());
  using Vec = __m256;
  using Tile = Vec[kMr][kNv];
  static constexpr int kGroup = kId == ArithmeticId::kPairs ? 2 : 1, kGemvSteps = kScaleSteps, kVectors = kNv;

  Avx2LaneSteps(const MicrokernelArgs& args, int64_t k, int64_t column)
      : a_(static_cast<const float*>(args.a) + k * kMr),
        b_((CodePointer<kIndex>(args.b.data) + (k * args.b.stride + column)).at),
        row_bytes_(args.b.stride * kQuantized[kIndex].bits / 8) {
    if constexpr (kScaling != LaneScaling::kNone) {
      uint8_t ones[8 * kNv];
      const uint8_t* codes = ones;
      if (args.b.scales.first != nullptr) {
        codes = ScaleAt(args.b.scales, k, column);
      } else {
        __builtin_memset(ones, 127, sizeof(ones));
      }
      Lanes::ArrangeBytes(codes, [&](int v, __m256i words) RAGGEMM_INLINE {
        scales_.Set(v, reinterpret_cast<typename Codes<V>::Words>(words));
      });
    }
  }

  RAGGEMM_INLINE void Begin(Tile& sums) const requires(kScaling == LaneScaling::kSums) {
    RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) {
      RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) sums[i][v] = _mm256_mul_ps(sums[i][v], scales_.Inverse(v));
    }
  }
  RAGGEMM_INLINE void End(Tile& sums) const requires(kScaling == LaneScaling::kSums) {
    RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) {
      RAGGEMM_UNROLL for (int v = 0; v < kNv; ++v) sums[i][v] = _mm256_mul_ps(sums[i][v], scales_.Scale(v));
    }
  }

  RAGGEMM_INLINE void Next(Tile& sums) {
    if constexpr (kGroup == 2) Add(1, sums);
    Add(0, sums);
    a_ += kGroup * kMr;
    b_ += kGroup * row_bytes_;
  }
  RAGGEMM_INLINE void Last(Tile& sums, int64_t /*steps*/) {
    AddZero<V>(sums);
    Add(0, sums);
  }
  RAGGEMM_INLINE static void Arrange(Tile& sums) {
    RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) Lanes::Arrange(sums[i]);
  }

 private:
  // The scales of one block as f32. All of them are normal numbers, and so are their inverses.
  struct SumScales {
    RAGGEMM_INLINE void Set(int v, typename Codes<V>::Words codes) {
      const auto bits = codes << 23;
      __builtin_memcpy(&values[v], &bits, sizeof(bits));
    }
    RAGGEMM_INLINE Vec Scale(int v) const { return values[v]; }
    RAGGEMM_INLINE Vec Inverse(int v) const {
      const __m256i one_squared = _mm256_set1_epi32(254 << 23);
      return _mm256_castsi256_ps(_mm256_sub_epi32(one_squared, _mm256_castps_si256(values[v])));
    }
    Vec values[kNv];
  };
  struct NoScales {};
  using Scales = std::conditional_t<kScaling == LaneScaling::kNone, NoScales,
                                    std::conditional_t<kScaling == LaneScaling::kSums, SumScales, ScalePairs<V, kNv>>>;

  RAGGEMM_INLINE void Add(int step, Tile& sums) {
    Lanes::Decode(b_ + step * row_bytes_, [&](auto columns) RAGGEMM_INLINE {
      constexpr const int(&kAt)[2] = decltype(columns)::kIndices;
      Vec y[2];
      RAGGEMM_UNROLL for (int j = 0; j < 2; ++j) {
        y[j] = columns.values[j];
        if constexpr (kScaling == LaneScaling::kElements) y[j] = scales_.Scaled(y[j], kAt[j]);
        y[j] = V::Pinned(y[j]);
      }
      const float* const x = a_ + step * kMr;
      RAGGEMM_UNROLL for (int i = 0; i < kMr; ++i) AddProducts(x + i, y, sums[i][kAt[0]], sums[i][kAt[1]]);
    });
  }
  // Adds the products of *x and y to two sums. With two or three rows, one asm statement loads x and multiplies.
  // Otherwise GCC 12 keeps the broadcast values of a step in registers, and sums spill to memory. GFLOP/s as at the top
  // of this file:
  //
  //                              int4    MXFP4    int8
  //     2 rows, statement        67      59       69
  //     2 rows, intrinsics       61      62       73
  //     3 rows, statement        69      62       82
  //     3 rows, intrinsics       50      47       65
  RAGGEMM_INLINE static void AddProducts(const float* x, const Vec (&y)[2], Vec& first, Vec& second) {
    if constexpr (kMr > 1) {
      Vec broadcast;
      asm("vbroadcastss %5, %2\n\tvfmadd231ps %3, %2, %0\n\tvfmadd231ps %4, %2, %1"
          : "+x"(first), "+x"(second), "=&x"(broadcast)
          : "x"(y[0]), "x"(y[1]), "m"(*x));
    } else {
      first = V::FmaInRegisters(V::Broadcast(x), y[0], first);
      second = V::FmaInRegisters(V::Broadcast(x), y[1], second);
    }
  }

  const float* a_;
  const uint8_t* b_;
  int64_t row_bytes_;
  [[no_unique_address]] Scales scales_;
};

// Returns true if scaled sums (LaneScaling::kSums) have the same bits as scaled elements. Scales are powers of two, so
// this is true if neither form of a sum can overflow or become denormal. `values` is the number of elements of args.a.
inline bool CanScaleSums(const MicrokernelArgs& args, int64_t values) {
  if (args.begin != Begin::kZero) return false;
  const auto* lhs = static_cast<const float*>(args.a);
  uint32_t any = 0, most = 0, least = ~0U;  // `least` is the least magnitude minus 1, without zeros.
  for (int64_t i = 0; i < values; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, lhs + i, sizeof(bits));
    const uint32_t magnitude = bits & 0x7fffffff;
    any |= bits;
    most = magnitude > most ? magnitude : most;
    least = magnitude - 1 < least ? magnitude - 1 : least;
  }
  uint8_t least_scale = 127, most_scale = 127;
  const BlockScales& scales = args.b.scales;
  for (int64_t k = 0; scales.first != nullptr && k < args.k; k += scales.steps - (scales.offset + k) % scales.steps) {
    const uint8_t* codes = ScaleAt(scales, k, 0);
    for (int64_t i = 0; i < args.columns; ++i) {
      least_scale = codes[i] < least_scale ? codes[i] : least_scale;
      most_scale = codes[i] > most_scale ? codes[i] : most_scale;
    }
  }
  // The elements of rhs are multiples of 0.5 and less than 8. A chain has at most 256 steps. Without scales, products
  // are multiples of 2^last, and sums are less than 2^top.
  constexpr int kLeastExponent = -126, kTop = 128;
  const int digits = (any & 0xffff) == 0 ? 7 : 23;
  const int last = static_cast<int>((least + 1) >> 23) - 127 - digits - 1;
  const int top = static_cast<int>(most >> 23) - 127 + 1 + 3 + 8;
  const int down = least_scale - 127, up = most_scale - 127;
  return least_scale > 0 && most_scale < 254 && last + down - (up > 0 ? up : 0) >= kLeastExponent &&
         top + up - (down < 0 ? down : 0) <= kTop;
}

// The inner loop for one row. Two units of 32 columns give enough independent sums to hide the latency of an fma. The
// last columns may be one unit. One row with one unit instead of two, in GFLOP/s as at the
// top of this file: int4 42 instead of 51, MXFP4 32 instead of 36 (with scaled elements), f8e4m3fn 27 instead of 31.
template <class V, int kIndex, ArithmeticId kId, LaneScaling kScaling>
struct Avx2OneRowSteps : Avx2LaneSteps<V, kIndex, 1, 8, kId, kScaling> {
  using Narrow = Avx2LaneSteps<V, kIndex, 1, 4, kId, kScaling>;
  using Avx2LaneSteps<V, kIndex, 1, 8, kId, kScaling>::Avx2LaneSteps;
};

template <class V, int kIndex, int kMr, ArithmeticId kId, LaneScaling kScaling>
void RunAvx2LaneGemv(const MicrokernelArgs& args) {
  if constexpr (kMr == 1) {
    StreamingGemv<V, Avx2OneRowSteps<V, kIndex, kId, kScaling>, 1, 8>(args);
  } else {
    StreamingGemv<V, Avx2LaneSteps<V, kIndex, kMr, 4, kId, kScaling>, kMr, 4>(args);
  }
}

template <class V, int kIndex, int kMr, ArithmeticId kId>
void Avx2LaneGemv(const MicrokernelArgs& args) {
  if constexpr (kQuantized[kIndex].dtype != DType::kF4E2M1FN) {
    RunAvx2LaneGemv<V, kIndex, kMr, kId, LaneScaling::kNone>(args);
  } else if (CanScaleSums(args, args.k * kMr)) {
    RunAvx2LaneGemv<V, kIndex, kMr, kId, LaneScaling::kSums>(args);
  } else {
    RunAvx2LaneGemv<V, kIndex, kMr, kId, LaneScaling::kElements>(args);
  }
}

}  // namespace
}  // namespace raggemm
