#include "bench/peers/cblas.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/peers/series.h"

namespace raggemm::bench {
namespace {

CblasGemm* GemmFor(const CblasLibrary& library, const GemmSeries& series) {
  if (series.lhs_dtype != series.rhs_dtype || series.out_dtype != DType::kF32) return nullptr;
  for (const auto& [dtype, gemm] :
       {std::pair{DType::kF32, library.f32}, {DType::kBF16, library.bf16}, {DType::kF16, library.f16}}) {
    if (dtype == series.lhs_dtype) return gemm;
  }
  return nullptr;
}

absl::Status SetThreads(const CblasLibrary& library, int threads) {
  library.set_threads(threads);
  const int got = library.threads();
  if (got == threads) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the library works on ", got, " threads, expected ", threads));
}

absl::Status RunLoop(const CblasLibrary& library, const GemmSeries& series, PeerThreads threading, int threads) {
  const int library_threads = LibraryThreads(threading, threads);
  const OpenMpThreads openmp(library_threads);
  if (absl::Status status = SetThreads(library, library_threads); !status.ok()) return status;
  CblasGemm* const gemm = GemmFor(library, series);
  return ForEachGroup(series, threading, threads, [&](size_t group, int) {
    const Product p = ProductOf(series, group);
    gemm(kRowMajor, p.a_transposed ? kTrans : kNoTrans, p.b_transposed ? kTrans : kNoTrans, static_cast<int>(p.m),
         static_cast<int>(p.n), static_cast<int>(p.k), 1, p.a, static_cast<int>(p.lda), p.b, static_cast<int>(p.ldb), 0,
         p.c, static_cast<int>(p.ldc));
    return absl::OkStatus();
  });
}

// The arguments of a CblasGemmBatch. Groups with the same number of rows form one batch.
struct Batches {
  std::vector<int> trans_a, trans_b, m, n, k, lda, ldb, ldc, sizes;
  std::vector<float> alpha, beta;
  std::vector<const void*> a, b;
  std::vector<void*> c;
};

Batches BatchesOf(const GemmSeries& series) {
  Batches batches;
  int64_t rows = 0;
  for (size_t group : LargestFirst(series)) {
    const Product p = ProductOf(series, group);
    batches.a.push_back(p.a);
    batches.b.push_back(p.b);
    batches.c.push_back(p.c);
    if (std::exchange(rows, series.rows[group]) == series.rows[group]) {
      ++batches.sizes.back();
      continue;
    }
    batches.sizes.push_back(1);
    batches.trans_a.push_back(p.a_transposed ? kTrans : kNoTrans);
    batches.trans_b.push_back(p.b_transposed ? kTrans : kNoTrans);
    const std::pair<std::vector<int>*, int64_t> sizes[] = {{&batches.m, p.m},     {&batches.n, p.n},
                                                           {&batches.k, p.k},     {&batches.lda, p.lda},
                                                           {&batches.ldb, p.ldb}, {&batches.ldc, p.ldc}};
    for (const auto& [array, size] : sizes) array->push_back(static_cast<int>(size));
  }
  batches.alpha.assign(batches.sizes.size(), 1);
  batches.beta.assign(batches.sizes.size(), 0);
  return batches;
}

absl::Status RunBatch(const CblasLibrary& library, const GemmSeries& series, PeerThreads threading, int threads) {
  if (threading != PeerThreads::kOwn) return absl::UnimplementedError("one call has no outer threads");
  const OpenMpThreads openmp(threads);
  if (absl::Status status = SetThreads(library, threads); !status.ok()) return status;
  const Batches x = BatchesOf(series);
  library.f32_batch(kRowMajor, x.trans_a.data(), x.trans_b.data(), x.m.data(), x.n.data(), x.k.data(), x.alpha.data(),
                    x.a.data(), x.lda.data(), x.b.data(), x.ldb.data(), x.beta.data(), x.c.data(), x.ldc.data(),
                    static_cast<int>(x.sizes.size()), x.sizes.data());
  return absl::OkStatus();
}

}  // namespace

Peer GemmLoop(const char* name, const CblasLibrary& library) {
  return {.name = name,
          .supports = [library](const GemmSeries& series) { return GemmFor(library, series) != nullptr; },
          .run = [library](const GemmSeries& series, PeerThreads threading,
                           int threads) { return RunLoop(library, series, threading, threads); },
          .describe = library.describe};
}

Peer GemmBatch(const char* name, const CblasLibrary& library) {
  return {.name = name,
          .one_call = true,
          .supports =
              [library](const GemmSeries& series) {
                return series.lhs_dtype == DType::kF32 && GemmFor(library, series) != nullptr;
              },
          .run = [library](const GemmSeries& series, PeerThreads threading,
                           int threads) { return RunBatch(library, series, threading, threads); },
          .describe = library.describe};
}

}  // namespace raggemm::bench
