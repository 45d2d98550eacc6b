// What a competitor gets and gives. A peer is one small file, peers/<library>.cc, behind the struct Peer. Its library
// is loaded with dlopen from the paths that were found when the build was configured; none is required.
#ifndef RAGGEMM_BENCH_PEERS_PEER_H_
#define RAGGEMM_BENCH_PEERS_PEER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "raggemm/types.h"

namespace raggemm::bench {

enum class Mode : uint8_t { kForward, kForwardTransposed, kWgrad };

// One product per active group, in order of the groups; every matrix row-major and contiguous. With m = rows of a
// group:
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
  // Scales of quantized operands: f32 [m] for the rows of lhs, [k / block, n] for rhs. Empty: there are none.
  absl::Span<const void*const> lhs_scale = {}, rhs_scale = {};
  DType rhs_scale_dtype = DType::kF32;
  int64_t block = 0;
};

// kOwn: group after group, the library's own threads on each. kOuter: threads over the groups, largest first, the
// library on one thread in each. With one thread the two are the same.
enum class PeerThreads : uint8_t { kOwn, kOuter };

struct Peer {
  const char* name;
  // The whole series is one call of the library, which shares it out among its own threads: there is no way kOuter.
  bool one_call = false;
  // Gets quantized operands, and nothing else.
  bool quantized = false;
  // By types and mode alone, the same for any shape unless operands are quantized. False where the library would fall
  // back to a reference implementation.
  std::function<bool(const GemmSeries& series)> supports;
  // Called with alternating thread counts and ways; what must be prepared for a shape (kernels, descriptors) is kept
  // from the first call on, so that a second call with the same rows does nothing but multiply. OpenMP's number of
  // threads is as before afterwards. One run at a time, of all peers together. UnimplementedError for one_call and
  // kOuter; InternalError where the library fails or fewer threads than asked for come to work.
  std::function<absl::Status(const GemmSeries& series, PeerThreads way, int threads)> run;
  // Version, core type in use, path; one line.
  std::function<std::string()> describe;
};

struct AbsentPeer {
  const char* name;
  std::string reason;
};

// List those found on this machine, in a fixed order, and those that were not. The first call loads the libraries and
// sets the environment variables by which they choose their kernels; no other thread may run meanwhile.
const std::vector<Peer>& LoadPeers();
const std::vector<AbsentPeer>& AbsentPeers();

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_PEERS_PEER_H_
