// MKL as two peers: one calls MKL for each product, in f32, bf16 or f16, the other once for all products, in f32.
//
// MKL uses GNU's OpenMP, like everything else here. Intel's OpenMP would be a second team of threads, which spins for
// 200 ms after each call. cblas_hgemm, f16 to f16, is left out, because it sums in f16. With K = 256, its error is 17
// times the bound for f32 sums (Emerald Rapids).
#include <link.h>

#include <cstddef>
#include <cstdlib>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "bench/peers/cblas.h"
#include "bench/peers/libraries.h"
#include "bench/peers/library.h"
#include "kernels/target/isa.h"
#include "raggemm/plan.h"

namespace raggemm::bench {
namespace {

constexpr int kLp64 = 0;          // MKL_INTERFACE_LP64
constexpr int kGnuThreading = 3;  // MKL_THREADING_GNU

// Keeps MKL from using VDPBF16PS on Intel's CPUs without AMX. There, VDPBF16PS has half the rate of fma. Without it,
// MKL widens bf16, and reaches 0.86 instead of 0.48 of the fma peak in a dense product. GFLOP/s on Emerald Rapids,
// 2048x768, 2 outer threads:
//
//     rows                      1     4    16    64   512   16, gradient of weights
//     MKL without VDPBF16PS     3    33   109   229   287   213
//     MKL with VDPBF16PS       19    46   100   147   167   155
//     oneDNN with VDPBF16PS    14    45   101
//
// MKL reads MKL_ENABLE_INSTRUCTIONS only in its first call.
void AvoidSlowDotInstruction() {
  const bool slow = __builtin_cpu_is("intel") && !__builtin_cpu_supports("amx-bf16");
  if (slow && HostCpu().Has("avx512")) setenv("MKL_ENABLE_INSTRUCTIONS", "AVX512_E1", 0);
}

// Returns the name of the kernel library that MKL has chosen and loaded.
std::string LoadedKernels() {
  std::string kernels = "unknown";
  const auto visit = [](dl_phdr_info* info, size_t, void* found) {
    const absl::string_view path = info->dlpi_name;
    const absl::string_view name = path.substr(path.rfind('/') + 1);
    for (const char* prefix : {"libmkl_avx", "libmkl_mc", "libmkl_def"}) {
      if (absl::StartsWith(name, prefix)) *static_cast<std::string*>(found) = std::string(name);
    }
    return 0;
  };
  dl_iterate_phdr(visit, &kernels);
  return kernels;
}

}  // namespace

absl::StatusOr<std::vector<Peer>> LoadMkl() {
  AvoidSlowDotInstruction();
  absl::StatusOr<Library> library = Library::Load(RAGGEMM_PEER_MKL);
  if (!library.ok()) return library.status();
  int (*set_interface_layer)(int), (*set_threading_layer)(int);
  void (*set_num_threads)(int);
  int (*get_max_threads)();
  void (*get_version_string)(char*, int);
  CblasLibrary cblas;
  library->Find("MKL_Set_Interface_Layer", set_interface_layer);
  library->Find("MKL_Set_Threading_Layer", set_threading_layer);
  library->Find("MKL_Set_Num_Threads", set_num_threads);
  library->Find("MKL_Get_Max_Threads", get_max_threads);
  library->Find("MKL_Get_Version_String", get_version_string);
  library->Find("cblas_sgemm", cblas.f32);
  library->Find("cblas_gemm_bf16bf16f32", cblas.bf16);
  library->Find("cblas_gemm_f16f16f32", cblas.f16);
  library->Find("cblas_sgemm_batch", cblas.f32_batch);
  if (!library->status().ok()) return library->status();
  if (set_interface_layer(kLp64) != kLp64 || set_threading_layer(kGnuThreading) != kGnuThreading) {
    return absl::NotFoundError(absl::StrCat(library->path(), " refuses 32-bit sizes or GNU's OpenMP"));
  }
  // Computes a product of 1x1 matrices, because MKL loads its layers and kernels in the first product.
  const float one = 1;
  float out = 0;
  cblas.f32(kRowMajor, kNoTrans, kNoTrans, 1, 1, 1, 1, &one, 1, &one, 1, 0, &out, 1);
  cblas.set_threads = set_num_threads;
  cblas.threads = get_max_threads;
  cblas.describe = [get_version_string, file = library->path()] {
    std::string version(256, '\0');
    get_version_string(version.data(), static_cast<int>(version.size()));
    const char* const limit = std::getenv("MKL_ENABLE_INSTRUCTIONS");
    return absl::StrCat("core ", LoadedKernels(), limit == nullptr ? "" : ", instructions ",
                        limit == nullptr ? "" : limit, "; ", absl::StripTrailingAsciiWhitespace(version.c_str()),
                        ", OpenMP of GNU; ", file);
  };
  return std::vector<Peer>{GemmLoop("mkl", cblas), GemmBatch("mkl-batch", cblas)};
}

}  // namespace raggemm::bench
