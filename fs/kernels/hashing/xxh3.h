/* xxh3-64 by the widest instructions that pay on the processor that runs, not on the one that
 * compiled. */
#ifndef EMBER_HASHING_XXH3_H
#define EMBER_HASHING_XXH3_H

#include <stddef.h>
#include <stdint.h>

/* Set when the module is loaded. */
extern uint64_t (*xxh3_64)(const void *bytes, size_t length);

/* The same compiled for AVX2: three times as fast from some 256 bytes on; AVX-512 gains nothing
 * more.  Elsewhere it is not there. */
uint64_t xxh3_64_avx2(const void *bytes, size_t length);

#endif
