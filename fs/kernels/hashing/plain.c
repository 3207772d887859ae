/* xxh3-64 for every processor of the kind that this is compiled for, and the choice. */
#include "xxh3.h"
#define XXH_INLINE_ALL
#include <xxhash.h>

static uint64_t xxh3_64_plain(const void *bytes, size_t length) {
    return XXH3_64bits(bytes, length);
}

uint64_t (*xxh3_64)(const void *, size_t) = xxh3_64_plain;

#if defined(__x86_64__)
__attribute__((constructor)) static void choose(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2")) xxh3_64 = xxh3_64_avx2;
}
#endif
