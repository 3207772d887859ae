/* What programs in C do with 3FS's calls, each as a test: hf3fs_calls TEST MOUNT_POINT.  See
 * test_hf3fs_c.py. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <hf3fs_usrbio.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Programs allocate these, maybe compiled with 3FS's header. */
_Static_assert(sizeof(struct hf3fs_iov) == 312 && offsetof(struct hf3fs_iov, id) == 16, "iov");
_Static_assert(offsetof(struct hf3fs_iov, mount_point) == 32
                   && offsetof(struct hf3fs_iov, size) == 288,
               "iov");
_Static_assert(offsetof(struct hf3fs_iov, block_size) == 296
                   && offsetof(struct hf3fs_iov, numa) == 304,
               "iov");
_Static_assert(sizeof(struct hf3fs_ior) == 600 && offsetof(struct hf3fs_ior, iorh) == 312, "ior");
_Static_assert(offsetof(struct hf3fs_ior, mount_point) == 320
                   && offsetof(struct hf3fs_ior, for_read) == 576,
               "ior");
_Static_assert(offsetof(struct hf3fs_ior, io_depth) == 580
                   && offsetof(struct hf3fs_ior, priority) == 584,
               "ior");
_Static_assert(offsetof(struct hf3fs_ior, timeout) == 588
                   && offsetof(struct hf3fs_ior, flags) == 592,
               "ior");
_Static_assert(sizeof(struct hf3fs_cqe) == 24 && offsetof(struct hf3fs_cqe, result) == 8, "cqe");
_Static_assert(offsetof(struct hf3fs_cqe, userdata) == 16, "cqe");

enum { PAGE = 4096, ENTRIES = 16 };

static const char *mnt;

static void require(bool is_so, const char *what, int line) {
    if (is_so) return;
    fprintf(stderr, "line %d: %s; errno %d\n", line, what, errno);
    exit(1);
}

#define CHECK(is_so) require(is_so, #is_so, __LINE__)

static void is_equal(long long value, long long wanted, const char *what, int line) {
    if (value == wanted) return;
    fprintf(stderr, "line %d: %s is %lld, not %lld; errno %d\n", line, what, value, wanted, errno);
    exit(1);
}

#define EQUAL(value, wanted) is_equal(value, wanted, #value, __LINE__)

static int open_file(const char *name, int flags) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", mnt, name);
    int fd = open(path, flags, 0644);
    CHECK(fd >= 0);
    return fd;
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static struct timespec in_ms(int ms) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t ns = now.tv_nsec + (int64_t)ms * 1000000;
    return (struct timespec){now.tv_sec + ns / 1000000000, ns % 1000000000};
}

static int fd_count(void) {
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

/* A file, memory, and a ring each way. */
struct store {
    int fd;
    struct hf3fs_iov iov;
    struct hf3fs_ior reads, writes;
};

static void begin(struct store *store, const char *name) {
    store->fd = open_file(name, O_RDWR | O_CREAT);
    EQUAL(hf3fs_reg_fd(store->fd, 0), -store->fd);
    EQUAL(hf3fs_iovcreate(&store->iov, mnt, ENTRIES * PAGE, 0, -1), 0);
    EQUAL(hf3fs_iorcreate4(&store->reads, mnt, ENTRIES, true, 0, 0, -1, 0), 0);
    EQUAL(hf3fs_iorcreate4(&store->writes, mnt, ENTRIES, false, 0, 0, -1, 0), 0);
}

static void end(struct store *store) {
    hf3fs_iordestroy(&store->reads);
    hf3fs_iordestroy(&store->writes);
    hf3fs_iovdestroy(&store->iov);
    hf3fs_dereg_fd(store->fd);
    EQUAL(close(store->fd), 0);
}

/* Moves one page; returns its result, or what refused it. */
static int64_t move(const struct hf3fs_ior *ior, const struct hf3fs_iov *iov, int fd,
                    size_t offset) {
    struct hf3fs_cqe done;
    int error = hf3fs_prep_io(ior, iov, ior->for_read, iov->base, fd, offset, PAGE, iov);
    if (error >= 0) error = hf3fs_submit_ios(ior);
    if (error < 0) return error;
    int count = hf3fs_wait_for_ios(ior, &done, 1, 1, NULL);
    if (count < 0) return count;
    EQUAL(count, 1);
    CHECK(done.userdata == iov);
    return done.result;
}

/* Has the file hold a page of this byte, and looks at it. */
static void put_and_get(struct store *store, size_t offset, int byte) {
    memset(store->iov.base, byte, PAGE);
    EQUAL(move(&store->writes, &store->iov, store->fd, offset), PAGE);
    memset(store->iov.base, 0, PAGE);
    EQUAL(move(&store->reads, &store->iov, store->fd, offset), PAGE);
    EQUAL(store->iov.base[0], byte);
    EQUAL(store->iov.base[PAGE - 1], byte);
}

/* Waits for a line, in which whoever runs this says that it can go on. */
static void pause_until_told(const char *what) {
    char line[64];
    printf("%s\n", what);
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin));
}

/* ---- tests ---- */

static void test_batches(void) {
    struct store store;
    begin(&store, "batches");
    EQUAL(hf3fs_io_entries(&store.reads), ENTRIES);
    struct hf3fs_cqe done[2 * ENTRIES];
    for (int round = 0; round < 5; round++) {
        unsigned seen = 0;
        for (int i = 0; i < ENTRIES; i++) {
            memset(store.iov.base + i * PAGE, 16 * round + i, PAGE);
            int index =
                hf3fs_prep_io(&store.writes, &store.iov, false, store.iov.base + i * PAGE, store.fd,
                              (size_t)(round * ENTRIES + i) * PAGE, PAGE, &store.iov.base[i]);
            CHECK(index >= 0 && index < ENTRIES);
            CHECK(!(seen >> index & 1));
            seen |= 1u << index;
        }
        EQUAL(hf3fs_prep_io(&store.writes, &store.iov, false, store.iov.base, store.fd, 0, PAGE,
                            NULL),
              -EAGAIN);
        EQUAL(hf3fs_submit_ios(&store.writes), 0);
        EQUAL(hf3fs_submit_ios(&store.writes), 0); /* once more is nothing */
        int count = 0;
        while (count < ENTRIES) {
            int some = hf3fs_wait_for_ios(&store.writes, done + count, ENTRIES - count,
                                          count ? 1 : 3, NULL);
            CHECK(some >= (count ? 1 : 3));
            count += some;
        }
        for (int i = 0; i < ENTRIES; i++) {
            EQUAL(done[i].result, PAGE);
            CHECK(seen >> done[i].index & 1);
            seen &= ~(1u << done[i].index);
            const uint8_t *at = done[i].userdata;
            CHECK(at >= store.iov.base && at < store.iov.base + ENTRIES);
        }
        EQUAL(seen, 0);
    }
    for (int round = 5; round-- > 0;) {
        memset(store.iov.base, 0, ENTRIES * PAGE);
        for (int i = ENTRIES; i-- > 0;)
            CHECK(hf3fs_prep_io(&store.reads, &store.iov, true, store.iov.base + i * PAGE, store.fd,
                                (size_t)(round * ENTRIES + i) * PAGE, PAGE, NULL)
                  >= 0);
        EQUAL(hf3fs_submit_ios(&store.reads), 0);
        EQUAL(hf3fs_wait_for_ios(&store.reads, done, 2 * ENTRIES, ENTRIES, NULL), ENTRIES);
        for (int i = 0; i < ENTRIES * PAGE; i++) EQUAL(store.iov.base[i], 16 * round + i / PAGE);
    }
    /* Two at once, of which the ring hands out one by one. */
    for (int i = 0; i < 2; i++)
        CHECK(hf3fs_prep_io(&store.reads, &store.iov, true, store.iov.base, store.fd, 0, PAGE, NULL)
              >= 0);
    EQUAL(hf3fs_submit_ios(&store.reads), 0);
    for (int i = 0; i < 2; i++) EQUAL(hf3fs_wait_for_ios(&store.reads, done, 1, 5, NULL), 1);
    EQUAL(hf3fs_wait_for_ios(&store.reads, done, 1, 0, NULL), 0);
    /* The end of the file, and behind it. */
    EQUAL(hf3fs_prep_io(&store.reads, &store.iov, true, store.iov.base, store.fd,
                        5 * ENTRIES * PAGE - 10, PAGE, NULL)
              >= 0,
          1);
    EQUAL(hf3fs_submit_ios(&store.reads), 0);
    EQUAL(hf3fs_wait_for_ios(&store.reads, done, 1, 1, NULL), 1);
    EQUAL(done[0].result, 10);
    EQUAL(move(&store.reads, &store.iov, store.fd, 1 << 30), 0);
    end(&store);
}

static void test_completions_in_any_order(void) {
    struct store store;
    begin(&store, "order");
    struct hf3fs_cqe done;
    static const char good, bad;
    for (int round = 0; round < 3 * ENTRIES; round++) {
        int first = hf3fs_prep_io(&store.writes, &store.iov, false, store.iov.base, store.fd, 0,
                                  PAGE, &good);
        int second = hf3fs_prep_io(&store.writes, &store.iov, false, store.iov.base, store.fd,
                                   INT64_MAX, PAGE, &bad);
        CHECK(first >= 0 && second >= 0 && first != second);
        EQUAL(hf3fs_submit_ios(&store.writes), 0);
        EQUAL(hf3fs_wait_for_ios(&store.writes, &done, 1, 1, NULL),
              1); /* what asks for nothing is done first */
        EQUAL(done.index, second);
        EQUAL(done.result, -EFBIG);
        CHECK(done.userdata == &bad);
        EQUAL(hf3fs_wait_for_ios(&store.writes, &done, 1, 1, NULL), 1);
        EQUAL(done.index, first);
        EQUAL(done.result, PAGE);
        CHECK(done.userdata == &good);
    }
    end(&store);
}

static int prepare_some(const struct hf3fs_ior *ior, struct store *store, int count) {
    for (int i = 0; i < count; i++)
        CHECK(hf3fs_prep_io(ior, &store->iov, true, store->iov.base, store->fd, 0, PAGE, NULL)
              >= 0);
    return hf3fs_submit_ios(ior);
}

static void test_depths(void) {
    struct store store;
    struct hf3fs_ior ior;
    struct hf3fs_cqe done[ENTRIES];
    begin(&store, "depths");
    put_and_get(&store, 0, 'd');
    struct timespec soon;
    /* exactly four */
    EQUAL(hf3fs_iorcreate2(&ior, mnt, ENTRIES, true, 4, -1, -1), 0);
    EQUAL(prepare_some(&ior, &store, 3), 0);
    soon = in_ms(150);
    EQUAL(hf3fs_wait_for_ios(&ior, done, ENTRIES, 3, &soon), 0);
    EQUAL(prepare_some(&ior, &store, 2), 0);
    EQUAL(hf3fs_wait_for_ios(&ior, done, ENTRIES, 4, NULL), 4);
    soon = in_ms(100);
    EQUAL(hf3fs_wait_for_ios(&ior, done, ENTRIES, 1, &soon), 0);
    hf3fs_iordestroy(&ior); /* with one under way */
    /* four at most; fewer when they have waited */
    EQUAL(hf3fs_iorcreate3(&ior, mnt, ENTRIES, true, -4, 1, 300, -1), 0);
    double began_s = now_s();
    EQUAL(prepare_some(&ior, &store, 1), 0);
    EQUAL(hf3fs_wait_for_ios(&ior, done, ENTRIES, 1, NULL), 1);
    CHECK(now_s() - began_s > 0.25);
    hf3fs_iordestroy(&ior);
    EQUAL(hf3fs_iorcreate3(&ior, mnt, ENTRIES, true, -100, 0, 60000, -1), 0); /* as -16 */
    EQUAL(prepare_some(&ior, &store, ENTRIES), 0);
    EQUAL(hf3fs_wait_for_ios(&ior, done, ENTRIES, ENTRIES, NULL), ENTRIES);
    hf3fs_iordestroy(&ior);
    /* whatever is there */
    EQUAL(hf3fs_iorcreate(&ior, mnt, ENTRIES, true, 0, -1), 0);
    EQUAL(prepare_some(&ior, &store, 5), 0);
    EQUAL(hf3fs_wait_for_ios(&ior, done, ENTRIES, 5, NULL), 5);
    hf3fs_iordestroy(&ior);
    hf3fs_iordestroy(&ior); /* twice is harmless */
    EQUAL(hf3fs_iorcreate(&ior, mnt, 4, true, 5, -1), -EINVAL);
    EQUAL(hf3fs_iorcreate(&ior, mnt, 100000, true, 0, -1), 0);
    EQUAL(hf3fs_io_entries(&ior), 65536);
    hf3fs_iordestroy(&ior);
    end(&store);
}

static void test_timeouts(void) {
    struct store store;
    struct hf3fs_ior ior;
    struct hf3fs_cqe done[2];
    begin(&store, "timeouts");
    put_and_get(&store, 0, 't');
    EQUAL(hf3fs_iorcreate(&ior, mnt, 2, true, 2, -1), 0);
    EQUAL(prepare_some(&ior, &store, 1), 0);
    double began_s = now_s();
    struct timespec soon = in_ms(200), past = {1, 0};
    EQUAL(hf3fs_wait_for_ios(&ior, done, 2, 1, &soon), 0);
    CHECK(now_s() - began_s > 0.19 && now_s() - began_s < 60);
    EQUAL(hf3fs_wait_for_ios(&ior, done, 2, 1, &past), 0); /* as those who give CLOCK_MONOTONIC */
    EQUAL(hf3fs_wait_for_ios(&ior, done, 2, -1, NULL), 0);
    EQUAL(prepare_some(&ior, &store, 1), 0);
    soon = in_ms(60000);
    EQUAL(hf3fs_wait_for_ios(&ior, done, 2, 2, &soon), 2);
    hf3fs_iordestroy(&ior);
    CHECK(hf3fs_prep_io(&store.reads, &store.iov, true, store.iov.base, store.fd, 0, PAGE, NULL)
          >= 0);
    EQUAL(hf3fs_submit_ios(&store.reads), 0);
    int count = 0;
    while (!count) count = hf3fs_wait_for_ios(&store.reads, done, 2, 1, &past); /* polling */
    EQUAL(count, 1);
    end(&store);
}

static void test_what_is_refused(void) {
    struct store store;
    struct hf3fs_iov iov, blocks;
    struct hf3fs_ior ior;
    struct hf3fs_cqe done;
    char long_name[400];
    begin(&store, "refused");
    uint8_t *base = store.iov.base;
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = 0;
    /* memory and rings */
    EQUAL(hf3fs_iovcreate(NULL, mnt, PAGE, 0, -1), -EINVAL);
    EQUAL(hf3fs_iovcreate(&iov, "", PAGE, 0, -1), -EINVAL);
    EQUAL(hf3fs_iovcreate(&iov, mnt, 0, 0, -1), -EINVAL);
    EQUAL(hf3fs_iovcreate(&iov, long_name, PAGE, 0, -1), -EINVAL);
    EQUAL(hf3fs_iovcreate(&iov, "/nowhere", PAGE, 0, -1), -ENOENT);
    EQUAL(hf3fs_iovcreate(&iov, "/proc", PAGE, 0, -1), -EOPNOTSUPP);
    EQUAL(hf3fs_iorcreate(NULL, mnt, 1, true, 0, -1), -EINVAL);
    EQUAL(hf3fs_iorcreate(&ior, "", 1, true, 0, -1), -EINVAL);
    EQUAL(hf3fs_iorcreate(&ior, mnt, 0, true, 0, -1), -EINVAL);
    EQUAL(hf3fs_iorcreate(&ior, "/nowhere", 1, true, 0, -1), -ENOENT);
    EQUAL(hf3fs_iorcreate4(&ior, mnt, 1, true, 0, -1, -1, 0), -EINVAL);
    EQUAL(hf3fs_iorcreate4(&ior, mnt, 1, true, 0, 0, -1, 4), -EINVAL);
    /* transfers */
    int fd = store.fd;
    EQUAL(hf3fs_prep_io(NULL, &store.iov, true, base, fd, 0, 1, NULL), -EINVAL);
    EQUAL(hf3fs_prep_io(&store.reads, NULL, true, base, fd, 0, 1, NULL), -EINVAL);
    EQUAL(hf3fs_prep_io(&store.reads, &store.iov, false, base, fd, 0, 1, NULL), -EINVAL);
    EQUAL(hf3fs_prep_io(&store.writes, &store.iov, true, base, fd, 0, 1, NULL), -EINVAL);
    EQUAL(hf3fs_prep_io(&store.reads, &store.iov, true, NULL, fd, 0, 1, NULL), -EINVAL);
    EQUAL(hf3fs_prep_io(&store.reads, &store.iov, true, base - 1, fd, 0, 1, NULL), -EINVAL);
    EQUAL(hf3fs_prep_io(&store.reads, &store.iov, true, base + ENTRIES * PAGE - 1, fd, 0, 2, NULL),
          -EINVAL);
    EQUAL(hf3fs_prep_io(&store.reads, &store.iov, true, base, fd, 0, 0, NULL), -EINVAL);
    EQUAL(hf3fs_prep_io(&store.reads, &store.iov, true, base, fd, 0, UINT64_MAX, NULL), -EINVAL);
    EQUAL(hf3fs_prep_io(&store.reads, &store.iov, true, base, fd, SIZE_MAX, 1, NULL), -EINVAL);
    EQUAL(hf3fs_prep_io(&store.reads, &store.iov, true, base, 9999, 0, 1, NULL), -EBADF);
    EQUAL(hf3fs_prep_io(&store.reads, &store.iov, true, base, INT32_MIN, 0, 1, NULL), -EINVAL);
    EQUAL(hf3fs_iovcreate(&blocks, mnt, 2 * PAGE, PAGE, -1), 0);
    EQUAL(hf3fs_prep_io(&store.reads, &blocks, true, blocks.base + 1, fd, 0, PAGE, NULL), -EINVAL);
    EQUAL(move(&store.reads, &blocks, fd, 0), 0);
    hf3fs_iovdestroy(&blocks);
    hf3fs_iovdestroy(&blocks);
    EQUAL(hf3fs_submit_ios(NULL), -EINVAL);
    EQUAL(hf3fs_wait_for_ios(&store.reads, &done, 0, 0, NULL), -EINVAL);
    EQUAL(hf3fs_wait_for_ios(NULL, &done, 1, 0, NULL), -EINVAL);
    /* files: errors are positive */
    int elsewhere = open("/proc/self/status", O_RDONLY), reader = open_file("refused", O_RDONLY);
    int writer = open_file("refused", O_WRONLY), folder = open(mnt, O_RDONLY);
    CHECK(hf3fs_is_hf3fs(reader) && !hf3fs_is_hf3fs(elsewhere) && !hf3fs_is_hf3fs(-1));
    EQUAL(hf3fs_reg_fd(elsewhere, 0), EBADF);
    EQUAL(hf3fs_reg_fd(9999, 0), EBADF);
    EQUAL(hf3fs_reg_fd(-1, 0), EBADF);
    EQUAL(hf3fs_reg_fd(folder, 0), EISDIR);
    CHECK(hf3fs_reg_fd(reader, 0) <= 0 && hf3fs_reg_fd(writer, 0) <= 0);
    EQUAL(hf3fs_reg_fd(reader, 0), EINVAL);
    EQUAL(hf3fs_prep_io(&store.writes, &store.iov, false, base, reader, 0, 1, NULL), -EACCES);
    EQUAL(hf3fs_prep_io(&store.reads, &store.iov, true, base, writer, 0, 1, NULL), -EACCES);
    EQUAL(move(&store.reads, &store.iov, -reader, 0), 0); /* what was returned stands for it, too */
    /* one that is closed while it is registered */
    CHECK(close(reader) == 0 && open_file("refused", O_RDONLY) == reader);
    EQUAL(hf3fs_reg_fd(reader, 0), EINVAL);
    EQUAL(move(&store.reads, &store.iov, reader, 0), 0); /* the file from before */
    hf3fs_dereg_fd(reader);
    EQUAL(hf3fs_prep_io(&store.reads, &store.iov, true, base, reader, 0, 1, NULL), -EBADF);
    EQUAL(hf3fs_reg_fd(reader, 0), -reader);
    EQUAL(move(&store.reads, &store.iov, reader, 0), 0);
    hf3fs_dereg_fd(-reader);
    hf3fs_dereg_fd(reader);
    hf3fs_dereg_fd(INT32_MIN);
    hf3fs_dereg_fd(writer);
    CHECK(!close(reader) && !close(writer) && !close(folder) && !close(elsewhere));
    end(&store);
}

static void test_holes_and_links(void) {
    struct store store;
    struct hf3fs_ior strict;
    char path[512], other[512], found[512];
    begin(&store, "holes");
    snprintf(path, sizeof path, "%s/holes", mnt);
    snprintf(other, sizeof other, "%s/holes-2", mnt);
    put_and_get(&store, 8 << 20, 'h');
    EQUAL(hf3fs_iorcreate4(&strict, mnt, 2, true, 0, 0, -1, HF3FS_IOR_FORBID_READ_HOLES), 0);
    EQUAL(move(&strict, &store.iov, store.fd, 0), -ENODATA);
    EQUAL(move(&strict, &store.iov, store.fd, 8 << 20), PAGE);
    memset(store.iov.base, 1, PAGE);
    EQUAL(move(&store.reads, &store.iov, store.fd, 0), PAGE);
    EQUAL(store.iov.base[7], 0);
    for (size_t at = 0; at < 3; at++) put_and_get(&store, at << 20, 'p');
    size_t start[] = {0, 2 << 20}, ends[] = {PAGE, (2 << 20) + PAGE};
    EQUAL(hf3fs_punchhole(store.fd, 2, start, ends, 0), 0);
    for (size_t at = 0; at < 3; at++) {
        EQUAL(move(&store.reads, &store.iov, store.fd, at << 20), PAGE);
        EQUAL(store.iov.base[0], at == 1 ? 'p' : 0);
    }
    EQUAL(hf3fs_punchhole(store.fd, 1, ends, start, 0), EINVAL);
    EQUAL(hf3fs_punchhole(-1, 1, start, ends, 0), EBADF);
    EQUAL(hf3fs_hardlink(path, other), 0);
    EQUAL(hf3fs_hardlink(path, other), EEXIST);
    struct stat one, two;
    CHECK(stat(path, &one) == 0 && stat(other, &two) == 0 && one.st_ino == two.st_ino);
    /* mount points */
    EQUAL(hf3fs_extract_mount_point(found, sizeof found, other), (int)strlen(mnt) + 1);
    CHECK(strcmp(found, mnt) == 0);
    snprintf(path, sizeof path, "%s/not/yet", mnt);
    EQUAL(hf3fs_extract_mount_point(found, sizeof found, path), (int)strlen(mnt) + 1);
    strcpy(found, "same");
    EQUAL(hf3fs_extract_mount_point(found, (int)strlen(mnt), mnt), (int)strlen(mnt) + 1);
    CHECK(strcmp(found, "same") == 0);
    EQUAL(hf3fs_extract_mount_point(found, sizeof found, "/proc/self"), -1);
    EQUAL(hf3fs_extract_mount_point(found, sizeof found, "nothing"), -1);
    EQUAL(hf3fs_extract_mount_point(found, sizeof found, ""), -1);
    /* devices */
    struct hf3fs_iov iov;
    CHECK(!hf3fs_gdr_available() && hf3fs_gdr_device_count() == 0);
    EQUAL(hf3fs_iovcreate_device(&iov, mnt, PAGE, 0, 0), -ENOTSUP);
    EQUAL(hf3fs_iovcreate_device(&iov, mnt, PAGE, PAGE, 0), -EINVAL);
    EQUAL(hf3fs_iovopen_device(&iov, (const uint8_t *)store.iov.id, mnt, PAGE, 0, 0), -ENOTSUP);
    EQUAL(
        hf3fs_iovwrap_device(&iov, store.iov.base, (const uint8_t *)store.iov.id, mnt, PAGE, 0, 0),
        -ENOTSUP);
    EQUAL(hf3fs_iov_mem_type(&store.iov), HF3FS_MEM_HOST);
    EQUAL(hf3fs_iov_device_id(&store.iov), -1);
    CHECK(hf3fs_iovsync(&store.iov, 0) == 0 && hf3fs_iovsync(NULL, 0) == -EINVAL);
    hf3fs_iordestroy(&strict);
    end(&store);
}

static void *use_a_store(void *number) {
    struct store store;
    char name[32];
    snprintf(name, sizeof name, "thread-%d", *(int *)number);
    begin(&store, name);
    for (int i = 0; i < 50; i++) put_and_get(&store, (size_t)(i % 7) * PAGE, 1 + *(int *)number);
    end(&store);
    return NULL;
}

enum { MANY = 5000 };

static void *prepare_many(void *argument) {
    struct store *store = argument;
    for (intptr_t i = 1; i <= MANY;) {
        uint8_t *at = store->iov.base + i % ENTRIES * PAGE;
        int index = hf3fs_prep_io(&store->reads, &store->iov, true, at, store->fd, 0, 1, (void *)i);
        if (index >= 0)
            i++;
        else
            EQUAL(index, -EAGAIN);
        EQUAL(hf3fs_submit_ios(&store->reads), 0);
    }
    return NULL;
}

static void test_threads(void) {
    pthread_t threads[8];
    int numbers[8];
    for (int i = 0; i < 8; i++) {
        numbers[i] = i;
        CHECK(pthread_create(&threads[i], NULL, use_a_store, &numbers[i]) == 0);
    }
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    /* one prepares, another one waits, from before the first is submitted */
    struct store store;
    begin(&store, "threads");
    put_and_get(&store, 0, 'm');
    CHECK(pthread_create(&threads[0], NULL, prepare_many, &store) == 0);
    intptr_t count = 0, sum = 0;
    struct hf3fs_cqe done[ENTRIES];
    while (count < MANY) {
        int some = hf3fs_wait_for_ios(&store.reads, done, ENTRIES, 1, NULL);
        CHECK(some > 0);
        for (int i = 0; i < some; i++) {
            EQUAL(done[i].result, 1);
            sum += (intptr_t)done[i].userdata;
        }
        count += some;
    }
    pthread_join(threads[0], NULL);
    EQUAL(sum, (intptr_t)MANY * (MANY + 1) / 2);
    end(&store);
}

static void test_many_rings(void) {
    enum { RINGS = 150 };
    struct store store;
    struct hf3fs_ior rings[RINGS];
    begin(&store, "rings");
    put_and_get(&store, 0, 'r');
    for (int i = 0; i < RINGS; i++) EQUAL(hf3fs_iorcreate(&rings[i], mnt, 2, true, 0, -1), 0);
    for (int i = 0; i < RINGS; i++) EQUAL(move(&rings[i], &store.iov, store.fd, 0), PAGE);
    for (int i = 0; i < RINGS; i++) hf3fs_iordestroy(&rings[i]);
    int before = fd_count();
    for (int i = 0; i < 1000; i++) {
        struct hf3fs_iov iov;
        EQUAL(hf3fs_iorcreate(&rings[0], mnt, 2, true, 0, -1), 0);
        EQUAL(hf3fs_iovcreate(&iov, mnt, PAGE, 0, -1), 0);
        if (i % 10 == 0) EQUAL(move(&rings[0], &iov, store.fd, 0), PAGE);
        hf3fs_iovdestroy(&iov); /* before the ring, as 3FS's own example does */
        hf3fs_iordestroy(&rings[0]);
    }
    EQUAL(fd_count(), before);
    end(&store);
}

static void test_fork(void) {
    struct store store;
    struct hf3fs_cqe done;
    begin(&store, "fork");
    put_and_get(&store, 0, 'f');
    CHECK(hf3fs_prep_io(&store.reads, &store.iov, true, store.iov.base, store.fd, 0, PAGE, NULL)
          >= 0);
    pid_t child = fork();
    if (child == 0) {
        EQUAL(hf3fs_submit_ios(&store.reads), 0); /* the parent's to submit */
        EQUAL(hf3fs_wait_for_ios(&store.reads, &done, 1, 1, NULL), 0);
        put_and_get(&store, PAGE, 'c');
        hf3fs_iordestroy(
            &store.writes); /* one that was made anew, and one that is not touched again */
        end(&store);
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    EQUAL(status, 0);
    EQUAL(hf3fs_submit_ios(&store.reads), 0);
    EQUAL(hf3fs_wait_for_ios(&store.reads, &done, 1, 1, NULL), 1);
    EQUAL(done.result, PAGE);
    put_and_get(&store, 2 * PAGE, 'p');
    EQUAL(move(&store.reads, &store.iov, store.fd, PAGE), PAGE);
    EQUAL(store.iov.base[0], 'c');
    end(&store);
}

static _Atomic bool is_over;

static void *use_a_store_until_over(void *number) {
    struct store store;
    char name[32];
    snprintf(name, sizeof name, "busy-%d", *(int *)number);
    begin(&store, name);
    while (!is_over) put_and_get(&store, 0, 1 + *(int *)number);
    end(&store);
    return NULL;
}

/* A process forks whatever its threads do with the library this moment. */
static void test_forks_of_a_busy_process(void) {
    struct store store;
    pthread_t threads[3];
    int numbers[3];
    begin(&store, "busy");
    for (int i = 0; i < 3; i++) {
        numbers[i] = i;
        CHECK(pthread_create(&threads[i], NULL, use_a_store_until_over, &numbers[i]) == 0);
    }
    for (int i = 1; i <= 20; i++) {
        pid_t child = fork();
        if (child == 0) {
            put_and_get(&store, (size_t)i * PAGE, i);
            _exit(0); /* what the threads have is not to be reached here */
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        EQUAL(status, 0);
        EQUAL(move(&store.reads, &store.iov, store.fd, (size_t)i * PAGE), PAGE);
        EQUAL(store.iov.base[5], i);
    }
    is_over = true;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    end(&store);
}

static void *wait_for_one(void *argument) {
    struct hf3fs_cqe done;
    return (void *)(intptr_t)hf3fs_wait_for_ios(argument, &done, 1, 1, NULL);
}

static void test_restart(void) {
    struct store store;
    struct hf3fs_cqe done;
    begin(&store, "restart");
    put_and_get(&store, 0, 'b');
    for (int i = 0; i < 2; i++)
        CHECK(
            hf3fs_prep_io(&store.writes, &store.iov, false, store.iov.base, store.fd, 0, PAGE, NULL)
            >= 0);
    pthread_t waiter;
    void *result;
    CHECK(pthread_create(&waiter, NULL, wait_for_one, &store.reads) == 0);
    pause_until_told("end it");
    EQUAL(hf3fs_submit_ios(&store.writes), -ENOTCONN); /* said once, of what was on the ring */
    CHECK(pthread_join(waiter, &result) == 0);
    EQUAL((intptr_t)result, -ENOTCONN);
    EQUAL(move(&store.writes, &store.iov, store.fd, 0), -ENOTCONN);
    EQUAL(move(&store.reads, &store.iov, store.fd, 0), -ENOTCONN);
    pause_until_told("serve it again");
    EQUAL(move(&store.writes, &store.iov, store.fd, 0), -ENOTCONN); /* this file stays lost */
    hf3fs_dereg_fd(store.fd);
    close(store.fd);
    store.fd = open_file("restart", O_RDWR | O_CREAT);
    EQUAL(hf3fs_reg_fd(store.fd, 0), -store.fd);
    put_and_get(&store, PAGE, 'a');
    EQUAL(hf3fs_wait_for_ios(&store.writes, &done, 1, 0, NULL),
          0); /* what was dropped does not come back */
    /* Once more; nothing is on the rings, and whoever opens a file for each call never hears of it.
     */
    hf3fs_dereg_fd(store.fd);
    close(store.fd);
    pause_until_told("end it and serve it again");
    store.fd = open_file("restart", O_RDWR | O_CREAT);
    EQUAL(hf3fs_reg_fd(store.fd, 0), -store.fd);
    put_and_get(&store, PAGE, 'e');
    end(&store);
}

static void hex(const char id[16], char text[37]) {
    for (int i = 0, at = 0; i < 16; i++)
        at += sprintf(text + at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                      (unsigned char)id[i]);
}

static void test_wrapped(void) {
    struct store store;
    struct hf3fs_iov iov;
    char link[512], number[37], target[64];
    begin(&store, "wrapped");
    put_and_get(&store, 0, 'w');
    EQUAL(hf3fs_iovwrap(&iov, store.iov.base, (const uint8_t[16]){0}, mnt, PAGE, 0, -1), 0);
    EQUAL(hf3fs_prep_io(&store.reads, &iov, true, iov.base, store.fd, 0, PAGE, NULL), -ENOENT);
    hf3fs_iovdestroy(&iov); /* does nothing to what is wrapped */
    int before = 0;
    for (int i = 0; i < 300; i++) {
        uint8_t id[16] = "an id of memory";
        id[0] = (uint8_t)(i / 2); /* each is used for other memory once more */
        snprintf(target, sizeof target, "/hf3fs-calls-%d-%d", (int)getpid(), i);
        int fd = shm_open(target, O_RDWR | O_CREAT | O_EXCL, 0600);
        CHECK(fd >= 0 && ftruncate(fd, 2 * PAGE) == 0);
        uint8_t *base = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK(base != MAP_FAILED);
        close(fd);
        hex((const char *)id, number);
        char path[80];
        snprintf(path, sizeof path, "/dev/shm%s", target);
        snprintf(link, sizeof link, "%s/3fs-virt/iovs/%s.b%d", mnt, number, PAGE);
        EQUAL(symlink(path, link), 0);
        EQUAL(hf3fs_iovwrap(&iov, base, id, mnt, 2 * PAGE, PAGE, -1), 0);
        EQUAL(move(&store.reads, &iov, store.fd, 0), PAGE);
        EQUAL(base[PAGE - 1], 'w');
        struct hf3fs_iov copy = iov; /* as languages do that move structures */
        copy.base += 1;
        copy.size -= 1;
        EQUAL(hf3fs_prep_io(&store.reads, &iov, true, base + 1, store.fd, 0, PAGE, NULL), -EINVAL);
        EQUAL(unlink(link), 0);
        EQUAL(shm_unlink(target), 0);
        munmap(base, 2 * PAGE);
        if (i == 150) before = fd_count();
    }
    CHECK(fd_count() < before + 100); /* what is over is let go */
    end(&store);
}

static void test_found_by_id(void) {
    struct store store;
    char number[37];
    begin(&store, "by-id");
    put_and_get(&store, 0, 'i');
    hex(store.iov.id, number);
    pause_until_told(number);
    EQUAL(store.iov.base[1], 'P'); /* whoever has it by its id wrote this */
    hf3fs_iovunlink(&store.iov);
    put_and_get(&store, 0, 'j');
    char line[64];
    printf("other\n");
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin));
    uint8_t id[16];
    for (int i = 0; i < 16; i++) {
        unsigned byte;
        CHECK(sscanf(line + 2 * i, "%2x", &byte) == 1);
        id[i] = (uint8_t)byte;
    }
    struct hf3fs_iov iov;
    EQUAL(hf3fs_iovopen(&iov, (const uint8_t *)"nobody has it   ", mnt, PAGE, 0, -1), -ENOENT);
    EQUAL(hf3fs_iovopen(&iov, id, mnt, 100 * PAGE, 0, -1), -EINVAL);
    EQUAL(hf3fs_iovopen(&iov, id, mnt, PAGE, PAGE, -1), -EINVAL);
    EQUAL(hf3fs_iovopen(&iov, id, mnt, PAGE, 0, -1), 0);
    EQUAL(iov.base[0], 'P');
    EQUAL(move(&store.reads, &iov, store.fd, 0), PAGE);
    hf3fs_iovdestroy(&iov);
    pause_until_told("read");
    end(&store);
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = {
        {"batches", test_batches},
        {"order", test_completions_in_any_order},
        {"depths", test_depths},
        {"timeouts", test_timeouts},
        {"refused", test_what_is_refused},
        {"holes", test_holes_and_links},
        {"threads", test_threads},
        {"rings", test_many_rings},
        {"fork", test_fork},
        {"forks", test_forks_of_a_busy_process},
        {"restart", test_restart},
        {"wrapped", test_wrapped},
        {"by-id", test_found_by_id},
    };
    CHECK(count == 3);
    mnt = arguments[2];
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (strcmp(tests[i].name, arguments[1]) != 0) continue;
        tests[i].run();
        printf("done\n");
        return 0;
    }
    fprintf(stderr, "no test %s\n", arguments[1]);
    return 2;
}
