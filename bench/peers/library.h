// A shared library that was found when the build was configured, loaded when it is first needed.
#ifndef RAGGEMM_BENCH_PEERS_LIBRARY_H_
#define RAGGEMM_BENCH_PEERS_LIBRARY_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace raggemm::bench {

class Library {
 public:
  // Stays loaded to the end of the process, for its threads may. NotFoundError with the reason, also for an empty path.
  static absl::StatusOr<Library> Load(const std::string& path);

  // A missing symbol leaves `function` null and shows in status().
  template <typename Function>
  void Find(const std::string& symbol, Function*& function) {
    function = reinterpret_cast<Function*>(Address(symbol));
  }

  const std::string& path() const { return path_; }
  // NotFoundError that names the first symbol that was missing.
  const absl::Status& status() const { return status_; }

 private:
  Library(const std::string& path, void* handle) : path_(path), handle_(handle) {}
  void* Address(const std::string& symbol);

  std::string path_;
  void* handle_;
  absl::Status status_;
};

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_PEERS_LIBRARY_H_
