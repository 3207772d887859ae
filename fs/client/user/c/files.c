/* Descriptors that rings may use.
 *
 * The daemon has a share of its own in each open file, by a ticket which only who holds the
 * descriptor can ask for.  So the descriptor is not duplicated: closing a duplicate would take an
 * error of a write that close(2) of the original is to tell.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "hf3fs_usrbio.h"
#include "inside.h"

struct file {
    struct known known;
    int access; /* O_ACCMODE of its flags */
    dev_t device;
    ino_t inode;
    uint64_t number; /* no two registrations have the same */
};

/* By descriptor; guarded by `registry`. */
static struct file **files;
static int file_room;
static uint64_t last_number;

static struct file *find(int fd) { return fd >= 0 && fd < file_room ? files[fd] : NULL; }

static int make_room(int fd) {
    if (fd < file_room) return 0;
    int room = file_room ? file_room : 64;
    while (room <= fd) room = room <= INT_MAX / 2 ? room * 2 : INT_MAX;
    struct file **more = realloc(files, (size_t)room * sizeof *more);
    if (!more) return -ENOMEM;
    memset(more + file_room, 0, (size_t)(room - file_room) * sizeof *more);
    files = more;
    file_room = room;
    return 0;
}

/* Has the daemon open what a descriptor has open. */
static int add_file(struct connection *connection, int fd, uint32_t *id) {
    struct ember_ticket ticket;
    if (ioctl(fd, EMBER_BATCH_IOCTL_TICKET, &ticket)) return errno == ENOTTY ? -EBADF : -errno;
    struct ember_request request = {
        .call = EMBER_ADD_FILE, .first = ticket.first, .second = ticket.second};
    struct answer answer;
    int error = call(connection, request, -1, &answer);
    *id = answer.id;
    return error;
}

static void drop_file(struct connection *connection, uint32_t id) {
    struct answer unused;
    call(connection, (struct ember_request){.call = EMBER_DROP_FILE, .id = id}, -1, &unused);
}

/* Makes a registration of a descriptor that is open; it is registered with the daemon, and not in
 * `files` yet. */
static int make(int fd, struct file **made) {
    struct stat found;
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fstat(fd, &found)) return -errno;
    struct address address;
    int error = address_of_fd(fd, &address);
    if (error) return error == -EOPNOTSUPP ? -EBADF : error;
    if (S_ISDIR(found.st_mode)) return -EISDIR;
    struct file *file = calloc(1, sizeof *file);
    if (!file) return -ENOMEM;
    *file =
        (struct file){.access = flags & O_ACCMODE, .device = found.st_dev, .inode = found.st_ino};
    uint32_t id;
    struct connection *connection;
    for (int tries = 2; tries--;) { /* twice where the connection turns out to have ended */
        error = connect_to(&address, false, &connection);
        if (error) break;
        error = add_file(connection, fd, &id);
        if (!error) {
            error = add_known(&file->known, connection, id);
            if (error) drop_file(connection, id);
        }
        bool has_ended = connection->has_ended;
        give_back(connection, false);
        if (!error || !has_ended) break;
    }
    if (error)
        free(file);
    else
        *made = file;
    return error;
}

int hf3fs_reg_fd(int fd, uint64_t flags) {
    (void)flags;
    pthread_mutex_lock(&registry);
    bool is_registered = find(fd) != NULL;
    pthread_mutex_unlock(&registry);
    if (is_registered) return EINVAL;
    struct file *file;
    int error = make(fd, &file);
    if (error) return -error;
    pthread_mutex_lock(&registry);
    if (find(fd))
        error = EINVAL; /* another thread was first */
    else
        error = -make_room(fd);
    if (!error) {
        file->number = ++last_number;
        files[fd] = file;
    }
    pthread_mutex_unlock(&registry);
    if (!error) return -fd;
    drop_known(&file->known, EMBER_DROP_FILE);
    free(file);
    return error;
}

void hf3fs_dereg_fd(int fd) {
    if (fd == INT_MIN) return;
    fd = abs(fd);
    pthread_mutex_lock(&registry);
    struct file *file = find(fd);
    if (file) files[fd] = NULL;
    pthread_mutex_unlock(&registry);
    if (!file) return;
    int error = drop_known(&file->known, EMBER_DROP_FILE);
    free(file);
    if (error) errno = -error;
}

/* Registers once more: for another connection.  The descriptor has to be what it was. */
static int register_again(struct connection *connection, int fd, const struct file *was,
                          uint32_t *id) {
    struct stat now;
    if (fstat(fd, &now)) return -errno;
    if (now.st_dev != was->device || now.st_ino != was->inode) return -EBADF;
    int error = add_file(connection, fd, id);
    if (error) return error;
    pthread_mutex_lock(&registry);
    struct file *file = find(fd);
    if (!file || file->number != was->number)
        error = -EBADF;
    else
        error = add_known(&file->known, connection, *id);
    pthread_mutex_unlock(&registry);
    if (error) drop_file(connection, *id);
    return error;
}

int file_id(struct connection *connection, int fd, bool is_read, uint32_t *id) {
    if (fd == INT_MIN) return -EINVAL;
    fd = abs(fd);
    pthread_mutex_lock(&registry);
    struct file *file = find(fd), was = {0};
    bool is_known = file && find_known(&file->known, connection, id);
    if (file) was = *file;
    pthread_mutex_unlock(&registry);
    if (!file) return -EBADF;
    if (was.access == (is_read ? O_WRONLY : O_RDONLY)) return -EACCES;
    return is_known ? 0 : register_again(connection, fd, &was, id);
}
