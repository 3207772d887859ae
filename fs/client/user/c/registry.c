/* What is known to daemons by which id. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>

#include "inside.h"

pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
_Atomic unsigned fork_count;

bool find_known(const struct known *known, const struct connection *connection, uint32_t *id) {
    for (unsigned i = known->count;
         i-- > 0;) { /* mostly one; the last is of the youngest connection */
        if (known->at[i].connection != connection->number) continue;
        *id = known->at[i].id;
        return true;
    }
    return false;
}

int add_known(struct known *known, const struct connection *connection, uint32_t id) {
    struct known_at *more = realloc(known->at, (known->count + 1) * sizeof *more);
    if (!more) return -ENOMEM;
    more[known->count++] = (struct known_at){connection->number, id};
    known->at = more;
    return 0;
}

int drop_known(struct known *known, enum ember_call drop) {
    int first_error = 0;
    for (unsigned i = 0; i < known->count; i++) {
        struct connection *connection = connection_by_number(known->at[i].connection);
        if (!connection) continue; /* what was registered went with it */
        struct answer unused;
        int error = call(connection, (struct ember_request){.call = drop, .id = known->at[i].id},
                         -1, &unused);
        if (!first_error) first_error = error;
        give_back(connection, false);
    }
    free(known->at);
    *known = (struct known){0};
    return first_error;
}
