# The instruction sets of aarch64: files of kernels/isa and their compiler flags.
raggemm_add_isa(neon)
raggemm_add_isa(neon_bf16 -march=armv8.2-a+bf16)
raggemm_add_isa(neon_dotprod -march=armv8.2-a+dotprod)
raggemm_add_isa(neon_i8mm -march=armv8.2-a+i8mm)
raggemm_add_isa(scalar)
target_sources(raggemm PRIVATE target/portable.cc)
