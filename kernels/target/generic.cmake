# What any CPU can run.
raggemm_add_isa(scalar)
