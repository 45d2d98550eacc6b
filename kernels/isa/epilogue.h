// Epilogues apply alpha, c, bias and rounding to sums, and store the result. The traits V are those of tile_gemm.h.
#pragma once

#include <cstdint>

#include "kernels/isa/microkernel.h"
#include "kernels/isa/pack.h"

namespace raggemm {
namespace {

template <class V, class E>
void StoreEpilogue(const EpilogueArgs& args) {
  using T = typename V::Scalar;
  const T one = 1;
  const typename V::Vec alpha = V::Broadcast(args.alpha ? static_cast<const T*>(args.alpha) : &one);
  const typename V::Vec beta = V::Broadcast(args.beta ? static_cast<const T*>(args.beta) : &one);
  const T* bias = static_cast<const T*>(args.bias);
  for (int64_t i = 0; i < args.rows; ++i) {
    const T* total = static_cast<const T*>(args.total) + i * args.total_stride;
    E* out = static_cast<E*>(args.out) + i * args.out_stride;
    const E* c = args.c ? static_cast<const E*>(args.c) + i * args.out_stride : nullptr;
    for (int64_t j = 0; j < args.columns; j += V::kWidth) {
      const int64_t left = args.columns - j;
      typename V::Vec r = V::Load(total + j);
      if (args.alpha) r = V::Mul(alpha, r);
      if (c) r = V::Fma(beta, LoadUpTo<V>(c + j, left), r);
      if (bias) r = V::Add(r, V::Load(bias + j));
      StoreUpTo<V>(out + j, r, left);
    }
  }
}

template <class V, class From>
void AddScaled(const ScaledArgs& args) {
  using T = typename V::Scalar;
  // Copies the arguments, so that the compiler keeps them in registers.
  const auto [rows, columns, sums, totals, stride, row_scales, column_scales, first] = args;
  for (int64_t j = 0; j < columns; j += V::kWidth) {
    const typename V::Vec column = V::Load(column_scales + j);
    const From* from = static_cast<const From*>(sums) + j;
    T* to = static_cast<T*>(totals) + j;
    for (int64_t i = 0; i < rows; ++i, from += stride, to += stride) {
      T values[V::kWidth];
      for (int k = 0; k < V::kWidth; ++k) values[k] = static_cast<T>(from[k]);
      const T row_scale = static_cast<T>(row_scales[i]);
      const typename V::Vec scale = V::Mul(V::Broadcast(&row_scale), column);
      const typename V::Vec before = first ? V::Zero() : V::Load(to);
      V::Store(to, V::Fma(scale, V::Load(values), before));
    }
  }
}

template <class V, class E>
constexpr void AddEpilogue(KernelRow& row, DType dtype) {
  FormatKernels& kernels = row.formats[static_cast<int>(dtype)];
  kernels.pack_bias = PackRows<V, E>;
  kernels.epilogue = StoreEpilogue<V, E>;
}

template <class V>
constexpr void AddScaling(KernelRow& row) {
  row.add_scaled = AddScaled<V, typename V::Scalar>;
  row.add_scaled_integers = AddScaled<V, int32_t>;
}

}  // namespace
}  // namespace raggemm
