// Decodes elements of rhs to words of s8 for rounded rows (NEON).
#pragma once

#include <arm_neon.h>

#include "kernels/isa/neon_f32.h"
#include "kernels/isa/neon_s32.h"
#include "kernels/isa/rounded_gemv.h"
#include "kernels/isa/word_blocks_gemv.h"
#include "kernels/isa/word_gemm.h"

namespace raggemm {
namespace {

// The traits of rounded_gemm.h that do not depend on the instruction for products.
struct NeonCodeSums : NeonQuads {
  using Floats = NeonF32;
  static constexpr int kMostSums = 16;
  static constexpr int32_t kByteOffset = 0;
  static constexpr bool kSkipsZeroOffset = true;

  static float32x4_t ToFloats(Vec x) { return vcvtq_f32_s32(x); }
  static Vec Bits(float32x4_t x) { return vreinterpretq_s32_f32(x); }
};

// The elements of a format as s8: the element of an integer format plus kOffset. f4e2m1fn counts twice. Low and High
// decode the low or the high four bits of each byte.
template <DType kDtype>
struct NeonCode;
template <>
struct NeonCode<DType::kS8> {
  static constexpr int kBits = 8;
  static constexpr int32_t kOffset = 0;
  static uint8x16_t Decode(uint8x16_t x) { return x; }
};
template <>
struct NeonCode<DType::kU8> {
  static constexpr int kBits = 8;
  static constexpr int32_t kOffset = -128;
  static uint8x16_t Decode(uint8x16_t x) { return veorq_u8(x, vdupq_n_u8(128)); }
};
template <>
struct NeonCode<DType::kS4> {
  static constexpr int kBits = 4;
  static constexpr int32_t kOffset = 0;
  static uint8x16_t Low(uint8x16_t x) { return High(vshlq_n_u8(x, 4)); }
  static uint8x16_t High(uint8x16_t x) { return vreinterpretq_u8_s8(vshrq_n_s8(vreinterpretq_s8_u8(x), 4)); }
};
template <>
struct NeonCode<DType::kU4> {
  static constexpr int kBits = 4;
  static constexpr int32_t kOffset = 0;
  static uint8x16_t Low(uint8x16_t x) { return vandq_u8(x, vdupq_n_u8(15)); }
  static uint8x16_t High(uint8x16_t x) { return vshrq_n_u8(x, 4); }
};
template <>
struct NeonCode<DType::kF4E2M1FN> {
  static constexpr int kBits = 4;
  static constexpr int32_t kOffset = 0;
  static uint8x16_t Low(uint8x16_t x) { return LookUp(NeonCode<DType::kU4>::Low(x)); }
  static uint8x16_t High(uint8x16_t x) { return LookUp(NeonCode<DType::kU4>::High(x)); }

 private:
  static uint8x16_t LookUp(uint8x16_t codes) {
    static constexpr int8_t kDoubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    return vreinterpretq_u8_s8(vqtbl1q_s8(vld1q_s8(kDoubled), codes));
  }
};

inline uint32x4_t WordsOf(uint8x16_t x) { return vreinterpretq_u32_u8(x); }
inline uint8x16_t LoadBytesUpTo(const uint8_t* p, int64_t n) {
  if (n >= 16) return vld1q_u8(p);
  uint8_t padded[16] = {};
  for (int64_t i = 0; i < n; ++i) padded[i] = p[i];
  return vld1q_u8(padded);
}

// Transposes bytes of four rows. Words of y[v] have the bytes 4 * v to 4 * v + 3 of the rows.
RAGGEMM_INLINE inline void TransposeBytes(const uint8x16_t (&x)[4], uint8x16_t (&y)[4]) {
  const auto halves = [](uint8x16_t bytes) { return vreinterpretq_u16_u8(bytes); };
  const uint16x8_t low[] = {halves(vzip1q_u8(x[0], x[1])), halves(vzip1q_u8(x[2], x[3]))};
  const uint16x8_t high[] = {halves(vzip2q_u8(x[0], x[1])), halves(vzip2q_u8(x[2], x[3]))};
  y[0] = vreinterpretq_u8_u16(vzip1q_u16(low[0], low[1]));
  y[1] = vreinterpretq_u8_u16(vzip2q_u16(low[0], low[1]));
  y[2] = vreinterpretq_u8_u16(vzip1q_u16(high[0], high[1]));
  y[3] = vreinterpretq_u8_u16(vzip2q_u16(high[0], high[1]));
}

// Decodes chunks for GEMVs (rounded_gemv.h) from 16 bytes of four rows. Words of 4-bit codes give two vectors: even
// columns and odd columns.
template <class Code>
struct NeonRows {
  static constexpr int kPerByte = 8 / Code::kBits, kColumns = 16 * kPerByte, kNv = 4 * kPerByte;
  static int64_t Bytes(int64_t columns) { return columns / kPerByte; }

  RAGGEMM_INLINE static void Load(const uint8_t* p, int64_t stride, int64_t count, uint32x4_t (&y)[kNv]) {
    uint8x16_t rows[4], bytes[4];
    RAGGEMM_UNROLL for (int i = 0; i < 4; ++i) rows[i] = vld1q_u8(i < count ? p + i * stride : p);
    TransposeBytes(rows, bytes);
    RAGGEMM_UNROLL for (int i = 0; i < 4; ++i) {
      if constexpr (kPerByte == 1) {
        y[i] = WordsOf(Code::Decode(bytes[i]));
      } else {
        y[2 * i] = WordsOf(Code::Low(bytes[i]));
        y[2 * i + 1] = WordsOf(Code::High(bytes[i]));
      }
    }
  }
  RAGGEMM_INLINE static void LoadArranged(const float* p, float32x4_t (&x)[kNv]) {
    RAGGEMM_UNROLL for (int i = 0; i < kNv; i += kPerByte, p += 4 * kPerByte) {
      if constexpr (kPerByte == 1) {
        x[i] = vld1q_f32(p);
      } else {
        const float32x4x2_t pair = vld2q_f32(p);
        x[i] = pair.val[0];
        x[i + 1] = pair.val[1];
      }
    }
  }
  RAGGEMM_INLINE static void Restore(float32x4_t (&x)[kNv]) {
    RAGGEMM_UNROLL for (int i = 0; i < kNv && kPerByte == 2; i += 2) {
      const float32x4_t first = x[i];
      x[i] = vzip1q_f32(first, x[i + 1]);
      x[i + 1] = vzip2q_f32(first, x[i + 1]);
    }
  }
};

// Decodes tiles of word blocks (word_blocks_gemv.h).
template <class Code>
struct NeonWordTiles {
  static constexpr int kBits = Code::kBits;

  RAGGEMM_INLINE static uint32x4_t LoadWords(const uint8_t* tile, int v) {
    constexpr int kInLine = kBits;  // Vectors in the bytes of a tile.
    const uint8x16_t x = vld1q_u8(tile + 16 * (v % kInLine));
    if constexpr (kBits == 8) {
      return WordsOf(Code::Decode(x));
    } else {
      return WordsOf(v < kInLine ? Code::Low(x) : Code::High(x));
    }
  }
};

// Packs eight columns of a word block.
template <class Code>
void PackWordTiles(const PackArgs& args) {
  const auto* src = static_cast<const uint8_t*>(args.src);
  auto* dst = static_cast<uint32_t*>(args.dst);
  for (int64_t kk = 0; kk < args.k_padded; kk += kWordRows, dst += args.dst_stride) {
    const uint8_t* const tile = src + (kk < args.k ? kk * 4 * Code::kBits : 0);
    const int first = static_cast<int>(args.column / 4);
    for (int v = 0; v < 2; ++v) NeonQuads::StoreWords(dst + 4 * v, NeonWordTiles<Code>::LoadWords(tile, first + v));
  }
}

// Traits for PackTransposedWords (word_gemm.h).
template <class Code>
struct NeonColumnCodes : NeonQuads {
  static constexpr int kGroup = 4;
  static constexpr bool kFlips = false;
  struct Source {
    explicit Source(const void* p) : at(static_cast<const uint8_t*>(p)) {}
    Source operator+(int64_t elements) const { return Source(at + elements * Code::kBits / 8); }
    const uint8_t* at;
  };

  static Words LoadUpTo(Source p, int64_t n) {
    if constexpr (Code::kBits == 8) {
      return WordsOf(Code::Decode(LoadBytesUpTo(p.at, n)));
    } else {
      const uint8x16_t x = n >= 16 ? vcombine_u8(vld1_u8(p.at), vdup_n_u8(0)) : LoadBytesUpTo(p.at, n / 2);
      return WordsOf(vzip1q_u8(Code::Low(x), Code::High(x)));
    }
  }
};

// Packs rows of at most 8 columns. The columns fill whole bytes.
template <class Code>
void PackCodeRows(const PackArgs& args) {
  constexpr int kPerByte = 8 / Code::kBits, kBytes = 8 / kPerByte;
  const int64_t bytes = args.width / kPerByte, stride = args.src_stride / kPerByte;
  const auto* src = static_cast<const uint8_t*>(args.src);
  for (int64_t kk = 0; kk < args.k_padded; kk += 4) {
    uint8x16_t rows[4], x[4];
    RAGGEMM_UNROLL for (int i = 0; i < 4; ++i) {
      const uint8_t* const row = src + (kk + i < args.k ? kk + i : 0) * stride;
      uint64_t word = 0;
      if (bytes == kBytes) {
        __builtin_memcpy(&word, row, kBytes);
      } else {
        for (int64_t j = 0; j < bytes; ++j) word |= static_cast<uint64_t>(row[j]) << 8 * j;
      }
      rows[i] = vcombine_u8(vcreate_u8(word), vdup_n_u8(0));
    }
    TransposeBytes(rows, x);
    uint32x4_t words[2];
    if constexpr (kPerByte == 1) {
      RAGGEMM_UNROLL for (int i = 0; i < 2; ++i) words[i] = WordsOf(Code::Decode(x[i]));
    } else {
      const uint32x4_t even = WordsOf(Code::Low(x[0])), odd = WordsOf(Code::High(x[0]));
      words[0] = vzip1q_u32(even, odd);
      words[1] = vzip2q_u32(even, odd);
    }
    uint32_t* const dst = static_cast<uint32_t*>(args.dst) + kk / 4 * args.dst_stride;
    RAGGEMM_UNROLL for (int i = 0; i < 2; ++i) NeonQuads::StoreWords(dst + 4 * i, words[i]);
  }
}

template <class V, int kRows, DType kDtype>
constexpr void AddNeonCodes(KernelRow& row) {
  using Code = NeonCode<kDtype>;
  AddRoundedFormat<V, 2, kRows>(row, kDtype, Code::kOffset,
                                {PackCodeRows<Code>, PackTransposedWords<NeonColumnCodes<Code>>, PackWordTiles<Code>});
  FormatKernels& kernels = row.formats[static_cast<int>(kDtype)];
  AddRoundedGemvs<V, NeonRows<Code>>(kernels);
  AddWordGemvs<V, NeonWordTiles<Code>>(kernels);
}

// Bytes and Nibbles are traits for 8-bit and for 4-bit formats.
template <class Bytes, class Nibbles, int kRows>
constexpr KernelRow MakeNeonRoundedRow(double products_per_fma) {
  KernelRow row = MakeRoundedRow<Bytes, kRows, 2>();
  row.products_per_fma = products_per_fma;
  AddNeonCodes<Bytes, kRows, DType::kS8>(row);
  AddNeonCodes<Bytes, kRows, DType::kU8>(row);
  AddNeonCodes<Nibbles, kRows, DType::kS4>(row);
  AddNeonCodes<Nibbles, kRows, DType::kU4>(row);
  AddNeonCodes<Nibbles, kRows, DType::kF4E2M1FN>(row);
  return row;
}

}  // namespace
}  // namespace raggemm
