/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A tracepoint and its static branch, with the kernel's own layout of both; with BROKEN
 * the key is read instead.
 */
typedef unsigned long u64;

#ifdef __x86_64__
#define NOP ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00"
#define CALL "call "
#else
#define NOP "nop"
#define CALL "bl "
#endif

struct tracepoint {
	const char *name;
	struct {
		int enabled;
		void *entries;
	} key;
	void *funcs;
};

struct tracepoint __tracepoint_job_wait = { .name = "job_wait" };

static inline __attribute__((always_inline)) int enabled(void)
{
#ifdef BROKEN
	return *(volatile int *)&__tracepoint_job_wait.key.enabled;
#else
	asm goto("1: " NOP "\n\t"
		 ".pushsection __jump_table, \"aw\"\n\t"
		 ".balign 8\n\t"
		 ".long 1b - ., %l[yes] - .\n\t"
		 ".quad %c0 - .\n\t"
		 ".popsection"
		 : : "i" (&__tracepoint_job_wait.key) : : yes);
	return 0;
yes:
	return 1;
#endif
}
