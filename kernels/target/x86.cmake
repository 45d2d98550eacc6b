set(avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c)
raggemm_add_isa(amx ${avx512} -mavx512vbmi)
raggemm_add_isa(avx512_bf16 ${avx512} -mavx512vbmi -mavx512bf16)
raggemm_add_isa(avx512_vnni ${avx512} -mavx512vnni)
raggemm_add_isa(avx512 ${avx512})
raggemm_add_isa(avx_vnni -mavx2 -mfma -mf16c)
raggemm_add_isa(avx2 -mavx2 -mfma -mf16c)
# RAGGEMM_CPU_FLUSHES: kernels rely on FloatMode, which makes the CPU flush denormals. An fma then takes 8 instructions,
# instead of 64. -O2: with -O3 the file takes 26 s instead of 9 s to compile (Zen 5), and is twice as large.
raggemm_add_isa(scalar -DRAGGEMM_CPU_FLUSHES -O2)
