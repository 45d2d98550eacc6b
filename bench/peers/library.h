// A shared library that CMake found, loaded when it is first needed.
#ifndef RAGGEMM_BENCH_PEERS_LIBRARY_H_
#define RAGGEMM_BENCH_PEERS_LIBRARY_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace raggemm::bench {

class Library {
 public:
  // Loads a library and never unloads it, because its threads may live as long as the process. Returns NotFoundError
  // with the reason if the library cannot be loaded or the path is empty.
  static absl::StatusOr<Library> Load(const std::string& path);

  // Finds a symbol. If it is missing, sets `function` to null and status() to an error.
  template <typename Function>
  void Find(const std::string& symbol, Function*& function) {
    function = reinterpret_cast<Function*>(Address(symbol));
  }

  const std::string& path() const { return path_; }
  // Returns NotFoundError with the first missing symbol, or OK if Find found all symbols so far.
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
