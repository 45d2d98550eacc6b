// The interface of a peer, a library with which the benchmark compares raggemm.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "raggemm/types.h"

namespace raggemm::bench {

enum class Mode : uint8_t { kForward, kForwardTransposed, kWgrad };

// A series of matrix products, one for each group with rows, in order. Matrices are row-major and contiguous. m is the
// number of rows of a group:
//
//   kForward             out [m,n] = lhs [m,k] x rhs [k,n]
//   kForwardTransposed   out [m,n] = lhs [m,k] x rhs [n,k]^T
//   kWgrad               out [k,n] = lhs [m,k]^T x rhs [m,n]
struct GemmSeries {
  Mode mode = Mode::kForward;
  DType lhs_dtype = DType::kF32, rhs_dtype = DType::kF32, out_dtype = DType::kF32;
  int64_t k = 0, n = 0;
  absl::Span<const int64_t> rows;  // Rows m of each group, at least 1.
  absl::Span<const void*const> lhs, rhs;
  absl::Span<void* const> out;
  // Scales of each group: f32 [m] for rows of lhs, and [k / block, n] for rhs. Empty if the operand has no scales.
  absl::Span<const void*const> lhs_scale = {}, rhs_scale = {};
  DType rhs_scale_dtype = DType::kF32;
  int64_t block = 0;
};

// The threads on which a peer computes groups. kOwn: the library's own threads compute one group after the other.
// kOuter: several threads of ours take groups, the largest first, and each of them runs the library on one thread.
enum class PeerThreads : uint8_t { kOwn, kOuter };

struct Peer {
  const char* name;
  // True if one call computes the whole series on the library's threads.
  bool one_call = false;
  bool quantized = false;
  // Returns true if the library has optimized code for the types and the mode of the series. Reference code does not
  // count. The shape matters only for quantized operands.
  std::function<bool(const GemmSeries& series)> supports;
  // Computes a series. The first call for a shape may prepare kernels and keep them. Calls may have different `threads`
  // and `threading`. Restores OpenMP's number of threads. Callers must run only one peer at a time. Returns
  // UnimplementedError for kOuter if `one_call` is set, and InternalError if the library fails or has fewer threads
  // than asked for.
  std::function<absl::Status(const GemmSeries& series, PeerThreads threading, int threads)> run;
  // Returns version, core type and path in one line.
  std::function<std::string()> describe;
};

struct AbsentPeer {
  const char* name;
  std::string reason;
};

// Return the peers on this machine, and the missing ones. The first call of either function loads the libraries, and
// sets the environment variables that choose their kernels. No other thread may run during this call.
const std::vector<Peer>& LoadPeers();
const std::vector<AbsentPeer>& AbsentPeers();

}  // namespace raggemm::bench
