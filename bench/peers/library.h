#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace raggemm::bench {

class Library {
 public:
  // Loads a library for the life of the process, because its threads may live as long. Returns NotFoundError if the
  // library cannot be loaded or the path is empty.
  static absl::StatusOr<Library> Load(const std::string& path);

  // Sets `function` to the address of the symbol, or to null if the symbol is missing. status() is then an error.
  template <typename Function>
  void Find(const std::string& symbol, Function*& function) {
    function = reinterpret_cast<Function*>(Address(symbol));
  }

  const std::string& path() const { return path_; }
  // Returns NotFoundError with the first symbol that Find did not find, or OK if all were found.
  const absl::Status& status() const { return status_; }

 private:
  Library(const std::string& path, void* handle) : path_(path), handle_(handle) {}
  void* Address(const std::string& symbol);

  std::string path_;
  void* handle_;
  absl::Status status_;
};

}  // namespace raggemm::bench
