# SPDX-License-Identifier: Apache-2.0
#
# The tests of the CUDA matrix kernels. Included by the top Makefile when it wants them, or alone: make -f kernels/cuda/test.mk TARGET
#   build/cuda-test/matrix        needs a GPU to run; "matrix bench [decode|prompt|few|experts|together|dense|long [rows..]]" times
#   build/cuda-test/matrix_host   the same tests of the same sources as coroutines on the host (tests/cuda_emulation.h)
# COMMON=build/common links objects of a CPU build that are there and up to date (`make common`), instead of compiling them again.

NVCC       ?= /usr/local/cuda/bin/nvcc
CUDA_HOME  ?= /usr/local/cuda
CUDA_ARCH  ?= 90a
CUDA_FLAGS := -std=c++17 -O3 -I. -Ibuild/common -gencode arch=compute_$(CUDA_ARCH),code=sm_$(CUDA_ARCH) \
              -Xcompiler -Wall,-Wextra,-Wno-missing-field-initializers -Werror all-warnings -cudart static $(if $(filter 90a,$(CUDA_ARCH)),-DWITH_WGMMA -DONLY_WGMMA) $(MATRIX_MORE)
MATRIX_C   := tests/cuda_matrix_sample.c kernels/cpu/layout.c kernels/cpu/layout_row.c
MATRIX_CU  := $(addprefix kernels/cuda/,arrange.cu linear.cu linear_prompt.cu linear_streams.cu linear_tall.cu linear_wide.cu wide_rows.cu experts.cu \
              experts_prompt.cu experts_wide.cu embed.cu gated_norm.cu gated_rows.cu moe.cu residual.cu residual_rows.cu streams.cu)
MATRIX_H   := $(wildcard kernels/cuda/*.cuh tests/cuda_matrix_*.h tests/cuda_emulation*.h kernels/cpu/*.h)
MATRIX_OUT := build/cuda-test
MATRIX_O   := $(patsubst %.c,$(MATRIX_OUT)/%.o,$(if $(COMMON),$(filter tests/%,$(MATRIX_C)),$(MATRIX_C))) \
              $(if $(COMMON),$(patsubst %.c,$(COMMON)/%.o,$(filter kernels/%,$(MATRIX_C))))

matrix-gpu: $(MATRIX_OUT)/matrix
matrix-host: $(MATRIX_OUT)/matrix_host

$(MATRIX_OUT)/%.o: %.c $(MATRIX_H)
	@mkdir -p $(@D)
	gcc -std=gnu11 -O2 -Wall -Wextra -Wconversion -Werror -ffp-contract=off -I. -c $< -o $@
$(MATRIX_OUT)/%.o: %.cu $(MATRIX_H)
	@mkdir -p $(@D)
	$(NVCC) $(CUDA_FLAGS) -c $< -o $@
$(patsubst %,$(MATRIX_OUT)/kernels/cuda/%.o,gated_norm gated_rows moe residual residual_rows streams): CUDA_FLAGS += -fmad=false
$(MATRIX_OUT)/matrix: $(MATRIX_CU:%.cu=$(MATRIX_OUT)/%.o) $(MATRIX_OUT)/tests/cuda_matrix_test.o $(MATRIX_C:%.c=$(MATRIX_OUT)/%.o)
	$(NVCC) $(CUDA_FLAGS) $^ -o $@
$(MATRIX_OUT)/matrix_host: tests/cuda_matrix_host.cpp $(MATRIX_CU) $(MATRIX_O) tests/cuda_matrix_test.cu $(MATRIX_H)
	g++ -std=c++17 -O0 -w -I. -Ibuild/common -I$(CUDA_HOME)/include $< $(MATRIX_O) -lm -o $@
