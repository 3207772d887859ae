/* Preloaded: reads and flushes of files below a directory take as long as slow_ms says, as those of
 * a slow disk do. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

volatile int slow_ms = 0;

static void wait_for(int fd) {
    char link[64], path[512];
    struct timespec pause = {slow_ms / 1000, (slow_ms % 1000) * 1000000L};
    if (!slow_ms) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t count = readlink(link, path, sizeof path - 1);
    if (count < 0) return;
    path[count] = 0;
    if (strstr(path, "/slow_disk/")) nanosleep(&pause, 0);
}

ssize_t pread64(int fd, void *to, size_t size, off64_t at) {
    static ssize_t (*next)(int, void *, size_t, off64_t);
    if (!next) next = dlsym(RTLD_NEXT, "pread64");
    wait_for(fd);
    return next(fd, to, size, at);
}

ssize_t pread(int fd, void *to, size_t size, off_t at) { return pread64(fd, to, size, at); }

int fdatasync(int fd) {
    static int (*next)(int);
    if (!next) next = dlsym(RTLD_NEXT, "fdatasync");
    wait_for(fd);
    return next(fd);
}
