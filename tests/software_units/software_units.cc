// Software units: plain C++ code for the matrix instructions of AMX and AVX512_BF16. So the code around these
// instructions runs on every host. This file is linked into a test before the library, and replaces
// kernels/target/x86.cc.
#include "kernels/isa/pack.h"
// Disables unrolling of loops. g++ would take two minutes to compile unrolled register tiles of these vectors.
#undef RAGGEMM_UNROLL
#define RAGGEMM_UNROLL

#include "kernels/isa/amx_gemm.h"
#include "kernels/isa/amx_rounded.h"
#include "kernels/isa/rounded_gemv.h"
#include "kernels/isa/scalar_traits.h"
#include "kernels/isa/word_blocks_gemv.h"
#include "kernels/isa/word_gemm.h"
#include "kernels/target/target.h"
#include "tests/oracle/rule.h"
#include "tests/support/isa_fixture.h"

namespace raggemm {
namespace {

#ifdef __clang__
#define RAGGEMM_WITH_FMA
#else
#define RAGGEMM_WITH_FMA __attribute__((target_clones("fma", "default")))
#endif

template <class T>
struct Sixteen {
  T x[16];
};

RAGGEMM_WITH_FMA Sixteen<float> FmaOfEach(Sixteen<float> a, Sixteen<float> b, Sixteen<float> sum) {
  for (int i = 0; i < 16; ++i) sum.x[i] = Fma(a.x[i], b.x[i], sum.x[i]);
  return sum;
}
Sixteen<int32_t> FmaOfEach(Sixteen<int32_t> a, Sixteen<int32_t> b, Sixteen<int32_t> sum) {
  for (int i = 0; i < 16; ++i) sum.x[i] = Fma(a.x[i], b.x[i], sum.x[i]);
  return sum;
}

inline float First(uint32_t pair) { return __builtin_bit_cast(float, pair << 16); }
inline float Second(uint32_t pair) { return __builtin_bit_cast(float, pair & 0xFFFF0000); }

RAGGEMM_WITH_FMA Sixteen<float> DotOfEach(Sixteen<uint32_t> a, Sixteen<uint32_t> b, Sixteen<float> sum) {
  for (int i = 0; i < 16; ++i) {
    const float later = Fma(Second(a.x[i]), Second(b.x[i]), sum.x[i]);
    sum.x[i] = Fma(First(a.x[i]), First(b.x[i]), later);
  }
  return sum;
}

// A tile of AMX. Each row has 16 words of four bytes.
using Tile = uint32_t[kTileRows][kLine / 4];

// Computes totals += lhs x rhs like the instruction TDPBF16PS. The float mode of the thread must flush denormals,
// because TDPBF16PS does.
RAGGEMM_WITH_FMA void AddDots(const Tile& lhs, const Tile& rhs, Tile& totals) {
  for (int i = 0; i < 16; ++i) {
    float even[16] = {}, odd[16] = {};
    for (int pair = 0; pair < 16; ++pair) {
      for (int j = 0; j < 16; ++j) {
        even[j] = Fma(First(lhs[i][pair]), First(rhs[pair][j]), even[j]);
        odd[j] = Fma(Second(lhs[i][pair]), Second(rhs[pair][j]), odd[j]);
      }
    }
    for (int j = 0; j < 16; ++j) {
      totals[i][j] = __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, totals[i][j]) + (even[j] + odd[j]));
    }
  }
}

// Traits for the kernel templates. A vector has 16 sums of type T, as in AVX-512, or 16 words of four bytes. A word has
// kGroup elements of type E.
template <class T, class E>
struct LanesOf {
  using One = ScalarTraits<T>;
  using Source = const E*;
  static constexpr int kGroup = 4 / sizeof(E);
  static constexpr bool kFlips = false;
  using Scalar = T;
  static constexpr int kWidth = 16;
  static constexpr int kRows = 14;
  static constexpr int kWide[kRows + 1] = {0, 16, 8, 8, 4, 4, 4, 2, 2, 2, 2, 2, 2, 2, 2};
  using Vec = Sixteen<T>;
  using Words = Sixteen<uint32_t>;
  template <class Of>
  static Vec Sums(Of of) {
    Vec all;
    for (int i = 0; i < kWidth; ++i) all.x[i] = of(i);
    return all;
  }
  template <class Of>
  static Words WordsOf(Of of) {
    Words all;
    for (int i = 0; i < kWidth; ++i) all.x[i] = of(i);
    return all;
  }

  static Vec Zero() { return {}; }
  static Vec Broadcast(const T* p) {
    return Sums([&](int) { return *p; });
  }
  static Vec Fma(Vec a, Vec b, Vec c) { return FmaOfEach(a, b, c); }
  static Vec Add(Vec a, Vec b) {
    return Sums([&](int i) { return Sum(a.x[i], b.x[i]); });
  }
  static Vec Mul(Vec a, Vec b) {
    return Sums([&](int i) { return Product(a.x[i], b.x[i]); });
  }
  static Vec Between(Vec x, int least, int most) {
    return Sums([&](int i) { return One::Between(x.x[i], least, most); });
  }
  template <class From>
  static Vec Load(const From* p) {
    return LoadPartial(p, kWidth);
  }
  template <class From>
  static Vec LoadPartial(const From* p, int n) {
    return Sums([&](int i) { return i < n ? One::Load(p + i) : T(0); });
  }
  template <class To>
  static void Store(To* p, Vec x) {
    StorePartial(p, x, kWidth);
  }
  template <class To>
  static void StorePartial(To* p, Vec x, int n) {
    for (int i = 0; i < n; ++i) One::Store(p + i, x.x[i]);
  }
  static void Stream(T* p, Vec x) { Store(p, x); }

  static Words LoadWords(const uint32_t* p) {
    return WordsOf([&](int i) { return p[i]; });
  }
  static void StoreWords(uint32_t* p, Words x) {
    for (int i = 0; i < kWidth; ++i) p[i] = x.x[i];
  }
  static Words BroadcastWord(const uint32_t* p) {
    return WordsOf([&](int) { return *p; });
  }
  static Words LoadUpTo(const E* p, int64_t n) {
    Words words = {};
    constexpr int64_t kAll = kGroup * kWidth;
    if (n > 0) __builtin_memcpy(words.x, p, static_cast<size_t>(n < kAll ? n : kAll) * sizeof(E));
    return words;
  }
  static Words LoadHalves(const E* p, int64_t stride, int64_t n, int64_t rows) {
    E halves[2 * kWidth][kGroup / 2] = {};
    for (int i = 0; i < 2 * kWidth && i < n; ++i) {
      for (int row = 0; row < kGroup / 2 && row < rows; ++row) halves[i][row] = p[row * stride + i];
    }
    return __builtin_bit_cast(Words, halves);
  }
  static uint32_t Half(Words x, int i) { return x.x[i / 2] >> (i % 2 * 16) & 0xFFFF; }
  static Words LowWords(Words first, Words second) {
    return WordsOf([&](int i) { return Half(first, i) | Half(second, i) << 16; });
  }
  static Words HighWords(Words first, Words second) {
    return WordsOf([&](int i) { return Half(first, kWidth + i) | Half(second, kWidth + i) << 16; });
  }
  static void Transpose(Words (&r)[kWidth]) {
    for (int i = 0; i < kWidth; ++i) {
      for (int j = 0; j < i; ++j) {
        const uint32_t x = r[i].x[j];
        r[i].x[j] = r[j].x[i];
        r[j].x[i] = x;
      }
    }
  }
  static Words Pinned(Words x) { return x; }
  static Vec Dot(Words a, Words b, Vec sum) { return DotOfEach(a, b, sum); }
  static Vec DotBroadcast(const uint32_t* a, Words b, Vec sum) { return Dot(BroadcastWord(a), b, sum); }
};
using Lanes = LanesOf<float, BFloat16>;
template <class E>
using ByteLanes = LanesOf<int32_t, E>;

// Traits for kernels of rounded rows.
struct CodeLanes : ByteLanes<uint8_t> {
  using Floats = Lanes;
  static constexpr int kMostSums = 8;

  static Vec Bits(Floats::Vec x) { return __builtin_bit_cast(Vec, x); }
  static Floats::Vec ToFloats(Vec x) {
    Floats::Vec all;
    for (int i = 0; i < kWidth; ++i) all.x[i] = static_cast<float>(x.x[i]);
    return all;
  }
  static Vec DotWord(const uint32_t* p, Words b, Vec sum) {
    for (int i = 0; i < kWidth; ++i) {
      for (int byte = 0; byte < 32; byte += 8) {
        sum.x[i] += static_cast<int8_t>(*p >> byte) * static_cast<uint8_t>(b.x[i] >> byte);
      }
    }
    return sum;
  }
};

// Decodes 32 columns of bytes for streaming GEMVs. The sums have the even columns first.
template <uint32_t kFlip>
struct PlainBytes {
  static constexpr int kColumns = 32;
  static int64_t Bytes(int64_t columns) { return columns; }
  static void Load(const uint8_t* p, int64_t stride, int64_t rows, CodeLanes::Words (&y)[2]) {
    for (int j = 0; j < kColumns; ++j) {
      uint32_t& word = y[j % 2].x[j / 2];
      word = 0;
      for (int row = 0; row < 4 && row < rows; ++row) word |= uint32_t{p[row * stride + j]} << 8 * row;
      word ^= kFlip;
    }
  }
  static void LoadArranged(const float* p, Lanes::Vec (&x)[2]) {
    for (int j = 0; j < kColumns; ++j) x[j % 2].x[j / 2] = p[j];
  }
  static void Restore(Lanes::Vec (&x)[2]) {
    const Lanes::Vec from[] = {x[0], x[1]};
    for (int j = 0; j < kColumns; ++j) x[j / 16].x[j % 16] = from[j % 2].x[j / 2];
  }
};

// Decodes tiles of word blocks of bytes.
template <uint32_t kFlip>
struct PlainWordTiles {
  static constexpr int kBits = 8;
  static CodeLanes::Words LoadWords(const uint8_t* tile, int v) {
    CodeLanes::Words words;
    __builtin_memcpy(&words, tile + sizeof(words) * v, sizeof(words));
    for (uint32_t& word : words.x) word ^= kFlip;
    return words;
  }
};

// Bytes in the lines of tiles of lhs (KernelRow::set_up). 0: tiles are not configured.
thread_local int64_t line_bytes = 0;
thread_local Tile tiles[8];

struct PlainTiles {
  template <int kTile>
  static void Zero() {
    Check();
    for (auto& line : tiles[kTile]) {
      for (uint32_t& word : line) word = 0;
    }
  }
  template <int kTile>
  static void Load(const char* p, int64_t stride) {
    Zero<kTile>();
    const bool is_lhs = kTile == 4 || kTile == 5, is_rhs = kTile > 5;
    const int64_t lines = is_rhs ? line_bytes / 4 : kTileRows;
    const int64_t bytes = is_lhs ? line_bytes : kLine;
    for (int64_t i = 0; i < lines; ++i) __builtin_memcpy(tiles[kTile][i], p + i * stride, bytes);
  }
  template <int kTile>
  static void Store(char* p, int64_t stride) {
    Check();
    for (int64_t i = 0; i < kTileRows; ++i) __builtin_memcpy(p + i * stride, tiles[kTile][i], kLine);
  }
  template <int kTotal, int kLhs, int kRhs>
  static void Dot(BFloat16, BFloat16) {
    Check();
    AddDots(tiles[kLhs], tiles[kRhs], tiles[kTotal]);
  }
  // Computes totals += lhs x rhs modulo 2^32, like TDPBUSD and its variants for signed and unsigned bytes.
  template <int kTotal, int kLhs, int kRhs, class A, class B>
  static void Dot(A, B) {
    Check();
    const Tile &lhs = tiles[kLhs], &rhs = tiles[kRhs];
    for (int i = 0; i < 16; ++i) {
      for (int word = 0; word < 16; ++word) {
        for (int byte = 0; byte < 32; byte += 8) {
          const auto a = static_cast<A>(lhs[i][word] >> byte);
          for (int j = 0; j < 16; ++j) {
            tiles[kTotal][i][j] += static_cast<uint32_t>(a * static_cast<B>(rhs[word][j] >> byte));
          }
        }
      }
    }
  }

  static void SetUp(void* saved, int64_t bytes) {
    *static_cast<int64_t*>(saved) = line_bytes;
    line_bytes = bytes;
  }
  static void Restore(const void* saved) { line_bytes = *static_cast<const int64_t*>(saved); }
  // Stops the process if tiles are not configured on this thread, as AMX instructions do.
  static void Check() {
    if (line_bytes == 0) __builtin_trap();
  }
};

template <class E, int32_t kOffset>
constexpr FormatKernels kPlainCodes = [] {
  FormatKernels kernels = {};
  constexpr uint32_t kFlip = kOffset == 0 ? 0 : 0x80808080;
  constexpr DType kDtype = kOffset == 0 ? DType::kU8 : DType::kS8;
  AddRoundedGemvs<CodeLanes, PlainBytes<kFlip>>(kernels);
  AddWordGemvs<CodeLanes, PlainWordTiles<kFlip>>(kernels);
  kernels.rhs = {PackCodes<E, kOffset, false>, PackCodes<E, kOffset, true>, PackEveryWordTile<kDtype, 8, kOffset>};
  kernels.code_offset = kOffset;
  return kernels;
}();

// Packers of 4-bit codes. Only word blocks have them.
template <DType kDtype>
constexpr FormatKernels kPlainNibbles = [] {
  FormatKernels kernels = {};
  kernels.rhs = {nullptr, nullptr, PackEveryWordTile<kDtype, 4, 128>};
  kernels.code_offset = 128;
  return kernels;
}();

}  // namespace

extern const KernelRow kAvx512Bf16Kernels[1];
constinit const KernelRow kAvx512Bf16Kernels[] = {MakePairRow<Lanes>()};
extern const KernelRow kAmxKernels[3];
constinit const KernelRow kAmxKernels[] = {
    MakeAmxRow<Lanes, PlainTiles>(), MakeAmxByteRow<ByteLanes, PlainTiles>(), [] {
      KernelRow row = MakeRoundedTilesRow<CodeLanes, PlainTiles>();
      AddRoundedTilesFormat<CodeLanes, PlainTiles, kPlainCodes<int8_t, 128>>(row, DType::kS8);
      AddRoundedTilesFormat<CodeLanes, PlainTiles, kPlainCodes<uint8_t, 0>>(row, DType::kU8);
      AddRoundedTilesFormat<CodeLanes, PlainTiles, kPlainNibbles<DType::kS4>>(row, DType::kS4);
      AddRoundedTilesFormat<CodeLanes, PlainTiles, kPlainNibbles<DType::kU4>>(row, DType::kU4);
      AddRoundedTilesFormat<CodeLanes, PlainTiles, kPlainNibbles<DType::kF4E2M1FN>>(row, DType::kF4E2M1FN);
      return row;
    }()};

extern const KernelRow kScalarKernels[7];
extern const Dequantizers kScalarDequantizers;

absl::Span<const IsaRow> IsaRows() {
  const auto nothing = [] { return static_cast<const char*>(nullptr); };
  static const IsaRow rows[] = {
      {Isa{2}, "amx", nothing, kAmxKernels, Isa::kScalar},
      {Isa{1}, "avx512_bf16", nothing, kAvx512Bf16Kernels, Isa::kScalar},
      {Isa::kScalar, "scalar", nothing, kScalarKernels, Isa::kScalar, &kScalarDequantizers},
  };
  return rows;
}
absl::Span<const Cpu> MeasuredCpus() { return {}; }
ArithmeticId SumsOfHost() { return ArithmeticId::kTiles; }
ArithmeticId Bf16SumsWithoutUnit() { return ArithmeticId::kPairs; }
const Cpu* MeasuredCpuOf(absl::string_view, unsigned, unsigned) { return nullptr; }

namespace test {
extern const bool kUnitsAreSoftware = true;
}

}  // namespace raggemm
