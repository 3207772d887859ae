"""What is searched: the models with their bounds, in CI and by hand, and the planted errors."""

from .spin import Search

WRITES = Search("writes", "craq.pml", "N=2 W1=2 CRASHES=1 LOSSES=1 LOST_REPLIES=0")
ONE_WRITE = Search("one write", "craq.pml", "N=2 W1=1 CRASHES=1 LOSSES=1 LOST_REPLIES=0")
SILENT = Search("silence", "craq.pml", "N=2 W1=1 CRASHES=0 LOSSES=0 LOST_REPLIES=1 SILENCES=1 JOIN")
READS = Search("reads", "craq.pml", "N=2 W1=1 CRASHES=0 LOSSES=0 LOST_REPLIES=0 SILENCES=1 READS=1")
JOIN = Search("join", "craq.pml", "N=2 W1=1 CRASHES=1 LOSSES=0 LOST_REPLIES=1 JOIN")
JOIN_READS = Search(
    "join with reads",
    "craq.pml",
    "N=2 W1=1 CRASHES=0 LOSSES=0 LOST_REPLIES=0 SILENCES=1 READS=1 JOIN",
)
TWO_CLIENTS = Search("two clients", "craq.pml", "N=2 W1=1 W2=1 CRASHES=0 LOSSES=1 LOST_REPLIES=0")
CRASH_READS = Search(
    "crash with reads", "craq.pml", "N=2 W1=1 CRASHES=1 LOSSES=0 LOST_REPLIES=0 READS=1"
)
TWO_CRASHES_READS = Search(
    "two crashes with reads",
    "craq.pml",
    "N=2 W1=1 CRASHES=2 LOSSES=0 LOST_REPLIES=0 READS=1",
)
LOSS_READS = Search(
    "loss with reads", "craq.pml", "N=2 W1=1 CRASHES=1 LOSSES=1 LOST_REPLIES=0 READS=1"
)
RETRIES = Search("retries", "craq.pml", "N=2 W1=2 CRASHES=1 LOSSES=1 LOST_REPLIES=1")
ROT = Search("rot", "craq.pml", "N=2 W1=1 W2=1 CRASHES=0 LOSSES=1 LOST_REPLIES=0 ROTS=1")
ROT_JOIN = Search(
    "rot, join", "craq.pml", "N=2 W1=1 W2=1 CRASHES=0 LOSSES=1 LOST_REPLIES=0 ROTS=1 JOIN"
)
ROT_THREE = Search(
    "rot, three targets", "craq.pml", "N=3 W1=1 W2=1 CRASHES=0 LOSSES=1 LOST_REPLIES=0 ROTS=2"
)
WIPE = Search(
    "rot and wipe", "craq.pml", "N=2 W1=1 W2=1 CRASHES=0 LOSSES=1 LOST_REPLIES=0 ROTS=1 WIPES=1"
)
PAUSES = Search("pauses", "lease.pml", "RESTARTS=0 DEATHS=0 UNKNOWNS=0 VERSIONS=4 EPOCHS=2")
MANAGER_KILLED = Search(
    "manager killed", "lease.pml", "RESTARTS=1 DEATHS=0 UNKNOWNS=0 VERSIONS=4 EPOCHS=2"
)
RESTARTS = Search("restarts", "lease.pml", "RESTARTS=1 DEATHS=1 UNKNOWNS=1 VERSIONS=4 EPOCHS=2")

PROGRESS = Search(
    "progress", "lease.pml", "RESTARTS=0 DEATHS=0 UNKNOWNS=0 VERSIONS=4 EPOCHS=2", ltl=True
)

SHORT = [ONE_WRITE, READS, TWO_CLIENTS, ROT_THREE, PAUSES]

LONG = [
    PROGRESS,
    SILENT,
    WRITES,
    JOIN,
    RETRIES,
    CRASH_READS,
    TWO_CRASHES_READS,
    JOIN_READS,
    Search("three targets", "craq.pml", "N=3 W1=1 CRASHES=1 LOSSES=0 LOST_REPLIES=0"),
    Search("three targets, loss", "craq.pml", "N=3 W1=1 CRASHES=0 LOSSES=1 LOST_REPLIES=0 JOIN"),
    RESTARTS,
    ROT,
    ROT_JOIN,
    WIPE,
]

MUTANTS = [
    (WRITES, "COMMIT_BEFORE_SUCCESSOR"),
    (WRITES, "EPOCH_NOT_RAISED"),
    (WRITES, "NO_RESYNC_BARRIER"),
    (WRITES, "RESYNC_SKIPPED"),
    (WRITES, "SYNCING_GETS_NO_UPDATES"),
    (WRITES, "WAITING_BECOMES_SERVING"),
    (ONE_WRITE, "RESTARTED_IS_TRUSTED"),
    (RETRIES, "REPEAT_EXECUTED_AGAIN"),
    (TWO_CLIENTS, "LEFTOVER_ROLLED_BACK"),
    (LOSS_READS, "LEFTOVER_NOT_COMPLETED"),
    (ROT, "QUESTION_TAKES_NO_EPOCH"),
    (ROT, "ANSWER_BESIDE_THE_LOCK"),
    (ROT_THREE, "TAIL_PROVES"),
    (ROT_JOIN, "SYNCING_SUCCESSOR_NOT_ASKED"),
    (READS, "TAIL_NOT_ASKED"),
    (READS, "LEASE_NOT_CHECKED"),
    (PAUSES, "PRIMARY_IGNORES_TIME"),
    (PAUSES, "RIVAL_IN_A_HURRY"),
    (PAUSES, "PRIMARY_NOT_VALIDATED"),
    (MANAGER_KILLED, "NO_GRACE"),
    (PAUSES, "NODE_LEASE_FROM_ARRIVAL"),
    (PAUSES, "NODE_LEASE_NOT_CHECKED"),
    (PROGRESS, "ROUTING_NOT_FOLLOWED"),
    (PAUSES, "LEASE_UNDER_AN_OLD_PICTURE"),
]
"""Each with the search that finds it."""

LONG_MUTANTS = [
    (WRITES, "STALE_CHAIN_VERSION"),
    (SILENT, "LAST_ONE_FORGETS"),
    (JOIN, "CHANNELS_NOT_HANDED_OVER"),
    (JOIN_READS, "LEFTOVER_COMPLETED_UNDER_ANY_VERSION"),
    (TWO_CRASHES_READS, "FORWARDED_WHILE_PREPARING"),
    (WIPE, "SYNCING_SUCCESSOR_PROVES"),
]
"""Those that take a million states: by hand."""
