# SPDX-License-Identifier: Apache-2.0
#
# Tests on a GPU; tests.mk includes this file.
#   make test-gpu           builds them and runs them here (tests/gpu/run)
#   make test-gpu-bundle    builds them without a GPU, into build/test-gpu.tar.xz: unpacked over the same sources on a machine
#                           that has a GPU and none of the packages, tests/gpu/run --bundle build/test-gpu.tar.xz runs them
#   make test-gpu-build     builds them

GPU_FOLDERS := $(patsubst %/bf16.json,%,$(wildcard tests/fixtures/reference/*/bf16.json))
# Compiling kernels for one shape takes long: the embedded model has them, and a toy of several encodings (tests/contracts.t).
GPU_MAKE     = $(MAKE) --no-print-directory -s TARGET=cuda B=build/cuda FIXED=
GPU_BUNDLE  := build/test-gpu.tar.xz

test-gpu: test-gpu-build
	@tests/gpu/run
test-gpu-build: deps-test
	@$(GPU_MAKE) -j$$(nproc) NAME=common common gpu-programs
	@for f in $(GPU_FOLDERS); do $(GPU_MAKE) MODEL= CHECKPOINT=$$f NAME=reference-$${f##*/} || exit 1; done
	@PIANOLA_CONTRACTS=build TARGET=cuda $(LUA) tests/contracts.t
	@$(GPU_MAKE) -j$$(nproc) MODEL= CHECKPOINT=models/embedded NAME=embedded FIXED="1 8" contracts
	@$(MAKE) --no-print-directory -s MODEL= CHECKPOINT=models/embedded NAME=embedded contracts
	@build/embedded/contracts replies build/tests/replies
test-gpu-bundle: test-gpu-build
	@tests/gpu/bundle $(GPU_BUNDLE)
.PHONY: test-gpu test-gpu-build test-gpu-bundle gpu-programs

ifeq ($(TARGET),cuda)
# Kernels against the CPU target's, with the objects that every binary is linked with.
GPU_OPS := norm streams ngram recurrent mamba attention index moe control
$(T)/matrix: $(B)/common/tests/cuda_matrix_test.o $(B)/common/tests/cuda_matrix_sample.o $(T)/cuda_engine.a
	@$(CC) -o $@ $^ $(LIBS)
$(T)/cuda_ops_test: $(B)/common/tests/cuda_ops_test.o $(GPU_OPS:%=$(B)/common/portable/kernels/cpu/%.o) $(T)/cuda_engine.a
	@$(CC) -o $@ $^ $(LIBS)
$(T)/planted: $(B)/common/tests/gpu/planted.o
	@mkdir -p $(@D)
	@$(CC) -o $@ $^ $(LIBS)
-include $(B)/common/tests/cuda_matrix_test.d $(B)/common/tests/cuda_ops_test.d
gpu-programs: $(T)/matrix $(T)/cuda_ops_test $(T)/store_test $(T)/planted
endif
