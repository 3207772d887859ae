/*
 * CRAQ on one chunk of one chain, while targets crash, pause, come back and are resynced.
 *
 * What the code does is modelled event by event; the comment of each event names the function of fs/ that does it
 * (specs/craq.md holds the table).  One event is one `atomic`: what the code does between two awaits.  Everything
 * that the code awaits (the chunk lock, the disk, an answer, newer routing info) is a guard of the next event.
 *
 * Properties (assertions; README.md says what each means):
 *   EXACTLY_ONCE    no write takes effect under two versions
 *   ONE_VALUE       no version has two values
 *   LINEARIZABLE    a read returns no older version than any acknowledged or read before it began
 *   KEPT            every member that counts (serving, lastsrv) holds what was acknowledged
 *   ONE_HEAD        at most one target would accept a client's write
 *   HEALED          when no step is left, every write is acknowledged, all serve, all copies are equal
 *
 * Bounds: see the defines; every repetition that changes nothing is left out, so a run without faults ends.
 */

#ifndef N
#define N 3             /* targets */
#endif
#ifndef W1
#define W1 2            /* writes of client 0, one after the other on one channel */
#endif
#ifndef W2
#define W2 0            /* writes of client 1 */
#endif
#ifndef CRASHES
#define CRASHES 1       /* processes killed; each starts again */
#endif
#ifndef SILENCES
#define SILENCES 0      /* leases that run out: SIGSTOP, partition from the manager */
#endif
#ifndef LOSSES
#define LOSSES 1        /* forwarded calls whose outcome stays unknown, while the copy may still arrive */
#endif
#ifndef LOST_REPLIES
#define LOST_REPLIES 1  /* acknowledgements that do not reach the client */
#endif
#ifndef READS
#define READS 0         /* 1: a client reads, again and again */
#endif
#ifndef ROTS
#define ROTS 0          /* pending versions whose bytes rot on one disk */
#endif
#ifndef WIPES
#define WIPES 0         /* processes killed whose disk comes back empty, while another one serves; only with ROTS */
#endif
#ifndef MAXV
#define MAXV 12         /* chain versions; asserted to suffice */
#endif

#define X (W1 + W2)
#define C 2
#define S 2             /* calls that may wait at one target */
#define NONE 7

/* public states, in the order of fs/mgmtd/chain_state.py ORDER */
#define SERVING 1
#define LASTSRV 2
#define SYNCING 3
#define WAITING 4
#define OFFLINE 5
#define DEMOTED 6       /* lastsrv that becomes offline: first among the offline */

/* local states; DEAD, STARTING and EVICTED are all OFFLINE to the manager (Hold says which) */
#define DEAD 0
#define STARTING 1
#define EVICTED 2
#define ONLINE 3
#define UPTODATE 4

#define STAY 0
#define RELOAD 1
#define PROMOTE 2

/* kinds of work under the chunk lock */
#define IDLE 0
#define CLIENT 1        /* run_update, from a client */
#define FORWARDED 2     /* run_update, from the predecessor */
#define BRING 3         /* Resync._bring_chunk */
#define COMPLETE 4      /* committed_version, completing a leftover */

/* message states */
#define FREE 0
#define WAITS 1
#define RUNS 2
#define OK 3
#define REFUSED 4       /* definite: nothing happened */
#define UNKNOWN 5
#define CONTRADICTION 6

/* ---- the manager's ---- */
byte cver = 1;                  /* newest chain version */
byte pub[(MAXV + 1) * N];       /* public state by version */
byte suc[(MAXV + 1) * N];       /* successor by version */
byte hea[MAXV + 1];
byte tai[MAXV + 1];
byte ord[N];                    /* newest order */
byte rep[N];                    /* local state as reported or judged: 0, ONLINE, UPTODATE */
byte demoted[N];

/* ---- on disk ---- */
byte cv[N]; byte cx[N];         /* committed version and value */
byte pv[N]; byte px[N]; bit pt[N];      /* pending, and whether it carries its update's tag */
byte ch[N * C];                 /* 8 * sequence + version of its result: notes; 0 for none: channel table only */

/* ---- in the memory of a storage process ---- */
byte lo[N];                     /* local state */
byte step[N];                   /* LocalTarget.pending_step */
byte ver[N];                    /* chain version it acts on */
bit lease[N];
byte sdone[N];                  /* sync_done_version */
byte resd[N];                   /* resynced_version */
bit un[N];                      /* unsettled */
byte ep[N];                     /* epoch */
byte es[N];                     /* epoch seen under `ver` */
bit fresh[N];                   /* process that the manager has not heard yet */

/* ---- the holder of the chunk lock ---- */
byte wk[N]; byte wv[N]; byte wx[N]; byte went[N];
bit wtag[N]; bit wfull[N]; bit wpr[N]; bit wtl[N]; bit wset[N];
byte wreq[N];                   /* the client's write, while a leftover is completed before it */
bit wfs[N];                     /* a call is under way */
byte wslot[N];                  /* where */
byte wfb[N];                    /* look for a newer chain version than this before the next attempt */
byte win[N];                    /* slot that is executed */

#if ROTS
/* ---- rotten bytes ---- */
bit pr[N]; bit cr[N];           /* of the pending and of the committed version */
byte wq[N]; byte wqv[N];        /* a leftover that rotted: where its settling is, and under which chain version */
bit wfnd[N]; bit wdam[N];       /* its bytes were found elsewhere; resync hands a version over without bytes */
bit mdam[N * S];
bit wiped[N];
#endif

/* where the settling of a rotten leftover is */
#define TO_ASK 1
#define ASKED 2
#define LACKS 3                 /* the serving successor lacks it */
#define SEARCH 4
#define NOBODY 5                /* no target has its bytes */

/* ---- calls to a target: STORAGE_UPDATE ---- */
byte ms[N * S]; byte msrc[N * S]; byte mver[N * S]; byte mv[N * S]; byte mx[N * S]; byte mep[N * S];
bit mfull[N * S]; bit mtag[N * S]; bit mlive[N * S];

/* ---- resync, by predecessor; SyncDone, by receiver ---- */
byte rs[N]; byte rsv[N]; byte rcv[N]; byte rcx[N]; byte rpv[N];
byte sd[N]; byte sdc[N * C];

/* ---- heartbeats ---- */
bit hbo[N]; byte hbl[N]; byte hbv[N]; bit hbn[N];

/* ---- clients ---- */
byte cur[C];                    /* write under way, 0 for none left */
byte endv[X + 1];               /* newest chain version when it was acknowledged */

/* ---- reader ---- */
byte rp; byte rt; byte rk; byte rv; byte rfloor; byte rw;

/* ---- budgets of faults ---- */
byte crashes = CRASHES; byte silences = SILENCES; byte losses = LOSSES; byte lost_replies = LOST_REPLIES;
#if ROTS
byte rots = ROTS; byte wipes = WIPES;
#endif

/* ---- ghosts ---- */
byte gx[8];                 /* value of each version that was shown */
byte top;                       /* newest version acknowledged or read */
byte acked;                     /* newest version acknowledged */

/* scratch, used inside one atomic only */
hidden byte x; hidden byte s; hidden byte drop; hidden byte half;
hidden byte i; hidden byte j; hidden byte k; hidden byte a; hidden byte b; hidden byte st; hidden byte to;
hidden byte nS; hidden byte nL; hidden byte nY; hidden byte ns[N]; hidden byte no[N]; hidden byte again; hidden byte bad;

#define P(v, t) pub[(v) * N + (t)]
#define SUC(v, t) suc[(v) * N + (t)]
#define CL(x) ((x) > W1)
#define CH(t, x) ch[(t) * C + CL(x)]
#define SEQ(c) ((c) / 8)
#define KNOWN(t, x) (SEQ(CH(t, x)) == x && CH(t, x) % 8)
#define OUT(p) (p == OFFLINE || p == LASTSRV || p == WAITING)
#define PUB(t) P(ver[t], t)
#define CAN_READ(t) (PUB(t) == SERVING && lo[t] == UPTODATE)
#define CAN_WRITE(t) ((PUB(t) == SYNCING && lo[t] >= ONLINE) || CAN_READ(t))
#if ROTS
#define IS_ROTTEN(t) pr[t]
#define SETTLES(t) wq[t]
#define IS_BAD(t) cr[t]
#define IS_WIPED(t) wiped[t]
#define GOOD(t, v, x) (lo[t] != DEAD && ((cv[t] == v && cx[t] == x && !cr[t]) || (pv[t] == v && px[t] == x && !pr[t])))
#if N > 2
#define FOUND(t, v, x) ((t != 0 && GOOD(0, v, x)) || (t != 1 && GOOD(1, v, x)) || (t != 2 && GOOD(2, v, x)))
#define ALL_ANSWER (lo[0] != DEAD && lo[1] != DEAD && lo[2] != DEAD)
#else
#define FOUND(t, v, x) GOOD(1 - (t), v, x)
#define ALL_ANSWER (lo[0] != DEAD && lo[1] != DEAD)
#endif
#else
#define IS_ROTTEN(t) 0
#define SETTLES(t) 0
#define IS_BAD(t) 0
#define IS_WIPED(t) 0
#endif
#ifdef MUTANT_LEASE_NOT_CHECKED
#define LEASE(t) true
#else
#define LEASE(t) lease[t]
#endif

/* ------------------------------------------------------------------ properties */

inline note(v_, x_) {   /* a version was shown to somebody, or committed by a serving target */
	assert(gx[v_] == 0 || gx[v_] == x_);                    /* ONE_VALUE */
	if
	:: gx[v_] == 0 ->
		gx[v_] = x_;
		j = 1;
		do
		:: j < 8 ->
			assert(x_ == 0 || j == v_ || x_ != gx[j]);      /* EXACTLY_ONCE */
			j++
		:: else -> break
		od
	:: else
	fi;
	j = 0
}

inline check_kept() {
	j = 0;
	do
	:: j < N ->
		if
		:: P(cver, j) <= LASTSRV && !IS_WIPED(j) ->
			assert(cv[j] > acked || (cv[j] == acked && (acked == 0 || cx[j] == gx[acked])) ||
				(pv[j] >= acked && (pv[j] > acked || px[j] == gx[acked])))      /* KEPT */
		:: else
		fi;
		j++
	:: else -> break
	od;
	j = 0
}

inline check_heads() {
	j = 0; k = 0;
	do
	:: j < N ->
		if
		:: LEASE(j) && lo[j] == UPTODATE && ver[j] && PUB(j) == SERVING && hea[ver[j]] == j -> k++
		:: else
		fi;
		j++
	:: else -> break
	od;
	assert(k <= 1)                                                  /* ONE_HEAD */
}

/* ------------------------------------------------------------------ the manager */

inline derive(v_) {     /* Chain.successor_of, and who is head and tail */
	hea[v_] = NONE; tai[v_] = NONE; j = 0;
	do
	:: j < N ->
		a = ord[j];
		SUC(v_, a) = NONE;
		if
		:: P(v_, a) == SERVING ->
			tai[v_] = a;
			if
			:: hea[v_] == NONE -> hea[v_] = a
			:: else
			fi
		:: else
		fi;
		if
		:: j + 1 < N && (P(v_, a) == SERVING || P(v_, a) == SYNCING) ->
			b = ord[j + 1];
			if
#ifdef MUTANT_SYNCING_GETS_NO_UPDATES
			:: P(v_, b) == SERVING -> SUC(v_, a) = b
#else
			:: P(v_, b) == SERVING || P(v_, b) == SYNCING -> SUC(v_, a) = b
#endif
			:: else
			fi
		:: else
		fi;
		j++
	:: else -> break
	od;
	j = 0
}

inline judge_member(t_) {       /* chain_state._judge */
	st = P(cver, t_);
	if
	:: st == SERVING && rep[t_] -> ns[t_] = SERVING
	:: st == SERVING && !rep[t_] ->
		if
		:: nL -> ns[t_] = OFFLINE
		:: else -> ns[t_] = LASTSRV
		fi
	:: st == LASTSRV && nS -> ns[t_] = OFFLINE
	:: st == LASTSRV && !nS ->
		if
		:: rep[t_] -> ns[t_] = SERVING
		:: else -> ns[t_] = LASTSRV
		fi
	:: st == SYNCING && rep[t_] == UPTODATE -> ns[t_] = SERVING
	:: st == SYNCING && rep[t_] == ONLINE ->
		if
		:: nS -> ns[t_] = SYNCING
		:: else -> ns[t_] = WAITING
		fi
	:: st == SYNCING && !rep[t_] -> ns[t_] = OFFLINE
	:: else ->
		if
#ifdef MUTANT_WAITING_BECOMES_SERVING
		:: rep[t_] == ONLINE && nS -> ns[t_] = SERVING
#else
		:: rep[t_] == ONLINE && nS && !nY -> ns[t_] = SYNCING
#endif
		:: else ->
			if
			:: rep[t_] -> ns[t_] = WAITING
			:: else -> ns[t_] = OFFLINE
			fi
		fi
	fi;
	if
	:: ns[t_] == SERVING -> nS++
	:: ns[t_] == LASTSRV -> nL++
	:: ns[t_] == SYNCING -> nY++
	:: else
	fi;
	j = 0
}

inline settle_chain() { /* Primary.settle: next_chain until nothing changes; the lock is held throughout */
	again = 1;
	do
	:: again ->
		again = 0; nS = 0; nL = 0; nY = 0; i = 0;
		do
		:: i < N -> to = ord[i]; judge_member(to); i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < N ->
			if
			:: nS && ns[i] == LASTSRV -> ns[i] = DEMOTED
			:: else
			fi;
			i++
		:: else -> break
		od;
		/* sorted by state, stable: 1 2 3 4 6 5 */
		k = 0; st = SERVING;
		do
		:: st != 0 ->
			i = 0;
			do
			:: i < N ->
				if
				:: ns[ord[i]] == st -> no[k] = ord[i]; k++
				:: else
				fi;
				i++
			:: else -> break
			od;
			if
			:: st == WAITING -> st = DEMOTED
			:: st == DEMOTED -> st = OFFLINE
			:: st == OFFLINE -> st = 0
			:: else -> st = st + 1
			fi
		:: else -> break
		od;
		i = 0;
		do
		:: i < N ->
			if
			:: ns[i] == DEMOTED -> ns[i] = OFFLINE
			:: else
			fi;
			if
			:: ns[i] != P(cver, i) || no[i] != ord[i] -> again = 1
			:: else
			fi;
			i++
		:: else -> break
		od;
		if
		:: again ->
			assert(cver < MAXV);
			cver++;
			i = 0;
			do
			:: i < N ->
				P(cver, i) = ns[i];
				ord[i] = no[i];
				if
				:: P(cver - 1, i) == SERVING && ns[i] != SERVING -> demoted[i] = cver
				:: else
				fi;
				i++
			:: else -> break
			od;
			derive(cver)
		:: else
		fi
	:: else -> break
	od;
	forget_old();
	check_kept();
	nS = 0; nL = 0; nY = 0
}

inline forget_old() {   /* nobody can act on these versions any more: merges equal states */
	k = cver; j = 0;
	do
	:: j < N ->
		if
		:: lo[j] != DEAD && ver[j] < k -> k = ver[j]
		:: else
		fi;
		j++
	:: else -> break
	od;
	do
	:: k > 1 ->
		k--;
		if
		:: P(k, 0) == 0 -> break
		:: else
		fi;
		hea[k] = 0; tai[k] = 0; j = 0;
		do
		:: j < N -> P(k, j) = 0; SUC(k, j) = 0; j++
		:: else -> break
		od
	:: else -> break
	od;
	j = 0
}

/* ------------------------------------------------------------------ a storage process */

inline look(t) {        /* Targets._decide_steps: local_state.start_is_over and next_step */
	st = PUB(t);
#ifdef MUTANT_RESTARTED_IS_TRUSTED
	if
	:: lo[t] == STARTING -> lo[t] = UPTODATE
	:: else
	fi;
#endif
	if
	:: lo[t] == STARTING && st == LASTSRV -> lo[t] = ONLINE         /* Targets._end_start */
	:: lo[t] == STARTING && st == OFFLINE -> lo[t] = EVICTED
	:: else
	fi;
	if
	:: lo[t] == EVICTED && OUT(st) -> step[t] = RELOAD
	:: lo[t] == ONLINE && st == SERVING -> step[t] = PROMOTE
	:: lo[t] == UPTODATE && OUT(st) -> lo[t] = EVICTED; step[t] = RELOAD
	:: lo[t] == UPTODATE && st == SYNCING && ver[t] != sdone[t] -> lo[t] = ONLINE
	:: else
	fi;
	j = 0
}

inline forget_begun(t) {        /* the channel table is made anew from the notes, which tell of successes only */
	if
	:: ch[t * C] % 8 == 0 -> ch[t * C] = 0
	:: else
	fi;
	if
	:: ch[t * C + 1] % 8 == 0 -> ch[t * C + 1] = 0
	:: else
	fi
}

inline free_slot(m_) {
	ms[m_] = FREE; msrc[m_] = 0; mver[m_] = 0; mv[m_] = 0; mx[m_] = 0; mep[m_] = 0;
	mfull[m_] = 0; mtag[m_] = 0; mlive[m_] = 0
#if ROTS
	; mdam[m_] = 0
#endif
}

inline answer(m_, how_, x_) {   /* an answer nobody waits for is gone */
	if
	:: mlive[m_] -> ms[m_] = how_; mx[m_] = x_; mv[m_] = 0; mep[m_] = 0; mfull[m_] = 0; mtag[m_] = 0
#if ROTS
		; mdam[m_] = 0
#endif
	:: else -> free_slot(m_)
	fi;
	j = 0
}

inline learn(t, v_) {   /* RoutingCache takes in a newer version; Targets.look at once */
	ver[t] = v_; es[t] = 0;
	i = t * S;
	do
	:: i < (t + 1) * S ->
		if
#ifndef MUTANT_STALE_CHAIN_VERSION
		:: ms[i] == WAITS && mver[i] < v_ -> answer(i, REFUSED, 0)
#endif
		:: else
		fi;
		i++
	:: else -> break
	od;
	if
	:: sd[t] && sd[t] < v_ -> sd[t] = 0; j = 0;
		do
		:: j < C -> sdc[t * C + j] = 0; j++
		:: else -> break
		od
	:: else
	fi;
	if
	:: rs[t] && rs[t] != 3 && rsv[t] != v_ -> end_resync(t)
	:: else
	fi;
	look(t);
	forget_old();
	check_heads()
}

inline end_resync(t) {
	rs[t] = 0; rsv[t] = 0; rcv[t] = 0; rcx[t] = 0; rpv[t] = 0
}

inline orphan(t) {      /* forward._attempt: the outcome of the call under way stays unknown */
	a = wslot[t];
	if
	:: ms[a] >= OK -> free_slot(a)
	:: else -> mlive[a] = 0
	fi;
	wfs[t] = 0; wslot[t] = 0;
#ifndef MUTANT_EPOCH_NOT_RAISED
	ep[t]++
#endif
}

inline rest(t) {        /* the chunk lock is given back */
	wk[t] = IDLE; wv[t] = 0; wx[t] = 0; went[t] = 0; wtag[t] = 0; wfull[t] = 0; wpr[t] = 0; wtl[t] = 0;
	wset[t] = 0; wreq[t] = 0; wfs[t] = 0; wslot[t] = 0; wfb[t] = 0; win[t] = 0
#if ROTS
	; wq[t] = 0; wqv[t] = 0; wfnd[t] = 0; wdam[t] = 0
#endif
}

inline record(t, x_, v_) {      /* ChannelTable.record */
	if
	:: x_ && x_ >= SEQ(CH(t, x_)) -> CH(t, x_) = 8 * x_ + v_
	:: else
	fi;
	j = 0
}

inline acknowledge(x_, v_) {    /* the client hears of its success */
	note(v_, x_);
	if
	:: v_ > top -> top = v_
	:: else
	fi;
	if
	:: v_ > acked -> acked = v_
	:: else
	fi;
	endv[x_] = cver;
	if
	:: x_ == W1 || x_ == X -> cur[CL(x_)] = 0
	:: else -> cur[CL(x_)] = x_ + 1
	fi;
	check_kept()
}

inline begin_execute(t, v_, x_, tag_) {
	wv[t] = v_; wx[t] = x_; wtag[t] = tag_; wpr[t] = 0; wset[t] = 0;
	un[t] = 1;
	/* the place as it was found when the update came in: _prepare_and_forward's `place` */
	wtl[t] = (SUC(went[t], t) == NONE)
}

inline begin_settle(t) {        /* forward.settle: the leftover, whole, under its own version */
	wset[t] = 1; wv[t] = pv[t]; wx[t] = px[t]; wtag[t] = pt[t]; wfull[t] = 1; wpr[t] = 1; wtl[t] = 0
#if ROTS
	; if
	:: pr[t] -> wq[t] = TO_ASK
	:: else
	fi
#endif
}

#if ROTS
inline bring_committed(t) {     /* Resync._transfer: from another copy if ours is bad, as damaged if there is none */
	wset[t] = 0; wv[t] = cv[t]; wx[t] = cx[t]; wtag[t] = 0; wfull[t] = 1; wpr[t] = 1; wtl[t] = 0;
	if
	:: cr[t] && FOUND(t, cv[t], cx[t]) -> cr[t] = 0
	:: else -> wdam[t] = cr[t]
	fi;
	j = 0
}

inline go_on(t) {               /* settle has returned: dropped, or committed as damaged */
	pv[t] = 0; px[t] = 0; pt[t] = 0; pr[t] = 0; un[t] = 0; wq[t] = 0; wqv[t] = 0;
	if
	:: wk[t] == CLIENT -> decide_at_head(t)
	:: wk[t] == BRING -> bring_committed(t)
	:: wk[t] == COMPLETE -> rest(t)
	fi;
	check_kept()
}
#endif

inline decide_at_head(t) {      /* replica._decide_at_head */
	if
#ifdef MUTANT_LEFTOVER_ROLLED_BACK
	:: pv[t] -> pv[t] = 0; px[t] = 0; pt[t] = 0; begin_execute(t, cv[t] + 1, wreq[t], 1)
#else
	:: pv[t] -> begin_settle(t)
#endif
	:: else -> wfull[t] = 0; begin_execute(t, cv[t] + 1, wreq[t], 1)
	fi;
	j = 0
}

inline commit(t) {              /* forward.commit */
	if
	:: pv[t] == wv[t] && pv[t] ->
		cv[t] = pv[t]; cx[t] = px[t]; pv[t] = 0; px[t] = 0; pt[t] = 0
#if ROTS
		; cr[t] = pr[t] && !wfnd[t]; pr[t] = 0; wfnd[t] = 0
#endif
	:: else
	fi;
	un[t] = 0;
	note_commit(t)
}

inline note_commit(t) {
	if
	:: cv[t] && !IS_BAD(t) && P(cver, t) == SERVING && lease[t] -> note(cv[t], cx[t])
	:: else
	fi;
	j = 0
}

inline finish(t) {              /* everybody below has it: commit here, remember, answer */
	if
	:: wk[t] == BRING && !wset[t] -> skip           /* committed here already */
	:: else -> commit(t)
	fi;
	if
	:: wtag[t] -> record(t, wx[t], wv[t])
	:: else
	fi;
	if
	:: wk[t] == CLIENT && wset[t] ->
		/* run_update's loop: the leftover may have been this very update */
		if
		:: KNOWN(t, wreq[t]) ->
			a = wreq[t]; b = CH(t, a) % 8;
			rest(t);
			reply_to_client(t, a, b)
		:: else -> decide_at_head(t)
		fi
	:: wk[t] == CLIENT && !wset[t] ->
		a = wx[t]; b = wv[t];
		rest(t);
		reply_to_client(t, a, b)
	:: wk[t] == FORWARDED ->
		a = win[t];
		b = (cv[t] == wv[t] -> cx[t] : 0);
		answer(a, OK, b);
		rest(t)
	:: wk[t] == BRING ->
		rs[t] = 4;
		if
		:: rsv[t] != ver[t] -> end_resync(t)
		:: else
		fi;
		rest(t)
	:: wk[t] == COMPLETE -> rest(t)
	fi;
	check_kept()
}

inline reply_to_client(t, x_, v_) { /* _done: told of success under a valid lease only */
	if
	:: cur[CL(x_)] == x_ && LEASE(t) && !drop -> acknowledge(x_, v_)
	:: cur[CL(x_)] == x_ && LEASE(t) && drop -> lost_replies--
	:: else
	fi;
	j = 0
}

inline fail(t) {                /* _fail with the version pending: a repeat, the next update or resync completes it */
	if
	:: wk[t] == FORWARDED -> a = win[t]; answer(a, UNKNOWN, 0)
	:: wk[t] == BRING -> end_resync(t)
	:: else
	fi;
	rest(t)
}

inline call_successor(t) {      /* forward._attempt */
	b = SUC(ver[t], t);
	a = b * S;
	if
	:: ms[a] == FREE -> skip
	:: else ->
		a = b * S + 1;
		if
		:: ms[a] == WAITS && !mlive[a] -> free_slot(a)  /* an old copy gets lost */
		:: else
		fi
	fi;
	ms[a] = WAITS; msrc[a] = t; mver[a] = ver[t]; mv[a] = wv[t]; mx[a] = wx[t]; mep[a] = ep[t];
	mfull[a] = (wfull[t] || PUB(b) == SYNCING || P(ver[t], b) == SYNCING); mtag[a] = wtag[t]; mlive[a] = 1;
#if ROTS
	mdam[a] = wdam[t];
#endif
	wfs[t] = 1; wslot[t] = a;
	if
	:: ver[b] > mver[a] && lo[b] != DEAD -> answer(a, REFUSED, 0)
	:: else
	fi;
	j = 0
}

/* The answer to the client gets lost, or not: chosen before the d_step, which must be deterministic. */
#define MAY_DROP(c) if :: drop = 0 :: lost_replies && (c) && wk[t] == CLIENT -> drop = 1 fi
/* A process dies between the prepare and the commit of a tail, or at any other place. */
#define HALF_WAY(t) if :: half = 0 :: wk[t] && wtl[t] && !wpr[t] && wv[t] -> half = 1 fi

#define SLOT_LEFT(t) (ms[SUC(ver[t], t) * S] == FREE || ms[SUC(ver[t], t) * S + 1] == FREE || \
	(ms[SUC(ver[t], t) * S + 1] == WAITS && !mlive[SUC(ver[t], t) * S + 1]))
/* A late copy of a request names the version that its client knew; see README.md. */
#define MAY_CLIENT(t, x_) (x_ <= X && wk[t] == IDLE && LEASE(t) && CAN_READ(t) && hea[ver[t]] == t && \
	x_ >= SEQ(CH(t, x_)) && (cur[CL(x_)] == x_ || \
	(endv[x_] && ver[t] <= endv[x_] && !KNOWN(t, x_))))

inline take_request(t, x_) {    /* run_update of a client's request, up to the first await after the lock */
	if
#ifndef MUTANT_REPEAT_EXECUTED_AGAIN
	:: KNOWN(t, x_) ->
		if
		:: cur[CL(x_)] == x_ -> b = CH(t, x_) % 8; acknowledge(x_, b)
		:: else
		fi
#endif
	:: else ->
		CH(t, x_) = 8 * x_;
		wk[t] = CLIENT; went[t] = ver[t]; wreq[t] = x_;
		decide_at_head(t)
	fi;
	j = 0
}

#ifdef MUTANT_STALE_CHAIN_VERSION
#define AT_VERSION(t, m) (mver[m] <= ver[t])
#else
#define AT_VERSION(t, m) (mver[m] == ver[t])
#endif
#define MAY_ACCEPT(t, m) (ms[m] == WAITS && wk[t] == IDLE && lo[t] != DEAD && AT_VERSION(t, m) && LEASE(t) && \
	CAN_WRITE(t) && (PUB(t) == SYNCING || hea[ver[t]] != t))

inline accept(t, m) {           /* run_update of a forwarded update, up to the first await after the lock */
	if
	:: mver[m] == ver[t] && mep[m] < es[t] -> answer(m, REFUSED, 0)        /* admit_epoch */
	:: else ->
		es[t] = mep[m];
		went[t] = mver[m];
		if
		:: PUB(t) == SYNCING ->                                         /* _decide_at_syncing */
			if
			:: mfull[m] -> wfull[t] = 1; start_forwarded(t, m)
			:: else -> went[t] = 0; answer(m, REFUSED, 0)           /* SYNC_REFUSED */
			fi
		:: PUB(t) == SERVING && mv[m] <= cv[t] ->                       /* DONE */
			went[t] = 0;
			if
			:: mtag[m] -> record(t, mx[m], mv[m])
			:: else
			fi;
			b = (mv[m] == cv[t] -> cx[t] : 0);
			answer(m, OK, b)
		:: PUB(t) == SERVING && mv[m] > cv[t] && mfull[m] -> wfull[t] = 1; start_forwarded(t, m)
		:: PUB(t) == SERVING && !mfull[m] && mv[m] > cv[t] + 1 ->      /* MISSING_UPDATE */
			went[t] = 0;
			answer(m, CONTRADICTION, 0)
		:: PUB(t) == SERVING && !mfull[m] && mv[m] == cv[t] + 1 ->
			wfull[t] = 0;
			if
			:: pv[t] == mv[m] && pt[t] && mtag[m] && px[t] == mx[m] ->
				start_forwarded(t, m); wpr[t] = 1; wtl[t] = 0   /* RESUME */
			:: else -> start_forwarded(t, m)
			fi
		fi
	fi;
	j = 0
}

inline start_forwarded(t, m) {
	wk[t] = FORWARDED; win[t] = m; ms[m] = RUNS; /* mver stays: the caller's */
	begin_execute(t, mv[m], mx[m], mtag[m]);
#if ROTS
	wdam[t] = mdam[m]; mdam[m] = 0;
#endif
	mv[m] = 0; mx[m] = 0; mep[m] = 0; mfull[m] = 0; mtag[m] = 0;
}

inline prepare(t) {             /* _prepare_blocking, in a thread; the tail commits in the same call */
	wpr[t] = 1;
	if
	:: wtl[t] ->
#if ROTS
		/* put_damaged keeps the very version if it is whole */
		cr[t] = wdam[t] && (cr[t] || cv[t] != wv[t] || cx[t] != wx[t]); pr[t] = 0;
#endif
		cv[t] = wv[t]; cx[t] = wx[t]; pv[t] = 0; px[t] = 0; pt[t] = 0;
		note_commit(t);
		finish(t)
	:: else ->
		pv[t] = wv[t]; px[t] = wx[t]; pt[t] = wtag[t];
#if ROTS
		pr[t] = 0;
#endif
		check_kept()
	fi;
	j = 0
}

/* Nothing to wait for in front of a call: the version is pending here. */
#define MAY_FORWARD(t) (wk[t] && !SETTLES(t) && !wfs[t] && !wtl[t] && ver[t] > wfb[t] && (!CAN_WRITE(t) || SUC(ver[t], t) == NONE || SLOT_LEFT(t)) && (wpr[t] || \
	(AT_ONCE && CAN_WRITE(t) && SUC(ver[t], t) != NONE && !wfull[t] && P(ver[t], SUC(ver[t], t)) == SERVING)))
#ifdef MUTANT_FORWARDED_WHILE_PREPARING
#define AT_ONCE true
#else
#define AT_ONCE false
#endif

/* `only_version` of forward: resync and reads act under the version they began with, or not at all. */
#ifdef MUTANT_LEFTOVER_COMPLETED_UNDER_ANY_VERSION
#define ONLY_VERSION(t) (wk[t] == BRING)
#else
#define ONLY_VERSION(t) (wk[t] == BRING || wk[t] == COMPLETE)
#endif

/* A syncing successor is asked, too, since nothing that was sent to it before may arrive later; it proves nothing. */
#ifdef MUTANT_SYNCING_SUCCESSOR_PROVES
#define PROVES(t) true
#else
#define PROVES(t) (P(wqv[t], SUC(wqv[t], t)) == SERVING)
#endif
#ifdef MUTANT_SYNCING_SUCCESSOR_NOT_ASKED
#define MAY_ASK(t) (SUC(ver[t], t) != NONE && P(ver[t], SUC(ver[t], t)) == SERVING)
#else
#define MAY_ASK(t) (SUC(ver[t], t) != NONE)
#endif
#ifdef MUTANT_ANSWER_BESIDE_THE_LOCK
#define LOCK_IS_FREE(s) true
#else
#define LOCK_IS_FREE(s) (wk[s] == IDLE)
#endif
/* Whom the sender of the leftover asks, and whether he answers. */
#ifdef MUTANT_TAIL_PROVES
#define ASKS(t) tai[wqv[t]]
#else
#define ASKS(t) SUC(wqv[t], t)
#endif
#define SERVES_AT(s, v) (lo[s] != DEAD && ver[s] == (v) && LEASE(s) && CAN_WRITE(s) && LOCK_IS_FREE(s))
#define ANSWERS(t) SERVES_AT(ASKS(t), wqv[t])

/* The one that holds the chunk lock of target t, or would like to. */
proctype Worker(byte t) {
	do
	/* a client's request, first or repeated or late */
	:: d_step { MAY_CLIENT(t, 1) -> take_request(t, 1) }
#if W1 + W2 > 1
	:: d_step { MAY_CLIENT(t, 2) -> take_request(t, 2) }
#endif
#if W1 + W2 > 2
	:: d_step { MAY_CLIENT(t, 3) -> take_request(t, 3) }
#endif
	/* a forwarded update */
	:: d_step { MAY_ACCEPT(t, t * S) -> accept(t, t * S) }
	:: d_step { MAY_ACCEPT(t, t * S + 1) -> accept(t, t * S + 1) }
	/* the disk is done */
	:: atomic { wk[t] && !wpr[t] -> MAY_DROP(wtl[t]); d_step { prepare(t) } }
	/* forward, one attempt: _place_to_forward, then _attempt */
	:: atomic {
		MAY_FORWARD(t) -> MAY_DROP(wpr[t]); d_step {
		if
		:: !CAN_WRITE(t) || (ONLY_VERSION(t) && ver[t] != went[t]) -> fail(t)
		:: else ->
			if
#ifdef MUTANT_COMMIT_BEFORE_SUCCESSOR
			:: wpr[t] && wk[t] != BRING && P(ver[t], t) == SERVING && PUB(t) == SERVING && SUC(ver[t], t) != NONE && SLOT_LEFT(t) ->
				call_successor(t); x = wslot[t]; mlive[x] = 0; wfs[t] = 0; finish(t)
#endif
			:: SUC(ver[t], t) == NONE -> finish(t)
			:: SUC(ver[t], t) != NONE && SLOT_LEFT(t) -> call_successor(t)
			fi
		fi } }
	/* the answer */
	:: atomic {
		wfs[t] && wpr[t] && ms[wslot[t]] == OK -> MAY_DROP(true); d_step {
		x = wslot[t];
		if
		:: mx[x] == 0 || mx[x] == wx[t] || wv[t] == 0 ->
			free_slot(x); wfs[t] = 0; wslot[t] = 0;
			finish(t)
		:: else -> ms[x] = CONTRADICTION       /* _agrees: the digests differ */
		fi } }
	:: d_step {
		wfs[t] && ms[wslot[t]] == REFUSED ->
		/* ROUTING_MISMATCH: look for newer routing info first; SUPERSEDED_UPDATE cannot concern the newest call */
		x = wslot[t]; wfb[t] = mver[x]; free_slot(x); wfs[t] = 0; wslot[t] = 0 }
	:: d_step {
		wfs[t] && ms[wslot[t]] == UNKNOWN -> orphan(t) }
	:: d_step {
		wfs[t] && wpr[t] && ms[wslot[t]] == CONTRADICTION ->
		/* _react: OfflineTarget, for resync */
		x = wslot[t] / S;
		if
		:: lo[x] != DEAD && !(hea[ver[x]] == x && tai[ver[x]] == x) -> lo[x] = EVICTED; step[x] = STAY; look(x)
		:: else
		fi;
		x = wslot[t]; wfb[t] = mver[x]; free_slot(x); wfs[t] = 0; wslot[t] = 0; x = 0 }
	/* Storage._follow_routing cancels a call to one that is no longer the successor */
	:: d_step { wfs[t] && SUC(ver[t], t) != wslot[t] / S -> orphan(t) }
	/* the call breaks or times out; it may arrive all the same: try again, or give up */
	:: d_step { wfs[t] && losses -> losses--; orphan(t) }
	:: d_step { wfs[t] && losses && wpr[t] -> losses--; orphan(t); fail(t) }
#if ROTS
	/* settle._whole_or_found: our own bytes are bad */
	:: d_step {
		wq[t] == TO_ASK ->
		wqv[t] = ver[t];
		if
		:: !CAN_WRITE(t) || (ONLY_VERSION(t) && ver[t] != went[t]) -> fail(t)
		:: else ->
			if
			:: MAY_ASK(t) -> wq[t] = ASKED
			:: else -> wq[t] = SEARCH
			fi
		fi }
	/* queries.list_chunks at the successor, under its chunk lock; it settles its own leftover first */
	:: d_step {
		wq[t] == ASKED && SUC(wqv[t], t) != NONE && ANSWERS(t) ->
		s = ASKS(t);
#ifndef MUTANT_QUESTION_TAKES_NO_EPOCH
		es[s] = ep[t];
#endif
		if
		:: pv[s] && wk[s] == IDLE && CAN_READ(s) -> wk[s] = COMPLETE; went[s] = ver[s]; begin_settle(s)
		:: else ->
			if
			:: cv[s] < wv[t] && pv[s] < wv[t] && PROVES(t) -> wq[t] = LACKS
			:: else -> wq[t] = SEARCH
			fi
		fi;
		s = 0 }
	:: d_step { wq[t] == LACKS && ver[t] == wqv[t] && LEASE(t) -> go_on(t) }
	/* find_bytes: whoever does not answer is asked again later */
	:: d_step { wq[t] == SEARCH && FOUND(t, wv[t], wx[t]) -> wfnd[t] = 1; wq[t] = 0; wqv[t] = 0 }
	:: d_step { wq[t] == SEARCH && !FOUND(t, wv[t], wx[t]) && ALL_ANSWER -> wq[t] = NOBODY }
	/* put_damaged; what nobody has the bytes of may take effect once more, when its client repeats it */
	:: d_step {
		wq[t] == NOBODY && ver[t] == wqv[t] && LEASE(t) ->
		cv[t] = wv[t]; cx[t] = wx[t]; cr[t] = 1; gx[wv[t]] = 0;
		go_on(t) }
	/* settle raises; asking again under the same chain version would meet the same */
	:: d_step { wq[t] > TO_ASK && (ver[t] != wqv[t] || !LEASE(t)) -> fail(t) }
	/* Repair._repair */
	:: d_step { cr[t] && wk[t] == IDLE && !pv[t] && CAN_READ(t) && FOUND(t, cv[t], cx[t]) -> cr[t] = 0 }
#endif
	od
}

/* Resync of target t's successor, for one chain version. */
proctype Resyncer(byte t) {
	do
	/* Resync._is_wanted, then the barrier: InFlight.wait_older_left */
	:: d_step {
		rs[t] == 0 && lo[t] != DEAD && LEASE(t) && CAN_WRITE(t) && SUC(ver[t], t) != NONE &&
#ifndef MUTANT_NO_RESYNC_BARRIER
		!((wk[t] == CLIENT || wk[t] == FORWARDED) && went[t] < ver[t]) &&
#endif
		P(ver[t], SUC(ver[t], t)) == SYNCING && resd[t] != ver[t] -> rs[t] = 1; rsv[t] = ver[t] }
	/* SyncStart: the successor's list */
	:: d_step {
		rs[t] == 1 && ver[SUC(rsv[t], t)] == rsv[t] && LEASE(SUC(rsv[t], t)) && CAN_WRITE(SUC(rsv[t], t)) ->
		s = SUC(rsv[t], t);
		rcv[t] = cv[s]; rcx[t] = cx[s]; rpv[t] = pv[s]; rs[t] = 2; s = 0 }
	/* our own, later: resync_plan.merge */
	:: d_step {
		rs[t] == 2 ->
		if
#ifdef MUTANT_RESYNC_SKIPPED
		:: true -> rs[t] = 4
#else
		:: !pv[t] && !rpv[t] && cv[t] == rcv[t] && cx[t] == rcx[t] -> rs[t] = 4
		:: else -> rs[t] = 3
#endif
		fi;
		rcv[t] = 0; rcx[t] = 0; rpv[t] = 0 }
	/* Resync._bring_chunk under the chunk lock */
	:: d_step {
		rs[t] == 3 && wk[t] == IDLE ->
		if
		:: ver[t] != rsv[t] -> end_resync(t)
		:: else ->
			wk[t] = BRING; went[t] = rsv[t];
			if
			:: pv[t] -> begin_settle(t)
#if ROTS
			:: else -> bring_committed(t)
#else
			:: else -> wv[t] = cv[t]; wx[t] = cx[t]; wfull[t] = 1; wpr[t] = 1
#endif
			fi
		fi }
	/* SyncDone, with what is known of clients' updates */
	:: d_step {
		rs[t] == 4 ->
		s = SUC(ver[t], t);
		if
		:: lo[s] != DEAD && ver[s] <= ver[t] ->
			sd[s] = ver[t];
#ifndef MUTANT_CHANNELS_NOT_HANDED_OVER
			i = 0;
			do
			:: i < C ->
				if
				:: ch[t * C + i] % 8 -> sdc[s * C + i] = ch[t * C + i]
				:: else
				fi;
				i++
			:: else -> break
			od
#endif
		:: else
		fi;
		resd[t] = ver[t]; end_resync(t); s = 0 }
	od
}

/* The rest of a storage process: routing info, local states, heartbeats, death. */
proctype Node(byte t) {
	do
	/* any newer routing info; versions may be missed */
	:: d_step { lo[t] != DEAD && ver[t] < cver -> learn(t, cver) }
	:: d_step { lo[t] != DEAD && ver[t] + 1 < cver -> learn(t, ver[t] + 1) }
	/* Storage._reload */
	:: d_step {
		lo[t] == EVICTED && step[t] == RELOAD && wk[t] != CLIENT && wk[t] != FORWARDED ->
		step[t] = STAY;
		if      /* forget_updates: they will come from the predecessor; the last serving one is the truth */
#ifndef MUTANT_LAST_ONE_FORGETS
		:: PUB(t) == LASTSRV -> forget_begun(t)
#endif
		:: else -> ch[t * C] = 0; ch[t * C + 1] = 0
		fi;
		sdone[t] = 0; resd[t] = 0;
#if ROTS
		wiped[t] = 0;
#endif
		lo[t] = ONLINE; look(t) }
	/* Storage._promote */
	:: d_step {
		step[t] == PROMOTE && lo[t] != DEAD ->
		step[t] = STAY;
		if
		:: PUB(t) == SERVING ->
			if
			:: pv[t] ->
				if
				:: pt[t] -> a = px[t]; b = pv[t]; record(t, a, b)
				:: else
				fi;
				cv[t] = pv[t]; cx[t] = px[t]; pv[t] = 0; px[t] = 0; pt[t] = 0
#if ROTS
				; cr[t] = pr[t]; pr[t] = 0
#endif
			:: else
			fi;
			un[t] = 0;
			if
			:: lo[t] == ONLINE -> lo[t] = UPTODATE
			:: else
			fi;
			note_commit(t)
		:: else
		fi;
		look(t); check_kept(); check_heads() }
	/* service.sync_done */
	:: d_step {
		sd[t] && lo[t] != DEAD && sd[t] == ver[t] && LEASE(t) && PUB(t) == SYNCING && CAN_WRITE(t) ->
		i = 0;
		do
		:: i < C ->
			a = sdc[t * C + i] / 8; b = sdc[t * C + i] % 8;
			record(t, a, b);
			sdc[t * C + i] = 0;
			i++
		:: else -> break
		od;
		sd[t] = 0; sdone[t] = ver[t]; lo[t] = UPTODATE }
	/* Membership._send: what is said is what is true now; it arrives later */
	:: d_step {
		lo[t] != DEAD && !hbo[t] && (fresh[t] || hbl[t] != lo[t] || hbv[t] != ver[t] || (!lease[t] && ver[t] >= demoted[t])) ->
		hbo[t] = 1; hbl[t] = lo[t]; hbv[t] = ver[t]; hbn[t] = fresh[t]; fresh[t] = 0 }
	/* the process starts again, and fetches routing info */
	:: d_step {
		lo[t] == DEAD -> lo[t] = STARTING; ver[t] = cver; fresh[t] = 1; hbo[t] = 0; hbl[t] = 0; hbv[t] = 0; hbn[t] = 0;
		ep[t] = 1; look(t); check_heads() }
	od
}

inline end_read() {
	rp = 0; rt = 0; rk = 0; rv = 0; rfloor = 0; rw = 0
}

inline crash(t) {
	if
	:: half -> pv[t] = wv[t]; px[t] = wx[t]; pt[t] = wtag[t]
	:: else
	fi;
	/* what we sent may still arrive; who waited for us never gets an answer */
	if
	:: wfs[t] -> orphan(t)
	:: else
	fi;
	i = t * S;
	do
	:: i < (t + 1) * S ->
		if
		:: ms[i] == WAITS || ms[i] == RUNS || ms[i] >= OK ->
			if
			:: mlive[i] -> answer(i, UNKNOWN, 0)
			:: else -> free_slot(i)
			fi
		:: else
		fi;
		i++
	:: else -> break
	od;
	rest(t); end_resync(t); forget_begun(t);
	lo[t] = DEAD; lease[t] = 0; ver[t] = 0; un[t] = 0; ep[t] = 0; es[t] = 0; sdone[t] = 0; resd[t] = 0; sd[t] = 0; step[t] = STAY;
	i = 0;
	do
	:: i < C -> sdc[t * C + i] = 0; i++
	:: else -> break
	od;
	if
	:: rp && (rt == t || rk == t) -> end_read()
	:: else
	fi;
	forget_old()
}

#if ROTS
#define OTHER_SERVES(t) ((t != 0 && P(cver, 0) == SERVING && CAN_READ(0)) || (t != 1 && P(cver, 1) == SERVING && CAN_READ(1)))
inline wipe(t) {
	wipes--; half = 0; crash(t);
	cv[t] = 0; cx[t] = 0; pv[t] = 0; px[t] = 0; pt[t] = 0; pr[t] = 0; cr[t] = 0; ch[t * C] = 0; ch[t * C + 1] = 0;
	wiped[t] = 1
}
#define MORE_FAULTS (rots || wipes)
#define NO_MORE_FAULTS rots = 0; wipes = 0
#else
#define MORE_FAULTS false
#define NO_MORE_FAULTS skip
#endif

/* pass_on_and_commit answers before it commits: everybody below has committed, and nothing comes in between but death. */
#define MAY_TELL(t) (wfs[t] && wpr[t] && ms[wslot[t]] == OK && (mx[wslot[t]] == wx[t] || mx[wslot[t]] == 0) && \
	PUB(t) == SERVING && LEASE(t) && ((wk[t] == CLIENT && !wset[t]) || wk[t] == FORWARDED))
inline tell_and_die(t) {
	x = wslot[t]; free_slot(x); wfs[t] = 0; wslot[t] = 0; drop = 0; half = 0;
	if
	:: wk[t] == CLIENT ->
		a = wx[t]; b = wv[t];
		reply_to_client(t, a, b);
		crash(t)
	:: else ->
		x = win[t]; b = wx[t];
		crash(t);       /* which has whoever waits hear of no answer: this one had it already */
		if
		:: ms[x] == UNKNOWN && mlive[x] -> ms[x] = OK; mx[x] = b
		:: else
		fi
	fi;
	x = 0
}

proctype Faults() {
	do
	:: atomic { crashes && lo[0] != DEAD -> HALF_WAY(0); d_step { crashes--; crash(0) } }
	:: atomic { crashes && lo[1] != DEAD -> HALF_WAY(1); d_step { crashes--; crash(1) } }
	:: d_step { crashes && MAY_TELL(0) -> crashes--; tell_and_die(0) }
	:: d_step { crashes && MAY_TELL(1) -> crashes--; tell_and_die(1) }
#if N > 2
	:: atomic { crashes && lo[2] != DEAD -> HALF_WAY(2); d_step { crashes--; crash(2) } }
	:: d_step { crashes && MAY_TELL(2) -> crashes--; tell_and_die(2) }
#endif
	:: d_step { silences && lease[0] -> silences--; lease[0] = 0 }
	:: d_step { silences && lease[1] -> silences--; lease[1] = 0 }
#if N > 2
	:: d_step { silences && lease[2] -> silences--; lease[2] = 0 }
#endif
#if ROTS
	:: d_step { rots && pv[0] && !pr[0] -> rots--; pr[0] = 1 }
	:: d_step { rots && pv[1] && !pr[1] -> rots--; pr[1] = 1 }
#if N > 2
	:: d_step { rots && pv[2] && !pr[2] -> rots--; pr[2] = 1 }
#endif
	:: d_step { wipes && lo[0] != DEAD && OTHER_SERVES(0) -> wipe(0) }
	:: d_step { wipes && lo[1] != DEAD && OTHER_SERVES(1) -> wipe(1) }
#endif
	/* from some moment on nothing fails any more */
	:: d_step { crashes || silences || losses || lost_replies || MORE_FAULTS -> crashes = 0; silences = 0; losses = 0; lost_replies = 0; NO_MORE_FAULTS }; break
	:: !crashes && !silences && !losses && !lost_replies && !MORE_FAULTS -> break
	od
}

inline hear(t) {        /* ClusterState.hear, then Primary.settle */
	hbo[t] = 0;
	if
	:: hbn[t] -> rep[t] = 0; hbn[t] = 0
	:: else
	fi;
	if
	:: hbv[t] == cver -> rep[t] = (hbl[t] >= ONLINE -> hbl[t] : 0)
	:: else
	fi;
	settle_chain();
	if
	:: lo[t] != DEAD && hbv[t] >= demoted[t] -> lease[t] = 1    /* node_lease.granted_s */
	:: else
	fi;
	check_heads()
}

#define GONE(t) (rep[t] && (lo[t] == DEAD || fresh[t]))

inline judge(t) {
	rep[t] = 0;
	if
	:: lo[t] == DEAD -> hbo[t] = 0; hbl[t] = 0; hbv[t] = 0; hbn[t] = 0
	:: else
	fi;
	settle_chain()
}

/* The primary.  Its lock makes each of these one event. */
proctype Manager() {
	do
	:: d_step { hbo[0] -> hear(0) }
	:: d_step { hbo[1] -> hear(1) }
#if N > 2
	:: d_step { hbo[2] -> hear(2) }
#endif
	/* judge_gone: refused, or another incarnation answers; heartbeats under way are void */
	:: d_step { GONE(0) -> judge(0) }
	:: d_step { GONE(1) -> judge(1) }
#if N > 2
	:: d_step { GONE(2) -> judge(2) }
#endif
	/* judge_silent: its lease has run out before (lease.pml shows that) */
	:: d_step { !lease[0] && lo[0] != DEAD && rep[0] -> judge(0) }
	:: d_step { !lease[1] && lo[1] != DEAD && rep[1] -> judge(1) }
#if N > 2
	:: d_step { !lease[2] && lo[2] != DEAD && rep[2] -> judge(2) }
#endif
	od
}

inline begin_read(t) {  /* read_batch, steps 1 to 3 */
	rt = t; rfloor = top;
	if
#ifdef MUTANT_TAIL_NOT_ASKED
	:: true -> rp = 1
#else
	:: !un[t] -> rp = 1
	:: un[t] -> rp = 2; rw = ver[t]; rk = tai[ver[t]]
#endif
	fi;
	j = 0
}

/* Does a read end when the chain has moved on?  When asked by another replica: place_now in query_version. */
#ifdef MUTANT_LEFTOVER_COMPLETED_UNDER_ANY_VERSION
#define ENDS(t) (t != rt)
#else
#define ENDS(t) true
#endif
#define MAY_READ(t) (rp == 0 && lo[t] != DEAD && LEASE(t) && CAN_READ(t))

inline return_read(v_, x_) {
	assert(v_ >= rfloor);                           /* LINEARIZABLE */
	if
	:: v_ ->
		note(v_, x_);
		if
		:: v_ > top -> top = v_
		:: else
		fi
	:: else
	fi;
	end_read();
	check_kept()
}

proctype Reader() {
	do
	:: d_step { MAY_READ(0) -> begin_read(0) }
	:: d_step { MAY_READ(1) -> begin_read(1) }
#if N > 2
	:: d_step { MAY_READ(2) -> begin_read(2) }
#endif
	/* the committed version here, then the lease once more */
	:: d_step {
		rp == 1 ->
		if
		:: LEASE(rt) && !IS_BAD(rt) -> return_read(cv[rt], cx[rt])
		:: !LEASE(rt) || IS_BAD(rt) -> end_read()
		fi }
	/* committed_version at the tail, asked or itself: wait for the update inside, complete a leftover */
	:: d_step { rp == 2 && (lo[rk] == DEAD || ver[rk] != rw || !LEASE(rk) || !CAN_READ(rk)) && ENDS(rk) -> end_read() }
	:: d_step {
		rp == 2 && un[rk] && wk[rk] == IDLE && !(ver[rk] != rw && ENDS(rk)) ->
		if
#ifdef MUTANT_LEFTOVER_NOT_COMPLETED
		:: true -> un[rk] = 0
#else
		:: pv[rk] -> wk[rk] = COMPLETE; went[rk] = rw; begin_settle(rk)
		:: !pv[rk] -> un[rk] = 0
#endif
		fi }
	:: d_step {
		rp == 2 && !un[rk] ->
		if
		:: rk == rt -> rp = 1; rw = 0
		:: rk != rt && ver[rk] == rw && LEASE(rk) -> rv = cv[rk]; rp = 3; rw = 0
		:: rk != rt && (ver[rk] != rw || !LEASE(rk)) -> end_read()
		fi }
	/* read that version, committed or pending; the lease once more */
	:: d_step {
		rp == 3 ->
		if
		:: LEASE(rt) && rv <= cv[rt] && !IS_BAD(rt) -> return_read(cv[rt], cx[rt])
		:: LEASE(rt) && rv > cv[rt] && rv == pv[rt] && !IS_ROTTEN(rt) -> return_read(pv[rt], px[rt])
		:: else -> end_read()
		fi }
	od
}

/* ------------------------------------------------------------------ start and end */

#define SAME(t) (lo[t] == UPTODATE && ver[t] == cver && P(cver, t) == SERVING && lease[t] && wk[t] == IDLE && \
	pv[t] == 0 && cv[t] == cv[0] && cx[t] == cx[0] && (IS_BAD(t) == 0 || WIPES || ROTS > 1))
#if N > 2
#define HEALED (cur[0] == 0 && cur[1] == 0 && SAME(0) && SAME(1) && SAME(2))
#else
#define HEALED (cur[0] == 0 && cur[1] == 0 && SAME(0) && SAME(1))
#endif

/* Nothing can happen any more; the reader's steps alone do not count. */
proctype AtTheEnd() {
	do
	:: atomic { timeout -> assert(HEALED); break }
	od
}

init {
	atomic {
		i = 0;
		do
		:: i < N ->
			P(1, i) = SERVING; ord[i] = i; rep[i] = UPTODATE; lo[i] = UPTODATE; ver[i] = 1; lease[i] = 1; ep[i] = 1;
			hbl[i] = UPTODATE; hbv[i] = 1;
			i++
		:: else -> break
		od;
#ifdef JOIN             /* the last target has just come back, and nobody has heard it yet */
		P(1, N - 1) = OFFLINE; rep[N - 1] = 0; lo[N - 1] = ONLINE; hbl[N - 1] = 0; demoted[N - 1] = 1;
#endif
		derive(1);
		cur[0] = 1;
#if W2
		cur[1] = W1 + 1;
#endif
		i = 0; j = 0; k = 0; a = 0; b = 0; st = 0;
		run Worker(0); run Worker(1); run Resyncer(0); run Resyncer(1); run Node(0); run Node(1);
#if N > 2
		run Worker(2); run Resyncer(2); run Node(2);
#endif
		run Manager(); run Faults();
#if READS
		run Reader();
#endif
#ifndef NO_END
		run AtTheEnd()
#endif
	}
}

#ifdef LTL
ltl progress { <> HEALED }
#endif
