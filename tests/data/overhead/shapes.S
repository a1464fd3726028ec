/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * One function as different compilers, or the same one in another mood, would write it:
 * if (job->credits > 4) { run(job); return 0; } else { return -1; }
 */
	.intel_syntax noprefix
	.text

.macro function name
	.globl \name
	.type \name, @function
\name:
.endm

.macro end name
	.size \name, . - \name
	int3
.endm

function original
	push	rbx
	mov	rbx, rdi
	cmp	qword ptr [rdi + 8], 4
	jbe	1f
	call	run
	xor	eax, eax
	pop	rbx
	ret
1:	mov	eax, -1
	pop	rbx
	ret
end original

/* Other registers, other order of blocks, the opposite branch, a jump. */
function rearranged
	push	r12
	mov	r12, rdi
	cmp	qword ptr [rdi + 8], 4
	ja	2f
1:	mov	eax, -1
	pop	r12
	ret
2:	call	run
	xor	eax, eax
	jmp	3f
	int3
3:	pop	r12
	ret
end rearranged

/* An instruction more where it runs. */
function longer
	push	rbx
	mov	rbx, rdi
	cmp	qword ptr [rdi + 8], 4
	jbe	1f
	mov	rsi, qword ptr [rdi]
	call	run
	xor	eax, eax
	pop	rbx
	ret
1:	mov	eax, -1
	pop	rbx
	ret
end longer

/* Another question first. */
function asks
	push	rbx
	mov	rbx, rdi
	test	rdi, rdi
	je	1f
	cmp	qword ptr [rdi + 8], 4
	jbe	1f
	call	run
	xor	eax, eax
	pop	rbx
	ret
1:	mov	eax, -1
	pop	rbx
	ret
end asks

/* Another question in between, whatever the answer. */
function wonders
	push	rbx
	mov	rbx, rdi
	test	rdi, rdi
	je	2f
2:	cmp	qword ptr [rdi + 8], 4
	jbe	1f
	call	run
	xor	eax, eax
	pop	rbx
	ret
1:	mov	eax, -1
	pop	rbx
	ret
end wonders

/* The work is in a function of its own. */
function outlined
	push	rbx
	mov	rbx, rdi
	cmp	qword ptr [rdi + 8], 4
	jbe	1f
	call	helper
	pop	rbx
	ret
1:	mov	eax, -1
	pop	rbx
	ret
end outlined

/* It leads to somewhere else. */
function unlike
	bt	rdi, 3
	jb	1f
	jmp	rdi
1:	ret
end unlike

function helper
	call	run
	xor	eax, eax
	ret
end helper

function run
	ret
end run
