// BLIS in Debian's OpenMP build, for f32 only. The pthread build starts and joins threads in every call.
//
// On a CPU with AVX-512 there are two peers, from two copies of the library, because each copy chooses a core type only
// once. The kernels for AVX2 need not pack, and are faster with up to 64 rows. GFLOP/s for 2048x768 on Emerald Rapids,
// 2 outer threads:
//
//     rows        4    64   512
//     AVX-512    11   132   243
//     AVX2       38   135   161
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "bench/peers/cblas.h"
#include "bench/peers/libraries.h"
#include "bench/peers/library.h"
#include "kernels/target/isa.h"
#include "raggemm/plan.h"

namespace raggemm::bench {
namespace {

// Initializes BLIS for this CPU. By itself, BLIS uses AVX-512 only on CPUs whose names tell of two AVX-512 units. So on
// any CPU with AVX-512, BLIS_ARCH_TYPE is the number of `core_type` during `init`, unless the environment already sets
// it. `arch_string` returns the core type for a number.
void Initialize(void (*init)(), const char* (*arch_string)(int), absl::string_view core_type) {
  constexpr char kVariable[] = "BLIS_ARCH_TYPE";
  const bool force = std::getenv(kVariable) == nullptr && HostCpu().Has("avx512");
  for (int type = 0; force && absl::string_view(arch_string(type)) != "generic"; ++type) {
    if (arch_string(type) == core_type) setenv(kVariable, std::to_string(type).c_str(), 1);
  }
  init();
  if (force) unsetenv(kVariable);
}

absl::StatusOr<std::vector<Peer>> Load(const char* path, absl::string_view core_type, const char* name) {
  absl::StatusOr<Library> library = Library::Load(path);
  if (!library.ok()) return library.status();
  void (*init)();
  void (*set_num_threads)(int64_t);
  int64_t (*get_num_threads)();
  const char* (*arch_string)(int);
  int (*arch_query_id)();
  const char* (*get_version)();
  CblasLibrary cblas;
  library->Find("bli_init", init);
  library->Find("bli_thread_set_num_threads", set_num_threads);
  library->Find("bli_thread_get_num_threads", get_num_threads);
  library->Find("bli_arch_string", arch_string);
  library->Find("bli_arch_query_id", arch_query_id);
  library->Find("bli_info_get_version_str", get_version);
  library->Find("cblas_sgemm", cblas.f32);
  if (!library->status().ok()) return library->status();
  Initialize(init, arch_string, core_type);
  cblas.set_threads = set_num_threads;
  cblas.threads = [get_num_threads] { return static_cast<int>(get_num_threads()); };
  cblas.describe = [=, file = library->path()] {
    return absl::StrCat("core ", arch_string(arch_query_id()), "; BLIS ", get_version(), "; ", file);
  };
  return std::vector<Peer>{GemmLoop(name, cblas)};
}

}  // namespace

absl::StatusOr<std::vector<Peer>> LoadBlis() { return Load(RAGGEMM_PEER_BLIS, "skx", "blis"); }

absl::StatusOr<std::vector<Peer>> LoadBlisAvx2() {
  if (!HostCpu().Has("avx512")) return absl::NotFoundError("the same as blis without AVX-512");
  return Load(RAGGEMM_PEER_BLIS_AVX2, "haswell", "blis-avx2");
}

}  // namespace raggemm::bench
