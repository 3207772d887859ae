/* Example of the batch interface in C: copies the blocks of one file of a mount to another, in
 * reverse order, and prints their sum.
 *
 * Usage: copy_blocks SOURCE TARGET.  Build: cc -O2 -o copy_blocks copy_blocks.c
 */
#define _GNU_SOURCE
#include "ember_batch.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { ENTRIES = 16, BLOCK = 65536 };

static void fail(const char *what) {
    fprintf(stderr, "copy_blocks: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void refuse(const char *path) {
    fprintf(stderr, "copy_blocks: %s: on no mount that serves batches\n", path);
    exit(1);
}

static int opened(const char *path, int flags) {
    int fd = open(path, flags, 0666);
    if (fd < 0) fail(path);
    return fd;
}

static int connect_to_daemon(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    ssize_t length =
        getxattr(path, EMBER_BATCH_ATTRIBUTE, address.sun_path, sizeof address.sun_path - 1);
    if (length <= 0) refuse(path);
    if (address.sun_path[0] == '@') address.sun_path[0] = 0;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    socklen_t size = offsetof(struct sockaddr_un, sun_path) + (socklen_t)length;
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, size)) fail("connecting");
    return fd;
}

/* Make one request; up to two descriptors that come with the answer go to fds. */
static struct ember_reply call(int connection, struct ember_request request, int *fds) {
    static uint32_t serial;
    union {
        struct ember_reply reply;
        char packet[1024];
    } answer;
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(2 * sizeof(int))];
    } control;
    request.serial = ++serial;
    if (send(connection, &request, sizeof request, MSG_NOSIGNAL) != sizeof request) fail("asking");
    struct iovec part = {&answer, sizeof answer};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    ssize_t length = recvmsg(connection, &message, MSG_CMSG_CLOEXEC);
    if (length < (ssize_t)sizeof answer.reply) fail("the daemon has gone");
    if (answer.reply.error_number) {
        errno = answer.reply.error_number;
        fail("the daemon refuses");
    }
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    if (rights && fds) memcpy(fds, CMSG_DATA(rights), rights->cmsg_len - CMSG_LEN(0));
    return answer.reply;
}

static uint32_t add_file(int connection, int fd, const char *path) {
    struct ember_ticket ticket;
    if (ioctl(fd, EMBER_BATCH_IOCTL_TICKET, &ticket)) refuse(path);
    struct ember_request request = {
        .call = EMBER_ADD_FILE, .first = ticket.first, .second = ticket.second};
    return call(connection, request, NULL).id;
}

static void *map(int fd, uint64_t size) {
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) fail("mmap");
    close(fd);
    return memory;
}

struct ring {
    void *memory;
    int bell;
    uint64_t entries, completions;
};

static void prepare(struct ring *ring, struct ember_entry entry) {
    *ember_entry_at(ring->memory, ENTRIES, ring->entries++) = entry;
}

/* Hand in `count` entries, wait for as many completions; lengths[user_data] becomes their result.
 */
static void run(struct ring *ring, uint32_t count, int64_t *lengths) {
    if (count == 0) return;
    if (send(ring->bell, &count, sizeof count, MSG_NOSIGNAL) != sizeof count) fail("the bell");
    while (count) {
        uint32_t heard;
        if (recv(ring->bell, &heard, sizeof heard, MSG_WAITALL) != sizeof heard) fail("the bell");
        for (count -= heard; heard; heard--) {
            struct ember_completion *done =
                ember_completion_at(ring->memory, ENTRIES, ring->completions++);
            if (done->result < 0) {
                errno = (int)-done->result;
                fail("a transfer");
            }
            lengths[done->user_data] = done->result;
        }
    }
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: copy_blocks SOURCE TARGET\n");
        return 2;
    }
    int source = opened(arguments[1], O_RDONLY), connection = connect_to_daemon(arguments[1]);
    int target = opened(arguments[2], O_WRONLY | O_CREAT | O_TRUNC), fds[2];
    call(connection, (struct ember_request){.call = EMBER_HELLO, .id = EMBER_BATCH_VERSION}, NULL);

    struct ember_request wish = {.call = EMBER_NEW_MEMORY, .first = (uint64_t)ENTRIES * BLOCK};
    uint32_t memory_id = call(connection, wish, fds).id;
    unsigned char *memory = map(fds[0], (uint64_t)ENTRIES * BLOCK);
    call(connection, (struct ember_request){.call = EMBER_NEW_RING, .id = ENTRIES}, fds);
    struct ring ring = {.memory = map(fds[0], ember_ring_bytes(ENTRIES)), .bell = fds[1]};

    uint32_t from = add_file(connection, source, arguments[1]);
    uint32_t to = add_file(connection, target, arguments[2]);
    uint64_t length =
        call(connection, (struct ember_request){.call = EMBER_FILE_LENGTH, .id = from}, NULL)
            .number;
    uint64_t blocks = (length + BLOCK - 1) / BLOCK, sum = 0;
    for (uint64_t left = blocks; left;) {
        uint32_t some = left < ENTRIES ? (uint32_t)left : ENTRIES;
        int64_t lengths[ENTRIES];
        left -= some;
        for (uint32_t i = 0; i < some; i++)
            prepare(&ring, (struct ember_entry){.user_data = i,
                                                .offset = (left + i) * BLOCK,
                                                .length = BLOCK,
                                                .memory_offset = (uint64_t)i * BLOCK,
                                                .file_id = from,
                                                .memory_id = memory_id,
                                                .op = EMBER_READ});
        run(&ring, some, lengths);
        for (uint32_t i = 0; i < some; i++) {
            for (int64_t at = 0; at < lengths[i]; at++)
                sum += memory[(uint64_t)i * BLOCK + (uint64_t)at];
            prepare(&ring, (struct ember_entry){.user_data = i,
                                                .offset = (left + i) * BLOCK,
                                                .length = (uint64_t)lengths[i],
                                                .memory_offset = (uint64_t)i * BLOCK,
                                                .file_id = to,
                                                .memory_id = memory_id,
                                                .op = EMBER_WRITE});
        }
        run(&ring, some, lengths);
    }
    call(connection, (struct ember_request){.call = EMBER_DROP_FILE, .id = to}, NULL);
    if (close(target)) fail("close");
    printf("%llu bytes, sum %llu\n", (unsigned long long)length, (unsigned long long)sum);
    return 0;
}
