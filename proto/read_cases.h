#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/case.pb.h"

namespace raggemm {

// Reads a file of cases (case.proto). NotFound if it cannot be read. InvalidArgument, with path, line and column of the
// first error, if its text is wrong.
absl::StatusOr<proto::GroupedGemmCases> ReadCases(const std::string& path);

}  // namespace raggemm
