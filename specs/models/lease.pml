/*
 * The manager's lease in the key-value store, and the leases of storage nodes: who may act, and when.
 *
 * Time passes in ticks, for all clocks alike; any process may stand still for any number of ticks between any two of
 * its steps, which is what SIGSTOP, a saturated core or a slow network do to it.  Ages count up to the largest value
 * that anybody compares with, so time needs no end.
 *
 * Two managers and one storage node A whose target is in a chain.  "Out" means: a committed routing version in which
 * A's target does not serve, so that another one may have taken over.
 *
 * Properties (assertions):
 *   ONE_PRIMARY   at most one manager acts at any moment
 *   NO_STALE_WRITE  what is committed follows what was committed before: no version is written twice or from old memory
 *   FENCED        A does not serve under a version that is older than one in which it is out
 *   PROGRESS      when faults and pauses end, a manager acts and A serves under the newest version (LTL `progress`)
 *
 * One event is what the code does between two awaits; fs/mgmtd/election.py, lease.py, primary.py, node_lease.py,
 * fs/node/membership.py (the table is in specs/craq.md).
 */

#ifndef L
#define L 2             /* primary_lease_s */
#endif
#ifndef MARGIN
#define MARGIN 1        /* LEASE_MARGIN_S */
#endif
#ifndef NL
#define NL 1            /* node_lease_s */
#endif
#ifndef NF
#define NF 2            /* node_failed_after_s; NL + MARGIN <= NF (check_relations) */
#endif
#ifndef RESTARTS
#define RESTARTS 1      /* managers killed */
#endif
#ifndef DEATHS
#define DEATHS 1        /* A's process killed */
#endif
#ifndef UNKNOWNS
#define UNKNOWNS 1      /* commits whose outcome the writer does not learn */
#endif
#ifndef EPOCHS
#define EPOCHS 3        /* reigns; the first has begun */
#endif
#ifndef VERSIONS
#define VERSIONS 5      /* routing versions */
#endif

#define M 2
#define NOBODY M

#define FOLLOW 0
#define TAKE_OVER 1
#define EXTEND 2
#define GIVE_UP 3

/* ---- the store ---- */
byte owner = 0;         /* LeaseRecord.node_id */
byte epoch = 1;
bit oinc;               /* its incarnation, modulo 2 */
byte sver = 1;          /* routing version */
bit sout;               /* A's target is out */
byte lastout;           /* ghost: newest version in which it was put out */

/* ---- a manager ---- */
bit minc[M];            /* incarnation, modulo 2 */
byte held[M];           /* Election._held.epoch, 0 for none */
byte hage[M];           /* since Held.confirmed_s */
bit seen[M];            /* Observation is of the record as it is now */
byte oage[M];           /* since Observation.since_s */
bit gone[M];            /* Observation.is_owner_gone */
byte et[M];             /* election: 0 idle, 1 read, 2 written and not yet noted */
byte everd[M];          /* what it decided */
byte eage[M];           /* since it started */
byte enew[M];           /* the epoch it wrote */
bit edirty[M];          /* the record has changed since it was read */
byte reign[M];          /* 0 none, 1 to load, 2 to begin, 3 serving */
byte repoch[M];         /* Primary._epoch */
byte iver[M]; bit iout[M];      /* what it believes is published */
byte heard[M];          /* since the node was heard */
byte dem[M];            /* demoted_version */
bit refuse[M];          /* the incarnation of A that is dead is refused */
byte pt[M];             /* publication: 0 none, 1 read the lease, 2 committed, memory to follow */
bit pout[M]; bit pdirty[M];

/* ---- storage node A ---- */
bit alive = 1;
bit fresh;              /* a new process, not yet taken out of service (local_state.start_is_over) */
byte av = 1; bit aout;  /* the version it acts on, and whether its target is out there */
byte lage = NL;         /* since the heartbeat was sent that gave the lease */
byte hb;                /* 0 none, 1 on its way, 2 answer on its way with a lease, 3 without */
byte hbage; byte hbknown; bit hbdead; byte hbfrom;

byte restarts = RESTARTS; byte deaths = DEATHS; byte unknowns = UNKNOWNS;
bit calm;               /* no faults and no pauses any more */

#ifdef MUTANT_RIVAL_IN_A_HURRY
#define PATIENCE (L - MARGIN - 1)
#else
#define PATIENCE L
#endif
#define HELD_BY(m) (owner == m && epoch == held[m] && oinc == minc[m])
#ifdef MUTANT_PRIMARY_IGNORES_TIME
#define MAY_ACT(m) (held[m] != 0)
#else
#define MAY_ACT(m) (held[m] != 0 && hage[m] < L - MARGIN)
#endif
#define ACTING(m) (reign[m] && held[m] == repoch[m] && MAY_ACT(m))
#ifdef MUTANT_NODE_LEASE_NOT_CHECKED
#define LEASED alive
#else
#define LEASED (alive && lage < NL)
#endif
#define SERVING_A (LEASED && !aout && !fresh)

inline check() {
	assert(!(ACTING(0) && ACTING(1)));                      /* ONE_PRIMARY */
	assert(!(SERVING_A && av < lastout))                    /* FENCED */
}

inline wrote_record() { /* who has read the record has to read it again */
	edirty[0] = 1; edirty[1] = 1; pdirty[0] = 1; pdirty[1] = 1;
	seen[0] = 0; seen[1] = 0; gone[0] = 0; gone[1] = 0; oage[0] = 0; oage[1] = 0
}

inline decide(m) {      /* lease.decide on the record just read */
	if
	:: held[m] && HELD_BY(m) -> everd[m] = EXTEND
	:: held[m] && !HELD_BY(m) -> everd[m] = GIVE_UP
	:: !held[m] && (owner == NOBODY || owner == m) -> everd[m] = TAKE_OVER
	:: !held[m] && owner == 1 - m && seen[m] && (gone[m] || oage[m] >= PATIENCE) -> everd[m] = TAKE_OVER
	:: else -> everd[m] = FOLLOW
	fi
}

inline observe(m) {     /* lease.observe */
	if      /* of its own record nobody needs an observation */
	:: !seen[m] && owner == 1 - m -> seen[m] = 1; oage[m] = 0; gone[m] = 0
	:: else
	fi
}

inline forget_reign(m) {
	reign[m] = 0; repoch[m] = 0; iver[m] = 0; iout[m] = 0; heard[m] = 0; dem[m] = 0; refuse[m] = 0;
	pt[m] = 0; pout[m] = 0; pdirty[m] = 0;
	held[m] = 0; hage[m] = 0
}

inline read_record(m) {
	edirty[m] = 0;
	decide(m);
	if
	:: everd[m] == FOLLOW -> et[m] = 0; eage[m] = 0; observe(m)
	:: everd[m] == GIVE_UP -> et[m] = 0; eage[m] = 0; everd[m] = 0; forget_reign(m); observe(m)
	:: everd[m] == TAKE_OVER && epoch >= EPOCHS -> et[m] = 0; eage[m] = 0; everd[m] = 0
	:: else -> et[m] = 1
	fi
}

inline commit_record(m) {       /* Store.elect */
	if
	:: everd[m] == TAKE_OVER -> epoch++; owner = m; oinc = minc[m]; enew[m] = epoch
	:: else
	fi;
	wrote_record()
}

inline write(m) {               /* Store.write: routing version and chains, in one transaction */
	assert(sver == iver[m]);                                /* NO_STALE_WRITE */
	sver = iver[m] + 1; sout = pout[m];
	if
	:: sout && !iout[m] -> lastout = sver
	:: else
	fi
}

#define ANSWERS(m) (reign[m] == 3 && ACTING(m))
#define FREE_TO_PUBLISH(m) (ACTING(m) && pt[m] == 0 && sver < VERSIONS)

/* Mgmtd._stand and _extend. */
proctype Election(byte m) {
	do
	/* Election.step: the time is taken, the record read, the decision made */
	:: d_step { et[m] == 0 && !(held[m] && hage[m] == 0) && !(!held[m] && owner == 1 - m && seen[m] && !gone[m] && oage[m] < PATIENCE) ->
		eage[m] = 0; read_record(m) }
	/* the transaction commits, unless the record has changed: then it is run again, with the same start time */
	:: d_step { et[m] == 1 && edirty[m] -> read_record(m) }
	:: d_step { et[m] == 1 && !edirty[m] -> commit_record(m); et[m] = 2; edirty[m] = 0 }
	/* the outcome stays unknown: nothing is noted */
	:: d_step { et[m] == 1 && unknowns -> unknowns--; et[m] = 0; everd[m] = 0; eage[m] = 0 }
	:: d_step { et[m] == 1 && !edirty[m] && unknowns -> unknowns--; commit_record(m); et[m] = 0; everd[m] = 0; eage[m] = 0; edirty[m] = 0; enew[m] = 0 }
	/* Election._note: the right counts from before the write started */
	:: d_step { et[m] == 2 ->
		if
		:: everd[m] == TAKE_OVER -> forget_reign(m); held[m] = enew[m]; hage[m] = eage[m]; reign[m] = 1
		:: everd[m] == EXTEND && held[m] -> hage[m] = eage[m]
		:: else
		fi;
		if
		:: !edirty[m] -> observe(m)
		:: else
		fi;
		et[m] = 0; everd[m] = 0; eage[m] = 0; edirty[m] = 0; enew[m] = 0;
		check() }
	/* probe: the owner's process is gone or another one */
	:: d_step { seen[m] && !gone[m] && !held[m] && owner == 1 - m && oinc != minc[1 - m] -> gone[m] = 1 }
	od
}

/* Mgmtd._reign, Primary.run. */
proctype Reign(byte m) {
	do
	/* load, then publish a version of its own (Mgmtd._reign, Primary.begin) */
	:: d_step { reign[m] == 1 ->
		repoch[m] = held[m]; reign[m] = 2; iver[m] = sver; iout[m] = sout; dem[m] = sver + 1;
#ifdef MUTANT_NO_GRACE
		heard[m] = NF + 1
#else
		heard[m] = 0
#endif
		}
	:: d_step { reign[m] == 2 && FREE_TO_PUBLISH(m) -> pt[m] = 1; pout[m] = iout[m]; pdirty[m] = 0 }
	/* judge_silent; judge_gone */
	:: d_step { reign[m] == 3 && FREE_TO_PUBLISH(m) && !iout[m] && heard[m] > NF -> pt[m] = 1; pout[m] = 1; pdirty[m] = 0 }
	:: d_step { reign[m] == 3 && FREE_TO_PUBLISH(m) && !iout[m] && (!alive || fresh) -> pt[m] = 1; pout[m] = 1; pdirty[m] = 0; refuse[m] = 1 }
	/* Store.write: the lease is read in the transaction that writes, and a change of it is a conflict */
#ifdef MUTANT_PRIMARY_NOT_VALIDATED
	:: d_step { pt[m] == 1 -> write(m); pt[m] = 2; check() }
#else
	:: d_step { pt[m] == 1 && (owner != m || epoch != repoch[m] || oinc != minc[m]) -> forget_reign(m) }     /* LEASE_LOST */
	:: d_step { pt[m] == 1 && pdirty[m] && owner == m && epoch == repoch[m] && oinc == minc[m] -> pdirty[m] = 0 }
	:: d_step { pt[m] == 1 && !pdirty[m] && owner == m && epoch == repoch[m] && oinc == minc[m] -> write(m); pt[m] = 2; check() }
#endif
	:: d_step { pt[m] == 1 && unknowns && !pdirty[m] && owner == m && epoch == repoch[m] && oinc == minc[m] ->
		unknowns--; write(m); forget_reign(m); check() }
	/* memory follows the store */
	:: d_step { pt[m] == 2 ->
		iver[m]++;
		if
		:: pout[m] && !iout[m] -> dem[m] = iver[m]
		:: else
		fi;
		iout[m] = pout[m]; pt[m] = 0; pout[m] = 0; pdirty[m] = 0;
		if
		:: reign[m] == 2 -> reign[m] = 3
		:: else
		fi }
	od
}

/* MgmtdService. */
proctype Service(byte m) {
	do
	/* a heartbeat arrives (ops/heartbeat.py); the lock: no publication is under way */
	:: d_step { hb == 1 && ANSWERS(m) && pt[m] == 0 ->
		if
		:: hbdead && (refuse[m] || iout[m]) -> hb = 0
		:: else ->
			heard[m] = 0; hbfrom = m;
#ifdef MUTANT_LEASE_UNDER_AN_OLD_PICTURE
			hb = 2;
#else
			hb = (hbknown >= dem[m] -> 2 : 3);
#endif
			if      /* a node that is back comes into the chain again: syncing and serving in one here */
			:: iout[m] && !hbdead && hbknown == iver[m] && sver < VERSIONS - 1 -> pt[m] = 1; pout[m] = 0; pdirty[m] = 0
			:: else
			fi
		fi;
		if
		:: hb == 0 -> hbage = 0; hbknown = 0; hbdead = 0
		:: else
		fi }
	od
}

/* A manager's process dies and another one takes its node id and address. */
inline restart(m) {
	restarts--;
	forget_reign(m);
	minc[m] = 1 - minc[m];
	seen[m] = 0; oage[m] = 0; gone[m] = 0; et[m] = 0; everd[m] = 0; eage[m] = 0; edirty[m] = 0; enew[m] = 0
}

#define CUR(m) ((reign[m] == 3 && ACTING(m)) && iver[m] > av)

proctype Node() {
	do
	/* Membership._send */
	:: d_step { alive && hb == 0 && (lage > 0 || av < sver) -> hb = 1; hbage = 0; hbknown = av; hbdead = 0 }
	/* the answer: the lease counts from when the heartbeat was sent */
	:: d_step { (hb == 2 || hb == 3) && (hbdead || !alive) -> hb = 0; hbage = 0; hbknown = 0; hbdead = 0; hbfrom = 0 }
	:: d_step { (hb == 2 || hb == 3) && !hbdead && alive ->
		if
#ifdef MUTANT_NODE_LEASE_FROM_ARRIVAL
		:: hb == 2 -> lage = 0
#else
		:: hb == 2 && hbage < lage -> lage = hbage
#endif
		:: else
		fi;
		hb = 0; hbage = 0; hbknown = 0; hbdead = 0; hbfrom = 0;
		check() }
	/* it, or its answer, gets lost */
	:: d_step { hb && !calm -> hb = 0; hbage = 0; hbknown = 0; hbdead = 0; hbfrom = 0 }
	od
}

/* RoutingCache.run: only an acting primary tells. */
proctype Routing() {
	do
#ifdef MUTANT_ROUTING_NOT_FOLLOWED
	:: false
#else
	:: d_step { alive && CUR(0) -> av = iver[0]; aout = iout[0]; fresh = (fresh && !aout); check() }
	:: d_step { alive && CUR(1) -> av = iver[1]; aout = iout[1]; fresh = (fresh && !aout); check() }
#endif
	od
}

proctype Life() {
	do
	/* the process dies; another one starts, which knows nothing and waits to be taken out */
	:: d_step { alive && deaths && !calm -> deaths--; alive = 0; lage = NL; hbdead = (hb != 0) }
	:: d_step { !alive -> alive = 1; fresh = 1; av = 0; aout = 0 }
	od
}

inline older(x_, max_) {
	x_ = (x_ < max_ -> x_ + 1 : x_)
}

/* In calm weather nobody stands still: time passes only when nobody has anything to do. */
#define READY(m) (et[m] || (held[m] && hage[m] > 0) || (!held[m] && (owner != 1 - m || (!seen[m]) || gone[m] || oage[m] >= L || oinc != minc[1 - m])) || \
	pt[m] || reign[m] == 1 || (reign[m] == 2 && FREE_TO_PUBLISH(m)) || (hb == 1 && ANSWERS(m)) || \
	(reign[m] == 3 && FREE_TO_PUBLISH(m) && !iout[m] && (heard[m] > NF || fresh || !alive)))
#define NODE_READY (!alive || (hb == 0 && (lage > 0 || av < sver)) || hb >= 2 || CUR(0) || CUR(1))

proctype Time() {
	do
	:: d_step { !calm || !(READY(0) || READY(1) || NODE_READY) ->
		older(hage[0], L); older(hage[1], L);
		if
		:: held[0] == 0 -> hage[0] = 0
		:: else
		fi;
		if
		:: held[1] == 0 -> hage[1] = 0
		:: else
		fi;
		if
		:: seen[0] -> older(oage[0], L)
		:: else
		fi;
		if
		:: seen[1] -> older(oage[1], L)
		:: else
		fi;
		if
		:: et[0] -> older(eage[0], L)
		:: else
		fi;
		if
		:: et[1] -> older(eage[1], L)
		:: else
		fi;
		if
		:: reign[0] > 1 -> older(heard[0], NF + 1)
		:: else
		fi;
		if
		:: reign[1] > 1 -> older(heard[1], NF + 1)
		:: else
		fi;
		if
		:: hb -> older(hbage, NL)
		:: else
		fi;
		older(lage, NL);
		check() }
	od
}

proctype Faults() {
	do
	:: d_step { restarts && !calm -> restart(0) }
	:: d_step { restarts && !calm -> restart(1) }
	:: d_step { !calm -> calm = 1; restarts = 0; deaths = 0; unknowns = 0 }
	od
}

init {
	atomic {
		/* manager 0 reigns, A serves */
		held[0] = 1; reign[0] = 3; repoch[0] = 1; iver[0] = 1; lage = 0; dem[0] = 1;
		run Election(0); run Election(1); run Reign(0); run Reign(1); run Service(0); run Service(1);
		run Node(); run Routing(); run Life(); run Time(); run Faults()
	}
}

#define GOOD ((reign[0] == 3 && ACTING(0) || reign[1] == 3 && ACTING(1)) && LEASED && !aout && !fresh && av == sver && !sout)
#ifdef LTL
#define SPENT (sver >= VERSIONS - 1 || epoch >= EPOCHS)         /* the bounds, not the rules, end what could still be done */
ltl progress { [] (calm -> <> (GOOD || SPENT)) }
#endif
