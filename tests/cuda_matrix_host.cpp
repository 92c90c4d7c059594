// SPDX-License-Identifier: Apache-2.0
//
// The CUDA matrix kernels and their tests as one host program (tests/cuda_emulation.h).

#define CUDA_EMULATION
#include "kernels/cuda/arrange.cu"
#include "kernels/cuda/embed.cu"
#include "kernels/cuda/experts.cu"
#include "kernels/cuda/experts_prompt.cu"
#include "kernels/cuda/experts_wide.cu"
#include "kernels/cuda/gated_norm.cu"
#include "kernels/cuda/gated_rows.cu"
#include "kernels/cuda/linear.cu"
#include "kernels/cuda/linear_prompt.cu"
#include "kernels/cuda/linear_streams.cu"
#include "kernels/cuda/linear_tall.cu"
#include "kernels/cuda/linear_wide.cu"
#include "kernels/cuda/moe.cu"
#include "kernels/cuda/residual.cu"
#include "kernels/cuda/residual_rows.cu"
#include "kernels/cuda/streams.cu"
#include "kernels/cuda/wide_rows.cu"
#include "tests/cuda_matrix_test.cu"
