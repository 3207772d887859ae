/* What a fork does to what the parent has.
 *
 * The child must drop its copies, or daemons could take the parent for alive.
 */
#define _GNU_SOURCE
#include "inside.h"

static void before_fork(void) { pthread_mutex_lock(&registry); }

static void in_parent(void) { pthread_mutex_unlock(&registry); }

static void in_child(void) {
    fork_count++;
    pthread_mutex_init(&one_at_a_time, NULL); /* another thread of the parent may have held it */
    abandon_rings();
    abandon_connections();
    pthread_mutex_unlock(&registry);
}

__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(before_fork, in_parent, in_child);
}
