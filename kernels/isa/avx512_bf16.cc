// Kernels for AVX-512 BF16: VDPBF16PS adds two products of bf16 to each sum.
#include "kernels/isa/avx512_quantized.h"

namespace raggemm {
namespace {

struct Avx512Bf16 : Avx512Pairs {
  static Vec Dot(Words a, Words b, Vec sum) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(b), "v"(a));
    return sum;
  }
  static Vec DotBroadcast(const uint32_t* a, Words b, Vec sum) {
    asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(b), "m"(*a));
    return sum;
  }
  // VCVTNE2PS2BF16 turns denormals into zeros, but VDPBF16PS never returns any.
  static void StreamRounded(BFloat16* p, Vec first, Vec second) {
    __m512i both;
    asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(both) : "v"(first), "v"(second));
    _mm512_stream_si512(reinterpret_cast<__m512i*>(p), both);
  }
};

}  // namespace

extern const KernelRow kAvx512Bf16Kernels[1];
constinit const KernelRow kAvx512Bf16Kernels[] = {[] {
  KernelRow row = MakePairRow<Avx512Bf16>();
  AddQuantized<Avx512Bf16, true>(row);
  return row;
}()};

}  // namespace raggemm
