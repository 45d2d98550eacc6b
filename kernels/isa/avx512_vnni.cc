// Kernels for AVX-512 VNNI: VPDPBUSD adds four products of bytes to each sum.
#include "kernels/isa/avx512_codes.h"
#include "kernels/isa/avx512_words.h"

namespace raggemm {
namespace {

template <class E>
struct Avx512Vnni : Avx512Quads<E> {
  using typename Avx512S32::Vec, typename Avx512S32::Words;
  static constexpr bool kFlips = true, kFlipsSameFormat = true;
  static constexpr int kRows = 12;  // With 13 rows, no registers are left for WordSteps::excess.
  static constexpr int kWide[kRows + 1] = {0, 8, 6, 4, 4, 2, 2, 2, 2, 2, 2, 2, 2};

  static Words Flip(Words a, Words b) { return _mm512_xor_si512(a, b); }
  // VPDPBUSD multiplies unsigned by signed bytes. If rhs is unsigned, lhs is signed, else lhs is unsigned.
  static Vec Dot(Words a, Words b, Vec sum) {
    if constexpr (kSigned<E>) {
      asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    } else {
      asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(b), "v"(a));
    }
    return sum;
  }
  static Vec DotBroadcast(const uint32_t* a, Words b, Vec sum) {
    if constexpr (kSigned<E>) return Dot(Avx512S32::BroadcastWord(a), b, sum);
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(b), "m"(*a));
    return sum;
  }
};

}  // namespace

extern const KernelRow kAvx512VnniKernels[2];
constinit const KernelRow kAvx512VnniKernels[] = {MakeByteRow<Avx512Vnni>(DType::kS8),
                                                  MakeAvx512RoundedRow<Avx512Codes, 8>()};

}  // namespace raggemm
