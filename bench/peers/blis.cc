// BLIS, Debian's OpenMP build: the pthread build starts and joins threads in every call. It has f32 only.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "bench/peers/cblas.h"
#include "bench/peers/libraries.h"
#include "bench/peers/library.h"
#include "kernels/isa.h"
#include "raggemm/plan.h"

namespace raggemm::bench {
namespace {

// BLIS knows the CPUs with two AVX-512 units by words in their names; on others it takes the kernels for AVX2. The
// variable is the number of a core type, which bli_arch_string translates. A choice from outside stands.
void ForceCoreType(const char* (*arch_string)(int)) {
  if (HostCpu().widest != Isa::kAvx512) return;
  for (int type = 0; absl::string_view(arch_string(type)) != "generic"; ++type) {
    if (absl::string_view(arch_string(type)) == "skx") setenv("BLIS_ARCH_TYPE", std::to_string(type).c_str(), 0);
  }
}

}  // namespace

absl::StatusOr<std::vector<Peer>> LoadBlis() {
  absl::StatusOr<Library> library = Library::Load(RAGGEMM_PEER_BLIS);
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
  ForceCoreType(arch_string);
  init();
  cblas.set_threads = set_num_threads;
  cblas.threads = [get_num_threads] { return static_cast<int>(get_num_threads()); };
  cblas.describe = [=, file = library->path()] {
    return absl::StrCat("core ", arch_string(arch_query_id()), "; BLIS ", get_version(), "; ", file);
  };
  return std::vector<Peer>{GemmLoop("blis", cblas)};
}

}  // namespace raggemm::bench
