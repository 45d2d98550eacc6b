#include "absl/strings/str_cat.h"
#include "bench/peers/libraries.h"

namespace raggemm::bench {

template <>
absl::StatusOr<std::vector<Peer>> LoadOneDnn<RAGGEMM_ONEDNN_VERSION>() {
  return absl::NotFoundError(
      absl::StrCat("headers of oneDNN ", RAGGEMM_ONEDNN_VERSION, " not there when the build was configured"));
}

}  // namespace raggemm::bench
