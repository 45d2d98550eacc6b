// OpenBLAS, twice: Debian's, and the newer one in SciPy's wheels.
//
// Debian's is the OpenMP build, which shares its threads with raggemm and other peers. SciPy's is a pthread build,
// whose own threads spin beside those of OpenMP.
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "bench/peers/cblas.h"
#include "bench/peers/libraries.h"
#include "bench/peers/library.h"
#include "kernels/target/isa.h"
#include "raggemm/plan.h"

namespace raggemm::bench {
namespace {

// Returns the core type that selects OpenBLAS's kernels for this CPU, or null to let OpenBLAS choose. OpenBLAS itself
// uses SSE kernels if the CPU is newer than the library. Core types newer than SkylakeX have the same f32 kernels as
// SkylakeX, and were equally fast with 1 to 2048 rows on Emerald Rapids.
const char* CoreType() {
  if (HostCpu().Has("avx512")) return "SkylakeX";
  if (HostCpu().Has("avx2")) return __builtin_cpu_is("amd") ? "Zen" : "Haswell";
  return nullptr;
}

// Sets the environment variables that OpenBLAS reads, unless they are already set.
void SetEnvironment() {
  if (const char* core_type = CoreType()) setenv("OPENBLAS_CORETYPE", core_type, 0);
  // Idle threads of the pthread build spin for 2^21 clock ticks, about 1 ms, so that they stay awake from product to
  // product. The default of 117 ms would disturb the next measurement, and calls would be no faster (4 to 512 rows, K =
  // 2048).
  setenv("OPENBLAS_THREAD_TIMEOUT", "21", 0);
}

absl::StatusOr<std::vector<Peer>> Load(const char* path, const std::string& prefix, const char* name,
                                       const char* batch_name) {
  SetEnvironment();
  absl::StatusOr<Library> library = Library::Load(path);
  if (!library.ok()) return library.status();
  void (*set_num_threads)(int);
  int (*get_num_threads)();
  char* (*get_config)(), *(*get_corename)();
  CblasLibrary cblas;
  library->Find(prefix + "openblas_set_num_threads", set_num_threads);
  library->Find(prefix + "openblas_get_num_threads", get_num_threads);
  library->Find(prefix + "openblas_get_config", get_config);
  library->Find(prefix + "openblas_get_corename", get_corename);
  library->Find(prefix + "cblas_sgemm", cblas.f32);
  if (batch_name != nullptr) library->Find(prefix + "cblas_sgemm_batch", cblas.f32_batch);
  if (!library->status().ok()) return library->status();
  cblas.set_threads = set_num_threads;
  cblas.threads = get_num_threads;
  cblas.describe = [get_config, get_corename, file = library->path()] {
    return absl::StrCat("core ", get_corename(), "; ", get_config(), "; ", file);
  };
  std::vector<Peer> peers = {GemmLoop(name, cblas)};
  if (batch_name != nullptr) peers.push_back(GemmBatch(batch_name, cblas));
  return peers;
}

}  // namespace

absl::StatusOr<std::vector<Peer>> LoadOpenBlas() { return Load(RAGGEMM_PEER_OPENBLAS, "", "openblas", nullptr); }

absl::StatusOr<std::vector<Peer>> LoadOpenBlasWheel() {
  return Load(RAGGEMM_PEER_OPENBLAS_WHEEL, "scipy_", "openblas-wheel", "openblas-wheel-batch");
}

}  // namespace raggemm::bench
