// The implementations that compute a case: our library and the peers.
#ifndef RAGGEMM_BENCH_CONTENDERS_H_
#define RAGGEMM_BENCH_CONTENDERS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/cases.h"
#include "bench/operands.h"
#include "bench/peers/peer.h"

namespace raggemm::bench {

struct Contender {
  std::string name;
  std::string threading;  // How a peer uses its threads.
  // Makes one call on set number `set`, below `sets`. Calls on successive sets find no weights in a cache.
  std::function<absl::Status(int64_t set)> run;
  int64_t sets = 1;
  // The out of set 0. Null if `run` uses other memory, so that its result cannot be compared.
  char* result = nullptr;
};

// Returns our library, then the peers that take the types of the case. A peer appears once for each PeerThreads that it
// can use.
std::vector<Contender> MakeContenders(const Case& c, const Memory& memory, const std::vector<Peer>& peers);

// Returns peers that multiply f32, on operands that were widened before. `wide_case` is the case with f32 operands, and
// `wide` its memory with values in the precision of the narrow type.
std::vector<Contender> MakeWidened(const Case& wide_case, const Memory& wide, const std::vector<Peer>& peers);

// Returns the peer of a quantized case: our library on the same rows and matrices in bf16, in their own memory.
Contender WithBf16(const Case& c, const Memory& wide);

// Returns a peer of MakeWidened that also widens the bf16 operands in each call.
Contender WithWidening(const Contender& widened, const Case& c, const Memory& memory, const Memory& wide);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_CONTENDERS_H_
