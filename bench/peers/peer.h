// What a competitor gets and gives. A peer is one small file, peers/<library>.cc, behind the struct Peer. Its library is
// loaded with dlopen from the paths that were found when the build was configured; none is required.
#ifndef RAGGEMM_BENCH_PEERS_PEER_H_
#define RAGGEMM_BENCH_PEERS_PEER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "raggemm/types.h"

namespace raggemm::bench {

enum class Mode : uint8_t { kForward, kForwardTransposed, kWgrad };

// One product per active group, in order of the groups; every matrix row-major and contiguous. With m = rows of a group:
//
//   kForward             out [m,n] = lhs [m,k] x rhs [k,n]
//   kForwardTransposed   out [m,n] = lhs [m,k] x rhs [n,k]^T
//   kWgrad               out [k,n] = lhs [m,k]^T x rhs [m,n]
struct GemmSeries {
  Mode mode = Mode::kForward;
  DType lhs_dtype = DType::kF32, rhs_dtype = DType::kF32, out_dtype = DType::kF32;
  int64_t k = 0, n = 0;
  absl::Span<const int64_t> rows;  // m of each group, > 0
  absl::Span<const void*const> lhs, rhs;
  absl::Span<void* const> out;
};

// kOwn: group after group, the library's own threads on each. kOuter: threads over the groups, largest first, the library
// on one thread in each. With one thread the two are the same.
enum class PeerThreads : uint8_t { kOwn, kOuter };

struct Peer {
  const char* name;
  // By types and mode alone, the same for any shape. False where the library would fall back to a reference
  // implementation.
  bool (*supports)(const GemmSeries& series);
  // Called with alternating thread counts and ways; what must be prepared for a shape (kernels, descriptors) is kept
  // from the first call on, so that a second call with the same rows does nothing but multiply.
  absl::Status (*run)(const GemmSeries& series, PeerThreads way, int threads);
  // Version, core type in use, path; one line.
  std::string (*describe)();
};

// Those found on this machine, in a fixed order.
std::vector<Peer> LoadPeers();

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_PEERS_PEER_H_
