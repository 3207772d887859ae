/* Connections to mount daemons: finding them, requests and answers.
 *
 * Any number of threads may ask at once: whoever waits for an answer receives for the others, too.
 * A connection that has ended stays ended; the next `connect_to` makes another one.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "inside.h"

enum { PACKET_BYTES = 1024, RINGS_PER_CONNECTION = 64 };

struct waiting {
    uint32_t serial;
    int32_t error_number;
    bool is_answered;
    struct answer answer;
    struct waiting *next;
};

static struct connection *connections; /* guarded by `registry` */
static uint64_t last_number;

/* ---- where daemons listen ---- */

static int as_address(ssize_t length, struct address *address) {
    if (length < 0 && errno != ENODATA && errno != EOPNOTSUPP) return -errno;
    if (length <= 0) return -EOPNOTSUPP;
    address->name.sun_family = AF_UNIX;
    if (address->name.sun_path[0] == '@') address->name.sun_path[0] = 0;
    address->size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)length);
    return 0;
}

int address_of_path(const char *path, struct address *address) {
    memset(address, 0, sizeof *address);
    char *name = address->name.sun_path;
    return as_address(getxattr(path, EMBER_BATCH_ATTRIBUTE, name, sizeof address->name.sun_path),
                      address);
}

int address_of_fd(int fd, struct address *address) {
    memset(address, 0, sizeof *address);
    char *name = address->name.sun_path;
    return as_address(fgetxattr(fd, EMBER_BATCH_ATTRIBUTE, name, sizeof address->name.sun_path),
                      address);
}

static bool is_same(const struct address *one, const struct address *other) {
    return one->size == other->size && memcmp(&one->name, &other->name, one->size) == 0;
}

/* ---- all connections of this process ---- */

static void put(struct connection *connection, bool is_of_ring) { /* `registry` is held */
    connection->rings -= is_of_ring;
    if (--connection->users) return;
    if (connection->socket >= 0) close(connection->socket);
    free(connection);
}

void give_back(struct connection *connection, bool is_of_ring) {
    pthread_mutex_lock(&registry);
    put(connection, is_of_ring);
    pthread_mutex_unlock(&registry);
}

/* Forgets those that have ended, and takes one that has not. */
static struct connection *take(const struct address *address, bool is_for_ring) {
    struct connection *found = NULL;
    pthread_mutex_lock(&registry);
    for (struct connection **at = &connections; *at;) {
        struct connection *one = *at;
        if (one->has_ended) {
            *at = one->next;
            put(one, false);
            continue;
        }
        bool has_room = !is_for_ring || one->rings < RINGS_PER_CONNECTION;
        if (!found && has_room && is_same(&one->address, address)) found = one;
        at = &one->next;
    }
    if (found) {
        found->users++;
        found->rings += is_for_ring;
    }
    pthread_mutex_unlock(&registry);
    return found;
}

static int open_connection(struct connection *one) {
    one->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (one->socket < 0) return -errno;
    int error = 0;
    if (connect(one->socket, (const struct sockaddr *)&one->address.name, one->address.size))
        error = -errno;
    struct answer unused;
    struct ember_request hello = {.call = EMBER_HELLO, .id = EMBER_BATCH_VERSION};
    if (!error) error = call(one, hello, -1, &unused);
    if (error) close(one->socket);
    return error;
}

static int make(const struct address *address, bool is_for_ring, struct connection **made) {
    struct connection *one = calloc(1, sizeof *one);
    if (!one) return -ENOMEM;
    one->address = *address;
    pthread_mutex_init(&one->lock, NULL);
    pthread_cond_init(&one->heard, NULL);
    int error = open_connection(one);
    if (error) {
        free(one);
        return error;
    }
    pthread_mutex_lock(&registry);
    one->number = ++last_number;
    one->users = 2; /* the list's, and the caller's */
    one->rings = is_for_ring;
    one->next = connections;
    connections = one;
    pthread_mutex_unlock(&registry);
    *made = one;
    return 0;
}

int connect_to(const struct address *address, bool is_for_ring, struct connection **found) {
    *found = take(address, is_for_ring);
    if (*found) return 0;
    pthread_mutex_lock(&one_at_a_time);
    *found = take(address, is_for_ring); /* another thread may have been here */
    int error = *found ? 0 : make(address, is_for_ring, found);
    pthread_mutex_unlock(&one_at_a_time);
    return error;
}

struct connection *connection_by_number(uint64_t number) {
    pthread_mutex_lock(&registry);
    struct connection *one = connections;
    while (one && (one->number != number || one->has_ended)) one = one->next;
    if (one) one->users++;
    pthread_mutex_unlock(&registry);
    return one;
}

void abandon_connections(void) {
    while (connections) {
        struct connection *one = connections;
        connections = one->next;
        one->has_ended = true;
        close(one->socket);
        one->socket = -1;
        put(one, false);
    }
}

/* ---- requests ---- */

/* What may come beside a packet, aligned. */
union beside {
    struct cmsghdr align;
    char room[CMSG_SPACE(2 * sizeof(int))];
};

static int send_request(int socket, const struct ember_request *request, int fd) {
    struct iovec part = {(void *)request, sizeof *request};
    union beside beside;
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        memset(&beside, 0, sizeof beside);
        message.msg_control = &beside;
        message.msg_controllen = CMSG_SPACE(sizeof fd);
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    }
    ssize_t sent;
    do sent = sendmsg(socket, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent == sizeof *request ? 0 : -ENOTCONN;
}

/* Receives one answer, whoever has asked for it; -ENOTCONN: none will come any more. */
static int receive(int socket, struct ember_reply *reply, struct answer *answer) {
    char packet[PACKET_BYTES];
    union beside beside;
    struct iovec part = {packet, sizeof packet};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &beside, .msg_controllen = sizeof beside};
    ssize_t length;
    do length = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    while (length < 0 && errno == EINTR);
    if (length < (ssize_t)sizeof *reply) return -ENOTCONN;
    memcpy(reply, packet, sizeof *reply);
    *answer = (struct answer){.id = reply->id, .number = reply->number};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    if (rights && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS) {
        size_t bytes = rights->cmsg_len - CMSG_LEN(0);
        memcpy(answer->fds, CMSG_DATA(rights), bytes);
        answer->fd_count = (int)(bytes / sizeof(int));
    }
    return 0;
}

static void close_fds(struct answer *answer) {
    while (answer->fd_count) close(answer->fds[--answer->fd_count]);
}

/* Receives one answer for whoever waits for it; the lock is held, but not meanwhile. */
static void receive_one(struct connection *connection) {
    struct ember_reply reply;
    struct answer answer;
    connection->is_receiving = true;
    pthread_mutex_unlock(&connection->lock);
    int error = receive(connection->socket, &reply, &answer);
    pthread_mutex_lock(&connection->lock);
    connection->is_receiving = false;
    if (error) {
        connection->has_ended = true;
    } else {
        struct waiting *one = connection->waiting;
        while (one && one->serial != reply.serial) one = one->next;
        if (one) {
            one->answer = answer;
            one->error_number = reply.error_number;
            one->is_answered = true;
        } else {
            close_fds(&answer);
        }
    }
    pthread_cond_broadcast(&connection->heard);
}

static void forget(struct connection *connection, struct waiting *mine) {
    struct waiting **at = &connection->waiting;
    while (*at != mine) at = &(*at)->next;
    *at = mine->next;
}

int call(struct connection *connection, struct ember_request request, int fd,
         struct answer *answer) {
    struct waiting mine = {0};
    pthread_mutex_lock(&connection->lock);
    request.serial = mine.serial = ++connection->serial;
    mine.next = connection->waiting;
    connection->waiting = &mine;
    pthread_mutex_unlock(&connection->lock);
    bool is_sent = send_request(connection->socket, &request, fd) == 0;
    pthread_mutex_lock(&connection->lock);
    if (!is_sent) connection->has_ended = true;
    while (!mine.is_answered && !connection->has_ended) {
        if (connection->is_receiving)
            pthread_cond_wait(&connection->heard, &connection->lock);
        else
            receive_one(connection);
    }
    forget(connection, &mine);
    pthread_mutex_unlock(&connection->lock);
    if (!mine.is_answered) return -ENOTCONN;
    *answer = mine.answer;
    if (mine.error_number) close_fds(answer);
    return -mine.error_number;
}

int call_for_fds(struct connection *connection, struct ember_request request, int fd_count,
                 enum ember_call undo, struct answer *answer) {
    int error = call(connection, request, -1, answer);
    if (error || answer->fd_count == fd_count) return error;
    close_fds(answer);
    struct answer unused;
    if (undo) call(connection, (struct ember_request){.call = undo, .id = answer->id}, -1, &unused);
    return -EMFILE;
}
