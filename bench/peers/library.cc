#include "bench/peers/library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace raggemm::bench {

// Uses RTLD_LOCAL, because several libraries define cblas_sgemm. RTLD_NOW keeps the lookup of symbols out of
// measurements.
absl::StatusOr<Library> Library::Load(const std::string& path) {
  if (path.empty()) return absl::NotFoundError("not there when the build was configured");
  if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return Library(path, handle);
  return absl::NotFoundError(dlerror());
}

void* Library::Address(const std::string& symbol) {
  void* address = dlsym(handle_, symbol.c_str());
  if (address == nullptr) status_.Update(absl::NotFoundError(absl::StrCat(path_, " lacks ", symbol)));
  return address;
}

}  // namespace raggemm::bench
