// A base class for tests that run once for each instruction set of the host.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm::test {

inline std::string IsaName(Isa isa) { return std::string(NameOf(isa)); }
// Returns the ISA with this name. Aborts if this architecture lacks the ISA.
Isa Named(absl::string_view isa);
// Returns a CPU with this ISA and all ISAs after it in AllIsas. Kernels are not measured, so plans do not depend on the
// load of the host.
Cpu CpuUpTo(Isa isa);
// Returns true if the CPU has the ISA with this name. host_x86.cc, host_aarch64.cc and host_generic.cc define this
// function without the library.
bool CpuHas(absl::string_view isa);
bool CpuLacksTilesOfBytes();
// Returns true if the CPU has the ISA, or if this program is linked with software_units.cc, which replaces ISAs by
// plain C++.
bool HostHas(Isa isa);
// Returns the result of CpuLacksTilesOfBytes, or false in programs with software_units.cc.
bool HostLacksTilesOfBytes();
// True in programs with software_units.cc.
extern const bool kUnitsAreSoftware;
std::vector<Isa> HostIsas();

class IsaTest : public testing::TestWithParam<Isa> {
 protected:
  static Options With(Isa isa) { return {.executor = Executor::kSerial, .isa = isa}; }
};

// Runs each test of `fixture`, derived from IsaTest, once for each ISA of HostIsas.
#define RAGGEMM_FOR_EACH_ISA(fixture)                                   \
  INSTANTIATE_TEST_SUITE_P(Isa, fixture, testing::ValuesIn(HostIsas()), \
                           [](const testing::TestParamInfo<Isa>& info) { return IsaName(info.param); })

}  // namespace raggemm::test
