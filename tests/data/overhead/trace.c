// SPDX-License-Identifier: GPL-2.0-only
/*
 * A subsystem with a tracepoint, as small as it gets.  Without a macro it is the base;
 * PATCHED adds the event as it should be, and each other macro a fault; LOOP is none,
 * and for both, as is ONCE, a clock read before a loop, which EACH moves into it.
 */
#include "event.h"

struct job {
	u64 id;
	u64 credits;
#ifdef GROWN
	u64 submitted;
#endif
#ifdef LOOP
	struct job *next;
#endif
};

struct trace_event_raw_job_wait {
	u64 id;
#ifdef HOLE
	int credits;
#else
	u64 credits;
#endif
	u64 wait_ns;
};

u64 ktime_get(void);
u64 estimate(struct job *job);
void run(struct job *job);
void finish(struct job *job);
void __SCT__tp_func_job_wait(struct job *job, u64 value);

/* What bpf_probe.h makes of prototypes: of an event that was there before, and ours. */
#ifdef SWAPPED
typedef void (*btf_trace_job_done)(void *data, unsigned int ret, struct job *job);
#elif defined(WIDER)
typedef void (*btf_trace_job_done)(void *data, const struct job *job, u64 ret);
#elif defined(MORE)
typedef void (*btf_trace_job_done)(void *data, struct job *job, unsigned int ret,
				   const char *why);
#else
typedef void (*btf_trace_job_done)(void *data, struct job *job, unsigned int ret);
#endif
#ifndef GONE
union { btf_trace_job_done handler; } __bpf_trace_tp_map_job_done;
#endif
#ifdef PATCHED
typedef void (*btf_trace_job_wait)(void *data, struct job *job, u64 value);
union { btf_trace_job_wait handler; } __bpf_trace_tp_map_job_wait;
#endif

struct trace_event_raw_job_wait record;

static inline void trace_job_wait(struct job *job, u64 value)
{
	if (__builtin_expect(enabled(), 0))
		__SCT__tp_func_job_wait(job, value);
}

static inline int ready(struct job *job)
{
#ifdef INLINE
	trace_job_wait(job, 0);
#endif
	return job->credits > 4;
}

int submit(struct job *job)
{
#ifdef CLOCK
	u64 now = ktime_get();
#endif
#ifdef ARGUMENT
	u64 now = estimate(job);
#endif
#ifdef LOAD
	u64 now = *(volatile u64 *)&job->credits;
#endif
	if (!ready(job))
		return -1;
#ifdef LOOP
	for (; job; job = job->next)
#endif
	{
	run(job);
#ifdef PATCHED
#if defined(CLOCK) || defined(ARGUMENT) || defined(LOAD)
	trace_job_wait(job, now);
#else
	if (__builtin_expect(enabled(), 0))
		__SCT__tp_func_job_wait(job, ktime_get());
#ifdef TWICE
	run(job);
	if (__builtin_expect(enabled(), 0))
		__SCT__tp_func_job_wait(job, 0);
#endif
#endif
#endif
	}
	finish(job);
	return 0;
}

int poll(struct job *jobs, int count)
{
	int found = 0;

	for (int i = 0; i < count; i++)
		found += ready(&jobs[i]);
	return found;
}

u64 total(struct job *jobs, int count)
{
	u64 sum = 0;

#ifdef ONCE
	asm volatile(CALL "ktime_get");
#endif
	for (int i = 0; i < count; i++) {
#ifdef EACH
		asm volatile(CALL "ktime_get");
#endif
		sum += jobs[i].credits;
	}
	return sum;
}
