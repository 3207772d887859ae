/* Rings: preparing, submitting, waiting.
 *
 * One thread prepares and submits, another one may wait meanwhile.  They share no more than how
 * much was collected, so neither waits for the other.
 *
 * A ring is of one process and one daemon.  In the child of a fork, and where the daemon has gone
 * and this was told, the next `hf3fs_prep_io` makes another in its place, on which nothing is under
 * way.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "hf3fs_usrbio.h"
#include "inside.h"

enum { ENTRIES_MAX = 65536, COUNTS_AT_ONCE = 256, LOOK_AGAIN_MS = 1000 };

struct ring {
    /* 1. of all its life */
    char mount_point[256];
    uint32_t entry_count;
    int32_t depth;
    uint32_t timeout_ms, priority, op, flags;
    struct ring *next, **at; /* guarded by `registry`: all rings of this process */
    /* 2. of the ring that there is now; changed with `registry` and `waiting` held, and by who
     * prepares */
    struct connection *connection;
    _Atomic unsigned fork; /* `fork_count` when it was made */
    uint32_t id;
    int bell;
    void *memory;
    _Atomic bool is_lost; /* it was told that the daemon has gone */
    /* 3. of who prepares */
    uint64_t prepared, submitted;
    /* 4. of who waits */
    pthread_mutex_t waiting;
    uint64_t heard;
    _Atomic uint64_t collected;
    /* 5. of both: slots that are free, from `prepared` on; each belongs to one transfer until it is
     * collected */
    uint32_t *slots;
    const void **userdata;
};

static struct ring *rings;

static struct ring *ring_of(const struct hf3fs_ior *ior) { return ior ? ior->iorh : NULL; }

static bool is_ours(const struct ring *ring) { return ring->fork == fork_count; }

/* ---- making and giving up ---- */

struct made {
    struct connection *connection;
    uint32_t id;
    int bell;
    void *memory;
};

static int map_ring(const struct ring *ring, struct answer *answer, struct made *made) {
    size_t size = ember_ring_bytes(ring->entry_count);
    made->id = answer->id;
    made->bell = answer->fds[1];
    made->memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, answer->fds[0], 0);
    int error = made->memory == MAP_FAILED ? -errno : 0;
    close(answer->fds[0]);
    if (error) {
        struct answer unused;
        close(made->bell);
        call(made->connection, (struct ember_request){.call = EMBER_DROP_RING, .id = answer->id},
             -1, &unused);
    } else {
        madvise(made->memory, size, MADV_DONTFORK); /* nothing in it is a child's */
    }
    return error;
}

static int ask_for_ring(const struct ring *ring, struct made *made) {
    struct ember_request request = {.call = EMBER_NEW_RING,
                                    .id = ring->entry_count,
                                    .depth = ring->depth,
                                    .timeout_ms = ring->timeout_ms,
                                    .priority = ring->priority};
    struct address address;
    int error = address_of_path(ring->mount_point, &address);
    if (error) return error;
    for (int tries = 2; tries--;) { /* twice where the connection turns out to have ended */
        struct answer answer;
        error = connect_to(&address, true, &made->connection);
        if (error) return error;
        error = call_for_fds(made->connection, request, 2, EMBER_DROP_RING, &answer);
        if (!error) error = map_ring(ring, &answer, made);
        if (!error) return 0;
        bool has_ended = made->connection->has_ended;
        give_back(made->connection, true);
        if (!has_ended) break;
    }
    return error;
}

/* Takes over a ring that was made; nobody uses the one before. */
static void take_over(struct ring *ring, const struct made *made) {
    ring->connection = made->connection;
    ring->fork = fork_count;
    ring->id = made->id;
    ring->bell = made->bell;
    ring->memory = made->memory;
    ring->prepared = ring->submitted = ring->heard = 0;
    atomic_store(&ring->collected, 0);
    for (uint32_t i = 0; i < ring->entry_count; i++) ring->slots[i] = i;
    atomic_store(&ring->is_lost, false);
}

/* Closes this process's copy; `registry` is held. */
static void close_copy(struct ring *ring) {
    if (ring->bell >= 0) close(ring->bell);
    if (ring->memory) munmap(ring->memory, ember_ring_bytes(ring->entry_count));
    ring->bell = -1;
    ring->memory = NULL;
}

void abandon_rings(void) {
    for (struct ring *ring = rings; ring; ring = ring->next) {
        ring->memory = NULL; /* it is not there in a child */
        close_copy(ring);
        pthread_mutex_init(&ring->waiting, NULL); /* who holds it is in the parent */
    }
}

/* Gives a connection back, and a ring's bell and memory; the parent's connection goes with that of
 * the process. */
static void leave(struct ring *ring) {
    struct connection *connection = ring->connection;
    pthread_mutex_lock(&registry);
    close_copy(ring);
    ring->connection = NULL;
    pthread_mutex_unlock(&registry);
    if (connection) give_back(connection, true);
}

/* What a mount point without a mount answers, or the address of a daemon that is no more. */
static bool is_not_served(int error) {
    return error == -ENOENT || error == -EOPNOTSUPP || error == -ECONNREFUSED || error == -ENOTDIR;
}

/* Has another ring in the place of one that is another process's, or whose daemon has gone. */
static int begin_again(struct ring *ring) {
    struct made made;
    int error = ask_for_ring(ring, &made);
    if (error) return is_not_served(error) ? -ENOTCONN : error;
    pthread_mutex_lock(&ring->waiting); /* whoever waits on the old bell hears that it has ended */
    leave(ring);
    pthread_mutex_lock(&registry);
    take_over(ring, &made);
    pthread_mutex_unlock(&registry);
    pthread_mutex_unlock(&ring->waiting);
    return 0;
}

static void free_ring(struct ring *ring) {
    free(ring->slots);
    free(ring->userdata);
    free(ring);
}

static int new_ring(struct ring *ring) {
    ring->slots = calloc(ring->entry_count, sizeof *ring->slots);
    ring->userdata = calloc(ring->entry_count, sizeof *ring->userdata);
    pthread_mutex_init(&ring->waiting, NULL);
    struct made made;
    int error = ring->slots && ring->userdata ? ask_for_ring(ring, &made) : -ENOMEM;
    if (error) return error;
    pthread_mutex_lock(&registry);
    take_over(ring, &made);
    ring->next = rings;
    ring->at = &rings;
    if (rings) rings->at = &ring->next;
    rings = ring;
    pthread_mutex_unlock(&registry);
    return 0;
}

static int create(struct hf3fs_ior *ior, const char *mount_point, int entries, bool for_read,
                  int io_depth, int priority, int timeout, int numa, uint64_t flags) {
    if (!ior || !mount_point || !*mount_point || strlen(mount_point) >= sizeof ior->mount_point)
        return -EINVAL;
    if (entries <= 0 || timeout < 0) return -EINVAL;
    if (flags & ~(uint64_t)(HF3FS_IOR_ALLOW_READ_UNCOMMITTED | HF3FS_IOR_FORBID_READ_HOLES))
        return -EINVAL;
    int count = entries < ENTRIES_MAX ? entries : ENTRIES_MAX;
    if (io_depth > count) return -EINVAL; /* there would never be so many */
    struct ring *ring = calloc(1, sizeof *ring);
    if (!ring) return -ENOMEM;
    strcpy(ring->mount_point, mount_point);
    ring->entry_count = (uint32_t)count;
    ring->depth = io_depth < -count ? -count : io_depth; /* there are never more */
    ring->timeout_ms = (uint32_t)timeout;
    ring->priority = priority < 0 ? EMBER_HIGH : priority > 0 ? EMBER_LOW : EMBER_NORMAL;
    ring->op = for_read ? EMBER_READ : EMBER_WRITE;
    ring->flags = (uint32_t)flags;
    int error = new_ring(ring);
    if (error) {
        free_ring(ring);
        return error;
    }
    struct hf3fs_ior made = {.iorh = ring,
                             .for_read = for_read,
                             .io_depth = io_depth,
                             .priority = priority,
                             .timeout = timeout,
                             .flags = flags};
    strcpy(made.mount_point, mount_point);
    strcpy(made.iov.mount_point, mount_point);
    made.iov.size = hf3fs_ior_size(count);
    made.iov.numa = numa;
    *ior = made;
    return 0;
}

size_t hf3fs_ior_size(int entries) { return entries > 0 ? ember_ring_bytes((uint32_t)entries) : 0; }

int hf3fs_iorcreate(struct hf3fs_ior *ior, const char *hf3fs_mount_point, int entries,
                    bool for_read, int io_depth, int numa) {
    return create(ior, hf3fs_mount_point, entries, for_read, io_depth, 0, 0, numa, 0);
}

int hf3fs_iorcreate2(struct hf3fs_ior *ior, const char *hf3fs_mount_point, int entries,
                     bool for_read, int io_depth, int priority, int numa) {
    return create(ior, hf3fs_mount_point, entries, for_read, io_depth, priority, 0, numa, 0);
}

int hf3fs_iorcreate3(struct hf3fs_ior *ior, const char *hf3fs_mount_point, int entries,
                     bool for_read, int io_depth, int priority, int timeout, int numa) {
    return create(ior, hf3fs_mount_point, entries, for_read, io_depth, priority, timeout, numa, 0);
}

int hf3fs_iorcreate4(struct hf3fs_ior *ior, const char *hf3fs_mount_point, int entries,
                     bool for_read, int io_depth, int timeout, int numa, uint64_t flags) {
    return create(ior, hf3fs_mount_point, entries, for_read, io_depth, 0, timeout, numa, flags);
}

void hf3fs_iordestroy(struct hf3fs_ior *ior) {
    struct ring *ring = ring_of(ior);
    if (!ring) return;
    struct answer unused;
    if (is_ours(ring))
        call(ring->connection, (struct ember_request){.call = EMBER_DROP_RING, .id = ring->id}, -1,
             &unused);
    pthread_mutex_lock(&registry);
    *ring->at = ring->next;
    if (ring->next) ring->next->at = ring->at;
    pthread_mutex_unlock(&registry);
    leave(ring);
    free_ring(ring);
    ior->iorh = NULL;
}

int hf3fs_io_entries(const struct hf3fs_ior *ior) {
    struct ring *ring = ring_of(ior);
    return ring ? (int)ring->entry_count : 0;
}

/* ---- preparing and submitting ---- */

static bool fits(const struct ring *ring, const struct hf3fs_iov *iov, bool read, const void *ptr,
                 size_t off, uint64_t len) {
    if (read != (ring->op == EMBER_READ) || !iov->base || !ptr || off > INT64_MAX) return false;
    uintptr_t base = (uintptr_t)iov->base, address = (uintptr_t)ptr;
    if (address < base || !len || len > EMBER_BATCH_LENGTH_MAX) return false;
    uint64_t place = address - base, block = iov->block_size;
    if (place > iov->size || len > iov->size - place) return false;
    return !block || (len <= block && place % block <= block - len);
}

/* Makes sure that there is a ring of this process, and finds out by which ids it knows a file and
 * memory. */
static int find_ids(struct ring *ring, const struct hf3fs_iov *iov, int fd,
                    struct ember_entry *entry) {
    int error = 0;
    for (int tries = 2; tries--;) {
        if (error || !is_ours(ring) || ring->is_lost) error = begin_again(ring);
        if (error) return error;
        error = file_id(ring->connection, fd, ring->op == EMBER_READ, &entry->file_id);
        if (!error) error = memory_id(ring->connection, iov, &entry->memory_id);
        /* Of a ring that nothing was on nobody need be told that its daemon has gone. */
        if (error != -ENOTCONN || !ring->connection->has_ended || ring->prepared != ring->collected)
            break;
    }
    return error;
}

int hf3fs_prep_io(const struct hf3fs_ior *ior, const struct hf3fs_iov *iov, bool read, void *ptr,
                  int fd, size_t off, uint64_t len, const void *userdata) {
    struct ring *ring = ring_of(ior);
    if (!ring || !iov || !fits(ring, iov, read, ptr, off, len)) return -EINVAL;
    struct ember_entry entry = {.offset = off,
                                .memory_offset = (uint64_t)((uint8_t *)ptr - iov->base),
                                .length = len,
                                .op = ring->op,
                                .flags = ring->flags};
    int error = find_ids(ring, iov, fd, &entry);
    if (error) return error;
    uint64_t collected = atomic_load_explicit(&ring->collected, memory_order_acquire);
    if (ring->prepared - collected >= ring->entry_count)
        return ring->connection->has_ended ? -ENOTCONN : -EAGAIN;
    uint32_t slot = ring->slots[ring->prepared % ring->entry_count];
    ring->userdata[slot] = userdata;
    entry.user_data = slot;
    *ember_entry_at(ring->memory, ring->entry_count, ring->prepared++) = entry;
    return (int)slot;
}

int hf3fs_submit_ios(const struct hf3fs_ior *ior) {
    struct ring *ring = ring_of(ior);
    if (!ring) return -EINVAL;
    if (!is_ours(ring)) return 0; /* what was prepared before a fork is the parent's to submit */
    uint32_t count = (uint32_t)(ring->prepared - ring->submitted);
    if (!count) return 0;
    ssize_t sent;
    do sent = send(ring->bell, &count, sizeof count, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent != sizeof count) {
        ring->is_lost = true;
        return -ENOTCONN;
    }
    ring->submitted = ring->prepared;
    return 0;
}

/* ---- waiting ---- */

/* Takes completions that were heard of; returns how many. */
static int take(struct ring *ring, struct hf3fs_cqe *cqes, int most) {
    uint64_t collected = ring->collected;
    int count = 0;
    for (; count < most && collected < ring->heard; collected++) {
        struct ember_completion *done =
            ember_completion_at(ring->memory, ring->entry_count, collected);
        uint32_t slot = (uint32_t)done->user_data % ring->entry_count;
        cqes[count++] = (struct hf3fs_cqe){
            .index = (int32_t)slot, .result = done->result, .userdata = ring->userdata[slot]};
        ring->slots[collected % ring->entry_count] = slot;
    }
    atomic_store_explicit(&ring->collected, collected, memory_order_release);
    return count;
}

/* Hears of what is there; -EAGAIN: of nothing; with `is_patient` it waits for something. */
static int listen_to(struct ring *ring, bool is_patient) {
    uint32_t counts[COUNTS_AT_ONCE];
    ssize_t length;
    do length = recv(ring->bell, counts, sizeof counts, is_patient ? 0 : MSG_DONTWAIT);
    while (length < 0 && errno == EINTR);
    if (length < 0 && errno == EAGAIN) return -EAGAIN;
    if (length <= 0 || length % (ssize_t)sizeof *counts) return -ENOTCONN;
    for (size_t i = 0; i < (size_t)length / sizeof *counts; i++) ring->heard += counts[i];
    return ring->heard - ring->collected > ring->entry_count ? -ENOTCONN : 0;
}

/* Returns milliseconds until a point of the wall's clock, rounded up, at most so many that a change
 * of that clock is noticed. */
static int left_ms(const struct timespec *until) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (until->tv_sec - now.tv_sec > LOOK_AGAIN_MS / 1000 + 1) return LOOK_AGAIN_MS;
    int64_t left_ns =
        (int64_t)(until->tv_sec - now.tv_sec) * 1000000000 + (until->tv_nsec - now.tv_nsec);
    if (left_ns <= 0) return 0;
    int64_t left = (left_ns + 999999) / 1000000;
    return left < LOOK_AGAIN_MS ? (int)left : LOOK_AGAIN_MS;
}

/* As `listen_to`, waiting until then; NULL: for ever. */
static int listen_until(struct ring *ring, const struct timespec *until) {
    if (!until) return listen_to(ring, true);
    for (;;) {
        int error = listen_to(ring, false);
        if (error != -EAGAIN) return error;
        int left = left_ms(until);
        if (!left) return -EAGAIN;
        struct pollfd bell = {.fd = ring->bell, .events = POLLIN};
        poll(&bell, 1, left); /* whatever it says: it is looked at again */
    }
}

static int wait_for(struct ring *ring, struct hf3fs_cqe *cqes, int most, int wanted,
                    const struct timespec *until) {
    int count = take(ring, cqes, most);
    while (count < wanted || !count) {
        if (ring->is_lost) return count ? count : -ENOTCONN;
        int error = count < wanted ? listen_until(ring, until) : listen_to(ring, false);
        if (error == -EAGAIN) break;
        if (error && !count)
            ring->is_lost = true; /* what has come is not lost by what comes after */
        if (error) return count ? count : error;
        count += take(ring, cqes + count, most - count);
    }
    return count;
}

int hf3fs_wait_for_ios(const struct hf3fs_ior *ior, struct hf3fs_cqe *cqes, int cqec,
                       int min_results, const struct timespec *abs_timeout) {
    struct ring *ring = ring_of(ior);
    if (!ring || !cqes || cqec <= 0) return -EINVAL;
    if (!is_ours(ring)) return 0; /* nothing is under way here */
    pthread_mutex_lock(&ring->waiting);
    int count = wait_for(ring, cqes, cqec, min_results < cqec ? min_results : cqec, abs_timeout);
    pthread_mutex_unlock(&ring->waiting);
    return count;
}
