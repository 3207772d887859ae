/* Numbers as protobuf has them: seven bits to a byte, the lowest first. */
#ifndef EMBERFS_WIRE_H
#define EMBERFS_WIRE_H
#include <stdint.h>

#define VARINT_BYTES 10 /* at most */

/* Take a number; 0: there is none before `end`. */
static inline int take_varint(const uint8_t **at, const uint8_t *end, uint64_t *value) {
    *value = 0;
    for (int shift = 0; shift < 64 && *at < end; shift += 7) {
        uint8_t byte = *(*at)++;
        if (shift == 63 && byte > 1) return 0;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return 1;
    }
    return 0;
}

static inline uint8_t *put_varint(uint8_t *at, uint64_t value) {
    for (; value >= 0x80; value >>= 7) *at++ = (uint8_t)(value | 0x80);
    *at++ = (uint8_t)value;
    return at;
}

#endif
