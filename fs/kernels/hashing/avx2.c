/* xxh3-64 for processors with AVX2; who calls it has asked for that. */
#include "xxh3.h"

#if defined(__x86_64__)
#pragma GCC target("avx2")
#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t xxh3_64_avx2(const void *bytes, size_t length) { return XXH3_64bits(bytes, length); }
#endif
