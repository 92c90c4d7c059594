// SPDX-License-Identifier: Apache-2.0
//
// What begins the block through which the host and a program speak. On a target with memory of its own the block lies on both
// sides: a program begins by taking the host's copy and ends by giving its own back, so neither costs a call of the driver.
//
// Invariant: `done` is written last, when everything that the program did can be seen by the host.

#ifndef EXCHANGE_H
#define EXCHANGE_H

#include <stdint.h>

// 16-byte units, as the device copies it.
struct exchange {
    uint32_t done; // `wanted` of the last program that has given its block back; programs do not take it
    uint32_t reserved[3];
    uint64_t begun,
        ended; // nanoseconds of the device's clock when the program took the block and gave it; 0: there is no such clock
    uint32_t wanted; // number of the program
    uint32_t more[3];
};

enum { EXCHANGE_UNIT = 16 };

#endif
