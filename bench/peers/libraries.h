#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "bench/peers/peer.h"

namespace raggemm::bench {

template <int version>
absl::StatusOr<std::vector<Peer>> LoadOneDnn();
template <>
absl::StatusOr<std::vector<Peer>> LoadOneDnn<2>();  // Peers: onednn, onednn-sgemm
template <>
absl::StatusOr<std::vector<Peer>> LoadOneDnn<3>();      // Peers: onednn3, onednn3-sgemm, onednn3-quantized
absl::StatusOr<std::vector<Peer>> LoadOpenBlas();       // Peer: openblas
absl::StatusOr<std::vector<Peer>> LoadOpenBlasWheel();  // Peers: openblas-wheel, openblas-wheel-batch
absl::StatusOr<std::vector<Peer>> LoadBlis();           // Peer: blis
absl::StatusOr<std::vector<Peer>> LoadBlisAvx2();       // Peer: blis-avx2
absl::StatusOr<std::vector<Peer>> LoadMkl();            // Peers: mkl, mkl-batch

}  // namespace raggemm::bench
