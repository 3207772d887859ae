/* What the files of libhf3fs_api_shared have of each other; not for programs.
 *
 *     hf3fs_*, forks.c  ->  ior.c, iov.c, files.c, mounts.c  ->  registry.c (what is known where)
 *     ->  connection.c (the daemon)
 *
 * Functions that can fail return 0 or a negative errno.
 *
 * One lock, `registry`, guards everything that several threads share: connections, registered
 * descriptors, ids, rings as far as a fork concerns them.  It is held for moments only, never while
 * a daemon is asked.
 */
#ifndef EMBER_INSIDE_H
#define EMBER_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "ember_batch.h"

extern pthread_mutex_t registry;

/* Held by who has a daemon asked for something that other threads may want just as well.  Taken
 * before `registry`. */
extern pthread_mutex_t one_at_a_time;

/* ---- connection.c ---- */

/* Where a daemon listens. */
struct address {
    socklen_t size;
    struct sockaddr_un name;
};

int address_of_path(const char *path, struct address *address);
int address_of_fd(int fd, struct address *address);

/* To a mount daemon.  Ids count for one connection only. */
struct connection {
    uint64_t number; /* no two of this process have the same, ever */
    struct address address;
    int socket;
    unsigned users, rings; /* by `registry` */
    _Atomic bool has_ended;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t heard;
    bool is_receiving;
    uint32_t serial;
    struct waiting *waiting;
    struct connection *next; /* by `registry` */
};

struct answer {
    uint32_t id;
    uint64_t number;
    int fd_count, fds[2]; /* the receiver's to close */
};

/* Returns a connection, to be given back; for a ring one that has room for it. */
int connect_to(const struct address *address, bool is_for_ring, struct connection **found);

/* Returns a connection by its number, to be given back; NULL: it has ended. */
struct connection *connection_by_number(uint64_t number);

void give_back(struct connection *connection, bool is_of_ring);

/* Makes one request and waits for its answer; `fd` is sent along unless it is -1. */
int call(struct connection *connection, struct ember_request request, int fd,
         struct answer *answer);

/* As `call`, for an answer that has to bring descriptors: -EMFILE: this process has no room for
 * them. */
int call_for_fds(struct connection *connection, struct ember_request request, int fd_count,
                 enum ember_call undo, struct answer *answer);

/* ---- registry.c ---- */

/* By which ids something is registered, one for each connection.  Guarded by `registry`. */
struct known {
    unsigned count;
    struct known_at {
        uint64_t connection;
        uint32_t id;
    } *at;
};

bool find_known(const struct known *known, const struct connection *connection, uint32_t *id);
int add_known(struct known *known, const struct connection *connection, uint32_t id);

/* Has daemons forget something by `call` (DROP_FILE, DROP_MEMORY); returns the first that one says
 * of it.  Not to be called with `registry` held. */
int drop_known(struct known *known, enum ember_call drop);

/* How many forks lie between the first process and this one: what was made before the last of them
 * is another process's. */
extern _Atomic unsigned fork_count;

/* ---- files.c, iov.c: what an entry names ---- */

struct hf3fs_iov;

/* Return the id at a connection: registered there if it is not yet. */
int file_id(struct connection *connection, int fd, bool is_read, uint32_t *id);
int memory_id(struct connection *connection, const struct hf3fs_iov *iov, uint32_t *id);

/* ---- ior.c, connection.c, for forks.c ---- */

/* In the child of a fork, `registry` held: give up the copies of the parent's rings, and of its
 * connections. */
void abandon_rings(void);
void abandon_connections(void);

#endif
