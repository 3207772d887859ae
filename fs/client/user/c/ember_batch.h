/* Batches of reads and writes through an EmberFS mount: numbers and records.
 *
 * The same as emberfs/protocol.py, for programs in other languages; specs/batch.md explains them.
 * All numbers are little-endian, and a ring's positions count from 0 on each side for itself.
 */
#ifndef EMBER_BATCH_H
#define EMBER_BATCH_H

#include <stdint.h>

#define EMBER_BATCH_VERSION 1u
/* Of any path of a mount: the daemon's socket; '@' stands for a zero byte. */
#define EMBER_BATCH_ATTRIBUTE "ember.batch"
#define EMBER_BATCH_IOCTL_TICKET 0x80104542u /* on an open file: struct ember_ticket */
#define EMBER_BATCH_LENGTH_MAX (1u << 30)    /* bytes of one entry */

struct ember_ticket {
    uint64_t first, second;
};

enum ember_call {
    EMBER_HELLO = 1,
    EMBER_NEW_MEMORY = 2,
    EMBER_SHARE_MEMORY = 3,
    EMBER_DROP_MEMORY = 4,
    EMBER_NEW_RING = 5,
    EMBER_DROP_RING = 6,
    EMBER_ADD_FILE = 7,
    EMBER_FILE_LENGTH = 8,
    EMBER_SYNC_FILE = 9,
    EMBER_DROP_FILE = 10,
    EMBER_FIND_SEGMENT = 11
};

enum ember_priority { EMBER_NORMAL = 0, EMBER_HIGH = 1, EMBER_LOW = 2 };

struct ember_request {
    uint32_t call, serial, id;
    int32_t depth;
    uint32_t timeout_ms, priority;
    uint64_t first, second;
};

struct ember_reply { /* words for people follow when error_number is set */
    uint32_t serial;
    int32_t error_number;
    uint32_t id, zero;
    uint64_t number;
};

enum ember_op { EMBER_READ = 1, EMBER_WRITE = 2 };
enum ember_entry_flag { EMBER_RELAXED = 1, EMBER_HOLES_ARE_ERRORS = 2 };

struct ember_entry {
    uint64_t user_data, offset, memory_offset, length;
    uint32_t file_id, memory_id, op, flags;
    uint64_t unused[2];
};

struct ember_completion {
    uint64_t user_data;
    int64_t result; /* bytes moved, or a negative errno */
};

/* Their sizes are part of the protocol.  C99 has no static_assert; arrays of a negative size are
 * refused by every compiler of C and C++. */
typedef char ember_request_has_40_bytes[sizeof(struct ember_request) == 40 ? 1 : -1];
typedef char ember_reply_has_24_bytes[sizeof(struct ember_reply) == 24 ? 1 : -1];
typedef char ember_entry_has_64_bytes[sizeof(struct ember_entry) == 64 ? 1 : -1];
typedef char ember_completion_has_16_bytes[sizeof(struct ember_completion) == 16 ? 1 : -1];

/* A ring's memory: all entries, then as many completions. */
static inline uint64_t ember_ring_bytes(uint32_t entry_count) {
    return (uint64_t)entry_count * (sizeof(struct ember_entry) + sizeof(struct ember_completion));
}

static inline struct ember_entry *ember_entry_at(void *ring, uint32_t entry_count,
                                                 uint64_t number) {
    return (struct ember_entry *)ring + number % entry_count;
}

static inline struct ember_completion *ember_completion_at(void *ring, uint32_t entry_count,
                                                           uint64_t number) {
    return (struct ember_completion *)((struct ember_entry *)ring + entry_count)
           + number % entry_count;
}

#endif
