/* Memory for transfers.
 *
 * What `hf3fs_iovcreate` makes is the daemon's own memory file, which is reached without a copy,
 * and which no other process finds by its id.  With EMBER_NAMED_IOVS=1 in the environment it is a
 * file in /dev/shm instead, registered by a link in 3fs-virt/iovs, as 3FS does it.  Then others
 * find it, and the daemon copies what goes into and out of it, since anybody may cut it shorter.
 *
 * Memory files stay open: a child, and a daemon that serves the mount later, are sent them again.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hf3fs_usrbio.h"
#include "inside.h"

enum { HUGE_BYTES = 2 << 20, SWEEP_MIN = 64 };

struct memory {
    struct known known; /* guarded by `registry` */
    int fd;
    size_t size, block_size; /* as the daemon is told */
    bool has_name;           /* in /dev/shm, and a link */
    unsigned fork; /* `fork_count` when it was made: a child leaves the name to its parent */
};

/* Notes that an id may stand for other memory than before. */
static void doubt(const struct hf3fs_iov *iov);

/* ---- names ---- */

/* "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" */
static void write_uuid(const char id[16], char text[37]) {
    char *to = text;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) *to++ = '-';
        to += sprintf(to, "%02x", (unsigned char)id[i]);
    }
}

static int make_id(char id[16]) {
    if (getrandom(id, 16, 0) != 16) return -EIO;
    id[6] = (char)((id[6] & 0x0f) | 0x40); /* says: random */
    id[8] = (char)((id[8] & 0x3f) | 0x80);
    return 0;
}

static void shm_name_of(const struct hf3fs_iov *iov, char name[64]) {
    char uuid[37];
    write_uuid(iov->id, uuid);
    snprintf(name, 64, "/hf3fs-iov-%s", uuid);
}

static void link_of(const struct hf3fs_iov *iov, char link[400]) {
    char uuid[37];
    write_uuid(iov->id, uuid);
    int end = snprintf(link, 400, "%s/3fs-virt/iovs/%s", iov->mount_point, uuid);
    if (iov->block_size) snprintf(link + end, (size_t)(400 - end), ".b%zu", iov->block_size);
}

static bool wants_names(void) {
    const char *wish = getenv("EMBER_NAMED_IOVS");
    return wish && strcmp(wish, "1") == 0;
}

/* Fills in what all kinds have in common. */
static int describe(struct hf3fs_iov *iov, const char *mount_point, size_t size, size_t block_size,
                    int numa) {
    if (!iov || !mount_point || !*mount_point || !size) return -EINVAL;
    if (strlen(mount_point) >= sizeof iov->mount_point) return -EINVAL;
    struct hf3fs_iov described = {.size = size, .block_size = block_size, .numa = numa};
    strcpy(described.mount_point, mount_point);
    *iov = described;
    return 0;
}

/* ---- making and mapping ---- */

/* Takes over `fd`. */
static int finish(struct hf3fs_iov *iov, int fd) {
    struct memory *memory = calloc(1, sizeof *memory);
    void *base =
        memory ? mmap(NULL, iov->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (base == MAP_FAILED) {
        int error = memory ? -errno : -ENOMEM;
        free(memory);
        close(fd);
        return error;
    }
    memory->fd = fd;
    memory->size = iov->size;
    memory->block_size = iov->block_size;
    memory->fork = fork_count;
    iov->base = base;
    iov->iovh = memory;
    return 0;
}

/* Makes a file in /dev/shm, and the link that registers it. */
static int create_named(struct hf3fs_iov *iov) {
    char name[64], link[400], target[80];
    shm_name_of(iov, name);
    link_of(iov, link);
    snprintf(target, sizeof target, "/dev/shm%s", name);
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return -errno;
    int error = 0;
    if (ftruncate(fd, (off_t)iov->size) || symlink(target, link)) {
        error = -errno;
        close(fd);
    } else {
        error = finish(iov, fd);
        if (error) unlink(link);
    }
    if (error)
        shm_unlink(name);
    else
        ((struct memory *)iov->iovh)->has_name = true;
    return error;
}

/* Has the daemon make memory. */
static int create_private(struct hf3fs_iov *iov, struct connection *connection) {
    struct ember_request request = {
        .call = EMBER_NEW_MEMORY, .first = iov->size, .second = iov->block_size};
    struct answer answer, unused;
    int error = call_for_fds(connection, request, 1, EMBER_DROP_MEMORY, &answer);
    if (error) return error;
    error = finish(iov, answer.fds[0]);
    if (!error) {
        struct memory *memory = iov->iovh;
        /* Who touches a page first decides of which kind it is. */
        if (iov->size >= HUGE_BYTES) madvise(iov->base, iov->size, MADV_HUGEPAGE);
        error = add_known(&memory->known, connection, answer.id);
        if (!error) return 0;
        hf3fs_iovdestroy(iov);
    }
    call(connection, (struct ember_request){.call = EMBER_DROP_MEMORY, .id = answer.id}, -1,
         &unused);
    return error;
}

int hf3fs_iovcreate(struct hf3fs_iov *iov, const char *hf3fs_mount_point, size_t size,
                    size_t block_size, int numa) {
    int error = describe(iov, hf3fs_mount_point, size, block_size, numa);
    if (!error) error = make_id(iov->id);
    if (error) return error;
    struct address address;
    error = address_of_path(hf3fs_mount_point, &address);
    if (error) return error;
    if (wants_names()) return create_named(iov);
    for (int tries = 2; tries--;) { /* twice where the connection turns out to have ended */
        struct connection *connection;
        error = connect_to(&address, false, &connection);
        if (error) return error;
        error = create_private(iov, connection);
        bool has_ended = connection->has_ended;
        give_back(connection, false);
        if (!has_ended) break;
    }
    return error;
}

/* Asks for what is registered by a link; returns its file, and what its name says. */
static int find_segment(struct connection *connection, const char id[16], struct answer *answer) {
    struct ember_request request = {.call = EMBER_FIND_SEGMENT};
    memcpy(&request.first, id, 8);
    memcpy(&request.second, id + 8, 8);
    return call_for_fds(connection, request, 1, 0, answer);
}

int hf3fs_iovopen(struct hf3fs_iov *iov, const uint8_t id[16], const char *hf3fs_mount_point,
                  size_t size, size_t block_size, int numa) {
    int error = id ? describe(iov, hf3fs_mount_point, size, block_size, numa) : -EINVAL;
    struct address address;
    if (!error) error = address_of_path(hf3fs_mount_point, &address);
    if (error) return error;
    memcpy(iov->id, id, sizeof iov->id);
    struct connection *connection;
    error = connect_to(&address, false, &connection);
    if (error) return error;
    struct answer answer;
    error = find_segment(connection, iov->id, &answer);
    give_back(connection, false);
    if (error) return error;
    if (answer.number < size || answer.id != block_size) {
        close(answer.fds[0]);
        return -EINVAL;
    }
    return finish(iov, answer.fds[0]);
}

int hf3fs_iovwrap(struct hf3fs_iov *iov, void *base, const uint8_t id[16],
                  const char *hf3fs_mount_point, size_t size, size_t block_size, int numa) {
    int error = base && id ? describe(iov, hf3fs_mount_point, size, block_size, numa) : -EINVAL;
    if (error) return error;
    memcpy(iov->id, id, sizeof iov->id);
    iov->base = base;
    doubt(iov);
    return 0;
}

static bool owns_name(const struct hf3fs_iov *iov) {
    const struct memory *memory = iov ? iov->iovh : NULL;
    return memory && memory->has_name && memory->fork == fork_count;
}

void hf3fs_iovunlink(struct hf3fs_iov *iov) {
    if (!owns_name(iov)) return;
    char name[64];
    shm_name_of(iov, name);
    shm_unlink(name);
}

void hf3fs_iovdestroy(struct hf3fs_iov *iov) {
    if (!iov || !iov->iovh) return;
    struct memory *memory = iov->iovh;
    if (owns_name(iov)) {
        char link[400];
        link_of(iov, link);
        unlink(link);
        hf3fs_iovunlink(iov);
    }
    munmap(iov->base, iov->size);
    drop_known(&memory->known, EMBER_DROP_MEMORY);
    close(memory->fd);
    free(memory);
    iov->iovh = NULL;
    iov->base = NULL;
}

/* ---- wrapped memory: nobody says when it is not needed any more ---- */

struct wrapped {
    char id[16], mount_point[256];
    struct memory memory;
    bool is_doubted; /* guarded by `registry` */
    struct wrapped *next;
};

static struct wrapped *all_wrapped;                  /* guarded by `registry` */
static unsigned wrapped_count, sweep_at = SWEEP_MIN; /* by `one_at_a_time` */

static struct wrapped *find_wrapped(const struct hf3fs_iov *iov) { /* `registry` is held */
    struct wrapped *one = all_wrapped;
    while (one
           && (memcmp(one->id, iov->id, sizeof one->id) != 0
               || strcmp(one->mount_point, iov->mount_point) != 0))
        one = one->next;
    return one;
}

static void doubt(const struct hf3fs_iov *iov) {
    pthread_mutex_lock(&registry);
    struct wrapped *one = find_wrapped(iov);
    if (one) one->is_doubted = true;
    pthread_mutex_unlock(&registry);
}

/* Takes one out of the list, which nobody else changes meanwhile, and lets go of it. */
static void let_go(struct wrapped *one) {
    pthread_mutex_lock(&registry);
    struct wrapped **at = &all_wrapped;
    while (*at != one) at = &(*at)->next;
    *at = one->next;
    pthread_mutex_unlock(&registry);
    drop_known(&one->memory.known, EMBER_DROP_MEMORY);
    close(one->memory.fd);
    free(one);
    wrapped_count--;
}

/* Tells whether neither a link nor a name leads to memory any more. */
static bool is_over(struct connection *connection, const struct wrapped *one,
                    const char *mount_point) {
    struct stat found;
    struct answer answer;
    if (strcmp(one->mount_point, mount_point) != 0) return false;
    if (fstat(one->memory.fd, &found) || found.st_nlink) return false;
    int error = find_segment(connection, one->id, &answer);
    if (!error) close(answer.fds[0]);
    return error == -ENOENT;
}

static void sweep(struct connection *connection, const char *mount_point) {
    for (struct wrapped *one = all_wrapped, *next; one; one = next) {
        next = one->next;
        if (is_over(connection, one, mount_point)) let_go(one);
    }
    sweep_at = wrapped_count * 2 > SWEEP_MIN ? wrapped_count * 2 : SWEEP_MIN;
}

/* Keeps memory that was found by its id. */
static int keep(const struct hf3fs_iov *iov, const struct answer *answer) {
    struct wrapped *one = calloc(1, sizeof *one);
    if (!one) {
        close(answer->fds[0]);
        return -ENOMEM;
    }
    memcpy(one->id, iov->id, sizeof one->id);
    strcpy(one->mount_point, iov->mount_point);
    one->memory =
        (struct memory){.fd = answer->fds[0], .size = answer->number, .block_size = answer->id};
    pthread_mutex_lock(&registry);
    one->next = all_wrapped;
    all_wrapped = one;
    pthread_mutex_unlock(&registry);
    wrapped_count++;
    return 0;
}

static bool is_same_file(int one, int other) {
    struct stat first, second;
    if (fstat(one, &first) || fstat(other, &second)) return false;
    return first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

/* Finds out which memory an id stands for, where that is not known, or was said anew. */
static int settle(struct connection *connection, const struct hf3fs_iov *iov) {
    pthread_mutex_lock(&registry);
    struct wrapped *one = find_wrapped(iov);
    bool is_settled = one && !one->is_doubted;
    if (one) one->is_doubted = false;
    pthread_mutex_unlock(&registry);
    if (is_settled) return 0;
    struct answer answer;
    int error = find_segment(connection, iov->id, &answer);
    if (error) {
        if (one && error != -ENOENT) doubt(iov);
        return one && error == -ENOENT ? 0 : error; /* its link has gone, and no other has come */
    }
    if (one && is_same_file(one->memory.fd, answer.fds[0])) {
        close(answer.fds[0]);
        return 0;
    }
    if (one) let_go(one);
    if (wrapped_count >= sweep_at) sweep(connection, iov->mount_point);
    return keep(iov, &answer);
}

/* ---- ids ---- */

static int share(struct connection *connection, struct memory *memory, uint32_t *id) {
    struct ember_request request = {
        .call = EMBER_SHARE_MEMORY, .first = memory->size, .second = memory->block_size};
    struct answer answer;
    int error = call(connection, request, memory->fd, &answer);
    if (error) return error;
    *id = answer.id;
    pthread_mutex_lock(&registry);
    error = add_known(&memory->known, connection, *id);
    pthread_mutex_unlock(&registry);
    return error;
}

/* Finds memory, and its id if the daemon knows it; NULL: that is to be settled. */
static struct memory *look_up(struct connection *connection, const struct hf3fs_iov *iov,
                              bool *is_known, uint32_t *id) {
    pthread_mutex_lock(&registry);
    struct memory *memory = iov->iovh;
    struct wrapped *one = memory ? NULL : find_wrapped(iov);
    if (one && !one->is_doubted) memory = &one->memory;
    *is_known = memory && find_known(&memory->known, connection, id);
    pthread_mutex_unlock(&registry);
    return memory;
}

int memory_id(struct connection *connection, const struct hf3fs_iov *iov, uint32_t *id) {
    bool is_known;
    if (look_up(connection, iov, &is_known, id) && is_known) return 0;
    pthread_mutex_lock(&one_at_a_time); /* another thread may have been here by then */
    struct memory *memory = NULL;
    int error;
    do { /* once more where it is wrapped anew meanwhile */
        error = iov->iovh ? 0 : settle(connection, iov);
        if (!error) memory = look_up(connection, iov, &is_known, id);
    } while (!error && !memory);
    if (!error && !is_known) error = share(connection, memory, id);
    pthread_mutex_unlock(&one_at_a_time);
    return error;
}
