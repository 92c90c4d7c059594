// SPDX-License-Identifier: Apache-2.0
//
// How warps arrive at barriers in shared memory that stand before what others read or write by loads and stores: with all lanes at once, each
// for itself. An arrival comes behind what its own thread has done; lanes that arrive together at one barrier take no longer than a first lane
// that arrives for all behind __syncwarp(), which is the same order, but one that compute-sanitizer's racecheck does not see (NOTES.md).
// Where copies by the copy engine alone come behind a barrier (ring.cuh: `empty`) the first lane arrives.
//
// Invariant: a barrier of n such warps is opened for n * ARRIVALS arrivals.

#ifndef CUDA_ARRIVALS_CUH
#define CUDA_ARRIVALS_CUH

enum { ARRIVALS = 32 };

#endif
