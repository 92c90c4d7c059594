# SPDX-License-Identifier: Apache-2.0
#
# The test of the CUDA ops but the matrix products. From the repository root:
#   make -f kernels/cuda/test_ops.mk gpu     build/cuda-test/cuda_ops_test, to be run on a machine with a GPU
#   make -f kernels/cuda/test_ops.mk host    build/cuda-test/cuda_ops_host, the same kernels as fibers on this machine
# COMMON=build/common links objects of a CPU build that are there and up to date (`make common`), instead of compiling them again.

NVCC   ?= nvcc
GENCODE ?= -gencode arch=compute_90a,code=sm_90a
B      := build/cuda-test
OPS    := norm gated_norm streams residual residual_rows ngram conv gdn gdn_step mamba append_step attention index moe control draw exchange
OPS    := $(filter $(OPS),$(basename $(notdir $(wildcard kernels/cuda/*.cu))))
CPU    := norm streams ngram recurrent mamba attention index moe control
HEADS  := $(wildcard kernels/cuda/*.cuh kernels/cpu/*.h tests/cuda_ops_*.cuh tests/cuda_fake/*.h)
CPU_O  := $(if $(COMMON),$(CPU:%=$(COMMON)/portable/kernels/cpu/%.o) $(COMMON)/kernels/cpu/layout_row.o,$(CPU:%=$(B)/cpu/%.o) $(B)/cpu/layout_row.o)
NFLAGS := -std=c++17 -O3 -I. -Ibuild/common -fmad=false $(GENCODE) -Xcompiler -Wall,-Wextra,-fno-strict-aliasing $(if $(findstring 90a,$(GENCODE)),-DWITH_WGMMA -DONLY_WGMMA)
HFLAGS := -std=gnu++17 -O1 -g -fno-strict-aliasing -I. -Ibuild/common -Itests/cuda_fake -DCUDA_EMULATION -Wno-unknown-pragmas -ffp-contract=off

gpu: $(B)/cuda_ops_test
host: $(B)/cuda_ops_host
.PHONY: gpu host
.SECONDARY:

$(B)/cpu/%.o: kernels/cpu/%.c $(HEADS)
	@mkdir -p $(@D)
	gcc -std=gnu11 -O2 -ffp-contract=off -fno-strict-aliasing -I. -Ibuild/common -DISA_NAME=portable -c $< -o $@

$(B)/gpu/%.o: kernels/cuda/%.cu $(HEADS)
	@mkdir -p $(@D)
	$(NVCC) $(NFLAGS) -Werror all-warnings -c $< -o $@
$(B)/gpu/%.o: tests/%.cu $(HEADS)
	@mkdir -p $(@D)
	$(NVCC) $(NFLAGS) -c $< -o $@
$(B)/cuda_ops_test: $(OPS:%=$(B)/gpu/%.o) $(B)/gpu/cuda_ops_test.o $(CPU_O)
	$(NVCC) $(GENCODE) -cudart static -o $@ $^ -lm

# On the host: dynamic shared memory is a pointer.
SHARED := s/extern __shared__ \(__align__([0-9]*) \)\?\([a-z0-9_]*\) \([a-z]*\)\[\];/\2 *\3 = (\2 *)fake_shared();/
$(B)/host/%.cc: kernels/cuda/%.cu $(HEADS)
	@mkdir -p $(@D)
	@sed '$(SHARED)' $< >$@
$(B)/host/%.o: $(B)/host/%.cc
	g++ $(HFLAGS) -c $< -o $@
$(B)/host/cuda_ops_test.o: tests/cuda_ops_test.cu $(HEADS)
	@mkdir -p $(@D)
	g++ $(HFLAGS) -DCUDA_FAKE_MAIN -x c++ -c $< -o $@
$(B)/cuda_ops_host: $(OPS:%=$(B)/host/%.o) $(B)/host/cuda_ops_test.o $(CPU_O)
	g++ -o $@ $^ -lm
