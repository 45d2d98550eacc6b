#ifndef RAGGEMM_PROTO_READ_CASES_H_
#define RAGGEMM_PROTO_READ_CASES_H_

#include <string>

#include "absl/status/statusor.h"
#include "proto/case.pb.h"

namespace raggemm {

// Reads a text file of GroupedGemmCases. NotFound: no file that can be read. InvalidArgument: path, line and column of
// the first error.
absl::StatusOr<proto::GroupedGemmCases> ReadCases(const std::string& path);

}  // namespace raggemm

#endif  // RAGGEMM_PROTO_READ_CASES_H_
