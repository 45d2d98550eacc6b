raggemm_add_isa(scalar)
target_sources(raggemm PRIVATE target/portable.cc)
