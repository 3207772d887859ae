/* The names by which programs written for 3FS move batches through a mount, for mounts of EmberFS.
 *
 * Names, arguments, structures and constants are those of 3FS's header of this name, so such
 * programs are compiled, and linked with libhf3fs_api_shared.so, as they are.  What differs:
 * specs/batch.md, "Programs in C written for 3FS".
 *
 *     hf3fs_iovcreate(&iov, "/mnt/ember", size, 0, -1);
 *     hf3fs_iorcreate4(&ior, "/mnt/ember", entries, true, 0, 0, -1, 0);
 *     hf3fs_reg_fd(fd, 0);
 *     hf3fs_prep_io(&ior, &iov, true, iov.base, fd, offset, length, userdata);
 *     hf3fs_submit_ios(&ior);
 *     hf3fs_wait_for_ios(&ior, cqes, count, 1, NULL);
 *
 * Unless it is said otherwise, a function returns 0, or a negative errno.
 */
#ifndef HF3FS_USRBIO_H
#define HF3FS_USRBIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

#define HF3FS_SUPER_MAGIC 0x8f3f5fff

struct timespec; /* which <time.h> keeps to itself in strict C99 */

typedef void *hf3fs_iov_handle;
typedef void *hf3fs_ior_handle;

/* Memory for transfers.  The caller has the structure; a copy of it is as good. */
struct hf3fs_iov {
    uint8_t *base;
    hf3fs_iov_handle iovh; /* NULL: wrapped, nothing to destroy */
    char id[16];           /* a UUID */
    char mount_point[256];
    size_t size;
    size_t block_size; /* no transfer crosses a multiple of it; 0: any may */
    int numa;
};

/* A ring, for reads or for writes.  The caller has the structure. */
struct hf3fs_ior {
    struct hf3fs_iov iov; /* of it only `size` means something */
    hf3fs_ior_handle iorh;
    char mount_point[256];
    bool for_read;
    int io_depth;
    int priority;
    int timeout;
    uint64_t flags;
};

/* What became of a transfer. */
struct hf3fs_cqe {
    int32_t index; /* as hf3fs_prep_io returned it */
    int32_t reserved;
    int64_t result; /* bytes, or a negative errno */
    const void *userdata;
};

/* ---- mounts ---- */

/* Tells whether a descriptor is of a mount that serves batches. */
bool hf3fs_is_hf3fs(int fd);

/* Finds the mount point that a path is on; the path need not exist yet.  Returns its length and one
 * more, or -1 if there is none. What is returned is more than `size` where the buffer has no room:
 * then nothing is written. */
int hf3fs_extract_mount_point(char *hf3fs_mount_point, int size, const char *path);

/* ---- memory; `numa` is kept and not acted upon ---- */

/* With EMBER_NAMED_IOVS=1 in the environment others find it by its id, on a mount that offers
 * 3fs-virt; it is slower then. */
int hf3fs_iovcreate(struct hf3fs_iov *iov, const char *hf3fs_mount_point, size_t size,
                    size_t block_size, int numa);

/* Maps what a program of the same user has registered by a link in 3fs-virt/iovs; -ENOENT: nobody
 * has. */
int hf3fs_iovopen(struct hf3fs_iov *iov, const uint8_t id[16], const char *hf3fs_mount_point,
                  size_t size, size_t block_size, int numa);

/* Takes the name in /dev/shm away; whoever has the memory keeps it. */
void hf3fs_iovunlink(struct hf3fs_iov *iov);

void hf3fs_iovdestroy(struct hf3fs_iov *iov);

/* Describes memory at `base` that is registered, or will be before its first transfer, by a link in
 * 3fs-virt/iovs. */
int hf3fs_iovwrap(struct hf3fs_iov *iov, void *base, const uint8_t id[16],
                  const char *hf3fs_mount_point, size_t size, size_t block_size, int numa);

/* ---- rings ---- */

#define HF3FS_IOR_ALLOW_READ_UNCOMMITTED 1 /* reads may be ahead of some replicas */
/* Bytes that were never written are an error, ENODATA, not zeros. */
#define HF3FS_IOR_FORBID_READ_HOLES 2

/* Returns the bytes of a ring. */
size_t hf3fs_ior_size(int entries);

/* `io_depth`: 0: what is submitted is done at once; n > 0: always exactly n together; -n: n
 * together, or fewer once the oldest has waited for `timeout` milliseconds.  `priority`: below 0:
 * first, above 0: last. */
int hf3fs_iorcreate(struct hf3fs_ior *ior, const char *hf3fs_mount_point, int entries,
                    bool for_read, int io_depth, int numa);
int hf3fs_iorcreate2(struct hf3fs_ior *ior, const char *hf3fs_mount_point, int entries,
                     bool for_read, int io_depth, int priority, int numa);
int hf3fs_iorcreate3(struct hf3fs_ior *ior, const char *hf3fs_mount_point, int entries,
                     bool for_read, int io_depth, int priority, int timeout, int numa);
int hf3fs_iorcreate4(struct hf3fs_ior *ior, const char *hf3fs_mount_point, int entries,
                     bool for_read, int io_depth, int timeout, int numa, uint64_t flags);

/* Returns when no read of this ring reaches memory any more. */
void hf3fs_iordestroy(struct hf3fs_ior *ior);

int hf3fs_io_entries(const struct hf3fs_ior *ior);

/* ---- files ---- */

/* Lets rings use an open descriptor.  Returns a number <= 0 that stands for it, as the descriptor
 * does; or a positive errno: EBADF: it is of no mount, EINVAL: it is registered already, also if it
 * was closed meanwhile. */
int hf3fs_reg_fd(int fd, uint64_t flags);

/* To be called before the descriptor is closed.  If what was written cannot be made durable, errno
 * says why. */
void hf3fs_dereg_fd(int fd);

/* ---- transfers: one thread prepares and submits, one (the same, or another) waits ---- */

/* Returns an index >= 0.  -EINVAL: the arguments do not fit the ring, the memory or each other;
 * -EBADF: not registered; -EACCES: opened for something else; -EAGAIN: the ring is full; -ENOENT:
 * no such memory is registered; -ENOTCONN: nobody serves the mount now, or the descriptor was open
 * when its daemon went. */
int hf3fs_prep_io(const struct hf3fs_ior *ior, const struct hf3fs_iov *iov, bool read, void *ptr,
                  int fd, size_t off, uint64_t len, const void *userdata);

/* Begins what was prepared.  -ENOTCONN, once: the daemon has gone, and what was under way may be
 * done or not; the next hf3fs_prep_io begins anew, once the mount is served. */
int hf3fs_submit_ios(const struct hf3fs_ior *ior);

/* Waits for `min_results`, or until `abs_timeout` (CLOCK_REALTIME; NULL: for ever); returns how
 * many have come, at most `cqec`. -ENOTCONN: as of hf3fs_submit_ios. */
int hf3fs_wait_for_ios(const struct hf3fs_ior *ior, struct hf3fs_cqe *cqes, int cqec,
                       int min_results, const struct timespec *abs_timeout);

/* ---- others ---- */

/* Gives a file a further name.  Returns 0, or a positive errno. */
int hf3fs_hardlink(const char *target, const char *link_name);

/* Makes the bytes of each of n ranges [start, end) read as zeros.  Returns 0, or a positive errno.
 */
int hf3fs_punchhole(int fd, int n, const size_t *start, const size_t *end, size_t flags);

/* ---- memory of devices: there is none ---- */

enum hf3fs_mem_type { HF3FS_MEM_HOST = 0, HF3FS_MEM_DEVICE = 1, HF3FS_MEM_MANAGED = 2 };

bool hf3fs_gdr_available(void);
int hf3fs_gdr_device_count(void);
enum hf3fs_mem_type hf3fs_iov_mem_type(const struct hf3fs_iov *iov);
int hf3fs_iov_device_id(const struct hf3fs_iov *iov);
int hf3fs_iovsync(const struct hf3fs_iov *iov, int direction);

/* These say -ENOTSUP, or -EINVAL for a block size. */
int hf3fs_iovcreate_device(struct hf3fs_iov *iov, const char *hf3fs_mount_point, size_t size,
                           size_t block_size, int device_id);
int hf3fs_iovopen_device(struct hf3fs_iov *iov, const uint8_t id[16], const char *hf3fs_mount_point,
                         size_t size, size_t block_size, int device_id);
int hf3fs_iovwrap_device(struct hf3fs_iov *iov, void *device_ptr, const uint8_t id[16],
                         const char *hf3fs_mount_point, size_t size, size_t block_size,
                         int device_id);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif

#endif
