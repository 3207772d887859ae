/* Mounts and their files, as far as no ring is needed; and what is said of memory of devices. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hf3fs_usrbio.h"
#include "inside.h"

bool hf3fs_is_hf3fs(int fd) {
    struct address unused;
    return address_of_fd(fd, &unused) == 0;
}

/* Resolves links of as much of a path as exists; the rest is kept. */
static bool resolve(const char *path, char resolved[PATH_MAX]) {
    char head[PATH_MAX];
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof head) return false;
    memcpy(head, path, length + 1);
    while (!realpath(length ? head : ".", resolved)) {
        if (errno != ENOENT || !length) return false;
        while (length && head[length - 1] == '/') length--;
        while (length && head[length - 1] != '/') length--;
        if (length) head[length] = 0;
    }
    const char *rest = path + length;
    if (!*rest) return true;
    size_t end = strlen(resolved);
    return snprintf(resolved + end, PATH_MAX - end, "/%s", rest) < (int)(PATH_MAX - end);
}

/* Undoes what the kernel writes for blanks and backslashes: \ooo. */
static void unescape(char *text) {
    char *to = text;
    for (const char *from = text; *from; to++) {
        if (from[0] == '\\' && from[1] && from[2] && from[3]) {
            *to = (char)((from[1] - '0') << 6 | (from[2] - '0') << 3 | (from[3] - '0'));
            from += 4;
        } else {
            *to = *from++;
        }
    }
    *to = 0;
}

/* Returns the mount point in a line of mountinfo(5), the fifth field, if it is one of ours; the
 * type follows a lone dash. */
static char *mount_point_in(char *line) {
    char *type = strstr(line, " - "), *field = line;
    if (!type || strncmp(type + 3, "fuse.ember ", 11) != 0) return NULL;
    *type = 0;
    for (int i = 0; i < 4; i++) {
        field = strchr(field, ' ');
        if (!field) return NULL;
        field++;
    }
    field[strcspn(field, " ")] = 0;
    unescape(field);
    return field;
}

static bool is_below(const char *path, const char *mount_point) {
    size_t length = strlen(mount_point);
    return strncmp(path, mount_point, length) == 0 && (path[length] == 0 || path[length] == '/');
}

int hf3fs_extract_mount_point(char *hf3fs_mount_point, int size, const char *path) {
    char resolved[PATH_MAX], found[PATH_MAX] = "";
    if (!path || !resolve(path, resolved)) return -1;
    FILE *mounts = fopen("/proc/self/mountinfo", "re");
    if (!mounts) return -1;
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, mounts) >= 0) {
        const char *one = mount_point_in(line);
        if (one && is_below(resolved, one) && strlen(one) > strlen(found)
            && strlen(one) < sizeof found)
            strcpy(found, one);
    }
    free(line);
    fclose(mounts);
    int length = (int)strlen(found);
    if (!length) return -1;
    if (hf3fs_mount_point && length < size) strcpy(hf3fs_mount_point, found);
    return length + 1;
}

int hf3fs_hardlink(const char *target, const char *link_name) {
    if (!target || !link_name) return EINVAL;
    return linkat(AT_FDCWD, target, AT_FDCWD, link_name, AT_SYMLINK_FOLLOW) ? errno : 0;
}

int hf3fs_punchhole(int fd, int n, const size_t *start, const size_t *end, size_t flags) {
    (void)flags;
    if (n < 0 || (n && (!start || !end))) return EINVAL;
    for (int i = 0; i < n; i++) {
        if (end[i] < start[i] || end[i] > INT64_MAX) return EINVAL;
        if (end[i] == start[i]) continue;
        off_t length = (off_t)(end[i] - start[i]);
        if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)start[i], length))
            return errno;
    }
    return 0;
}

/* ---- memory of devices ---- */

bool hf3fs_gdr_available(void) { return false; }

int hf3fs_gdr_device_count(void) { return 0; }

enum hf3fs_mem_type hf3fs_iov_mem_type(const struct hf3fs_iov *iov) {
    (void)iov;
    return HF3FS_MEM_HOST;
}

int hf3fs_iov_device_id(const struct hf3fs_iov *iov) {
    (void)iov;
    return -1;
}

int hf3fs_iovsync(const struct hf3fs_iov *iov, int direction) {
    (void)direction;
    return iov ? 0 : -EINVAL;
}

int hf3fs_iovcreate_device(struct hf3fs_iov *iov, const char *hf3fs_mount_point, size_t size,
                           size_t block_size, int device_id) {
    (void)iov, (void)hf3fs_mount_point, (void)size, (void)device_id;
    return block_size ? -EINVAL : -ENOTSUP;
}

int hf3fs_iovopen_device(struct hf3fs_iov *iov, const uint8_t id[16], const char *hf3fs_mount_point,
                         size_t size, size_t block_size, int device_id) {
    (void)id;
    return hf3fs_iovcreate_device(iov, hf3fs_mount_point, size, block_size, device_id);
}

int hf3fs_iovwrap_device(struct hf3fs_iov *iov, void *device_ptr, const uint8_t id[16],
                         const char *hf3fs_mount_point, size_t size, size_t block_size,
                         int device_id) {
    (void)device_ptr, (void)id;
    return hf3fs_iovcreate_device(iov, hf3fs_mount_point, size, block_size, device_id);
}
